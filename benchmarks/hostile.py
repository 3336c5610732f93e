"""What one bookie bears: its resident memory, and the latency of a well-behaved client, beside each attack of
`benchmarks.attacks`.

    python -m benchmarks.hostile [--java] [--budget MB] [--seconds S] [--directory PATH] [ATTACK ...]

A bookie for each attack, on fresh directories. Its client adds and reads 1 KB, a pair every few milliseconds: first
alone, then beside the attack, then some seconds after it. A probe asks `/healthz` meanwhile. Attackers, bookie and
client share the machine's processors, and attackers have what the others leave; the column `CPU` has how busy the
bookie was, and `turn` its event loop's longest turn beside the attack: how long its thread was at work in one of them,
and how long one took by the clock, in which the thread may have waited for a processor.

All attacks take some seven minutes. The exit code is 1 if a bookie of ours was beyond a bound, which is told at the
end: it held more than twice its budget, ended, failed its client, kept it waiting for `SLOWER` times as long as without
the attack, or answered a probe with no.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from benchmarks.attacks import ATTACKS, OVER_TCP, STORED, STORED_BYTES, STORED_ENTRIES
from benchmarks.environment import Environment
from benchmarks.turns import longest
from tests.support.bookie_process import free_port
from tests.support.frames import entry, v2_add, v2_code, v2_read
from tests.support.serve_process import ServeProcess, SyncClient

BETWEEN_S: Final = 0.005
"""Of the well-behaved client, between two pairs of requests."""
SLOWER: Final = 10.0
"""So many times its idle value p99 may be."""
QUICK_S: Final = 0.1
"""Less is never too slow."""
LATE_S: Final = 30.0
"""A request that is not answered by then failed."""
SHOWN: Final = 5
"""Failures of which the reason is told."""
_LEDGER: Final = 77
_PAYLOAD: Final = bytes(1000)
_MB: Final = 1 << 20


@dataclass
class Row:
    """What was seen beside one attack."""

    attack: str
    idle_p99: float = 0.0
    p99: float = 0.0
    failures: int = 0
    at_rest: float = 0.0
    peak: float = 0.0
    after: float = 0.0
    cpu: float = 0.0
    probes: int = 0
    noes: int = 0
    log_kb: float = 0.0
    ended: bool = False
    turn: tuple[float, float] = (0.0, 0.0)
    """The longest one, by the work of its thread and by the clock."""
    reasons: list[str] = field(default_factory=list)
    """Of failures, the first few."""
    why_not: list[str] = field(default_factory=list)
    """The same of probes."""

    def beyond(self, budget: int) -> list[str]:
        """What is beyond its bound."""
        return [
            line
            for is_beyond, line in (
                (self.peak > 2 * budget, f"{self.peak:.0f} MB, more than {2 * budget}"),
                (self.ended, "the bookie ended"),
                (self.failures > 0, f"{self.failures} requests of the client failed: {'; '.join(self.reasons)}"),
                (self.is_slow, f"p99 of {1000 * self.p99:.0f} ms, {1000 * self.idle_p99:.0f} without the attack"),
                (
                    self.noes > 0,
                    f"{self.noes} of {self.probes} probes were answered no, or not in time: {'; '.join(self.why_not)}",
                ),
            )
            if is_beyond
        ]

    @property
    def is_slow(self) -> bool:
        return self.p99 > max(SLOWER * self.idle_p99, QUICK_S)

    def cells(self, budget: int) -> list[str]:
        bound = "" if self.peak <= 2 * budget else " **over**"
        served = "ended" if self.ended else f"{self.failures} failed" if self.failures else "all"
        return [
            ATTACKS[self.attack].__doc__.split("\n\n")[0].replace("\n    ", " ").rstrip("."),  # type: ignore[union-attr]
            f"{self.at_rest:.0f}, {self.peak:.0f}{bound}, {self.after:.0f}",
            f"{1000 * self.idle_p99:.1f}, {1000 * self.p99:.1f}",
            (f"{self.p99 / self.idle_p99:.1f}" if self.idle_p99 else "") + " **over**" * self.is_slow,
            served,
            f"{self.noes} of {self.probes}" + " **over**" * bool(self.noes) if self.probes else "",
            f"{self.cpu:.0f} %",
            f"{1000 * self.turn[0]:.0f}, {1000 * self.turn[1]:.0f}",
            f"{self.log_kb:.0f}",
        ]


HEADER: Final = (
    "attack",
    "MB at rest, at most, afterwards",
    "p99 in ms, idle and beside",
    "ratio",
    "answered",
    "probes answered no",
    "CPU",
    "turn in ms, at work and by the clock",
    "log, KB",
)


class Modest:
    """A client that asks for little, in a thread of its own."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.latencies: list[float] = []
        self.failures = 0
        self.reasons: list[str] = []
        self._entry_id = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def take(self) -> list[float]:
        """Latencies since the last time."""
        taken, self.latencies = self.latencies, []
        return taken

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(2 * LATE_S)

    def _run(self) -> None:
        while not self._stopping.is_set():
            began = time.perf_counter()
            try:
                with SyncClient(self._port, timeout=LATE_S) as client:
                    while not self._stopping.is_set():
                        began = time.perf_counter()
                        for frame in (
                            v2_add(entry(_LEDGER, self._entry_id, _PAYLOAD)),
                            v2_read(_LEDGER, self._entry_id),
                        ):
                            asked = time.perf_counter()
                            if code := v2_code(client.ask(frame)):
                                self._failed(f"answered {code}", asked)
                            self.latencies.append(time.perf_counter() - asked)
                        self._entry_id += 1
                        time.sleep(BETWEEN_S)
            except (OSError, EOFError) as error:
                self._failed(repr(error), began)
                self.latencies.append(time.perf_counter() - began)
                time.sleep(BETWEEN_S)

    def _failed(self, why: str, began: float) -> None:
        self.failures += 1
        if len(self.reasons) < SHOWN:
            took = time.perf_counter() - began
            self.reasons.append(f"entry {self._entry_id} {why} after {took:.3f} s, {time.strftime('%X')}")


@dataclass
class Watch:
    """Resident memory and processor time of a process, and its probe, until `stop`."""

    process: psutil.Process
    http_port: int
    peak: float = 0.0
    probes: int = 0
    noes: int = 0
    why_not: list[str] = field(default_factory=list)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        for work in (self._look, *((self._probe,) if self.http_port else ())):
            self._threads.append(threading.Thread(target=work, daemon=True))
            self._threads[-1].start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(LATE_S)

    def _look(self) -> None:
        with suppress(psutil.Error):
            while not self._stopping.wait(0.02):
                self.peak = max(self.peak, self.process.memory_info().rss / _MB)

    def _probe(self) -> None:
        """As Kubernetes does, which gives up after a second."""
        while not self._stopping.wait(0.5):
            self.probes += 1
            asked = time.perf_counter()
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/healthz", timeout=1):
                    pass
            except (OSError, urllib.error.URLError) as error:
                self.noes += 1
                if len(self.why_not) < SHOWN:
                    took = time.perf_counter() - asked
                    self.why_not.append(f"{error} after {took:.3f} s, {time.strftime('%X')}")


def p99(latencies: Sequence[float]) -> float:
    return statistics.quantiles(latencies, n=100)[98] if len(latencies) > 1 else LATE_S


def store(port: int) -> None:
    """The ledger that attackers read."""
    with SyncClient(port, timeout=LATE_S) as client:
        for number in range(STORED_ENTRIES):
            if code := v2_code(client.ask(v2_add(entry(STORED, number, bytes(STORED_BYTES))))):
                raise RuntimeError(f"an entry of ledger {STORED} was answered {code}")


def beside(
    attack: str,
    port: int,
    grpc_port: int,
    http_port: int,
    pid: int,
    log: Path,
    seconds: float,
    turns: Path | None = None,
) -> Row:
    """One row, of a bookie that was just started. `turns`: where those of its loop are noted."""
    store(port)
    row, process = Row(attack), psutil.Process(pid)
    modest = Modest(port)
    time.sleep(1)
    modest.take()
    time.sleep(max(3.0, seconds / 2))
    row.idle_p99, row.at_rest = p99(modest.take()), process.memory_info().rss / _MB
    watch = Watch(process, http_port)
    watch.start()
    failed, written, began = modest.failures, log.stat().st_size, time.monotonic()
    busy = sum(process.cpu_times()[:2])
    ports = [str(each) for each in (port, grpc_port, http_port)]
    attacker = subprocess.Popen([sys.executable, "-m", "benchmarks.attacks", attack, *ports, str(seconds)])
    try:
        if attacker.wait(seconds + 20):
            raise RuntimeError(f"attack {attack} could not be made")
    except subprocess.TimeoutExpired:
        attacker.kill()
        attacker.wait()
    try:
        row.cpu = 100 * (sum(process.cpu_times()[:2]) - busy) / seconds
        time.sleep(3)
        row.after = process.memory_info().rss / _MB
        row.ended = process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        row.ended = True
    modest.stop()
    watch.stop()
    row.p99, row.failures, row.reasons = p99(modest.take()), modest.failures - failed, modest.reasons
    row.turn = longest(turns, began) if turns is not None else (0.0, 0.0)
    row.peak, row.probes, row.noes = max(watch.peak, row.at_rest), watch.probes, watch.noes
    row.why_not = watch.why_not
    row.log_kb = (log.stat().st_size - written) / 1024
    return row


def until_ready(http_port: int) -> None:
    """Until all ports are served."""
    deadline = time.monotonic() + LATE_S
    while time.monotonic() < deadline:
        with (
            suppress(OSError, urllib.error.URLError),
            urllib.request.urlopen(f"http://127.0.0.1:{http_port}/readyz", timeout=5),
        ):
            return
        time.sleep(0.05)
    raise RuntimeError(f"the bookie was not ready after {LATE_S:g} s")


def ours(attack: str, budget: int, folder: Path, seconds: float) -> Row:
    http_port, grpc_port = free_port(), free_port()
    settings = {
        "memoryBudgetMb": str(budget),
        "dbStorage_writeCacheMaxSizeMb": str(budget // 4),
        "dbStorage_readAheadCacheMaxSizeMb": str(budget // 4),
        "httpServerEnabled": "true",
        "httpServerHost": "127.0.0.1",
        "httpServerPort": str(http_port),
        "grpcServerEnabled": "true",
        "grpcServerHost": "127.0.0.1",
        "grpcServerPort": str(grpc_port),
    }
    with ServeProcess(folder, settings) as bookie:
        turns = folder / "turns"
        bookie.program = ["benchmarks.turns:main", str(turns)]
        bookie.start()
        until_ready(http_port)  # gRPC and the gateway start behind it
        assert bookie.process is not None
        return beside(attack, bookie.port, grpc_port, http_port, bookie.process.pid, bookie.log, seconds, turns)


def java(environment: Environment, attack: str, budget: int, seconds: float) -> Row:
    """The reference's bookie, with as much heap and as much direct memory as the budget is."""
    cache = str(budget // 4)
    settings = {
        "dbStorage_writeCacheMaxSizeMb": cache,
        "dbStorage_readAheadCacheMaxSizeMb": cache,
        "dbStorage_rocksDB_blockCacheSize": str(budget * _MB // 10),
    }
    bookie = environment.bookie("java", settings, memory_mb=budget)
    bookie.start()
    try:
        port = int(bookie.configuration["bookiePort"])
        return beside(attack, port, 0, 0, bookie.pid, bookie.log, seconds)
    finally:
        environment.discard(bookie)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attacks", nargs="*", choices=[*ATTACKS, []], metavar="ATTACK", help=f"{', '.join(ATTACKS)}")
    parser.add_argument("--java", action="store_true", help="the reference's bookie, with those that it can be shown")
    parser.add_argument("--budget", type=int, default=128, help="memoryBudgetMb; of Java: heap, and direct memory")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each attack")
    parser.add_argument("--directory", type=Path, help="parent of the data directories")
    given = parser.parse_args()
    names = given.attacks or (OVER_TCP if given.java else ATTACKS)
    print(f"budget {given.budget} MB, so at most {2 * given.budget} MB; {given.seconds:g} s each")
    print("| " + " | ".join(HEADER) + " |\n|" + "---|" * len(HEADER))
    rows = []
    with Environment(given.directory) if given.java else nullcontext() as environment:
        for name in names:
            if environment is not None:
                rows.append(java(environment, name, given.budget, given.seconds))
            else:
                with tempfile.TemporaryDirectory(dir=given.directory) as folder:
                    rows.append(ours(name, given.budget, Path(folder) / "bookie", given.seconds))
            print("| " + " | ".join(rows[-1].cells(given.budget)) + " |", flush=True)
    if given.java:
        return 0
    beyond = [f"{row.attack}: {line}" for row in rows for line in row.beyond(given.budget)]
    print("\n".join(("beyond its bound:", *beyond)) if beyond else "nothing is beyond its bound")
    return int(bool(beyond))


if __name__ == "__main__":
    sys.exit(main())
