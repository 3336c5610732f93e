"""How fast one journal is, beside what the disk itself gives in the same run.

    python -m benchmarks.journal --directory /data/journal --entry-bytes 1024 --batch-entries 64

A feeder thread appends batches as long as the journal has room, as an event loop would; the raw limit writes the
same bytes in groups of the same size with `pwritev` and `fdatasync` and does nothing else.
"""

from __future__ import annotations

import argparse
import os
import shutil
import struct
import threading
import time
from dataclasses import dataclass

from bookie_pod.storage.files_posix import PosixFiles
from bookie_pod.storage.journal import Journal, JournalBatch, JournalOptions, replay_journal
from bookie_pod.storage.journal.format import LENGTH


@dataclass(frozen=True)
class Load:
    entry_bytes: int
    batch_entries: int
    seconds: float
    in_flight_bytes: int

    def batch(self, number: int) -> JournalBatch:
        body_rest = bytes(max(8, self.entry_bytes - 16))
        pieces: list[bytes] = []
        first = number * self.batch_entries
        for entry_id in range(first, first + self.batch_entries):
            body = struct.pack(">qq", 7, entry_id) + body_rest
            pieces += (LENGTH.pack(len(body)), body)
        return JournalBatch(pieces, self.batch_entries, sum(map(len, pieces)), True, None)


@dataclass
class Result:
    name: str
    entries: int
    nbytes: int
    seconds: float
    syncs: int
    latencies_ms: list[float]

    def line(self) -> str:
        rate, mib = self.entries / self.seconds, self.nbytes / self.seconds / (1 << 20)
        line = f"{self.name:24} {rate:12,.0f} entries/s {mib:8.1f} MiB/s {self.syncs / self.seconds:7.0f} syncs/s"
        if self.latencies_ms:
            ordered = sorted(self.latencies_ms)
            median, high = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)]
            line += f"   batch latency p50 {median:.2f} ms, p99 {high:.2f} ms"
        return line


class Syncs:
    """Counts the journal's syncs."""

    def __init__(self) -> None:
        self.count = 0

    def observe_ms(self, value: float, count: int = 1, success: bool = True) -> None:
        self.count += 1


def through_the_journal(directory: str, load: Load, options: JournalOptions) -> Result:
    latencies: list[float] = []
    room = threading.Event()

    def deliver(batches: list[JournalBatch], error: BaseException | None) -> None:
        now = time.monotonic()
        latencies.extend((now - batch.queued_at) * 1000 for batch in batches)
        room.set()

    failures: list[Exception] = []
    journal = Journal(directory, 0, PosixFiles(), options, deliver, failures.append)  # type: ignore[arg-type]
    syncs = Syncs()
    journal._metrics.sync = syncs
    prepared = [load.batch(number) for number in range(256)]
    journal.start()
    began = time.monotonic()
    end, number = began + load.seconds, 0
    while time.monotonic() < end and not failures:
        if journal.queued_bytes >= load.in_flight_bytes:
            room.clear()
            if journal.queued_bytes >= load.in_flight_bytes:
                room.wait(1)
            continue
        template = prepared[number % len(prepared)]
        journal.append(JournalBatch(template.pieces, template.entries, template.nbytes, True, None))
        number += 1
    journal.stop()
    took = time.monotonic() - began
    if failures:
        raise failures[0]
    acknowledged = len(latencies)
    nbytes = acknowledged * prepared[0].nbytes
    return Result("journal", acknowledged * load.batch_entries, nbytes, took, syncs.count, latencies)


def raw(directory: str, load: Load, group_bytes: int) -> Result:
    batch = load.batch(0)
    data = b"".join(batch.pieces)
    per_group = max(1, group_bytes // len(data))
    group = data * per_group
    fd = os.open(f"{directory}/raw", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    began = time.monotonic()
    groups = 0
    while time.monotonic() - began < load.seconds:
        os.pwrite(fd, group, groups * len(group))
        os.fdatasync(fd)
        groups += 1
    took = time.monotonic() - began
    os.close(fd)
    os.unlink(f"{directory}/raw")
    entries = groups * per_group * load.batch_entries
    return Result(f"write+fdatasync {len(group) >> 10} KiB", entries, groups * len(group), took, groups, [])


class Nothing:
    """A replay sink that only counts."""

    def __init__(self) -> None:
        self.entries = 0

    def on_key(self, ledger_id: int, key: bytes) -> None: ...
    def on_fence(self, ledger_id: int) -> None: ...
    def on_deletion(self, ledger_id: int) -> None: ...

    def on_explicit_lac(self, ledger_id: int, packet: bytes) -> None: ...
    def on_entry(self, ledger_id: int, entry_id: int, entry: bytes) -> None:
        self.entries += 1


def replay(directory: str) -> Result:
    sink = Nothing()
    total = [0, 0]
    began = time.monotonic()

    def progress(done: int, of: int) -> None:
        total[:] = [done, of]

    replay_journal(directory, [], PosixFiles(), sink, progress=progress)
    return Result("replay", sink.entries, total[0], time.monotonic() - began, 0, [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--directory", required=True, help="an empty or missing directory on the disk to measure")
    parser.add_argument("--entry-bytes", type=int, default=1024)
    parser.add_argument("--batch-entries", type=int, default=64, help="entries that one socket read yields")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--in-flight-mib", type=float, default=8.0, help="bytes not yet acknowledged")
    parser.add_argument("--no-group-checks", action="store_true")
    arguments = parser.parse_args()
    load = Load(
        arguments.entry_bytes, arguments.batch_entries, arguments.seconds, int(arguments.in_flight_mib * (1 << 20))
    )
    os.makedirs(arguments.directory, exist_ok=True)
    if os.listdir(arguments.directory):
        parser.error(f"{arguments.directory} is not empty")
    options = JournalOptions(group_checks=not arguments.no_group_checks)
    try:
        measured = through_the_journal(arguments.directory, load, options)
        print(measured.line())
        synced = measured.nbytes // max(1, measured.syncs)
        for group_bytes in (options.group_bytes, synced):
            limit = raw(arguments.directory, load, group_bytes)
            print(
                limit.line(),
                f"  journal/raw {measured.entries / measured.seconds / (limit.entries / limit.seconds):.2f}",
            )
        print(replay(arguments.directory).line())
    finally:
        shutil.rmtree(arguments.directory)


if __name__ == "__main__":
    main()
