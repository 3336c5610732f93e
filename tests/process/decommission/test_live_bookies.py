"""Decommissions of live bookies under a writer's load: afterwards no ledger names the bookie, and every replica of
every entry is where the metadata say, bookie by bookie. Coordinators and bookies are killed on the way."""

from __future__ import annotations

import asyncio
import json

from bookie_client import Client, ClientOptions
from bookie_pod.node.standalone.cluster import StandaloneCluster
from bookie_protocol.ledger_metadata.model import LedgerState
from bookie_protocol.metadata_service.interface import BookieGroup, BookieSet
from bookie_protocol.metadata_service.subscription import Subscription
from tests.process.decommission.leaving import (
    GOING,
    PASSWORD,
    Command,
    check_all,
    check_gone,
    has_cookie,
    idle_ledger,
    mode,
    only_copies,
    phase,
    run,
    until_phase,
    write,
)
from tests.support.client_workload import Workload


async def test_a_live_bookie_leaves_under_load(cluster: StandaloneCluster) -> None:
    async with Workload(cluster.metadata_service_uri, ClientOptions()) as load:
        await write(load.client, 12)
        await write(load.client, 4, 50, ensemble=4)
        idle = await idle_ledger(load.client)
        ledgers = [ledger_id async for ledger_id in load.client.list()]
        plan = json.loads(await run(cluster, "decommission", GOING, "--plan", "--json"))
        assert (plan["presence"], plan["form"], plan["has_cookie"], plan["refusals"]) == ("writable", "live", True, [])
        assert plan["ledgers"] > 0
        assert plan["nbytes"] > 0
        assert len(plan["targets"]) == 4
        out = await run(cluster, "decommission", GOING, "--grace", "1", "--json")
        record = json.loads(out)
        assert (record["phase"], record["form"], record["read_only_by_us"]) == ("done", "live", True)
        assert record["proof"]["ledgers"] == len(ledgers)
        assert record["progress"]["bytes_copied"] > 0
        assert GOING not in load.ledger.metadata.last_ensemble
        await load.progress(200)  # its writer noticed nothing
        assert (await load.client.metadata(idle)).state is LedgerState.CLOSED
    assert await mode(cluster) == "read-only"  # up to the end, and after it
    await check_gone(cluster)
    await cluster.bookies[GOING].stop()
    assert await check_all(cluster, GOING) > 1500


async def test_the_coordinator_is_killed_again_and_again(embedded: StandaloneCluster) -> None:
    async with Client(embedded.metadata_service_uri) as client:
        await write(client, 30)
        for pause in (0.0, 0.3, 1.0, 1.5):
            command = await Command.start(embedded, "decommission", GOING, "--rate", "400000", "--parallel", "1")
            await until_phase(embedded, "requested", "draining", "proving")
            await asyncio.sleep(pause)
            await command.kill()
            assert await has_cookie(embedded)
            assert await phase(embedded) is not None
        await run(embedded, "decommission", GOING, "--grace", "0")
    await check_gone(embedded)
    await embedded.bookies[GOING].kill()
    assert await check_all(embedded, GOING) == 3000


async def test_the_bookie_is_killed_while_it_is_drained(embedded: StandaloneCluster) -> None:
    """Then it is a stopped one, and what is left comes from the other copies."""
    async with Client(embedded.metadata_service_uri) as client:
        await write(client, 30)
    command = await Command.start(embedded, "decommission", GOING, "--rate", "1200000", "--json")
    await until_phase(embedded, "draining")
    await asyncio.sleep(0.3)
    await embedded.bookies[GOING].kill()
    record = json.loads((await command.end())[0])
    assert record["phase"] == "done"
    await check_gone(embedded)
    assert await check_all(embedded, GOING) == 3000


async def test_a_bookie_that_restarts_is_read_only_from_its_start(embedded: StandaloneCluster) -> None:
    """Nobody has to make it so, and it is drained once."""
    async with Client(embedded.metadata_service_uri) as client:
        await write(client, 20)
        # Slow enough that it has not ended when the bookie is back, however busy the machine is.
        command = await Command.start(embedded, "decommission", GOING, "--rate", "120000", "--json", "--grace", "1")
        await until_phase(embedded, "draining")
        seen: set[str] = set()
        async with embedded.metadata.bookies.watch(BookieGroup.WRITABLE) as snapshots:
            watching = asyncio.create_task(_collect(snapshots, seen))
            await embedded.bookies[GOING].stop()
            await embedded.start_bookie(GOING)
            assert await mode(embedded) == "read-only"
            record = json.loads((await command.end())[0])
            assert await mode(embedded) == "read-only"
            watching.cancel()
        assert GOING not in seen
        assert (record["phase"], record["form"]) == ("done", "live")
    await check_gone(embedded)
    assert await check_all(embedded, GOING) == 2000


async def _collect(snapshots: Subscription[BookieSet], seen: set[str]) -> None:
    async for snapshot in snapshots:
        seen |= snapshot.bookies


async def test_what_a_live_bookie_alone_holds_is_copied_off_it(embedded: StandaloneCluster) -> None:
    async with Client(embedded.metadata_service_uri) as client:
        await only_copies(client, 3)
        for _ in range(3):  # each entry on one bookie, striped over all
            async with client.create(ensemble=4, write_quorum=1, ack_quorum=1, password=PASSWORD) as ledger:
                await ledger.append_many([b"entry %d" % i + bytes(500) for i in range(100)])
    record = json.loads(await run(embedded, "decommission", GOING, "--grace", "0", "--json"))
    assert (record["phase"], record["form"], record["progress"]["blocked"]) == ("done", "live", 0)
    await check_gone(embedded)
    await embedded.bookies[GOING].stop()
    assert await check_all(embedded, GOING) == 600
