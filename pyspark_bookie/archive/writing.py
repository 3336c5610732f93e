"""Writing entries into Parquet files with the columns `ledger_id`, `entry_id`, `length`, `value` and `lac`.

Rows are sorted by the ids.

Files are compressed with zstd and have checksums of pages.

Memory: one row group, `ROW_GROUP_BYTES` of payload or one entry, and what Parquet makes of it.

One thread uses a writer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from bookie_client.reading.entry import LedgerEntry
from bookie_protocol.archive import ArchivedFile, Counts
from pyspark_bookie.archive.checksum import Counter
from pyspark_bookie.archive.files import ArchivedFileMissing, ArchiveUnavailable, Files
from pyspark_bookie.archive.manifest import data_file
from pyspark_bookie.common.throttle import Throttle

if TYPE_CHECKING:
    import pyarrow as pa

ROW_GROUP_BYTES: Final = 32 * 1024 * 1024
ROW_GROUP_ENTRIES: Final = 100_000


class Written:
    """The files written, with paths relative to the given folder, and their counts."""

    def __init__(self, files: tuple[ArchivedFile, ...], counts: Counts) -> None:
        self.files = files
        self.counts = counts


def schema() -> pa.Schema:
    """The schema of all files. `length`: bytes of `value`; `lac`: the last add confirmed that the entry carried.
    Files of older versions do not have it."""
    import pyarrow as pa

    return pa.schema(
        [
            ("ledger_id", pa.int64()),
            ("entry_id", pa.int64()),
            ("length", pa.int32()),
            ("value", pa.binary()),
            ("lac", pa.int64()),
        ]
    )


def write_ledger(
    files: Files,
    folder: str,
    ledger_id: int,
    uuid: str,
    batches: Iterable[Sequence[LedgerEntry]],
    max_file_bytes: int,
    throttle: Throttle,
) -> Written:
    """Write the entries of one ledger, in order from entry 0, as one file or several in `folder`. Raises what `batches`
    raises, `ArchiveUnavailable`."""
    files.make_folder(folder)
    writer = _Writer(files, folder, ledger_id, uuid, max_file_bytes)
    try:
        for batch in batches:
            throttle.take(sum(len(entry.payload) for entry in batch))
            writer.add([entry.payload for entry in batch], [entry.lac for entry in batch])
    except BaseException:
        writer.abandon()
        raise
    return writer.end()


class _Writer:
    def __init__(self, files: Files, folder: str, ledger_id: int, uuid: str, max_file_bytes: int) -> None:
        self._files = files
        self._folder = folder
        self._ledger_id = ledger_id
        self._uuid = uuid
        self._max_file_bytes = max_file_bytes
        self._counter = Counter()
        self._waiting: list[bytes] = []
        self._waiting_lacs: list[int] = []
        self._waiting_bytes = 0
        self._next_entry = 0
        self._done: list[ArchivedFile] = []
        self._open: Any = None
        self._open_bytes = 0
        self._open_first = 0

    def add(self, payloads: list[bytes], lacs: list[int]) -> None:
        self._counter.add(payloads)
        for payload, lac in zip(payloads, lacs, strict=True):
            self._waiting.append(payload)
            self._waiting_lacs.append(lac)
            self._waiting_bytes += len(payload)
            if self._waiting_bytes >= ROW_GROUP_BYTES or len(self._waiting) >= ROW_GROUP_ENTRIES:
                self._write_group()

    def end(self) -> Written:
        self._write_group()
        self._close_file()
        return Written(tuple(self._done), self._counter.counts())

    def abandon(self) -> None:
        """Close what is open; the files are of no use."""
        if self._open is not None:
            with suppress(ArchivedFileMissing, ArchiveUnavailable), self._files.requests(self._open_path()):
                self._open.close()
            self._open = None

    def _write_group(self) -> None:
        import pyarrow as pa

        if not self._waiting:
            return
        if self._open is None:
            self._open_file()
        count = len(self._waiting)
        values = pa.array(self._waiting, pa.binary())
        columns = [
            pa.repeat(pa.scalar(self._ledger_id, pa.int64()), count),
            pa.array(range(self._next_entry, self._next_entry + count), pa.int64()),
            pa.array([len(payload) for payload in self._waiting], pa.int32()),
            values,
            pa.array(self._waiting_lacs, pa.int64()),
        ]
        table = pa.Table.from_arrays(columns, schema=schema())
        with self._files.requests(self._open_path()):
            self._open.write_table(table, row_group_size=count)
        self._next_entry += count
        self._open_bytes += self._waiting_bytes
        self._waiting, self._waiting_lacs, self._waiting_bytes = [], [], 0
        if self._open_bytes >= self._max_file_bytes:
            self._close_file()

    def _open_file(self) -> None:
        import pyarrow.parquet as pq

        with self._files.requests(self._open_path()):
            self._open = pq.ParquetWriter(
                self._files.path(self._open_path()),
                schema(),
                filesystem=self._files.system,
                compression="zstd",
                use_dictionary=["ledger_id"],
                column_encoding={"lac": "DELTA_BINARY_PACKED"},
                write_statistics=["ledger_id", "entry_id"],
                write_page_checksum=True,
                sorting_columns=[pq.SortingColumn(0), pq.SortingColumn(1)],
            )
        self._open_first, self._open_bytes = self._next_entry, 0

    def _open_path(self) -> str:
        return f"{self._folder}/{data_file(self._ledger_id, self._uuid, len(self._done))}"

    def _close_file(self) -> None:
        if self._open is None:
            return
        path = self._open_path()
        with self._files.requests(path):
            self._open.close()
        self._open = None
        name = path.rpartition("/")[2]
        size = self._files.size(path) or 0
        self._done.append(ArchivedFile(name, size, self._open_first, self._next_entry - self._open_first))
