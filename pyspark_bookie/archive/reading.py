"""Archived ledgers in: verified entries out.

Memory: one row group, which `writing` bounds in bytes.

Any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from bookie_protocol.archive.model import ArchivedFile, Counts
from bookie_protocol.errors import EntryDamaged, MetadataDamaged
from pyspark_bookie.archive.checksum import Counter
from pyspark_bookie.archive.files import Files
from pyspark_bookie.archive.layout import MANIFESTS, manifest_file, parse_manifest_file
from pyspark_bookie.archive.manifest import Manifest
from pyspark_bookie.common.throttle import Throttle

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


def read_manifest(files: Files, ledger_id: int) -> Manifest | None:
    """The manifest of a ledger; None: it is not in the archive. Raises `MetadataDamaged`."""
    path = manifest_file(ledger_id)
    try:
        data = files.read(path)
    except FileNotFoundError:
        return None
    manifest = Manifest.decode(data, path)
    if manifest.ledger_id != ledger_id:
        raise MetadataDamaged(f"{path} is the manifest of ledger {manifest.ledger_id}")
    return manifest


def archived_ledgers(files: Files) -> list[int]:
    """The ids of all ledgers in the archive, ascending."""
    names = (listed.path.rpartition("/")[2] for listed in files.list(MANIFESTS))
    return sorted(ledger_id for name in names if (ledger_id := parse_manifest_file(name)) is not None)


def read_payloads(
    files: Files, ledger_id: int, parts: Sequence[ArchivedFile], throttle: Throttle, counter: Counter | None = None
) -> Iterator[list[bytes]]:
    """The payloads in order. Raises `EntryDamaged` for what is not what was written, `FileNotFoundError`."""
    for batch in _batches(files, ledger_id, parts, throttle, counter or Counter()):
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
