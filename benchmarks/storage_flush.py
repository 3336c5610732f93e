"""What a put and a flush cost: entries per second, microseconds per entry and stage, and how long the loop is held up.

    python -m benchmarks.storage_flush [--entries N] [--size BYTES] [--ledgers N] [--directory PATH]

A thread stands for the event loop: it wakes every 0.5 ms and notes how late it was while the flush ran.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

from bookie_pod.metrics.db_storage import DbStorageMetrics, FlushStage
from bookie_pod.metrics.registry import Registry
from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.engines.registry import DbStorageOptions, StorageParts, StorageSettings, open_storage
from bookie_pod.storage.files_posix import PosixFiles


class StageTimes(DbStorageMetrics):
    def __init__(self) -> None:
        super().__init__(Registry(), "", "")
        self.seconds = dict.fromkeys(FlushStage, 0.0)

    def flushed(self, stage: FlushStage, seconds: float) -> None:
        self.seconds[stage] += seconds


class LoopStandIn:
    """A thread that wants to run every half millisecond; `worst` is the longest it had to wait for that."""

    def __init__(self) -> None:
        self.late: list[float] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        last = time.perf_counter()
        while not self._stop.is_set():
            time.sleep(0.0005)
            now = time.perf_counter()
            self.late.append(now - last - 0.0005)
            last = now

    def __enter__(self) -> LoopStandIn:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def percentile(self, share: float) -> float:
        return sorted(self.late)[min(len(self.late) - 1, int(len(self.late) * share))]


def _put(storage: DbLedgerStorage, entries: list[bytes], ledgers: int, first: int) -> float:
    """Put as the server does, in chunks of 64 per ledger; seconds."""
    begin = time.perf_counter()
    per_ledger = len(entries) // ledgers
    for start in range(0, per_ledger, 64):
        for ledger_id in range(ledgers):
            chunk = entries[ledger_id * per_ledger + start : ledger_id * per_ledger + min(start + 64, per_ledger)]
            active = storage.active_entries(ledger_id)
            entry_id = first + start
            for entry in chunk:
                active[entry_id] = entry
                entry_id += 1
            storage.account(ledger_id, sum(map(len, chunk)), len(chunk))
    return time.perf_counter() - begin


def _entries(count: int, size: int, ledgers: int) -> list[bytes]:
    """Separate objects, as they come from a socket."""
    per_ledger = count // ledgers
    tail = bytes(size - 16)
    return [
        (number // per_ledger).to_bytes(8, "big") + (number % per_ledger).to_bytes(8, "big") + tail
        for number in range(per_ledger * ledgers)
    ]


def run(directory: Path, count: int, size: int, ledgers: int) -> None:
    times = StageTimes()
    storage = open_storage(
        StorageSettings([str(directory / "current")], db=DbStorageOptions(write_cache_bytes=4 << 30)),
        StorageParts(PosixFiles(), lambda action: action(), metrics=lambda *_: times),
    )
    assert isinstance(storage, DbLedgerStorage)
    for ledger_id in range(ledgers):
        storage.set_master_key(ledger_id, bytes(20))
    for turn in range(3):
        entries = _entries(count, size, ledgers)
        per_ledger = len(entries) // ledgers
        times.seconds = dict.fromkeys(FlushStage, 0.0)
        put_seconds = _put(storage, entries, ledgers, turn * per_ledger)
        with LoopStandIn() as loop:
            storage.flush()
        total = len(entries)
        flush = times.seconds[FlushStage.WHOLE]
        stages = "  ".join(f"{stage.value} {times.seconds[stage] / total * 1e6:.2f}" for stage in FlushStage)
        print(
            f"{total} entries of {size} B in {ledgers} ledgers: put {put_seconds / total * 1e6:.2f} us, "
            f"{stages} us/entry; put+flush {total / (put_seconds + flush):,.0f}/s, "
            f"{total * size / flush / 1e6:,.0f} MB/s; loop late p99 {loop.percentile(0.99) * 1e3:.1f} ms, "
            f"worst {max(loop.late) * 1e3:.1f} ms"
        )
    begin = time.perf_counter()
    reads = min(count // ledgers, 20_000)
    for entry_id in range(reads):
        storage.read(0, entry_id)
    print(f"sequential cold reads: {(time.perf_counter() - begin) / reads * 1e6:.2f} us/entry")
    storage.close()


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=200_000)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--ledgers", type=int, default=100)
    parser.add_argument("--directory", type=Path, help="a folder on the disk to measure; default: a temporary one")
    given = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="storage-flush-", dir=given.directory))
    try:
        run(folder, given.entries, given.size, given.ledgers)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
