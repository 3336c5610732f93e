"""Entry log: append + sync, and reads, against raw file calls with the same bytes in the same run.

    python -m benchmarks.entry_log [--directory DIR] [--mebibytes N] [--direct]

Ratios are what counts; absolute figures belong to the machine. "cold" reads come from files whose pages were dropped
from the page cache, as far as the kernel follows that advice.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import struct
import tempfile
import time
from collections.abc import Callable

from bookie_pod.storage.entry_log import EntryLogger, EntryLogOptions, LedgerDirStates
from bookie_pod.storage.files_posix import PosixFiles

SIZES = (128, 1024, 4096, 65536)
WRITE_BYTES = 1 << 20
READS = 20_000


def main() -> None:
    arguments = _arguments()
    print(f"{'entry':>7} {'what':<28} {'entries/s':>12} {'MB/s':>8} {'against raw':>12}")
    for size in SIZES:
        folder = tempfile.mkdtemp(prefix="entry-log-", dir=arguments.directory)
        try:
            _measure(folder, size, arguments.mebibytes << 20, arguments.direct)
        finally:
            shutil.rmtree(folder)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", default=None, help="where to write (default: the system's temporary folder)")
    parser.add_argument("--mebibytes", type=int, default=256, help="bytes per entry size, MiB")
    parser.add_argument("--direct", action="store_true", help="dbStorage_directIOEntryLogger=true")
    return parser.parse_args()


def _measure(folder: str, size: int, total: int, direct: bool) -> None:
    count = total // size
    ids = range(count)
    entries = [struct.pack(">qq", 7, i).ljust(size, b"x") for i in ids]
    raw = _raw_write(os.path.join(folder, "raw"), total)
    _line(size, "raw write + fdatasync", count, raw, total, None)

    logger = EntryLogger(PosixFiles(), LedgerDirStates([folder]), EntryLogOptions(direct_io=direct))
    locations: list[int] = []

    def append() -> None:
        locations.extend(logger.append_run(7, ids, entries))
        logger.sync()

    _line(size, "append_run + sync", count, _seconds(append), total, raw)
    ones = min(count, 50_000)
    _line(
        size, "append_run of one entry", ones, _seconds(lambda: _append_ones(logger, entries[:ones])), ones * size, None
    )
    logger.rotate()
    logger.sync()

    chosen = random.Random(1).sample(range(count), min(READS, count))
    path = logger.path(0)
    for state in ("cold", "warm"):
        nbytes = len(chosen) * size
        offsets = [locations[i] & 0xFFFFFFFF for i in chosen]
        _prepare(path, state)
        raw = _seconds(lambda: _raw_reads(path, offsets, size))  # noqa: B023
        _line(size, f"raw pread, {state}", len(chosen), raw, nbytes, None)
        _prepare(path, state)
        seconds = _seconds(lambda: [logger.read(locations[i], 7, i) for i in chosen])
        _line(size, f"read, {state}", len(chosen), seconds, nbytes, raw)
    _prepare(path, "cold")
    _line(size, "read_ahead of 100, cold", count, _seconds(lambda: _read_all(logger, locations)), total, None)
    logger.close()


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _raw_write(path: str, total: int) -> float:
    """The same bytes in 1 MiB writes, and one sync; removed again."""
    chunk = os.urandom(WRITE_BYTES)

    def write() -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT)
        for _ in range(total // WRITE_BYTES):
            os.write(fd, chunk)
        os.fdatasync(fd)
        os.close(fd)

    seconds = _seconds(write)
    os.unlink(path)
    return seconds


def _append_ones(logger: EntryLogger, entries: list[bytes]) -> None:
    for i, body in enumerate(entries):
        logger.append_run(8, (i,), (body,))


def _raw_reads(path: str, offsets: list[int], size: int) -> None:
    fd = os.open(path, os.O_RDONLY)
    for offset in offsets:
        os.pread(fd, size, offset)
    os.close(fd)


def _read_all(logger: EntryLogger, locations: list[int]) -> None:
    done = 0
    while done < len(locations):
        done += len(logger.read_run(locations[done], 7, done, 99, 8 << 20))


def _prepare(path: str, state: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        if state == "cold":
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        else:
            while os.read(fd, WRITE_BYTES):
                pass
    finally:
        os.close(fd)


def _line(size: int, what: str, count: int, seconds: float, nbytes: int, raw: float | None) -> None:
    ratio = "" if raw is None else f"{raw / seconds:.2f}"
    print(f"{size:>7} {what:<28} {count / seconds:>12,.0f} {nbytes / seconds / 1e6:>8,.0f} {ratio:>12}", flush=True)


if __name__ == "__main__":
    main()
