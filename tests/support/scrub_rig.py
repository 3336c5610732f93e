"""An engine in memory with its scrubber, entries with real digests, and a hand that flips bits."""

from __future__ import annotations

import threading
from typing import Final

from bookie_pod.metrics.scrub import ScrubMetrics
from bookie_pod.storage.entry_log.format import split_location
from bookie_pod.storage.gc.storage import CollectedStorage, collected
from bookie_pod.storage.gc.throttle import ScrubPace
from bookie_pod.storage.integrity.entry_check import DigestTypes
from bookie_pod.storage.integrity.ledger_scrub import LedgerScrub
from bookie_pod.storage.integrity.quarantine import Damage
from bookie_protocol.digest import DigestType, digest_manager
from tests.support.memory_files import MemoryFiles
from tests.support.memtable_engine import MemTableBookie
from tests.support.production import changed
from tests.support.storage_engine import MemoryBookie, put, small_options


def signed(ledger_id: int, entry_id: int, size: int = 100, digest: DigestType = DigestType.CRC32C) -> bytes:
    """An entry as a client sends it."""
    payload = bytes((ledger_id + entry_id + at) % 251 for at in range(size))
    length = min(size * (entry_id + 1), (1 << 63) - 1)
    return digest_manager(digest, b"pw").encode(ledger_id, entry_id, entry_id - 1, length, payload)


class FixedDigests:
    """`digests`: ledger id -> type; every other ledger has `default`."""

    def __init__(self, default: DigestType | None = DigestType.CRC32C, **digests: DigestType | None) -> None:
        self.default = default
        self.digests: dict[int, DigestType | None] = {}

    def digest_type(self, ledger_id: int, *, fresh: bool = False) -> DigestType | None:
        return self.digests.get(ledger_id, self.default)


class ScrubRig:
    """One ledger directory; `now` is the scrubber's clock in ms."""

    def __init__(self, bookie: MemoryBookie | MemTableBookie | None = None) -> None:
        self.bookie = bookie or MemoryBookie()
        self.digests = FixedDigests()
        self.now = 1_000_000_000_000
        self.stopped = threading.Event()
        self.stop_after: int | None = None
        self.paid = 0
        self.open()

    def open(self, metrics: ScrubMetrics | None = None) -> None:
        self.storage = self.bookie.open()
        self.part: CollectedStorage = collected(self.storage)[0]
        self.stopped.clear()
        self.scrub = LedgerScrub(
            self.part,
            self.bookie.files,
            self.bookie.directories[0],
            _CountingPace(self),
            self._digests(),
            metrics=metrics,
            now_ms=lambda: self.now,
        )

    def _digests(self) -> DigestTypes:
        return self.digests

    def restart(self) -> None:
        self.storage.close()
        self.open()

    @property
    def files(self) -> MemoryFiles:
        return self.bookie.files

    def write(self, ledgers: range | list[int], entries: int, first: int = 0) -> None:
        """Entries of these ledgers in one closed log."""
        for entry_id in range(first, first + entries):
            put(self.storage, *(signed(ledger_id, entry_id) for ledger_id in ledgers))
        self.storage.flush()
        self.part.logs.rotate()
        self.part.logs.sync()
        self.storage.flush()

    def place(self, ledger_id: int, entry_id: int) -> tuple[str, int]:
        """File and offset of an entry's first byte."""
        log_id, position = split_location(self.part.location_of(ledger_id, entry_id))
        return self.part.logs.path(log_id), position

    def flip(self, path: str, offset: int, bit: int = 0) -> None:
        """Flip one bit on the disk."""
        byte = self.files.read_bytes(path)[offset]
        self.files.corrupt(path, offset, bytes([byte ^ 1 << bit]))

    def run(self) -> list[Damage]:
        """One pass; all damage that is known afterwards."""
        self.now += 1000
        self.scrub.run()
        return self.scrub.register.damages()


RIGS: Final = ("db", "past the page cache", "sorted", "interleaved")


def rig_of(kind: str) -> ScrubRig:
    """The rig of this engine; DbLedgerStorage with logs in the ordinary format too."""
    if kind in ("sorted", "interleaved"):
        return ScrubRig(MemTableBookie(kind))
    return ScrubRig(MemoryBookie(options=changed(small_options(), direct_io_entry_logger=kind != "db")))


class _CountingPace(ScrubPace):
    def __init__(self, rig: ScrubRig) -> None:
        super().__init__(rig.stopped, entries_per_second=0, bytes_per_second=0)
        self._rig = rig

    def pay(self, entries: int, nbytes: int) -> None:
        self._rig.paid += entries
        if self._rig.stop_after is not None and self._rig.paid > self._rig.stop_after:
            self._rig.stopped.set()
        super().pay(entries, nbytes)
