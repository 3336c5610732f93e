"""The trial: write a file as a ledger through real bookies, kill one in the middle, read every byte back.

Invariants
- The trial passes only when every byte that was read back equals the file, read again from the disk, and both
  digests agree. An entry that was acknowledged and does not come back is a failure, whatever caused it.
- It ends by itself: every request, start and stop has a time-out. It stops what it started, and removes its
  own temporary directory.

Threads: event loop only; presentation is the caller's (`Progress`).
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
import time
from array import array
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, Protocol

from bookie_client import Client, ClientOptions, LedgerWriter
from bookie_pod.node.standalone.cluster import StandaloneCluster
from bookie_protocol.errors import InvalidConfiguration, PodkeeperError

ENSEMBLE: Final = 3
WRITE_QUORUM: Final = 3
ACK_QUORUM: Final = 2
WINDOW_ENTRIES: Final = 1_000
"""Appends under way: enough to keep the journals' groups full, few enough that latency is the bookies' and
not a queue."""
SAMPLE_BYTES: Final = 64 * 1024 * 1024
_LEVELS: Final = ("INFO", "INFO", "INFO", "DEBUG", "WARN", "ERROR")
_EVENTS: Final = (
    "session opened by user-{a} from 10.{b}.{c}.{d}",
    "GET /orders/{a} 200 {b} ms",
    "POST /carts/{a}/items 201 {b} ms",
    "checkpoint {a} written, {b} segments, {c} ms",
    "queue depth {a}, oldest message {b} ms",
    "retrying shard-{c} after {b} ms",
    "cache hit ratio 0.{a}, {d} evictions",
)
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOptions:
    """`file` None: a log of 64 MiB is generated. `data` None: a temporary directory, removed at the end."""

    file: Path | None = None
    bookies: int = 3
    entry_size: int = 1024
    data: Path | None = None
    kill: bool = True


@dataclass(slots=True)
class TrialReport:
    """The results of a trial. Times in seconds, sizes in bytes of payload."""

    file: str = ""
    size: int = 0
    ledger_id: int = -1
    ensemble: tuple[str, ...] = ()
    start_seconds: float = 0.0
    entries: int = 0
    write_seconds: float = 0.0
    latencies: array[float] = field(default_factory=lambda: array("d"))
    killed: str | None = None
    killed_at: float = 0.0
    acknowledged_before_kill: int = 0
    acknowledged_after_kill: int = 0
    final_ensemble: tuple[str, ...] = ()
    replicas_missing: tuple[str, ...] = ()
    entries_read: int = 0
    bytes_equal: int = 0
    read_seconds: float = 0.0
    served_by: Mapping[str, int] = field(default_factory=dict)
    digest_written: str = ""
    digest_read: str = ""
    problem: str | None = None
    """None when every byte came back."""

    def latency(self, quantile: float) -> float:
        """Seconds from append to acknowledgement at this quantile (0 to 1); 0 without entries."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))] if ordered else 0.0


class Progress(Protocol):
    """Receives the progress of the trial; `total` in bytes, None when unknown.

    The command implements it, which the node must not import.
    """

    def phase(self, text: str, total: int | None = None) -> None: ...

    def advance(self, nbytes: int) -> None: ...

    def event(self, text: str) -> None: ...


async def run_trial(options: TrialOptions, progress: Progress) -> TrialReport:
    """Run the trial. Raises `InvalidConfiguration` or another `StartupError` when it cannot begin.

    The report has every later error.
    """
    if options.file is not None and not options.file.is_file():
        raise InvalidConfiguration(f"{options.file} is not a file; name an existing file, or none for a generated log")
    report = TrialReport()
    async with _directory(options.data) as directory:
        file = options.file or directory / "sample.log"
        if options.file is None:
            progress.phase("generating a log", SAMPLE_BYTES)
            await asyncio.to_thread(write_sample_log, file, SAMPLE_BYTES)
        report.file, report.size = str(file), (await asyncio.to_thread(file.stat)).st_size
        progress.phase(f"starting {options.bookies} bookies")
        began = time.perf_counter()
        async with StandaloneCluster(directory / "cluster", options.bookies) as cluster:
            report.start_seconds = time.perf_counter() - began
            try:
                await _Trial(options, progress, cluster, file, report).run()
            except PodkeeperError as error:
                report.problem = str(error)
            progress.phase("stopping")
    return report


@asynccontextmanager
async def _directory(data: Path | None) -> AsyncIterator[Path]:
    if data is not None:
        await asyncio.to_thread(data.mkdir, parents=True, exist_ok=True)
        yield data
        return
    with tempfile.TemporaryDirectory(prefix="bookie-trial-", ignore_cleanup_errors=True) as name:
        yield Path(name)


class _Trial:
    def __init__(
        self,
        options: TrialOptions,
        progress: Progress,
        cluster: StandaloneCluster,
        file: Path,
        report: TrialReport,
    ) -> None:
        self._options = options
        self._progress = progress
        self._cluster = cluster
        self._file = file
        self._report = report
        self._acknowledged = 0
        self._acknowledged_bytes = 0
        self._began = 0.0
        self._kill: asyncio.Task[None] | None = None

    async def run(self) -> None:
        options = ClientOptions(write_window_entries=WINDOW_ENTRIES)
        # Two clients: the reader knows nothing that the writer learned.
        async with Client(self._cluster.metadata, options) as client:
            await self._write(client)
        async with Client(self._cluster.metadata, options) as client:
            await self._read(client)

    # --- writing --------------------------------------------------------------------------------------------

    async def _write(self, client: Client) -> None:
        report = self._report
        self._progress.phase("writing", report.size)
        self._began = time.perf_counter()
        async with client.create(
            ensemble=ENSEMBLE,
            write_quorum=WRITE_QUORUM,
            ack_quorum=ACK_QUORUM,
            metadata={"application": b"bookie trial"},
        ) as ledger:
            report.ledger_id, report.ensemble = ledger.ledger_id, ledger.metadata.last_ensemble
            try:
                await self._append_file(ledger)
            finally:
                if self._kill is not None:
                    await self._kill
                report.replicas_missing = tuple(ledger.degraded.values())
        report.write_seconds = time.perf_counter() - self._began
        report.entries = ledger.last_add_confirmed + 1
        report.acknowledged_after_kill = self._acknowledged - report.acknowledged_before_kill
        report.final_ensemble = ledger.metadata.last_ensemble

    async def _append_file(self, ledger: LedgerWriter) -> None:
        digest = hashlib.sha256()
        size = self._options.entry_size
        with self._file.open("rb") as file:
            while payload := file.read(size):
                digest.update(payload)
                future = await ledger.submit(payload)
                future.add_done_callback(partial(self._acknowledge, time.perf_counter(), len(payload)))
        await ledger.flush()
        self._report.digest_written = digest.hexdigest()

    def _acknowledge(self, sent: float, nbytes: int, future: asyncio.Future[int]) -> None:
        if future.cancelled() or future.exception() is not None:
            return  # the writer's handle tells it
        self._acknowledged += 1
        self._acknowledged_bytes += nbytes
        self._report.latencies.append(time.perf_counter() - sent)
        self._progress.advance(nbytes)
        if self._options.kill and self._kill is None and self._acknowledged_bytes * 2 >= self._report.size:
            self._begin_kill()

    def _begin_kill(self) -> None:
        report = self._report
        report.killed = report.ensemble[0]
        report.killed_at = time.perf_counter() - self._began
        report.acknowledged_before_kill = self._acknowledged
        bookie = self._cluster.bookies[report.killed]
        self._kill = asyncio.get_running_loop().create_task(bookie.kill())
        self._progress.event(
            f"SIGKILL to {report.killed} (pid {bookie.pid}) after {report.killed_at:.2f} s,"
            f" {self._acknowledged:,} entries acknowledged"
        )

    # --- reading --------------------------------------------------------------------------------------------

    async def _read(self, client: Client) -> None:
        report = self._report
        self._progress.phase("reading back", report.size)
        digest = hashlib.sha256()
        began = time.perf_counter()
        async with client.open(report.ledger_id) as ledger:
            try:
                with self._file.open("rb") as file:
                    async for entry in ledger.entries():
                        if entry.payload != file.read(self._options.entry_size):
                            report.problem = (
                                f"entry {entry.entry_id} differs from the file at byte {report.bytes_equal:,}"
                            )
                            return
                        digest.update(entry.payload)
                        report.entries_read += 1
                        report.bytes_equal += len(entry.payload)
                        self._progress.advance(len(entry.payload))
                    rest = len(file.read())
            finally:
                report.read_seconds = time.perf_counter() - began
                report.served_by = ledger.served_by
        report.digest_read = digest.hexdigest()
        if rest:
            report.problem = f"the ledger ends {rest:,} bytes before the file does"
        elif report.digest_read != report.digest_written:
            report.problem = "the sha256 of what was read is not that of what was written"


def write_sample_log(path: Path, size: int) -> None:
    """Write `size` bytes of log lines to `path`; the last line may be cut. Blocks."""
    random = Random(20110401)
    number, clock, written = 0, 0, 0
    with path.open("wb") as file:
        while written < size:
            lines = []
            for _ in range(4096):
                number += 1
                bits = random.getrandbits(48)
                clock += bits & 7
                lines.append(_line(number, clock, bits))
            block = "".join(lines).encode()[: size - written]
            file.write(block)
            written += len(block)


def _line(number: int, clock: int, bits: int) -> str:
    event = _EVENTS[bits % len(_EVENTS)].format(
        a=bits >> 8 & 0xFFFF, b=bits >> 24 & 0xFF, c=bits >> 32 & 0xFF, d=bits >> 40 & 0xFF
    )
    seconds, ms = divmod(clock % _DAY_MS, 1000)
    stamp = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{ms:03d}"
    return f"2011-04-01T{stamp}Z {_LEVELS[bits % len(_LEVELS)]:5} [worker-{bits & 15:02d}] #{number:08d} {event}\n"
