"""Six bookies under a writer's load, on both metadata services, and what may happen to bookies, auditors, workers and
the metadata service while copies are restored. Afterwards each bookie is asked for each entry that it should have."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from bookie_client import Client, ClientOptions
from bookie_pod.autorecovery.auditor.runs import Check, Finished, recorded_checks
from tests.support.auto_recovery import AutoRecoveryProcess, healed
from tests.support.client_workload import Workload
from tests.support.cluster_fixtures import all_writable
from tests.support.hanging import hanging
from tests.support.healing_rig import (
    AT_WORK,
    OPTIONS,
    PASSWORD,
    REPAIRED,
    SLOWLY,
    MetadataServer,
    absent,
    auditor_of,
    bookies,
    client,
    cluster,
    copies_are_whole,
    metadata_service,
    naming,
    process,
    soon,
    state,
    write_ledgers,
)
from tests.support.serve_cluster import ServeCluster
from tests.support.serve_process import ServeProcess

__all__ = ["bookies", "client", "cluster", "metadata_service"]

pytestmark = pytest.mark.slow

AWAY_S = 20.0
"""Longer than any session lasts."""
SOME_DELAY_S = 8
LONG_DELAY_S = 600


async def until_named_by_none(client: Client, victims: list[str], load: Workload) -> None:
    """Everything healed while the writer went on, which nobody fenced."""
    await healed(client, victims)
    await load.progress(200)


# --- bookies -------------------------------------------------------------------------------------------------------


async def test_a_bookie_is_killed_for_good(cluster: ServeCluster, client: Client, tmp_path: Path) -> None:
    ids = [
        *await write_ledgers(client, 6, (3, 3, 2)),
        *await write_ledgers(client, 6, (5, 3, 2)),
        *await write_ledgers(client, 6, (3, 2, 2)),
        *await write_ledgers(client, 2, (3, 3, 2), entries=1),
        *await write_ledgers(client, 2, (3, 3, 2), entries=0),
    ]
    with process(tmp_path / "one", cluster) as one, process(tmp_path / "two", cluster) as two:
        await one.ready()
        await two.ready()
        async with Workload(cluster.uri, OPTIONS) as load:
            victim = load.ledger.metadata.last_ensemble[0]
            assert await naming(client, victim, ids)
            cluster.kill(victim)
            await load.progress(200)
            await until_named_by_none(client, [victim], load)
        assert one.metric(REPAIRED) + two.metric(REPAIRED) > 0
        assert (one.stop(), two.stop()) == (0, 0)
    assert await copies_are_whole(client, [*ids, load.ledger.ledger_id]) > 2000
    assert await client.metadata_service.under_replication.locks() == {}


async def test_another_one_is_killed_while_the_first_heals(
    cluster: ServeCluster, client: Client, tmp_path: Path
) -> None:
    ids = await write_ledgers(client, 16, (3, 3, 2), entries=150)
    with process(tmp_path / "one", cluster, SLOWLY) as one:
        await one.ready()
        async with Workload(cluster.uri, OPTIONS) as load:
            first, second = load.ledger.metadata.last_ensemble[:2]
            cluster.kill(first)
            await soon(lambda: one.metric(REPAIRED) >= 1 and one.metric(AT_WORK) >= 1)
            assert await naming(client, first, ids)
            cluster.kill(second)
            await load.progress(200)
            await until_named_by_none(client, [first, second], load)
    await copies_are_whole(client, [*ids, load.ledger.ledger_id])


async def test_two_of_three_copies_are_lost_at_once(cluster: ServeCluster, client: Client, tmp_path: Path) -> None:
    ids = await write_ledgers(client, 16, (3, 3, 2))
    with process(tmp_path / "one", cluster) as one:
        await one.ready()
        async with Workload(cluster.uri, OPTIONS) as load:
            first, second = load.ledger.metadata.last_ensemble[:2]
            while not await naming(client, first, ids) & await naming(client, second, ids):
                ids += await write_ledgers(client, 4, (3, 3, 2))
            cluster.kill(first, second)
            await until_named_by_none(client, [first, second], load)
    await copies_are_whole(client, [*ids, load.ledger.ledger_id])


async def test_a_bookie_hangs_past_its_session_and_goes_on(
    cluster: ServeCluster, client: Client, tmp_path: Path
) -> None:
    ids = await write_ledgers(client, 10, (3, 3, 2))
    with process(tmp_path / "one", cluster, {"openLedgerRereplicationGracePeriod": "15000"}) as one:
        await one.ready()
        # The writer is to leave the bookie before it is taken for one that has died: that is what the grace is for.
        async with Workload(cluster.uri, ClientOptions(add_timeout=3, read_timeout=20)) as load:
            victim = load.ledger.metadata.last_ensemble[0]
            with cluster.paused([victim]):
                await until_named_by_none(client, [victim], load)
            await all_writable(client, cluster)
            await load.progress(200)
        await healed(client, [])
        assert one.get("/healthz")[0] == 200
    assert not await naming(client, victim, ids)
    await copies_are_whole(client, [*ids, load.ledger.ledger_id])


async def test_a_bookie_is_back_within_the_delay(cluster: ServeCluster, client: Client, tmp_path: Path) -> None:
    """Nothing is marked and nothing copied. What it missed of the loaded ledger a check finds, and only that."""
    ids = await write_ledgers(client, 10, (3, 3, 2))
    before = {each: (await client.metadata(each)).ensembles for each in ids}
    await client.metadata_service.under_replication.set_lost_bookie_recovery_delay(LONG_DELAY_S)
    with process(tmp_path / "one", cluster) as one:
        await one.ready()
        await auditor_of(one)
        async with Workload(cluster.uri, OPTIONS) as load:
            victim = load.ledger.metadata.last_ensemble[0]
            cluster.kill(victim)
            await load.progress(200)
            await soon(lambda: victim in absent(one))
            await asyncio.to_thread(cluster.start, [victim])
            await soon(lambda: not absent(one))
            await load.progress(200)
        assert [mark async for mark in client.metadata_service.under_replication.list()] == []
        assert one.metric("auditor_NUM_BOOKIE_AUDITS_DELAYED") == 1
        assert one.metric("auditor_NUM_DELAYED_BOOKIE_AUDITS_CANCELLED") == 1
        assert one.metric("replication_worker_NUM_ENTRIES_WRITTEN") == 0
        assert {each: (await client.metadata(each)).ensembles for each in ids} == before
        assert await copies_are_whole(client, ids) == len(ids) * 40 * 3
        await check_all_ledgers(cluster, client)
        await healed(client, [])
    assert {each: (await client.metadata(each)).ensembles for each in ids} == before
    await copies_are_whole(client, [load.ledger.ledger_id])


async def test_a_bookie_is_back_with_an_empty_disk(cluster: ServeCluster, client: Client, tmp_path: Path) -> None:
    """Nobody saw it lost: it was not away for long. It copies back what it lacks, or the check finds that."""
    ids = await write_ledgers(client, 10, (3, 3, 2))
    await client.metadata_service.under_replication.set_lost_bookie_recovery_delay(LONG_DELAY_S)
    with process(tmp_path / "one", cluster) as one:
        await one.ready()
        await auditor_of(one)
        async with Workload(cluster.uri, OPTIONS) as load:
            victim = load.ledger.metadata.last_ensemble[0]
            assert await naming(client, victim, ids)
            cluster.kill(victim)
            await load.progress(200)
            for folder in ("journal", "ledgers"):
                shutil.rmtree(cluster.bookies[victim].work / folder)
            await client.metadata_service.cookies.delete(victim)
            await asyncio.to_thread(cluster.start, [victim])
            await all_writable(client, cluster)
            await check_all_ledgers(cluster, client)
            await until_named_by_none(client, [], load)
    await copies_are_whole(client, [*ids, load.ledger.ledger_id])


async def check_all_ledgers(cluster: ServeCluster, client: Client) -> None:
    """Ask for the check as an operator does, and wait until it is complete."""
    before = await last_check(client)
    done = await asyncio.to_thread(
        ServeProcess.command, "cluster", "force-auditor-checks", "--ledgers", "--metadata", cluster.uri
    )
    assert done.returncode == 0, done.stderr
    async with asyncio.timeout(60):
        while await last_check(client) == before:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.2)


async def last_check(client: Client) -> Finished | None:
    """Of all ledgers, whoever was auditor then."""
    checks = await recorded_checks(client.metadata_service)
    return next(each.runs.last for each in checks if each.check is Check.LEDGERS)


# --- who restores them ---------------------------------------------------------------------------------------------


async def test_the_auditor_is_killed_while_a_delay_runs(cluster: ServeCluster, client: Client, tmp_path: Path) -> None:
    """The next one goes on with the same delay, which begins not anew; then it marks, and everything heals."""
    ids = await write_ledgers(client, 10, (3, 3, 2))
    marks = client.metadata_service.under_replication
    await marks.set_lost_bookie_recovery_delay(SOME_DELAY_S)
    with process(tmp_path / "one", cluster) as one, process(tmp_path / "two", cluster) as two:
        await one.ready()
        await two.ready()
        auditor = await auditor_of(one, two)
        other = two if auditor is one else one
        async with Workload(cluster.uri, OPTIONS) as load:
            victim = load.ledger.metadata.last_ensemble[0]
            cluster.kill(victim)
            await soon(lambda: victim in absent(auditor))
            lost_at = absent(auditor)[victim]["lostAtTime"]
            await asyncio.sleep(1)  # until it is stored
            auditor.kill()
            assert await auditor_of(other) is other
            await soon(lambda: victim in absent(other))
            assert abs(absent(other)[victim]["lostAtTime"] - lost_at) < 1000
            await until_named_by_none(client, [victim], load)
        assert other.metric(REPAIRED) > 0
    await copies_are_whole(client, [*ids, load.ledger.ledger_id])


async def test_workers_are_killed_again_and_again(cluster: ServeCluster, client: Client, tmp_path: Path) -> None:
    """Whoever comes next finds their locks gone, and what they had begun begins anew."""
    ids = await write_ledgers(client, 24, (3, 3, 2), entries=150)
    async with Workload(cluster.uri, OPTIONS) as load:
        victim = load.ledger.metadata.last_ensemble[0]
        cluster.kill(victim)
        for number in range(3):
            with process(tmp_path / f"killed-{number}", cluster, SLOWLY) as killed:
                await killed.ready()
                await soon(lambda killed=killed: killed.metric(AT_WORK) >= 1)  # type: ignore[misc]
        assert await naming(client, victim, ids), "all was healed before somebody was killed"
        with process(tmp_path / "last", cluster) as last:
            await last.ready()
            await until_named_by_none(client, [victim], load)
    await copies_are_whole(client, [*ids, load.ledger.ledger_id])


async def test_a_worker_hangs_with_its_locks(cluster: ServeCluster, client: Client, tmp_path: Path) -> None:
    """Another one takes them over; the first finds that out before it changes any metadata, and goes on."""
    ids = await write_ledgers(client, 16, (3, 3, 2), entries=150)
    with process(tmp_path / "one", cluster, SLOWLY) as one:
        await one.ready()
        async with Workload(cluster.uri, OPTIONS) as load:
            victim = load.ledger.metadata.last_ensemble[0]
            cluster.kill(victim)
            await soon(lambda: one.metric(AT_WORK) >= 1)
            assert one.process is not None
            with hanging([one.process.pid]), process(tmp_path / "two", cluster) as two:
                await two.ready()
                await until_named_by_none(client, [victim], load)
            await soon(lambda: one.get("/readyz")[0] == 200 and one.get("/healthz")[0] == 200)
            await auditor_of(one)
            await soon(lambda: one.metric(AT_WORK) == 0)
            await until_named_by_none(client, [victim], load)
    await copies_are_whole(client, [*ids, load.ledger.ledger_id])


# --- what cannot heal, or not now ----------------------------------------------------------------------------------


async def test_the_only_copy_is_gone(cluster: ServeCluster, client: Client, tmp_path: Path) -> None:
    """It is told by metric, log and API, tried again ever more rarely, and never closed short."""
    sound = await write_ledgers(client, 6, (3, 3, 2))
    single = await write_ledgers(client, 12, (1, 1, 1))
    async with Client(cluster.uri) as other:
        left_open = await other.create(ensemble=1, write_quorum=1, ack_quorum=1, password=PASSWORD)
        await left_open.append_many([bytes(100)] * 10)
    (victim,) = (await client.metadata(left_open.ledger_id)).last_ensemble
    lost = await naming(client, victim, single)
    ids = {*lost, left_open.ledger_id}
    with process(tmp_path / "one", cluster, {"lockReleaseOfFailedLedgerGracePeriod": "4000"}) as one:
        await one.ready()
        async with Workload(cluster.uri, OPTIONS) as load:
            cluster.kill(victim)
            marks = client.metadata_service.under_replication
            async with asyncio.timeout(60):
                while {mark.ledger_id async for mark in marks.list()} != ids:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.2)
            before = await attempts_of(one, ids, 3)
            await asyncio.sleep(5)
            now = await attempts_of(one, ids, 3)
            assert all(now[each] - before[each] <= 3 for each in ids)
            assert one.metric("replication_worker_LEDGERS_WITH_LOST_ENTRIES") >= len(lost)
            assert one.logged("ledger is not repaired")
            shown = {each["ledgerId"]: each for each in state(one)["worker"]["ledgers"]}
            assert all(shown[each]["lostEntries"] and shown[each]["reason"] for each in lost)
            assert (one.get("/healthz")[0], one.get("/readyz")[0]) == (200, 200)
            for ledger_id in lost:
                metadata = await client.metadata(ledger_id)
                assert (metadata.is_closed, metadata.last_entry_id) == (True, 39)
            assert not (await client.metadata(left_open.ledger_id)).is_closed
            await load.progress(200)
            await copies_are_whole(client, sound)
            await asyncio.to_thread(cluster.start, [victim])
            await healed(client, [])
    metadata = await client.recover(left_open.ledger_id, password=None)
    assert metadata.last_entry_id == 9
    await copies_are_whole(client, [*sound, *single, left_open.ledger_id, load.ledger.ledger_id])


async def attempts_of(running: AutoRecoveryProcess, ids: set[int], least: int) -> dict[int, int]:
    """Rounds that failed, by ledger, once each has failed so often: a ledger is not told of between two tries."""
    async with asyncio.timeout(60):
        while True:
            told = {each["ledgerId"]: each["attempts"] for each in state(running)["worker"]["ledgers"]}
            if told.keys() == ids and min(told.values()) >= least:
                return told
            await asyncio.sleep(0.05)


async def test_the_metadata_service_is_away_while_ledgers_heal(
    cluster: ServeCluster, client: Client, metadata_service: MetadataServer, tmp_path: Path
) -> None:
    ids = await write_ledgers(client, 16, (3, 3, 2), entries=150)
    # Bookies that are not registered again at once are not to be taken for lost, and their writer for dead.
    keys = {**SLOWLY, "openLedgerRereplicationGracePeriod": "20000"}
    with process(tmp_path / "one", cluster, keys) as one, process(tmp_path / "two", cluster, keys) as two:
        await one.ready()
        await two.ready()
        async with Workload(cluster.uri, OPTIONS) as load:
            victim = load.ledger.metadata.last_ensemble[0]
            cluster.kill(victim)
            await load.progress(200)
            await soon(lambda: one.metric(AT_WORK) + two.metric(AT_WORK) >= 2)
            await asyncio.to_thread(metadata_service.stop)
            await asyncio.sleep(AWAY_S)
            for each in (one, two):
                assert each.get("/healthz")[0] == 200, "a restart would not help"
                assert each.get("/readyz")[0] == 503
            await load.progress(200)  # the bookies serve on
            await asyncio.to_thread(metadata_service.start)
            await all_but(client, cluster, victim)
            await until_named_by_none(client, [victim], load)
        assert (one.stop(), two.stop()) == (0, 0)
    await copies_are_whole(client, [*ids, load.ledger.ledger_id])


async def all_but(client: Client, cluster: ServeCluster, victim: str) -> None:
    """All others are registered again."""
    async with asyncio.timeout(60):
        while await client.writable_bookies() != set(cluster.bookies) - {victim}:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.1)
