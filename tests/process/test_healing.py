"""Auto-recovery with real processes: bookies, `bookie autorecovery`, an embedded metadata service."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from bookie_client import Client, ClientOptions
from bookie_client.replication.check import MAX_HOLES
from bookie_protocol.errors import LedgerClosed, LedgerFenced
from bookie_protocol.ledger_metadata.model import LedgerState
from bookie_protocol.metadata_service.findings import Finding, Reason
from tests.support.auto_recovery import QUICK, AutoRecoveryProcess, healed
from tests.support.client_workload import Workload
from tests.support.cluster_fixtures import all_writable
from tests.support.hanging import hanging
from tests.support.healing_rig import ENTRIES, PASSWORD, copies_are_whole, write_ledgers
from tests.support.metadata_process import MetadataProcess
from tests.support.serve_cluster import ServeCluster
from tests.support.until import until
from tests.support.warm import BOOKIE, WarmProcess

PAYLOAD = b"x" * 900


@pytest.fixture
def metadata_service(tmp_path: Path) -> Iterator[MetadataProcess]:
    service = MetadataProcess(tmp_path / "metadata")
    service.start()
    yield service
    service.stop()


@pytest.fixture
def cluster(tmp_path: Path, metadata_service: MetadataProcess) -> Iterator[ServeCluster]:
    made = ServeCluster(tmp_path / "bookies", metadata_service.uri(), QUICK)
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
async def client(cluster: ServeCluster) -> AsyncIterator[Client]:
    async with Client(cluster.uri, ClientOptions(add_timeout=20, read_timeout=20)) as made:
        yield made


async def added(cluster: ServeCluster, client: Client, count: int) -> list[str]:
    """So many further bookies, of which the client has heard."""
    names = await asyncio.to_thread(cluster.add, count)
    await all_writable(client, cluster)
    return names


def shown_as_lost(process: AutoRecoveryProcess) -> set[int]:
    """Ledgers with entries of which no copy is left, as the admin API shows them."""
    worker = json.loads(process.get("/api/v1/autorecovery/process")[1])["worker"]
    return {each["ledgerId"] for each in worker["ledgers"] if each["lostEntries"]}


async def test_a_bookie_is_killed_for_good_under_load(cluster: ServeCluster, client: Client, tmp_path: Path) -> None:
    await added(cluster, client, 5)
    with (
        AutoRecoveryProcess(tmp_path / "one", cluster.uri) as one,
        AutoRecoveryProcess(tmp_path / "two", cluster.uri) as two,
    ):
        await one.ready()
        await two.ready()
        ids = [
            *await write_ledgers(client, 8, (3, 3, 2)),
            *await write_ledgers(client, 8, (3, 2, 2)),
            *await write_ledgers(client, 4, (4, 2, 1)),
            *await write_ledgers(client, 2, (3, 3, 2), entries=0),
            *await write_ledgers(client, 2, (3, 3, 2), entries=1),
        ]
        async with Workload(cluster.uri, ClientOptions(add_timeout=20, read_timeout=20)) as load:
            victim = load.ledger.metadata.last_ensemble[0]
            cluster.kill(victim)
            await load.progress(200)
            await healed(client, [victim])
            await load.progress(200)  # nobody fenced it
        assert await copies_are_whole(client, [*ids, load.ledger.ledger_id]) > len(ids) * ENTRIES
        name = "replication_worker_NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED"
        assert one.metric(name) + two.metric(name) > 0
        for process in (one, two):
            assert process.get("/healthz") == (200, "OK")
            assert process.stop() == 0
    assert await client.metadata_service.under_replication.locks() == {}
    assert await client.metadata_service.auditor_election.current_auditor() is None


@pytest.mark.parametrize("way", ["kill", pytest.param("hang", marks=pytest.mark.slow)])
async def test_a_worker_ends_in_the_middle(cluster: ServeCluster, client: Client, tmp_path: Path, way: str) -> None:
    await added(cluster, client, 4)
    ids = await write_ledgers(client, 24, (3, 3, 2), entries=200)
    victim = (await client.metadata(ids[0])).last_ensemble[0]
    slow = {"replicationRateByBytes": "200000", "replicationYieldsToClients": "false", "replicationLedgersAtOnce": "2"}
    with AutoRecoveryProcess(tmp_path / "one", cluster.uri, slow) as one:
        await one.ready()
        cluster.kill(victim)
        await until(lambda: one.metric("replication_worker_NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED") >= 1, 60)
        assert one.metric("replication_worker_LEDGERS_AT_WORK") >= 1
        with AutoRecoveryProcess(tmp_path / "two", cluster.uri) as two:
            await two.ready()
            if way == "kill":
                one.kill()
                await healed(client, [victim])
            else:
                assert one.process is not None
                with hanging([one.process.pid]):
                    await healed(client, [victim])
                # It is back in a session of its own, and works.
                await until(lambda: one.get("/readyz")[0] == 200 and one.get("/healthz")[0] == 200, 60)
                await until(lambda: one.metric("replication_worker_RUNNING") == 1, 30)
            assert two.metric("replication_worker_NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED") >= 1
    await copies_are_whole(client, ids)


async def test_a_bookie_hangs_and_comes_back(cluster: ServeCluster, client: Client, tmp_path: Path) -> None:
    """Once its session has ended it is lost, and its copies are made again; what it has is surplus then."""
    await added(cluster, client, 4)
    ids = await write_ledgers(client, 6, (3, 3, 2))
    victim = (await client.metadata(ids[0])).last_ensemble[0]
    with AutoRecoveryProcess(tmp_path / "one", cluster.uri) as one:
        await one.ready()
        with cluster.paused([victim]):
            await healed(client, [victim])
        await copies_are_whole(client, ids)
        assert one.get("/healthz")[0] == 200


async def test_a_bookie_comes_back_with_an_empty_disk(cluster: ServeCluster, client: Client, tmp_path: Path) -> None:
    """Three bookies, ensembles of three: there is no spare, so it is filled again where it is."""
    names = await added(cluster, client, 3)
    ids = await write_ledgers(client, 6, (3, 3, 2))
    victim = names[0]
    cluster.kill(victim)
    with AutoRecoveryProcess(tmp_path / "one", cluster.uri) as one:
        await one.ready()
        await until(lambda: one.metric("autorecovery_UNDER_REPLICATED_LEDGERS") >= len(ids), 60)
        for folder in ("journal", "ledgers"):
            shutil.rmtree(cluster.bookies[victim].work / folder)
        await client.metadata_service.cookies.delete(victim)
        await asyncio.to_thread(cluster.start, [victim])
        await healed(client, [])
    for ledger_id in ids:
        assert victim in (await client.metadata(ledger_id)).last_ensemble
    await copies_are_whole(client, ids)


async def test_the_only_copy_is_gone(cluster: ServeCluster, client: Client, tmp_path: Path) -> None:
    """It is told, the ledger keeps its mark and its length, and all others heal."""
    await added(cluster, client, 4)
    sound = await write_ledgers(client, 4, (3, 3, 2))
    single = await write_ledgers(client, 6, (1, 1, 1))
    victim = (await client.metadata(single[0])).last_ensemble[0]
    lost = [i for i in single if (await client.metadata(i)).last_ensemble == (victim,)]
    with AutoRecoveryProcess(tmp_path / "one", cluster.uri) as one:
        await one.ready()
        cluster.kill(victim)
        await until(lambda: one.metric("replication_worker_LEDGERS_WITH_LOST_ENTRIES") >= len(lost), 60)
        marks = client.metadata_service.under_replication
        async with asyncio.timeout(60):
            while {mark.ledger_id async for mark in marks.list()} != set(lost):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0.2)
        assert one.metric("replication_worker_NUM_ENTRIES_UNABLE_TO_READ_FOR_REPLICATION") >= MAX_HOLES
        assert one.logged("ledger is not repaired")
        assert one.get("/healthz")[0] == 200
        await until(lambda: shown_as_lost(one) == set(lost))
        assert one.get("/api/v1/bookie/gc")[0] == 404, "there is no bookie in this process"
        for ledger_id in lost:
            metadata = await client.metadata(ledger_id)
            assert (metadata.last_ensemble, metadata.last_entry_id) == ((victim,), ENTRIES - 1)
        await copies_are_whole(client, sound)
        # It was only away: its mark goes.
        await asyncio.to_thread(cluster.start, [victim])
        await healed(client, [])
    await copies_are_whole(client, [*sound, *single])


async def test_an_open_ledger_whose_writer_is_gone(cluster: ServeCluster, client: Client, tmp_path: Path) -> None:
    await added(cluster, client, 4)
    async with Client(cluster.uri) as other:
        ledger = await other.create(ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD)
        await ledger.append_many([b"%d " % i + PAYLOAD for i in range(ENTRIES)])
        victim = ledger.metadata.last_ensemble[0]
        with AutoRecoveryProcess(tmp_path / "one", cluster.uri) as one:
            await one.ready()
            cluster.kill(victim)
            await healed(client, [victim])
            assert one.metric("replication_worker_NUM_OPEN_LEDGERS_RECOVERED") == 1
        metadata = await client.metadata(ledger.ledger_id)
        assert metadata.is_closed
        assert metadata.last_entry_id == ENTRIES - 1
        with pytest.raises((LedgerFenced, LedgerClosed)):
            await ledger.append(b"too late")
    await copies_are_whole(client, [ledger.ledger_id])


async def test_inside_a_bookie_and_for_deleted_ledgers(cluster: ServeCluster, client: Client) -> None:
    cluster._settings["autoRecoveryDaemonEnabled"] = "true"
    await added(cluster, client, 4)
    ids = await write_ledgers(client, 4, (3, 2, 2))
    marks = client.metadata_service.under_replication
    await marks.mark(10**9, ["nobody:3181"], ctime_ms=None)
    victim = (await client.metadata(ids[0])).last_ensemble[0]
    cluster.kill(victim)
    await healed(client, [victim])
    await copies_are_whole(client, ids)
    name = (set(cluster.bookies) - {victim}).pop()
    assert await asyncio.to_thread(cluster.bookies[name].stop) == 0


async def test_two_bookies_of_three_are_gone(cluster: ServeCluster, client: Client, tmp_path: Path) -> None:
    """Closed ledgers heal from the third copy. The end of an open one cannot be told: it is told so, and left alone."""
    await added(cluster, client, 5)
    ids = await write_ledgers(client, 8, (3, 3, 2))
    async with Client(cluster.uri) as other:
        ledger = await other.create(ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD)
        await ledger.append_many([PAYLOAD] * ENTRIES)
        victims = ledger.metadata.last_ensemble[:2]
        with AutoRecoveryProcess(tmp_path / "one", cluster.uri) as one:
            await one.ready()
            cluster.kill(*victims)
            marks = client.metadata_service.under_replication
            async with asyncio.timeout(90):
                while not await only_marked(client, ledger.ledger_id, ids, victims):  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.2)
            await until(lambda: one.logged("open ledger is fenced and recovered"), 60)
            await until(lambda: one.metric("replication_worker_exceptions_RecoveryFailed") >= 1, 60)
            assert not (await client.metadata(ledger.ledger_id)).is_closed
            # One of them is back: now its end can be found.
            await asyncio.to_thread(cluster.start, victims[:1])
            await healed(client, victims[1:])
            async with asyncio.timeout(30):  # a lock goes after its mark
                while await marks.locks():  # noqa: ASYNC110 - another process gives no event
                    await asyncio.sleep(0.05)
    metadata = await client.metadata(ledger.ledger_id)
    assert (metadata.is_closed, metadata.last_entry_id) == (True, ENTRIES - 1)
    await copies_are_whole(client, [*ids, ledger.ledger_id])


async def only_marked(client: Client, ledger_id: int, others: list[int], gone: Sequence[str]) -> bool:
    """Whether nobody but this ledger is marked, and none of the others names bookies that are gone."""
    marked = {mark.ledger_id async for mark in client.metadata_service.under_replication.list()}
    named = [(await client.metadata(other)).all_bookies().intersection(gone) for other in others]
    return marked == {ledger_id} and not any(named)


async def test_the_metadata_service_goes_away_for_longer_than_sessions_last(
    cluster: ServeCluster, client: Client, metadata_service: MetadataProcess, tmp_path: Path
) -> None:
    await added(cluster, client, 4)
    ids = await write_ledgers(client, 6, (3, 3, 2))
    victim = (await client.metadata(ids[0])).last_ensemble[0]
    with AutoRecoveryProcess(tmp_path / "one", cluster.uri) as one:
        await one.ready()
        metadata_service.kill()
        await until(lambda: one.get("/readyz")[0] == 503, 60)
        await asyncio.sleep(6)
        assert one.get("/healthz")[0] == 200, "a restart would not help"
        await asyncio.to_thread(metadata_service.start)
        await until(lambda: one.get("/readyz")[0] == 200, 60)
        cluster.kill(victim)
        await healed(client, [victim])
        assert one.stop() == 0
    await copies_are_whole(client, ids)


async def test_a_ledger_whose_end_cannot_be_known_is_closed_by_hand(
    cluster: ServeCluster, client: Client, tmp_path: Path
) -> None:
    """One of its bookies is gone, and another lost entries: the worker refuses, and says what to do."""
    await added(cluster, client, 4)
    async with Client(cluster.uri) as dead:
        ledger = await dead.create(ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD)
        await ledger.append_many([b"%d" % n for n in range(20)])
        ledger_id, (gone, lost, _) = ledger.ledger_id, ledger.metadata.last_ensemble
    marks = client.metadata_service.under_replication
    await marks.mark(ledger_id, ctime_ms=1, findings=[Finding(lost, Reason.MISSING, ((0, 0),))])
    cluster.kill(gone)
    with AutoRecoveryProcess(tmp_path / "one", cluster.uri) as one:
        await one.ready()
        told = f"`bookie ledger recover {ledger_id}`"
        await until(lambda: told in one.get("/api/v1/autorecovery/process")[1], 60)
        assert (await client.metadata(ledger_id)).state is LedgerState.IN_RECOVERY
        (tmp_path / "password").write_bytes(PASSWORD)
        words = ["ledger", "recover", str(ledger_id), "--password-file", str(tmp_path / "password")]
        by_hand = WarmProcess(BOOKIE, [*words, "--metadata", cluster.uri])
        assert await asyncio.to_thread(by_hand.wait, 60) == 0
        await healed(client, [gone])
    assert (await client.metadata(ledger_id)).last_entry_id == 19
    await copies_are_whole(client, [ledger_id])
