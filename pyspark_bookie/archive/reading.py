"""Reading Parquet files into verified entries: manifests, whole ledgers, and ranges of entries.

Whole ledgers are read by `read_payloads` and `count_files`, ranges by `read_entries`.

Damage and unknown states are different errors: damage is `ArchiveDamaged`, a missing file `ArchivedFileMissing`, and a
store that does not answer `ArchiveUnavailable`. Each names the ledger and the file.

Memory: one row group, which `writing` bounds in bytes.

Invariants
- Every page's checksum is verified, and that entries are those that belong there; of a ledger that is read whole its
  CRC32C, too, behind the last entry.
- An entry is given once, in order, or it is an error.

Any thread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeVar

from bookie_protocol.archive import ArchivedFile, ArchivedLedger, Counts
from bookie_protocol.errors import EntryDamaged, MetadataDamaged
from bookie_protocol.shown import one_line, shown_uri
from pyspark_bookie.archive.checksum import Counter
from pyspark_bookie.archive.files import ArchivedFileMissing, ArchiveUnavailable, Files, is_of_this_process
from pyspark_bookie.archive.manifest import MANIFESTS, Manifest, manifest_file, parse_manifest_file
from pyspark_bookie.archive.writing import schema
from pyspark_bookie.common.throttle import Throttle

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


def read_manifest(files: Files, ledger_id: int, uuid: str) -> Manifest | None:
    """The manifest that an attempt wrote of a ledger; None: there is none. Raises as `manifest_at`."""
    found = find_manifest(files, ledger_id, uuid)
    return None if found is None else found[1]


def find_manifest(files: Files, ledger_id: int, uuid: str) -> tuple[str, Manifest] | None:
    """The same, with its path, as older versions named it by the ledger alone."""
    found = manifest_at(files, ledger_id, uuid)
    if found is not None and found.uuid != uuid:
        raise MetadataDamaged(f"{manifest_file(ledger_id, uuid)} is the manifest of another attempt")
    if found is not None:
        return manifest_file(ledger_id, uuid), found
    found = manifest_at(files, ledger_id, None)
    return (manifest_file(ledger_id, None), found) if found is not None and found.uuid == uuid else None


def manifest_at(files: Files, ledger_id: int, uuid: str | None) -> Manifest | None:
    """The manifest of this name (see `archived_ledgers`); None: there is none. Raises `MetadataDamaged`,
    `ArchiveUnavailable`."""
    path = manifest_file(ledger_id, uuid)
    try:
        data = files.read(path)
    except ArchivedFileMissing:
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
    """The payloads in order. Raises `EntryDamaged` for what is not what was written, `ArchivedFileMissing`,
    `ArchiveUnavailable`."""
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
    for file in parts:
        if file.first_entry != counter.entries:
            raise EntryDamaged(f"{file.path} of ledger {ledger_id} begins behind entry {counter.entries}")
        part = _Part(files, ledger_id, file)
        for group, start, count in part.groups():
            last = start + count - 1
            for batch in part.read(group, last):
                throttle.take(batch.nbytes)
                part.check(batch, counter, last)
                yield batch


T = TypeVar("T")

_COLUMNS: Final = ["ledger_id", "entry_id", "value", "lac"]
"""The columns to read; those that a file does not have are left out."""


class ArchiveDamaged(EntryDamaged):
    """Files are not what was written. Entries up to `last` are not to be had; what is behind it may be."""

    def __init__(self, text: str, last: int) -> None:
        super().__init__(text)
        self.last = last


def read_entries(files: Files, ledger: ArchivedLedger, first: int, last: int) -> Iterator[pa.RecordBatch]:
    """Entries `first` to `last`, both included: `entry_id`, `value` and, but for files of older versions, `lac`.

    Raises `ArchiveDamaged`, `ArchivedFileMissing`, `ArchiveUnavailable`."""
    counter: Counter | None = None
    for file in ledger.files:
        if file.first_entry + file.entries <= first or file.first_entry > last:
            continue
        part = _Part(files, ledger.ledger_id, file)
        for group, start, count in part.groups():
            if start + count <= first or start > last:
                continue
            counter = counter or Counter(start)
            for batch in part.read(group, start + count - 1):
                at = counter.entries
                part.check(batch, counter, start + count - 1)
                begin, end = max(first - at, 0), min(last + 1 - at, len(batch))
                if begin < end:
                    yield batch.slice(begin, end - begin)
    what = f"the files of ledger {ledger.ledger_id} in {shown_uri(ledger.target)}"
    if counter is None or counter.entries <= last:
        raise ArchiveDamaged(f"{what} end before entry {last}", last)
    if first == 0 and last + 1 == ledger.counts.entries and counter.counts() != ledger.counts:
        raise ArchiveDamaged(f"{what} are not what was written", last)


class _Part:
    """One file, opened when it is needed."""

    def __init__(self, files: Files, ledger_id: int, file: ArchivedFile) -> None:
        self._files = files
        self._ledger_id = ledger_id
        self._file = file
        self._what = f"{files.shown(file.path)} of ledger {ledger_id}"
        self._last = file.first_entry + file.entries - 1
        self._opened: pq.ParquetFile | None = None

    def groups(self) -> Iterator[tuple[int, int, int]]:
        """Number, first entry and entries of each row group."""
        self._check_size()
        metadata = self._tried(lambda opened: opened.metadata, self._last)
        start = self._file.first_entry
        for group in range(metadata.num_row_groups):
            count = metadata.row_group(group).num_rows
            yield group, start, count
            start += count
        if start != self._last + 1:
            raise ArchiveDamaged(f"{self._what} ends at entry {start - 1}, not {self._last}", self._last)

    def read(self, group: int, last: int) -> list[pa.RecordBatch]:
        """A row group, whose last entry is `last`."""
        return self._tried(lambda opened: _checked(opened).read_row_group(group, columns=_COLUMNS).to_batches(), last)

    def check(self, batch: pa.RecordBatch, counter: Counter, last: int) -> None:
        """Check that these are the entries that come next, and count them. Raises `ArchiveDamaged`."""
        import pyarrow.compute as pc

        if not pc.all(pc.equal(batch.column("ledger_id"), self._ledger_id)).as_py():
            raise ArchiveDamaged(f"{self._what} holds entries of other ledgers than {self._ledger_id}", last)
        try:
            counter.add_arrow(counter.entries, batch.column("entry_id"), batch.column("value"))
        except EntryDamaged as error:
            raise ArchiveDamaged(f"{self._what}: {error}", last) from None

    # --- inside -------------------------------------------------------------------------------------------------

    def _open(self) -> pq.ParquetFile:
        import pyarrow.parquet as pq

        if self._opened is None:
            self._opened = pq.ParquetFile(
                self._files.path(self._file.path),
                filesystem=self._files.system,
                page_checksum_verification=True,
                memory_map=False,
            )
        return self._opened

    def _tried(self, read: Callable[[pq.ParquetFile], T], last: int) -> T:
        """Stores and Parquet fail with the same errors. What fails is read once more, in a way that tells which of them
        it was.

        Errors of theirs lose their tracebacks: pyarrow keeps what a file failed with, and they lead back to the file,
        in a circle that no collector sees."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return read(self._open())
        except Exception as error:
            self._opened = None
            error.with_traceback(None)
        with self._reached():
            noted = self._files.open(self._file.path)
        try:
            self._opened = pq.ParquetFile(pa.PythonFile(noted, mode="r"), page_checksum_verification=True)
            return read(self._opened)
        except (pa.ArrowException, OSError, UnicodeError) as error:  # the last for the name of a column
            self._opened = None
            error.with_traceback(None)
            with suppress(OSError):
                noted.close()
            if noted.failure is not None:
                with self._reached():
                    raise self._files.read_failed(self._file.path, noted.failure) from None
            if is_of_this_process(error):
                with self._reached():
                    raise self._files.failed(self._file.path, error) from None
            raise ArchiveDamaged(f"{self._what} is damaged: {one_line(error)}", last) from None

    def _check_size(self) -> None:
        with self._reached():
            size = self._files.size(self._file.path)
            if size is None:
                raise self._files.failed(self._file.path, FileNotFoundError())
        if size != self._file.nbytes:
            raise ArchiveDamaged(f"{self._what} has {size} bytes, and {self._file.nbytes} were written", self._last)

    @contextmanager
    def _reached(self) -> Iterator[None]:
        try:
            yield
        except (ArchivedFileMissing, ArchiveUnavailable) as error:
            raise type(error)(f"ledger {self._ledger_id}: {error}") from None


def _checked(opened: pq.ParquetFile) -> pq.ParquetFile:
    """The footer, which says what the columns are, has no checksum."""
    import pyarrow as pa

    written, found = list(schema()), list(opened.schema_arrow)
    names = [field.name for field in found if field in written]
    if len(set(names)) != len(found) or not {*_COLUMNS[:-1]} <= {*names}:
        raise pa.ArrowInvalid(f"its columns are not those that were written: {', '.join(map(str, found))}")
    return opened
