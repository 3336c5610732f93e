"""What tests of a healing cluster share: six bookies on either metadata service, and a look at each copy of each entry.

    from tests.support.healing_rig import bookies, client, cluster, metadata_service

The cluster of a module goes through all its tests: each begins with every bookie up and no ledger, whatever the ones
before did to it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any, Protocol

import pytest

from bookie_client import Client, ClientOptions
from bookie_client.reading.maintenance import replicas
from tests.support.auto_recovery import QUICK, AutoRecoveryProcess
from tests.support.bookie_process import free_port
from tests.support.cluster_fixtures import all_writable
from tests.support.etcd import EtcdServer
from tests.support.metadata_process import MetadataProcess
from tests.support.serve_cluster import ServeCluster
from tests.support.until import until
from tests.support.zookeeper import ZooKeeperServer

PASSWORD = b"healing"
ENTRIES = 40
"""Of a ledger, where a test says nothing else."""
BOOKIES = 6
REPAIRED = "replication_worker_NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED"
AT_WORK = "replication_worker_LEDGERS_AT_WORK"
SLOWLY = {
    "replicationRateByBytes": "1500000",
    "replicationYieldsToClients": "false",
    "replicationLedgersAtOnce": "2",
    "zkReplicationTaskRateLimit": "3",
}
"""So that there is a middle for faults to fall into."""
OPTIONS = ClientOptions(add_timeout=20, read_timeout=20)


class MetadataServer(Protocol):
    """A metadata service as a process of its own, which keeps its data and its port."""

    def uri(self) -> str: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...


@pytest.fixture(
    scope="module",
    params=[
        "embedded",
        pytest.param("zookeeper", marks=pytest.mark.zookeeper),
        pytest.param("etcd", marks=pytest.mark.etcd),
    ],
)
def metadata_service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MetadataServer]:
    folder = tmp_path_factory.mktemp(request.param)
    services: dict[str, Callable[[Path], MetadataServer]] = {
        "embedded": MetadataProcess,
        "zookeeper": lambda folder: ZooKeeperServer(str(folder)),
        "etcd": EtcdServer,
    }
    service = services[request.param](folder)
    service.start()
    yield service
    service.stop()


@pytest.fixture(scope="module")
def bookies(tmp_path_factory: pytest.TempPathFactory, metadata_service: MetadataServer) -> Iterator[ServeCluster]:
    made = ServeCluster(tmp_path_factory.mktemp("bookies"), metadata_service.uri(), QUICK)
    try:
        made.add(BOOKIES)
        yield made
    finally:
        made.stop()


@pytest.fixture
async def client(bookies: ServeCluster) -> AsyncIterator[Client]:
    async with Client(bookies.uri, OPTIONS) as made:
        yield made


@pytest.fixture
async def cluster(bookies: ServeCluster, client: Client) -> ServeCluster:
    """All bookies up, no ledgers and no marks, and who is lost is lost at once."""
    down = [name for name, bookie in bookies.bookies.items() if bookie.process is None]
    await asyncio.to_thread(bookies.start, down)
    await all_writable(client, bookies)
    for ledger_id in [ledger_id async for ledger_id in client.list()]:
        await client.delete(ledger_id)
    marks = client.metadata_service.under_replication
    for mark in [mark async for mark in marks.list()]:
        await marks.unmark(mark.ledger_id)
    await marks.set_lost_bookie_recovery_delay(0)
    return bookies


async def write_ledgers(client: Client, count: int, quorums: tuple[int, int, int], entries: int = ENTRIES) -> list[int]:
    """Closed ledgers of about `entries` KB each."""
    ids = []
    ensemble, write_quorum, ack_quorum = quorums
    async with asyncio.timeout(60):  # a bookie that serves is in the client's view a moment later
        while len(await client.writable_bookies()) < ensemble:  # noqa: ASYNC110 - other processes give no event
            await asyncio.sleep(0.02)
    for _ in range(count):
        async with client.create(
            ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum, password=PASSWORD
        ) as ledger:
            if entries:
                await ledger.append_many([b"%d:%d " % (ledger.ledger_id, i) + bytes(900) for i in range(entries)])
            ids.append(ledger.ledger_id)
    return ids


async def copies_are_whole(client: Client, ledger_ids: Iterable[int]) -> int:
    """Ask each bookie of each closed ledger for each entry that it should have; returns how many copies there are."""
    copies = 0
    for ledger_id in ledger_ids:
        contents: dict[int, bytes] = {}
        found: Counter[int] = Counter()
        async with client.open(ledger_id, password=None) as handle:
            assert handle.is_closed
            reader, last = replicas(handle), handle.last_add_confirmed
            for bookie in sorted(handle.metadata.all_bookies()):
                async with aclosing(reader.scan(bookie, 0, last)) as answers:
                    async for answer in answers:
                        assert answer.entry is not None, (ledger_id, bookie, answer)
                        digest = hashlib.sha256(answer.entry.payload).digest()
                        assert contents.setdefault(answer.entry_id, digest) == digest
                        found[answer.entry_id] += 1
            assert found == dict.fromkeys(range(last + 1), handle.metadata.write_quorum_size)
        copies += found.total()
    return copies


async def naming(client: Client, bookie: str, ledger_ids: Iterable[int]) -> set[int]:
    """Those of the ledgers that name the bookie."""
    return {each for each in ledger_ids if bookie in (await client.metadata(each)).all_bookies()}


def process(folder: Path, cluster: ServeCluster, settings: dict[str, str] | None = None) -> AutoRecoveryProcess:
    """`bookie autorecovery`, by a name that its vote tells apart from others."""
    return AutoRecoveryProcess(folder, cluster.uri, {"bookiePort": str(free_port()), **(settings or {})})


def state(running: AutoRecoveryProcess) -> Any:
    """What it says that it does; {} while it says nothing."""
    status, text = running.get("/api/v1/autorecovery/process")
    return json.loads(text) if status == 200 else {}


def absent(running: AutoRecoveryProcess) -> dict[str, Any]:
    """Bookies that its auditor knows to be gone."""
    return {each["bookieId"]: each for each in state(running).get("absentBookies", [])}


async def auditor_of(*candidates: AutoRecoveryProcess, seconds: float = 30.0) -> AutoRecoveryProcess:
    """The one that is elected, when one is."""
    elected: list[AutoRecoveryProcess] = []

    def is_elected() -> bool:
        elected[:] = [each for each in candidates if state(each).get("isAuditor")]
        return bool(elected)

    await until(is_elected, seconds)
    return elected[0]


async def soon(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """As `until`, for conditions that ask a process."""
    async with asyncio.timeout(seconds):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110 - other processes give no event
            await asyncio.sleep(0.1)
