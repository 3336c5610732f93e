"""The measurements of a comparison, each on a fresh bookie of one kind.

Invariants
- A stage that fails leaves a line in `Samples.failures` and ends its bookie; the other stages still run.
- Both kinds get the same arguments in the same order.

One thread runs them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.disk import plain_writer
from benchmarks.drivers import DriverError
from benchmarks.environment import Environment
from benchmarks.plan import Plan, Point
from benchmarks.samples import CEILING, Samples
from tests.support.bookie_process import BookieProcess

NEVER_FLUSH = {"flushInterval": "3600000"}
SMALL_CACHES = {
    "dbStorage_writeCacheMaxSizeMb": "32",
    "dbStorage_readAheadCacheMaxSizeMb": "16",
    "dbStorage_rocksDB_blockCacheSize": str(4 * 1024 * 1024),
}
_HALF = 0.5
_PACED_WARMUP = 3  # seconds; the client's JVM must keep up with the schedule when the measured time begins
_PACED_WINDOW = 8000  # adds in flight at most: the Java bookie refuses adds when more than 10,000 wait for it
_SUSTAINED = 0.97  # of the rate asked for; below, it was no half load and its latency says nothing

Log = Callable[[str], None]


def throughput_name(point: Point) -> str:
    """The metric that the rate of the latency stage is taken from."""
    return f"add {point.name}"


class Stages:
    """Runs the stages of one plan in one environment."""

    def __init__(self, environment: Environment, plan: Plan, samples: Samples, log: Log) -> None:
        self._environment = environment
        self._plan = plan
        self._samples = samples
        self._log = log

    def throughput_and_reads(self, kind: str) -> None:
        """Peak rates, CPU, memory, reads from caches and from disk."""
        self._with_bookie(kind, "throughput", {}, self._throughput_and_reads)

    def ceiling(self) -> None:
        """What the same client reaches against what answers at once, and what the disk gives a plain writer."""
        self._with_bookie(CEILING, "ceiling", {}, self._ceiling)

    def random_from_disk(self, kind: str) -> None:
        """Single reads at random over more than the caches hold."""
        self._with_bookie(kind, "misses", SMALL_CACHES, self._random_from_disk)

    def latency(self, kind: str) -> None:
        """Latency at half of the slower kind's peak. After `throughput_and_reads` of both kinds."""
        self._with_bookie(kind, "latency", {}, self._latency)

    def replay(self, kind: str) -> None:
        """Start after a crash, with everything in the journal only."""
        self._with_bookie(kind, "replay", NEVER_FLUSH, self._replay)

    # --- stages ---------------------------------------------------------------------------------------------

    def _throughput_and_reads(self, kind: str, bookie: BookieProcess) -> None:
        self._samples.add(kind, "start, empty", "s", "less", bookie.start())
        self._warm_up(bookie)
        result = self._adds(kind, bookie, self._plan.throughput)
        self._samples.add(kind, "resident memory, peak", "MB", "less", result["bookie_peak_rss_mb"])
        result = self._reads_from_memory(kind, bookie)
        self._samples.add(kind, "resident memory, after", "MB", "less", result["bookie_rss_mb"])
        self._reads_from_disk(kind, bookie)

    def _ceiling(self, kind: str, bookie: BookieProcess) -> None:
        bookie.start()
        self._adds(kind, bookie, [point for point in self._plan.throughput if point.protocol == "v2"])
        self._reads_from_memory(kind, bookie)
        for name, unit, value in plain_writer(bookie.work):
            self._samples.add(kind, name, unit, "more", value)

    def _adds(self, kind: str, bookie: BookieProcess, points: Iterable[Point]) -> dict[str, Any]:
        """The result of the last one."""
        for point in points:
            result = self._add(bookie, point, self._plan.duration)
            name = throughput_name(point)
            self._samples.add(kind, name, "entries/s", "more", result["entries_per_second"])
            self._samples.add(
                kind, f"{name}, bookie CPU", "s per million entries", "less", result["bookie_cpu_us_per_entry"]
            )
            self._samples.add(kind, f"{name}, p99 at peak", "ms", "less", result["p99_ms"])
        return result

    def _reads_from_memory(self, kind: str, bookie: BookieProcess) -> dict[str, Any]:
        """The result of the last one."""
        file = self._prefill(bookie, "cached", self._plan.cached_entries)
        for what in ("single", "batch"):
            result = self._read(bookie, file, what, ["--order", "random", "--duration", str(self._plan.duration)])
            self._read_samples(kind, f"read {what}, cached", result)
        return result

    def _reads_from_disk(self, kind: str, bookie: BookieProcess) -> None:
        files = {what: self._prefill(bookie, what, self._plan.cold_entries) for what in ("single", "batch")}
        bookie.stop()
        _drop_from_page_cache(bookie.work)
        self._samples.add(kind, "start, after clean stop", "s", "less", bookie.start())
        for what, file in files.items():
            result = self._read(bookie, file, what, ["--passes", "1", "--warmup", "0", "--duration", "60"])
            self._read_samples(kind, f"read {what}, cold", result)

    def _random_from_disk(self, kind: str, bookie: BookieProcess) -> None:
        bookie.start()
        file = self._prefill(bookie, "misses", self._plan.missed_entries)
        bookie.stop()
        _drop_from_page_cache(bookie.work)
        bookie.start()
        how = ["--order", "random", "--duration", str(self._plan.duration)]
        self._read_samples(kind, "read single, random misses", self._read(bookie, file, "single", how))

    def _latency(self, kind: str, bookie: BookieProcess) -> None:
        bookie.start()
        self._warm_up(bookie)
        for point in self._plan.latency:
            peaks = [self._samples.median(each, throughput_name(point)) for each in ("ours", "java")]
            known = [peak for peak in peaks if peak is not None]
            if len(known) < len(peaks):
                raise DriverError(f"no peak of both kinds for {point.name}, so no rate for the latency")
            rate = int(min(known) * _HALF)
            result = self._add(
                bookie,
                point,
                self._plan.duration * 2,
                *("--rate", str(rate), "--window", str(_PACED_WINDOW), "--warmup", str(_PACED_WARMUP)),
            )
            if result["entries_per_second"] < _SUSTAINED * rate:
                raise DriverError(f"{point.name}: {rate} entries/s asked, {result['entries_per_second']:.0f} done")
            for name, key in (("p50", "p50_ms"), ("p99", "p99_ms"), ("p99.9", "p999_ms")):
                self._samples.add(kind, f"add {point.name} at half peak, {name}", "ms", "less", result[key])

    def _replay(self, kind: str, bookie: BookieProcess) -> None:
        bookie.start()
        self._prefill(bookie, "replay", self._plan.replay_entries)
        bookie.kill()
        megabytes = self._plan.replay_entries * self._plan.read_size // 1_000_000
        self._samples.add(kind, f"start after SIGKILL, {megabytes} MB to replay", "s", "less", bookie.start())

    # --- parts ----------------------------------------------------------------------------------------------

    def _with_bookie(
        self, kind: str, what: str, settings: dict[str, str], stage: Callable[[str, BookieProcess], None]
    ) -> None:
        self._log(f"{what}: {kind}")
        bookie = self._environment.bookie(kind, settings)
        try:
            stage(kind, bookie)
        except (DriverError, RuntimeError, TimeoutError) as error:
            self._samples.failures.append(f"{what} of {kind}: {str(error)[-1500:]}")
            self._log(f"{what}: {kind} failed: {str(error)[-300:]}")
        finally:
            self._environment.discard(bookie)

    def _warm_up(self, bookie: BookieProcess) -> None:
        for protocol in ("v2", "v3"):
            self._environment.drive(
                bookie,
                *("add", "--protocol", protocol, "--size", "1024", "--warmup", "0"),
                *("--duration", str(max(1, self._plan.bookie_warmup // 2))),
            )

    def _add(self, bookie: BookieProcess, point: Point, duration: int, *more: str) -> dict[str, Any]:
        # Of an option given twice the later one holds.
        result = self._environment.drive(
            bookie,
            *("add", "--protocol", point.protocol, "--size", str(point.size), "--duration", str(duration)),
            *("--warmup", str(self._plan.warmup), "--window", str(self._plan.window), *more),
        )
        _check_measured(result)
        self._log(f"  add {point.name}: {result['entries_per_second']:,.0f}/s, p99 {result['p99_ms']:.1f} ms")
        return result

    def _prefill(self, bookie: BookieProcess, name: str, entries: int) -> Path:
        file = bookie.work / f"{name}.ledgers"
        self._environment.drive(
            bookie,
            *("add", "--protocol", "v2", "--size", str(self._plan.read_size), "--ledgers", "4"),
            *("--entries", str(entries), "--ledger-file", str(file)),
        )
        return file

    def _read(self, bookie: BookieProcess, file: Path, what: str, more: list[str]) -> dict[str, Any]:
        window = self._plan.batch_window if what == "batch" else self._plan.read_window
        warmup = [] if "--warmup" in more else ["--warmup", str(self._plan.warmup)]
        return self._environment.drive(
            bookie,
            *("read", "--protocol", "v2", "--ledger-file", str(file), "--read-kind", what),
            *("--window", str(window), "--batch", str(self._plan.batch), *warmup, *more),
        )

    def _read_samples(self, kind: str, name: str, result: dict[str, Any]) -> None:
        _check_measured(result)
        self._log(f"  {name}: {result['entries_per_second']:,.0f}/s, p99 {result['p99_ms']:.1f} ms")
        self._samples.add(kind, name, "entries/s", "more", result["entries_per_second"])
        self._samples.add(kind, f"{name}, p99", "ms", "less", result["p99_ms"])
        self._samples.add(
            kind, f"{name}, bookie CPU", "s per million entries", "less", result["bookie_cpu_us_per_entry"]
        )


def _check_measured(result: dict[str, Any]) -> None:
    if not result["entries"]:
        raise DriverError(f"{result['command']}: nothing was answered in {result['seconds']:.1f} s")


def _drop_from_page_cache(directory: Path) -> None:
    """Writes back and drops the files below `directory`, so that the next reads come from the disk."""
    for path in directory.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)
