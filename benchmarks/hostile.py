"""What one bookie bears: its resident memory, and the latency of a well-behaved client, beside each attack of
`benchmarks.attacks`; of those whose name begins with `meta`, what the embedded metadata service bears.

    python -m benchmarks.hostile [--java] [--budget MB]... [--seconds S] [--directory PATH] [ATTACK ...]

A bookie for each attack, on fresh directories. Its client adds and reads 1 KB, a pair every few milliseconds: first
alone, then beside the attack, then some seconds after it. A probe asks `/healthz` meanwhile. Attackers, bookie and
client share the machine's processors, and attackers have what the others leave; the column `CPU` has how busy the
bookie was, and `turn` its event loop's longest turn beside the attack: how long its thread was at work in one of them,
and how long one took by the clock, in which the thread may have waited for a processor.

All attacks take half an hour. The exit code is 1 if a bookie of ours was beyond a bound, which is told at the end
(`Row.beyond`). It must hold at most twice its budget, or 128 MB more than a budget that is smaller than that, and
`AFTER_S` after the attack at most `BACK_MB` more than before; answer every probe, and every request of its client with
a p99 of at most `P99_S`; and write at most `LOG_KB_S` of log. A request of the client that takes long stands for those
that it kept waiting, one each `BETWEEN_S`.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
import psutil

from benchmarks.attack_tools import STORED, STORED_BYTES, STORED_ENTRIES
from benchmarks.attacks import ATTACKS, OVER_TCP
from benchmarks.attacks_metadata import ATTACKS as OF_METADATA
from benchmarks.environment import Environment
from benchmarks.turns import longest
from bookie_pod.config.derive import process_memory_mb
from bookie_protocol.metadata_service.embedded import embedded_metadata_pb2 as metadata
from bookie_protocol.metadata_service.embedded.embedded_metadata_pb2_grpc import EmbeddedMetadataStub
from tests.support import warm
from tests.support.bookie_process import free_port
from tests.support.certificates import Certificates
from tests.support.frames import entry, v2_add, v2_code, v2_read
from tests.support.metadata_process import MetadataProcess
from tests.support.serve_process import ServeProcess, SyncClient
from tests.support.warm import WarmProcess

BETWEEN_S: Final = 0.005
"""Of the well-behaved client, between two pairs of requests."""
P99_S: Final = 0.05
"""The p99 of the client may be so long, beside the attack and after it."""
LATE_S: Final = 30.0
"""A request that is not answered by then failed."""
AFTER_S: Final = 20.0
"""Until memory has to be back."""
BACK_MB: Final = 30
"""So much more than before may be resident then."""
GATEWAY_MB: Final = 128
"""Budget of the process that serves gRPC."""
LOG_KB_S: Final = 1.0
"""So much log an attack may cause in a second."""
SHOWN: Final = 5
"""Failures of which the reason is told."""
_LEDGER: Final = 77
_PAYLOAD: Final = bytes(1000)
_MB: Final = 1 << 20
_TOKEN: Final = "of-the-modest-client"
"""Of the metadata service, which strangers have not."""


@dataclass
class Row:
    """What was seen beside one attack."""

    attack: str
    budget: int
    """In MB."""
    idle_p99: float = 0.0
    p99: float = 0.0
    """Beside the attack, or after it: the longer one."""
    failures: int = 0
    at_rest: float = 0.0
    peak: float = 0.0
    after: float = 0.0
    cpu: float = 0.0
    probes: int = 0
    noes: int = 0
    log_kb: float = 0.0
    seconds: float = 0.0
    beside: float = 0.0
    """Most that was resident of the process that serves gRPC, MB."""
    ended: bool = False
    turn: tuple[float, float] = (0.0, 0.0)
    """The longest one, by the work of its thread and by the clock."""
    reasons: list[str] = field(default_factory=list)
    """Of failures, the first few."""
    why_not: list[str] = field(default_factory=list)
    """The same of probes."""

    @property
    def most(self) -> int:
        """The process may have so many MB."""
        return process_memory_mb(self.budget)

    def beyond(self) -> list[str]:
        """What is beyond its bound."""
        return [
            line
            for is_beyond, line in (
                (self.peak > self.most, f"{self.peak:.0f} MB, more than {self.most}"),
                (self.beside > 2 * GATEWAY_MB, f"gRPC's process: {self.beside:.0f} MB, more than {2 * GATEWAY_MB}"),
                (self.after > self.at_rest + BACK_MB, f"{self.after:.0f} MB afterwards, {self.at_rest:.0f} before"),
                (self.log_kb > LOG_KB_S * self.seconds, f"{self.log_kb:.0f} KB of log in {self.seconds:.0f} s"),
                (self.ended, "the bookie ended"),
                (self.failures > 0, f"{self.failures} requests of the client failed: {'; '.join(self.reasons)}"),
                (self.p99 > P99_S, f"p99 of {1000 * self.p99:.0f} ms, {1000 * self.idle_p99:.0f} without the attack"),
                (
                    self.noes > 0,
                    f"{self.noes} of {self.probes} probes were answered no, or not in time: {'; '.join(self.why_not)}",
                ),
            )
            if is_beyond
        ]

    def cells(self) -> list[str]:
        bound = "" if self.peak <= self.most else " **over**"
        served = "ended" if self.ended else f"{self.failures} failed" if self.failures else "all"
        return [
            ATTACKS[self.attack].__doc__.split("\n\n")[0].replace("\n    ", " ").rstrip("."),  # type: ignore[union-attr]
            f"{self.at_rest:.0f}, {self.peak:.0f}{bound}, {self.after:.0f}; {self.beside:.0f}",
            f"{1000 * self.idle_p99:.1f}, {1000 * self.p99:.1f}",
            (f"{self.p99 / self.idle_p99:.1f}" if self.idle_p99 else "") + " **over**" * (self.p99 > P99_S),
            served,
            f"{self.noes} of {self.probes}" + " **over**" * bool(self.noes) if self.probes else "",
            f"{self.cpu:.0f} %",
            f"{1000 * self.turn[0]:.0f}, {1000 * self.turn[1]:.0f}",
            f"{self.log_kb:.0f}",
        ]


HEADER: Final = (
    "attack",
    "MB at rest, at most, afterwards; of gRPC's process at most",
    "p99 in ms, idle and beside",
    "ratio",
    "answered",
    "probes answered no",
    "CPU",
    "turn in ms, at work and by the clock",
    "log, KB",
)


class Modest:
    """A client that asks for little, in a thread of its own: it adds and reads."""

    def __init__(self, port: int) -> None:
        self.port = port
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
                with self._connected() as pair:
                    while not self._stopping.is_set():
                        for ask in pair:
                            began = time.perf_counter()
                            if why := ask():
                                self._failed(why, began)
                            self.latencies.append(time.perf_counter() - began)
                        self._entry_id += 1
                        time.sleep(BETWEEN_S)
            except (OSError, EOFError, grpc.RpcError) as error:
                self._failed(repr(error), began)
                self.latencies.append(time.perf_counter() - began)
                time.sleep(BETWEEN_S)

    @contextmanager
    def _connected(self) -> Iterator[Sequence[Callable[[], str]]]:
        """What it asks, again and again; each tells why it failed."""
        with SyncClient(self.port, timeout=LATE_S) as client:

            def told(frame: bytes) -> str:
                code = v2_code(client.ask(frame))
                return f"answered {code}" if code else ""

            yield (
                lambda: told(v2_add(entry(_LEDGER, self._entry_id, _PAYLOAD))),
                lambda: told(v2_read(_LEDGER, self._entry_id)),
            )

    def _failed(self, why: str, began: float) -> None:
        self.failures += 1
        if len(self.reasons) < SHOWN:
            took = time.perf_counter() - began
            self.reasons.append(f"entry {self._entry_id} {why} after {took:.3f} s, {time.strftime('%X')}")


class ModestOfMetadata(Modest):
    """A client of the metadata service: it writes and reads a node."""

    @contextmanager
    def _connected(self) -> Iterator[Sequence[Callable[[], str]]]:
        shown = {"metadata": (("authorization", f"Bearer {_TOKEN}"),), "timeout": LATE_S}
        with grpc.insecure_channel(f"127.0.0.1:{self.port}", (("grpc.use_local_subchannel_pool", 1),)) as over:
            stub: Any = EmbeddedMetadataStub(over)  # type: ignore[no-untyped-call]
            session = stub.OpenSession(metadata.OpenSessionRequest(timeout_ms=600_000), **shown).session

            def told(request: metadata.ExecuteRequest) -> str:
                request.session.CopyFrom(session)
                code = stub.Execute(request, **shown).outcome.code
                return f"answered {code}" if code not in (metadata.OK, metadata.EXISTS) else ""

            node = metadata.NewNode(path="/modest", data=_PAYLOAD)
            told(metadata.ExecuteRequest(create=metadata.Create(node=node)))
            yield (
                lambda: told(metadata.ExecuteRequest(set=metadata.Write(path="/modest", data=_PAYLOAD, version=-1))),
                lambda: told(metadata.ExecuteRequest(get=metadata.Read(path="/modest"))),
            )


@dataclass
class Watch:
    """Resident memory and processor time of a process, and its probe, until `stop`."""

    process: psutil.Process
    http_port: int
    peak: float = 0.0
    beside: float = 0.0
    """Of its children."""
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
        looks, children = 0, list[psutil.Process]()
        with suppress(psutil.Error):
            while not self._stopping.wait(0.02):
                self.peak = max(self.peak, self.process.memory_info().rss / _MB)
                if looks % 50 == 0:
                    children = self.process.children()
                looks += 1
                with suppress(psutil.NoSuchProcess):
                    for child in children:  # the one that serves gRPC
                        self.beside = max(self.beside, child.memory_info().rss / _MB)

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
    """As the latencies would be if it asked every `BETWEEN_S`, whatever became of the request before."""
    asked = [each - BETWEEN_S * kept for each in latencies for kept in range(1 + int(each / BETWEEN_S))]
    return statistics.quantiles(asked, n=100)[98] if len(asked) > 1 else LATE_S


def store(port: int) -> None:
    """The ledger that attackers read."""
    with SyncClient(port, timeout=LATE_S) as client:
        for number in range(STORED_ENTRIES):
            if code := v2_code(client.ask(v2_add(entry(STORED, number, bytes(STORED_BYTES))))):
                raise RuntimeError(f"an entry of ledger {STORED} was answered {code}")


def beside(
    attack: str,
    budget: int,
    port: int,
    grpc_port: int,
    http_port: int,
    pid: int,
    log: Path,
    seconds: float,
    turns: Path | None = None,
) -> Row:
    """One row, of a bookie that was just started; `port` 0: of a metadata service. `turns`: where those of its loop are
    noted."""
    if port:
        store(port)
    row, process = Row(attack, budget), psutil.Process(pid)
    modest = Modest(port) if port else ModestOfMetadata(grpc_port)
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
    during = modest.take()
    try:
        row.cpu = 100 * (sum(process.cpu_times()[:2]) - busy) / seconds
        time.sleep(AFTER_S)
        row.after = process.memory_info().rss / _MB
        row.ended = process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        row.ended = True
    modest.stop()
    watch.stop()
    row.p99, row.failures, row.reasons = (
        max(map(p99, (during, modest.take()))),
        modest.failures - failed,
        modest.reasons,
    )
    row.turn = longest(turns, began) if turns is not None else (0.0, 0.0)
    row.peak, row.probes, row.noes = max(watch.peak, row.at_rest), watch.probes, watch.noes
    row.why_not, row.beside, row.seconds = watch.why_not, watch.beside, seconds + AFTER_S
    row.log_kb = (log.stat().st_size - written) / 1024
    return row


@contextmanager
def closing_down(service: MetadataProcess) -> Iterator[None]:
    """A metadata service with a cluster, until the bookie is done with it."""
    service.start()
    try:
        ServeProcess.command("cluster", "init", service.uri())
        yield
    finally:
        service.stop()


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
        "gatewayMemoryMb": str(GATEWAY_MB),
    }
    folder.mkdir()
    if attack.startswith("tls"):
        settings |= Certificates(folder).make_all().settings()
    service = MetadataProcess(folder / "metadata")
    with closing_down(service), ServeProcess(folder, settings | {"metadataServiceUri": service.uri()}) as bookie:
        turns = folder / "turns"
        bookie.program = ["benchmarks.turns:main", str(turns)]
        bookie.start()
        until_ready(http_port)  # gRPC and the gateway start behind it
        assert bookie.process is not None
        return beside(attack, budget, bookie.port, grpc_port, http_port, bookie.process.pid, bookie.log, seconds, turns)


def ours_of_metadata(attack: str, budget: int, folder: Path, seconds: float) -> Row:
    """The metadata service, of which clients may hold a half of the budget."""
    port, http_port = free_port(), free_port()
    folder.mkdir()
    token, log = folder / "token", folder / "log"
    token.write_text(f"{_TOKEN}\n")
    arguments = ["metadata-service", "--data", str(folder / "data"), "--host", "127.0.0.1", "--port", str(port)]
    arguments += ["--http-host", "127.0.0.1", "--http-port", str(http_port), "--token-file", str(token)]
    arguments += ["--client-memory-mb", str(budget // 2)]
    with log.open("wb") as errors:
        process = WarmProcess(warm.BOOKIE, arguments, stderr=errors)
    try:
        until_ready(http_port)
        return beside(attack, budget, 0, port, http_port, process.pid, log, seconds)
    finally:
        process.kill()
        process.wait()


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
        return beside(attack, budget, port, 0, 0, bookie.pid, bookie.log, seconds)
    finally:
        environment.discard(bookie)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("attacks", nargs="*", choices=[*ATTACKS, []], metavar="ATTACK", help=f"{', '.join(ATTACKS)}")
    parser.add_argument("--java", action="store_true", help="the reference's bookie, with those that it can be shown")
    parser.add_argument(
        "--budget", type=int, action="append", help="memoryBudgetMb, by default 128; of Java: heap, and direct memory"
    )
    parser.add_argument("--seconds", type=float, default=6.0, help="of each attack")
    parser.add_argument("--directory", type=Path, help="parent of the data directories")
    given = parser.parse_args()
    names = given.attacks or (OVER_TCP if given.java else ATTACKS)
    rows = []
    with Environment(given.directory) if given.java else nullcontext() as environment:
        for budget in given.budget or [128]:
            print(f"budget {budget} MB, so at most {process_memory_mb(budget)} MB; {given.seconds:g} s each")
            print("| " + " | ".join(HEADER) + " |\n|" + "---|" * len(HEADER))
            for name in names:
                if environment is not None:
                    rows.append(java(environment, name, budget, given.seconds))
                else:
                    with tempfile.TemporaryDirectory(dir=given.directory) as folder:
                        measured = ours_of_metadata if name in OF_METADATA else ours
                        rows.append(measured(name, budget, Path(folder) / "bookie", given.seconds))
                print("| " + " | ".join(rows[-1].cells()) + " |", flush=True)
    if given.java:
        return 0
    beyond = [f"{row.attack} at {row.budget} MB: {line}" for row in rows for line in row.beyond()]
    print("\n".join(("beyond its bound:", *beyond)) if beyond else "nothing is beyond its bound")
    return int(bool(beyond))


if __name__ == "__main__":
    sys.exit(main())
