"""What ledgers cost in each metadata service: their creation, a listing of all, reads, closes and deletions.

One server of each on this machine; that of etcd, ZooKeeper and Oxia waits for no disk. 64 requests of one client are
under way. Printed for each step: requests, KB that were sent and received, CPU seconds of the client and of the server,
seconds by the clock, and the server's memory; at the end also the size of its folder. Oxia is the program that
OXIA_SERVER names. Seconds by the clock beside other work say little; the rest does not depend on it.

    .venv/bin/python -m benchmarks.metadata [--ledgers 10000] [--services etcd zookeeper embedded oxia] [--copied]

With `--copied` the ledgers come as those of a copy do (`bookie cluster metadata copy`), many in one request, and
all of it is read again as its verification does.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import struct
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import psutil

from bookie_protocol.digest import DigestType
from bookie_protocol.ledger_metadata.codec import encode_ledger_metadata
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.embedded.tree import EmbeddedTree
from bookie_protocol.metadata_service.migrating.gate import MigratingTree
from bookie_protocol.metadata_service.moving.nodes import ClusterNodes, Entries, order
from bookie_protocol.metadata_service.oxia.tree import OxiaTree
from bookie_protocol.metadata_service.tree.paths import ledger_id_of, short_path
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.uri import open_metadata_service
from bookie_protocol.metadata_service.zookeeper.driver import ZooKeeperTree
from tests.support.etcd import EtcdServer
from tests.support.metadata_process import MetadataProcess
from tests.support.oxia import OxiaServer
from tests.support.zookeeper import ZooKeeperServer

AT_ONCE = 64
SERVERS: dict[str, Callable[[Path], EtcdServer | ZooKeeperServer | MetadataProcess | OxiaServer]] = {
    "etcd": EtcdServer,
    "zookeeper": lambda folder: ZooKeeperServer(str(folder), heap_mb=4096),
    "embedded": MetadataProcess,
    "oxia": OxiaServer,
}
CHANGED = 10_000
"""Ledgers that are closed and deleted, at most."""


def _ledger(ledger_id: int) -> LedgerMetadata:
    ensemble = tuple(f"demo-bookie-{number}.demo-bookie.storage.svc:3181" for number in range(3))
    return LedgerMetadata(ledger_id, 3, 3, 2, {0: ensemble}, digest_type=DigestType.CRC32C, password=b"password")


async def _all(work: Callable[[int], Awaitable[object]], numbers: Iterable[int]) -> None:
    left = iter(numbers)

    async def worker() -> None:
        for number in left:
            await work(number)

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))


class _Requests:
    """Counts what a driver sends."""

    def __init__(self, service: MetadataService) -> None:
        self.count = 0
        tree: Any = service.tree._tree
        if isinstance(tree, MigratingTree):
            tree = tree._side.tree
        match tree:
            case EmbeddedTree():
                sender, methods = tree._transport, ["execute"]
            case ZooKeeperTree():
                sender, methods = tree._client, ["_call"]
            case OxiaTree():
                sender, methods = tree._connection, ["_ask", "_stream"]
            case _:
                sender, methods = tree._connection, ["_ask"]
        for method in methods:
            setattr(sender, method, self._counting(getattr(sender, method)))

    def _counting(self, send: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            self.count += 1
            return send(*arguments, **named)

        return counted


def _transferred() -> tuple[int, int]:
    """Return the bytes that this process has sent and received, by the kernel's counts of its TCP connections."""
    sent = received = 0
    for each in psutil.Process().net_connections("tcp"):
        if each.status == psutil.CONN_ESTABLISHED:
            with socket.socket(fileno=os.dup(each.fd)) as connection:
                counts = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
            acknowledged, got = struct.unpack_from("=QQ", counts, 120)  # tcpi_bytes_acked, tcpi_bytes_received
            sent, received = sent + acknowledged, received + got
    return sent, received


def _size(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


async def _entries(ledgers: int, before: Entries) -> Entries:
    """What is there, and so many ledgers."""
    known = {path: data async for path, data in before}
    directories = {short_path(number).rpartition("/")[0] for number in range(0, ledgers, 10_000)}
    tops = {path.rpartition("/")[0] for path in directories}
    for path in sorted({*known, *directories, *tops}, key=order):
        yield path, known.get(path, b"")
        if path in directories:
            first = int(path.replace("/", "")) * 10_000
            for number in range(first, min(first + 10_000, ledgers)):
                yield short_path(number), encode_ledger_metadata(_ledger(number))


async def _measure(name: str, uri: str, pid: int, folder: Path, ledgers: int, copied: bool) -> None:
    service = await open_metadata_service(uri, timeout=30)
    await service.cluster.initialize()
    requests, server = _Requests(service), psutil.Process(pid)

    async def create(_: int) -> None:
        await service.ledgers.create(_ledger(await service.ledgers.generate_id()))

    nodes = ClusterNodes(service.tree, service.root)

    async def copy() -> None:
        await nodes.make_equal(_entries(ledgers, nodes.read()), service.tree.session_id, lambda _: None)

    async def verify() -> None:
        assert sum([1 async for path, _ in nodes.read() if ledger_id_of(path) is not None]) == ledgers

    ids: list[int] = []

    async def listing() -> None:
        ids.extend([each async for found in service.ledgers.ranges() for each in found.ids])
        assert len(ids) == ledgers

    async def reads() -> None:
        for first in range(0, ledgers, AT_ONCE):
            await service.ledgers.read_each(ids[first : first + AT_ONCE])

    async def close(ledger_id: int) -> None:
        found = await service.ledgers.read(ledger_id)
        await service.ledgers.write(found.value.closed(9, 90), found.identity)

    changed = min(ledgers, CHANGED)
    first: list[tuple[str, Callable[[], Awaitable[object]]]] = (
        [("create, as a copy does", copy), ("read everything, as a verification does", verify)]
        if copied
        else [("create, each with a new id", lambda: _all(create, range(ledgers)))]
    )
    for step, work in (
        *first,
        ("list all", listing),
        ("read all, 64 together", reads),
        (f"read and close {changed:,}", lambda: _all(close, ids[:changed])),
        (f"delete {changed:,}", lambda: _all(service.ledgers.delete, ids[:changed])),
    ):
        (sent, received), times = _transferred(), server.cpu_times()
        requests.count, own, began = 0, time.process_time(), time.monotonic()
        await work()
        own, now = time.process_time() - own, server.cpu_times()
        theirs = now.user + now.system - times.user - times.system
        seconds, size = time.monotonic() - began, server.memory_info().rss >> 20
        sent_since, received_since = (now - then for now, then in zip(_transferred(), (sent, received), strict=True))
        print(
            f"| {name} | {ledgers:,} | {step} | {requests.count:,} | {sent_since // 1000:,} and"
            f" {received_since // 1000:,} KB | {own:.2f} s | {theirs:.2f} s | {seconds:.1f} s | {size} MB |",
            flush=True,
        )
    print(f"| {name} | {ledgers:,} | folder | {_size(folder) >> 20} MB |", flush=True)
    await service.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ledgers", type=int, default=10_000)
    parser.add_argument("--services", nargs="+", choices=SERVERS, default=["etcd", "zookeeper"])
    parser.add_argument("--copied", action="store_true")
    arguments = parser.parse_args()
    for name in arguments.services:
        with tempfile.TemporaryDirectory() as folder:
            server = SERVERS[name](Path(folder))
            server.start()
            try:
                asyncio.run(_measure(name, server.uri(), server.pid, Path(folder), arguments.ledgers, arguments.copied))
            finally:
                server.stop()


if __name__ == "__main__":
    main()
