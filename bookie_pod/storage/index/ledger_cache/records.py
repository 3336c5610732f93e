"""The ledgers whose headers are in index files.

All headers are read at the start, by several threads at once, because the event loop may ask for any of them.

- A header that was never written (a crash came first) leaves a ledger in limbo, until the replay brings its key: the
  journal still has it then. Of what the replay does not bring nothing was acknowledged, so it goes, if the seal shows
  that it was never durable; else it stays in limbo.
- A header that holds something else leaves its ledger in limbo too: its slots may be whole, and say what they know.
- A file that was cut, is not there any more, or has lost a header that was durable, leaves its ledger in limbo as well,
  whatever the replay brings (see `seal`).
- A header of a newer version refuses the start.
- What another process wrote may be in the page cache alone, so the header of a ledger whose key the replay brings is
  written again, also if it says the same: the journal that has the key goes behind the replay.

Threads: see `LedgerRecords`.

Source: docs/internals/on-disk-formats.md, section 9.2.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

import structlog

from bookie_pod.storage.files import Files, storage_fault
from bookie_pod.storage.index.index_file import HEADER_BYTES, decode_header, is_newer
from bookie_pod.storage.index.ledger_cache.directories import IndexDirectories
from bookie_pod.storage.index.ledger_data import LedgerRecord, LedgerRecords
from bookie_protocol.errors import StorageFault
from bookie_protocol.keys import is_unknown_key

_log = structlog.get_logger(__name__)

_THREADS: Final = 8
_TOLD: Final = 20


class IndexRecords(LedgerRecords):
    """`LedgerRecords` of the files in some index directories."""

    def __init__(
        self,
        files: Files,
        directories: IndexDirectories,
        incomplete: Callable[[Mapping[int, int], Collection[int]], Collection[int]] = lambda lengths, headless: (),
        on_limbo: Callable[[int], None] = lambda ledger_id: None,
    ) -> None:
        """Read all headers. `StorageFault` if one cannot be read, or is of a newer release.

        `incomplete` tells from the lengths of all files, and from which have no header, which ledgers have lost
        something. `on_limbo` is called for each ledger that is in limbo, now or later."""
        super().__init__()
        self.on_limbo = on_limbo
        self.version_0: set[int] = set()
        """Ledgers whose files have the old version, which they keep."""
        self._headless: set[int] = set()
        self._replaying = True
        lengths: dict[int, int] = {}
        for ledger_id, path, header, length in _read_headers(files, directories):
            self._load(ledger_id, path, header)
            lengths[ledger_id] = length
        lost = incomplete(lengths, self._headless)
        for ledger_id in lost:
            known = self.get(ledger_id)
            if known is None or ledger_id in self._headless:
                # The fence of a lost ledger is unknown, and the key that the replay brings does not tell it.
                known = LedgerRecord(b"", fenced=True)
            self.put(ledger_id, replace(known, limbo=True))
        if lost:
            _log.error(
                "index files were cut, or are gone: their ledgers are in limbo, and to be healed from other bookies",
                ledgers=len(lost),
                first=sorted(lost)[:_TOLD],
            )

    def _load(self, ledger_id: int, path: str, header: bytes) -> None:
        try:
            decoded = decode_header(header)
            if decoded is None:
                self._headless.add(ledger_id)
                record = LedgerRecord(b"", limbo=True)
            else:
                version, record = decoded
                if version == 0:
                    self.version_0.add(ledger_id)
        except StorageFault as error:
            if is_newer(header):
                raise StorageFault(f"index file {path} {error}: it was written by a newer release") from error
            _log.error("damaged header of an index file: its ledger is in limbo", path=path, error=str(error))
            record = LedgerRecord(b"", fenced=True, limbo=True, first_log=0)  # the fence is unknown too
        self._loaded(ledger_id, record)
        if record.limbo:
            self.on_limbo(ledger_id)

    def put(self, ledger_id: int, record: LedgerRecord) -> None:
        """See `LedgerRecords`."""
        super().put(ledger_id, record)
        self._headless.discard(ledger_id)

    def set_master_key(self, ledger_id: int, key: bytes) -> LedgerRecord:
        """See `LedgerRecords`."""
        headless = ledger_id in self._headless
        record = super().set_master_key(ledger_id, key)
        if self._replaying:
            self._dirty.add(ledger_id)
        if headless and not is_unknown_key(key):
            record = replace(record, limbo=False)
            self.put(ledger_id, record)
        self._headless.discard(ledger_id)  # it was begun, though it may be without a key
        return record

    def delete(self, ledger_id: int) -> int:
        """See `LedgerRecords`."""
        self._headless.discard(ledger_id)
        self.version_0.discard(ledger_id)
        return super().delete(ledger_id)

    def end_replay(self, never_durable: Container[int]) -> list[int]:
        """Note that the replay is over, and return the ledgers to delete.

        They still have no header, and that is all that ever existed of them. Others stay in limbo, and their fence is
        unknown.
        """
        self._replaying = False
        headless, self._headless = self._headless, set()
        for ledger_id in headless.difference(never := [each for each in headless if each in never_durable]):
            _log.error("index file without a header: its ledger is in limbo", ledger_id=ledger_id)
            self.put(ledger_id, LedgerRecord(b"", fenced=True, limbo=True, first_log=0))
        return never


def _read_headers(files: Files, directories: IndexDirectories) -> Iterator[tuple[int, str, bytes, int]]:
    def read(ledger_id: int) -> tuple[int, str, bytes, int]:
        path = directories.path(ledger_id)
        assert path is not None
        try:
            file = files.open(path)
            try:
                return ledger_id, path, file.pread(HEADER_BYTES, 0), file.size()
            finally:
                file.close()
        except OSError as error:
            raise storage_fault(f"cannot read index file {path}", error) from error

    with ThreadPoolExecutor(_THREADS, "index-headers") as threads:
        yield from threads.map(read, directories.ledger_ids(), chunksize=64)
