"""Decommissions of bookies that are down, and the recovery of what they held."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time

from bookie_client import Client
from bookie_pod.node.standalone.cluster import StandaloneCluster
from bookie_protocol.ledger_metadata.model import LedgerState
from bookie_protocol.metadata_service.interface import BookieGroup
from tests.process.decommission.leaving import (
    GOING,
    Command,
    check_all,
    check_gone,
    has_cookie,
    mode,
    only_copies,
    run,
    until_mode,
    until_phase,
    write,
)
from tests.support import warm
from tests.support.hanging import hanging
from tests.support.until import until


async def test_a_stopped_bookie_that_is_started_again_is_writable_once_that_is_undone(
    embedded: StandaloneCluster,
) -> None:
    async with Client(embedded.metadata_service_uri) as client:
        await write(client, 20)
    await embedded.bookies[GOING].kill()
    await until_mode(embedded, "down")
    command = await Command.start(embedded, "decommission", GOING, "--rate", "200000", "--grace", "1")
    await until_phase(embedded, "draining")
    await command.kill()
    await embedded.start_bookie(GOING)
    assert await mode(embedded) == "read-only"
    await run(embedded, "decommission", GOING, "--undo")
    await until_mode(embedded, "writable")


async def test_a_stopped_bookie(cluster: StandaloneCluster) -> None:
    async with Client(cluster.metadata_service_uri) as client:
        await write(client, 10)
        await write(client, 2, close=False)
    refused = await Command.start(cluster, "decommission", GOING, "--stopped")
    assert "stop it first" in (await refused.end(10))[1]
    await cluster.bookies[GOING].kill()
    await until_mode(cluster, "down")
    out = await run(cluster, "decommission", GOING, "--stopped", "--grace", "0", "--json")
    assert json.loads(out)["form"] == "stopped"
    await check_gone(cluster)
    assert await check_all(cluster, GOING) == 1200
    configuration = cluster.bookies[GOING].directory / "bookie.conf"
    restarted = await warm.start(warm.BOOKIE, ["serve", "--config", str(configuration)])
    told = (await restarted.communicate())[1]
    assert b"a bookie of this id was decommissioned at" in told
    assert b"may be removed" in told, "its newest data are older"
    assert restarted.returncode == 2


async def test_bookie_that_was_suspended_while_it_was_decommissioned_ends_when_it_resumes(
    embedded: StandaloneCluster,
) -> None:
    """It is a member no more: it takes no data, and where it took some the directories are not given up."""
    bookie = embedded.bookies[GOING]
    async with Client(embedded.metadata_service_uri) as client:
        await write(client, 5)
        with hanging([bookie.process.pid]):
            await until_mode(embedded, "down")
            await run(embedded, "decommission", GOING, "--stopped", "--grace", "0")
            await check_gone(embedded)
        async with asyncio.timeout(60):
            assert await bookie.process.wait() == 2
        assert await mode(embedded) == "down"
        assert await check_all(embedded, GOING) == 500
    for log in bookie.directory.glob("*/current/*.txn"):
        os.utime(log, (time.time() + 60, time.time() + 60))
    restarted = await warm.start(warm.BOOKIE, ["serve", "--config", str(bookie.directory / "bookie.conf")])
    told = (await restarted.communicate())[1]
    assert restarted.returncode == 2
    assert b"keep the directories" in told
    assert b"may be removed" not in told


async def test_bookie_that_was_suspended_while_its_decommission_began_resumes_read_only(
    embedded: StandaloneCluster,
) -> None:
    """Also where the coordinator was interrupted, so that nobody tells the bookie."""
    async with Client(embedded.metadata_service_uri) as client:
        await write(client, 20)
    with hanging([embedded.bookies[GOING].process.pid]):
        await until_mode(embedded, "down")
        command = await Command.start(embedded, "decommission", GOING, "--rate", "200000", "--grace", "1")
        await until_phase(embedded, "draining")
        await command.kill()
        groups: list[frozenset[str]] = []
        follower = asyncio.create_task(_follow_writable(embedded, groups))
        await until(lambda: bool(groups))
    await until_mode(embedded, "read-only")
    await asyncio.sleep(1.0)
    assert await mode(embedded) == "read-only"
    assert all(GOING not in group for group in groups)
    follower.cancel()
    await run(embedded, "decommission", GOING, "--undo")
    await until_mode(embedded, "writable")


async def _follow_writable(cluster: StandaloneCluster, groups: list[frozenset[str]]) -> None:
    async with cluster.metadata.bookies.watch(BookieGroup.WRITABLE) as snapshots:
        async for snapshot in snapshots:
            groups += [snapshot.bookies]


async def test_a_stopped_bookie_that_holds_the_only_copies_stays_until_it_gives_them(
    embedded: StandaloneCluster,
) -> None:
    async with Client(embedded.metadata_service_uri) as client:
        await write(client, 10)
        alone = await only_copies(client, 2)
        await embedded.bookies[GOING].kill()
        await until_mode(embedded, "down")
        command = await Command.start(embedded, "decommission", GOING, "--stopped", "--grace", "0")
        tries = set()
        async with asyncio.timeout(90):
            await until_phase(embedded, "draining")
            while len(tries) < 2:  # it goes on trying, and what it finds stays the same
                assert command.process.returncode is None
                record = json.loads(await run(embedded, "decommission", GOING, "--status", "--json"))
                if record["progress"]["blocked"] and record["progress"]["ledgers_left"] == len(alone):
                    tries.add(record["updated_ms"])
        assert record["phase"] == "draining"
        reasons = {each["ledger_id"]: each["reason"] for each in record["progress"]["blockers"]}
        assert reasons.keys() == alone.keys()
        for ledger_id, reason in reasons.items():
            said = f"no replica can give some entries, so nothing was exchanged: ledger {ledger_id}: entry 0 ({GOING}: "
            assert said in reason
        assert await has_cookie(embedded)
        assert {ledger_id: str(await client.metadata(ledger_id)) for ledger_id in alone} == alone
        command.process.send_signal(signal.SIGINT)
        await command.end(130)
        assert await has_cookie(embedded)
    await embedded.start_bookie(GOING)
    record = json.loads(await run(embedded, "decommission", GOING, "--grace", "0", "--json"))
    assert (record["phase"], record["form"]) == ("done", "live")
    await check_gone(embedded)
    await embedded.bookies[GOING].stop()
    assert await check_all(embedded, GOING) == 1200


async def test_recover_restores_what_a_lost_bookie_held(embedded: StandaloneCluster) -> None:
    async with Client(embedded.metadata_service_uri) as client:
        await write(client, 10)
        left_open = await write(client, 3, close=False)
        named = {
            ledger_id async for ledger_id in client.list() if GOING in (await client.metadata(ledger_id)).all_bookies()
        }
        refused = await Command.start(embedded, "recover", GOING, "-f", "-d")
        assert "cookie of bookie-2 stays: the bookie is writable" in (await refused.end(10))[1]
        await write(client, 10)
        await embedded.bookies[GOING].kill()
        await until(lambda: embedded.bookies[GOING].process.returncode is not None)
        await until_mode(embedded, "down")
        listed = (await run(embedded, "recover", GOING, "-q", "--json")).splitlines()
        assert {json.loads(line)["ledger_id"] for line in listed}.isdisjoint(named)
        result = json.loads(await run(embedded, "recover", GOING, "-f", "-d", "--json"))
        assert (result["restored"], result["failed"]) == (len(listed), {})
        assert result["cookies_deleted"] == [GOING]
        assert {(await client.metadata(ledger_id)).state for ledger_id in left_open} <= set(LedgerState)
    assert not await has_cookie(embedded)
    assert await check_all(embedded, GOING) == 2300
