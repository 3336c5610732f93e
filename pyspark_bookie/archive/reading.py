"""Archived ledgers in: verified entries out.

Memory: one row group, which `writing` bounds in bytes.

Any thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from bookie_protocol.archive import ArchivedFile, Counts
from bookie_protocol.errors import EntryDamaged, MetadataDamaged
from pyspark_bookie.archive.checksum import Counter
from pyspark_bookie.archive.files import Files
from pyspark_bookie.archive.manifest import MANIFESTS, Manifest, manifest_file, parse_manifest_file
from pyspark_bookie.common.throttle import Throttle

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


def read_manifest(files: Files, ledger_id: int, uuid: str) -> Manifest | None:
    """The manifest that an attempt wrote of a ledger; None: there is none. Raises `MetadataDamaged`."""
    found = manifest_at(files, ledger_id, uuid)
    if found is not None and found.uuid != uuid:
        raise MetadataDamaged(f"{manifest_file(ledger_id, uuid)} is the manifest of another attempt")
    if found is None:
        found = manifest_at(files, ledger_id, None)
    return found if found is not None and found.uuid == uuid else None


def manifest_at(files: Files, ledger_id: int, uuid: str | None) -> Manifest | None:
    """The manifest of this name (see `archived_ledgers`); None: there is none. Raises `MetadataDamaged`."""
    path = manifest_file(ledger_id, uuid)
    try:
        data = files.read(path)
    except FileNotFoundError:
        return None
    manifest = Manifest.decode(data, path)
    if manifest.ledger_id != ledger_id:
        raise MetadataDamaged(f"{path} is the manifest of ledger {manifest.ledger_id}")
    return manifest


def archived_ledgers(files: Files) -> dict[int, list[str | None]]:
    """The attempts that wrote the manifests of each ledger in the archive, by id and ascending; None: the one whose
    name does not tell. A ledger has several when its number was used again."""
    found: defaultdict[int, list[str | None]] = defaultdict(list)
    for listed in files.list(MANIFESTS):
        if (told := parse_manifest_file(listed.path.rpartition("/")[2])) is not None:
            found[told[0]].append(told[1])
    return {ledger_id: sorted(found[ledger_id], key=lambda uuid: uuid or "") for ledger_id in sorted(found)}


def read_payloads(
    files: Files, ledger_id: int, parts: Sequence[ArchivedFile], throttle: Throttle
) -> Iterator[list[bytes]]:
    """The payloads in order. Raises `EntryDamaged` for what is not what was written, `FileNotFoundError`."""
    for batch in _batches(files, ledger_id, parts, throttle, Counter()):
        yield batch.column("value").to_pylist()


def count_files(files: Files, ledger_id: int, parts: Sequence[ArchivedFile], throttle: Throttle) -> Counts:
    """Read everything again and count it. Errors as `read_payloads`."""
    counter = Counter()
    for _ in _batches(files, ledger_id, parts, throttle, counter):
        pass
    return counter.counts()


def _batches(
    files: Files, ledger_id: int, parts: Sequence[ArchivedFile], throttle: Throttle, counter: Counter
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    for part in parts:
        size = files.size(part.path)
        if size is None:
            raise FileNotFoundError(f"{part.path} of ledger {ledger_id} is not there")
        if size != part.nbytes or part.first_entry != counter.entries:
            raise EntryDamaged(f"{part.path} of ledger {ledger_id} is not what was written: it has {size} bytes")
        try:
            with pq.ParquetFile(
                files.path(part.path), filesystem=files.system, page_checksum_verification=True, memory_map=False
            ) as opened:
                for batch in _groups(opened):
                    if not pc.all(pc.equal(batch.column("ledger_id"), ledger_id)).as_py():
                        raise EntryDamaged(f"{part.path} holds entries of other ledgers than {ledger_id}")
                    throttle.take(batch.nbytes)
                    counter.add_arrow(counter.entries, batch.column("entry_id"), batch.column("value"))
                    yield batch
        except (pa.ArrowInvalid, OSError, KeyError) as error:  # no such column: its metadata are damaged
            if isinstance(error, FileNotFoundError):
                raise
            raise EntryDamaged(f"{part.path} of ledger {ledger_id} cannot be read: {error}") from error
        if counter.entries != part.first_entry + part.entries:
            raise EntryDamaged(f"{part.path} of ledger {ledger_id} ends at entry {counter.entries - 1}")


def _groups(opened: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    for group in range(opened.num_row_groups):
        yield from opened.read_row_group(group, columns=["ledger_id", "entry_id", "value"]).to_batches()
