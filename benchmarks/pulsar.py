"""Bookies of ours beside Apache's under a broker of Pulsar: `python -m benchmarks.pulsar`.

Two clusters stand side by side, each a ZooKeeper, three bookies, a broker of Pulsar and a client: they differ in the
bookies' program alone, which both have the same keys. They take turns, round after round, and the one that waits has
nothing to do. A round is what `pulsar-perf` does: messages of 1 KB at a fixed rate, for the latency; as many as there
can be, for the rate; and all of these read back, out of bookies, because brokers cache nothing here.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import psutil

from benchmarks.samples import JAVA, OURS, Samples
from benchmarks.session import DEFAULT_OUT, Session
from tests.interop.java_agent import JavaAgent
from tests.pulsar.broker import PROJECT, Broker, initialise_metadata, java
from tests.support.bookie_process import BookieProcess, free_port, loopback_configuration, podkeeper_bookie
from tests.support.java_bookie import java_bookie
from tests.support.zookeeper import ZooKeeperServer

BOOKIES = 3
_START_S = 120.0
_MEMORY_MB = 512
_SETTINGS = {
    "dbStorage_writeCacheMaxSizeMb": "128",
    "dbStorage_readAheadCacheMaxSizeMb": "64",
    "dbStorage_rocksDB_blockCacheSize": str(64 << 20),
    "gcWaitTime": "3600000",
    "zkTimeout": "30000",
}


class Cluster:
    """All that one kind of bookies needs; what it starts ends with `stack`."""

    def __init__(self, kind: str, work: Path, stack: ExitStack) -> None:
        (work / "zookeeper").mkdir(parents=True)
        zookeeper = ZooKeeperServer(str(work / "zookeeper"))
        zookeeper.start()
        stack.callback(zookeeper.stop)
        initialise_metadata(f"zk:{zookeeper.hosts}")
        self.bookies = [_bookie(kind, work / f"bookie-{number}", zookeeper) for number in range(BOOKIES)]
        for bookie in self.bookies:
            bookie.start(_START_S)
            stack.callback(bookie.kill)
        broker = Broker(work, f"zk:{zookeeper.hosts}", {"managedLedgerMaxEntriesPerLedger": "50000"})
        stack.callback(_end, broker)
        broker.start()
        self._client = JavaAgent(java(512, 512, "dev.podkeeper.pulsar.LoadAgent", broker.url), work / "client.log")
        stack.callback(self._client.stop)

    def call(self, do: str, topics: Sequence[str], **arguments: Any) -> dict[str, Any]:
        return self._client.call(do, topics=list(topics), **arguments)

    @contextmanager
    def cpu(self) -> Iterator[SimpleNamespace]:
        """Its `seconds` are what all bookies take of the processors meanwhile."""
        found = SimpleNamespace(seconds=0.0)
        before = self._cpu_seconds()
        yield found
        found.seconds = self._cpu_seconds() - before

    def _cpu_seconds(self) -> float:
        return sum(sum(psutil.Process(bookie.pid).cpu_times()[:2]) for bookie in self.bookies)


def _bookie(kind: str, work: Path, zookeeper: ZooKeeperServer) -> BookieProcess:
    configuration = {**loopback_configuration(work, zookeeper.uri(), free_port()), **_SETTINGS}
    if kind == OURS:
        return podkeeper_bookie(configuration, work, zookeeper.hosts)
    class_path, hosts = PROJECT.class_path(), zookeeper.hosts
    return java_bookie(class_path, configuration, work, hosts, heap_mb=_MEMORY_MB, direct_mb=_MEMORY_MB)


def _end(broker: Broker) -> None:
    if broker.process is not None:  # it may never have started
        broker.kill()


class Turn:
    """What one cluster does in one round."""

    def __init__(self, cluster: Cluster, number: int, topics: int, size: int) -> None:
        self._cluster = cluster
        self._topics = [f"round-{number}-{topic}" for topic in range(topics)]
        self._size = size

    def produce(self, seconds: int, rate: int, part: str) -> tuple[dict[str, Any], float]:
        """What the client tells, and the bookies' CPU in microseconds a message."""
        topics = [f"{part}-{topic}" for topic in self._topics]
        with self._cluster.cpu() as cpu:
            told = self._cluster.call("produce", topics, seconds=seconds, rate=rate, size=self._size)
        return told, cpu.seconds * 1e6 / told["count"]

    def consume(self, count: int, part: str) -> tuple[dict[str, Any], float]:
        with self._cluster.cpu() as cpu:
            told = self._cluster.call("consume", [f"{part}-{topic}" for topic in self._topics], count=count)
        return told, cpu.seconds * 1e6 / count


def measure(turn: Turn, kind: str, samples: Samples, seconds: int, rate: int, size: int) -> str:
    """One turn; returns what it found, for the log."""
    paced, paced_cpu = turn.produce(seconds, rate, "paced")
    stem = f"{rate} messages/s"
    for name in ("p50", "p99"):
        samples.add(kind, f"{stem}: {name}", "ms", "less", paced[f"{name}_ms"])
    samples.add(kind, f"{stem}: CPU of the bookies", "us/message", "less", paced_cpu)
    free, free_cpu = turn.produce(seconds, 0, "free")
    written = free["count"] * size / free["took"] / 1e6
    samples.add(kind, "as many as there can be", "MB/s", "more", written)
    samples.add(kind, "as many as there can be: p99", "ms", "less", free["p99_ms"])
    samples.add(kind, "as many as there can be: CPU of the bookies", "us/message", "less", free_cpu)
    read, read_cpu = turn.consume(free["count"], "free")
    read_rate = free["count"] * size / read["took"] / 1e6
    samples.add(kind, "read back", "MB/s", "more", read_rate)
    samples.add(kind, "read back: CPU of the bookies", "us/message", "less", read_cpu)
    latency = f"p50 {paced['p50_ms']:.1f}, p99 {paced['p99_ms']:.1f} ms"
    return f"{latency}; {written:.1f} MB/s, {free_cpu:.1f} us; read {read_rate:.1f} MB/s, {read_cpu:.1f} us"


@click.command()
@click.option("--rounds", type=click.IntRange(1, 20), default=3, show_default=True)
@click.option("--seconds", type=click.IntRange(1, 600), default=8, show_default=True, help="Of each load.")
@click.option("--rate", type=click.IntRange(1, 1_000_000), default=1000, show_default=True, help="Messages a second.")
@click.option("--size", type=click.IntRange(1, 1_000_000), default=1024, show_default=True, help="Bytes of a message.")
@click.option("--topics", type=click.IntRange(1, 100), default=3, show_default=True)
@click.option("--dir", "parent", type=click.Path(path_type=Path), help="Parent of all directories.")
@click.option("--out", type=click.Path(path_type=Path), default=DEFAULT_OUT, show_default=True)
def main(rounds: int, seconds: int, rate: int, size: int, topics: int, parent: Path | None, out: Path) -> None:
    """Compares the two kinds of bookies, after one round that does not count."""
    session, samples = Session("pulsar"), Samples()
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="podkeeper-bench-", dir=parent)))
        clusters = {kind: Cluster(kind, work / kind, stack) for kind in (OURS, JAVA)}
        session.log("both clusters serve")
        for number in range(rounds + 1):
            # Who begins takes turns too.
            for kind in (OURS, JAVA)[:: 1 if number % 2 else -1]:
                found = samples if number else Samples()
                told = measure(Turn(clusters[kind], number, topics, size), kind, found, seconds, rate, size)
                session.log(f"{f'round {number}' if number else 'warming up'}, {kind:4}: {told}")
    session.report(samples, out)


if __name__ == "__main__":
    main()
