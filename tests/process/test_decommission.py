"""Decommissions of real bookies under a writer's load: afterwards no ledger names the bookie, and every replica of
every entry is where the metadata say, bookie by bookie. Coordinators and bookies are killed on the way."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bookie_client import Client, ClientOptions
from bookie_client.reading.maintenance import replicas
from bookie_pod.node.standalone import StandaloneCluster
from bookie_protocol.errors import MetadataNotFound
from bookie_protocol.ledger_metadata.model import LedgerState
from bookie_protocol.metadata_service.interface import BookieGroup, BookieSet
from bookie_protocol.metadata_service.subscription import Subscription
from tests.support.client_workload import Workload
from tests.support.http_answers import ask
from tests.support.until import until

BOOKIE = str(Path(sys.executable).with_name("bookie"))
GOING = "bookie-2"
KEYS = {
    "memoryBudgetMb": "64",
    "dbStorage_writeCacheMaxSizeMb": "8",
    "dbStorage_readAheadCacheMaxSizeMb": "8",
    "journalPreAllocSizeMB": "1",
    "entryLogFilePreallocationEnabled": "false",
    "diskUsageThreshold": "0.99",
    "diskUsageWarnThreshold": "0.98",
    "diskUsageLwmThreshold": "0.99",
    "autoRecoveryDaemonEnabled": "false",
}
PASSWORD = b"x"
# A drain begins with a fourth of the `--rate` that it is given, and these here end before it is faster.


@pytest.fixture(
    params=[pytest.param("embedded", marks=pytest.mark.slow), pytest.param("zookeeper", marks=pytest.mark.zookeeper)]
)
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StandaloneCluster]:
    uri = None
    if request.param == "zookeeper":
        uri = request.getfixturevalue("zookeeper").uri(f"/decommission-{tmp_path.name}/ledgers")
    async with StandaloneCluster(tmp_path, 5, KEYS, metadata_uri=uri, http_port=0) as started:
        yield started


@pytest.fixture
async def embedded(tmp_path: Path) -> AsyncIterator[StandaloneCluster]:
    async with StandaloneCluster(tmp_path, 5, KEYS, http_port=0) as started:
        yield started


class Command:
    """`bookie cluster ...` as a process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def start(cls, cluster: StandaloneCluster, *arguments: str) -> Command:
        return cls(
            await asyncio.create_subprocess_exec(
                *(BOOKIE, "cluster", *arguments, "--metadata", cluster.metadata_service_uri),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        )

    async def end(self, code: int | None = 0, seconds: float = 90.0) -> tuple[str, str]:
        """What it printed to its outputs."""
        async with asyncio.timeout(seconds):
            out, err = await self.process.communicate()
        if code is not None:
            assert self.process.returncode == code, err.decode()
        return out.decode(), err.decode()

    async def kill(self) -> None:
        self.process.kill()
        await self.process.communicate()


async def run(cluster: StandaloneCluster, *arguments: str, code: int = 0) -> str:
    return (await (await Command.start(cluster, *arguments)).end(code))[0]


async def write(client: Client, count: int, entries: int = 100, *, close: bool = True, ensemble: int = 3) -> list[int]:
    """Ledgers of so many entries each."""
    made = []
    for _ in range(count):
        ledger = await client.create(ensemble=ensemble, write_quorum=3 if ensemble == 3 else 2, password=PASSWORD)
        await ledger.append_many([b"entry %d" % i + bytes(500) for i in range(entries)])
        if close:
            await ledger.close()
        made.append(ledger.ledger_id)
    return made


async def idle_ledger(client: Client) -> int:
    """One that names the bookie and is left open; its writer does nothing more."""
    while True:
        (ledger_id,) = await write(client, 1, close=False)
        if GOING in (await client.metadata(ledger_id)).last_ensemble:
            return ledger_id


async def only_copies(client: Client, count: int) -> dict[int, str]:
    """So many closed ledgers of which the bookie holds the only copy, and their metadata as text."""
    made: dict[int, str] = {}
    while len(made) < count:
        async with client.create(ensemble=1, write_quorum=1, ack_quorum=1, password=PASSWORD) as ledger:
            await ledger.append_many([b"entry %d" % i + bytes(500) for i in range(100)])
        metadata = await client.metadata(ledger.ledger_id)
        if metadata.last_ensemble == (GOING,):
            made[ledger.ledger_id] = str(metadata)
        else:
            await client.delete(ledger.ledger_id)
    return made


async def check_all(cluster: StandaloneCluster, gone: str) -> int:
    """Every ledger, every entry, every replica; returns the number of entries."""
    entries = 0
    async with Client(cluster.metadata_service_uri) as client:
        async for ledger_id in client.list():
            metadata = await client.metadata(ledger_id)
            assert gone not in metadata.all_bookies(), ledger_id
            assert await cluster.metadata.under_replication.read(ledger_id) is None
            metadata = await client.recover(ledger_id, password=None)  # what its writer left open gets its end
            async with client.open(ledger_id, password=None) as reader:
                for bookie in metadata.all_bookies():
                    async with aclosing(replicas(reader).scan(bookie, 0, reader.last_add_confirmed)) as answers:
                        async for answer in answers:
                            assert answer.error is None, (ledger_id, bookie, answer)
                entries += reader.last_add_confirmed + 1
    return entries


async def phase(cluster: StandaloneCluster) -> str | None:
    try:
        return str(json.loads((await cluster.metadata.records("decommission").read(GOING)).value)["phase"])
    except MetadataNotFound:
        return None


async def until_phase(cluster: StandaloneCluster, *wanted: str | None) -> None:
    async with asyncio.timeout(60):
        while await phase(cluster) not in wanted:  # noqa: ASYNC110 - another process gives no event
            await asyncio.sleep(0.02)


async def mode(cluster: StandaloneCluster, bookie: str = GOING) -> str:
    for group in (BookieGroup.WRITABLE, BookieGroup.READ_ONLY):
        if await cluster.metadata.bookies.is_registered(bookie, group):
            return group.value
    return "down"


async def has_cookie(cluster: StandaloneCluster) -> bool:
    return GOING in (await cluster.metadata.bookies.list(BookieGroup.ALL)).bookies


async def check_gone(cluster: StandaloneCluster) -> None:
    assert not await has_cookie(cluster)
    assert await phase(cluster) is None
    record = json.loads((await cluster.metadata.records("decommissioned").read(GOING)).value)
    assert record["phase"] == "done"


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


async def test_a_stopped_bookie_that_is_started_again_is_writable_once_that_is_undone(
    embedded: StandaloneCluster,
) -> None:
    async with Client(embedded.metadata_service_uri) as client:
        await write(client, 20)
    await embedded.bookies[GOING].kill()
    async with asyncio.timeout(60):
        while await mode(embedded) != "down":  # noqa: ASYNC110 - another process gives no event
            await asyncio.sleep(0.05)
    command = await Command.start(embedded, "decommission", GOING, "--rate", "200000", "--grace", "1")
    await until_phase(embedded, "draining")
    await command.kill()
    await embedded.start_bookie(GOING)
    assert await mode(embedded) == "read-only"
    await run(embedded, "decommission", GOING, "--undo")
    async with asyncio.timeout(20):
        while await mode(embedded) != "writable":  # noqa: ASYNC110 - another process gives no event
            await asyncio.sleep(0.05)


async def test_a_stopped_bookie(cluster: StandaloneCluster) -> None:
    async with Client(cluster.metadata_service_uri) as client:
        await write(client, 10)
        await write(client, 2, close=False)
    refused = await Command.start(cluster, "decommission", GOING, "--stopped")
    assert "stop it first" in (await refused.end(10))[1]
    await cluster.bookies[GOING].kill()
    async with asyncio.timeout(60):
        while await mode(cluster) != "down":  # noqa: ASYNC110 - another process gives no event
            await asyncio.sleep(0.05)
    out = await run(cluster, "decommission", GOING, "--stopped", "--grace", "0", "--json")
    assert json.loads(out)["form"] == "stopped"
    await check_gone(cluster)
    assert await check_all(cluster, GOING) == 1200
    restarted = await asyncio.create_subprocess_exec(
        *(BOOKIE, "serve", "--config", str(cluster.bookies[GOING].directory / "bookie.conf")),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert b"a bookie of this id was decommissioned at" in (await restarted.communicate())[1]
    assert restarted.returncode == 2


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


async def test_a_stopped_bookie_that_holds_the_only_copies_stays_until_it_gives_them(
    embedded: StandaloneCluster,
) -> None:
    async with Client(embedded.metadata_service_uri) as client:
        await write(client, 10)
        alone = await only_copies(client, 2)
        await embedded.bookies[GOING].kill()
        async with asyncio.timeout(60):
            while await mode(embedded) != "down":  # noqa: ASYNC110 - another process gives no event
                await asyncio.sleep(0.05)
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


async def test_undo(embedded: StandaloneCluster) -> None:
    async with Client(embedded.metadata_service_uri) as client:
        ledger = await client.create(ensemble=5, write_quorum=3, ack_quorum=2, password=PASSWORD)
        await ledger.append(b"names everybody")
        command = await Command.start(embedded, "decommission", GOING, "--wait-only", "--force")
        await until_phase(embedded, "draining")
        assert await mode(embedded) == "read-only"
        status = json.loads(await run(embedded, "decommission", GOING, "--status", "--json"))
        assert status["phase"] == "draining"
        assert "nobody seems" not in await run(embedded, "decommission", GOING, "--status")
        assert "writable again" in await run(embedded, "decommission", GOING, "--undo")
        said = (await command.end(10))[1]
        assert "is being undone" in said or "was undone" in said
        assert await mode(embedded) == "writable"
        assert await has_cookie(embedded)
        assert await phase(embedded) is None
        await run(embedded, "decommission", GOING, "--undo", code=11)
        await ledger.append(b"and goes on")
        await ledger.close()


async def test_interrupted_it_says_how_to_go_on(embedded: StandaloneCluster) -> None:
    async with Client(embedded.metadata_service_uri) as client:
        await write(client, 20)
    command = await Command.start(embedded, "decommission", GOING, "--rate", "200000")
    await until_phase(embedded, "draining")
    async with asyncio.timeout(30):
        while "not counted" in await run(embedded, "decommission", GOING, "--status"):
            pass
    command.process.send_signal(signal.SIGINT)
    said = (await command.end(130))[1]
    assert f"decommission of {GOING}: listing ledgers" in said or "ledgers left, " in said, "one line for each phase"
    assert f"interrupted: the same command goes on with it; until then {GOING} takes no new data" in said
    assert "0 of 0" not in await run(embedded, "decommission", GOING, "--status")
    await run(embedded, "decommission", GOING)
    await check_gone(embedded)


async def test_too_few_bookies_refuse_it_and_a_new_one_allows_it(embedded: StandaloneCluster) -> None:
    async with Client(embedded.metadata_service_uri) as client:
        async with client.create(ensemble=5, write_quorum=2, ack_quorum=2, password=PASSWORD) as ledger:
            await ledger.append_many([b"entry"] * 50)
        refused = await Command.start(embedded, "decommission", GOING)
        assert "1 ledgers have no other writable bookie to go to" in (await refused.end(10))[1]
        assert await mode(embedded) == "writable"
        assert await phase(embedded) is None
        await embedded.start_bookie("bookie-6")
        await run(embedded, "decommission", GOING)
    await check_gone(embedded)
    assert await check_all(embedded, GOING) == 50


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
        async with asyncio.timeout(60):
            while await mode(embedded) != "down":  # noqa: ASYNC110 - another process gives no event
                await asyncio.sleep(0.05)
        listed = (await run(embedded, "recover", GOING, "-q", "--json")).splitlines()
        assert {json.loads(line)["ledger_id"] for line in listed}.isdisjoint(named)
        result = json.loads(await run(embedded, "recover", GOING, "-f", "-d", "--json"))
        assert (result["restored"], result["failed"]) == (len(listed), {})
        assert result["cookies_deleted"] == [GOING]
        assert {(await client.metadata(ledger_id)).state for ledger_id in left_open} <= set(LedgerState)
    assert not await has_cookie(embedded)
    assert await check_all(embedded, GOING) == 2300


async def test_cookies(embedded: StandaloneCluster, tmp_path: Path) -> None:
    stored = await run(embedded, "cookie", "get", GOING)
    directory = embedded.bookies[GOING].directory
    file = tmp_path / "cookie"
    await run(
        embedded,
        *("cookie", "generate", GOING, "-j", str(directory / "journal"), "-l", str(directory / "ledgers")),
        *("-o", str(file)),
    )
    assert file.read_text() == stored
    await run(embedded, "cookie", "create", GOING, "-cf", str(file), code=10)
    await run(embedded, "cookie", "create", "bookie-9", "-cf", str(file), code=1)  # another's cookie
    await run(embedded, "cookie", "update", GOING, "-cf", str(file))
    refused = await Command.start(embedded, "cookie", "delete", GOING)
    assert "the cookie of bookie-2 stays: the bookie is writable" in (await refused.end(10))[1]
    await run(embedded, "cookie", "delete", GOING, "--force")
    await run(embedded, "cookie", "get", GOING, code=11)
    await run(embedded, "cookie", "create", GOING, "-cf", str(file))
    assert await run(embedded, "cookie", "get", GOING) == stored


async def test_safety_check_and_replicas(embedded: StandaloneCluster) -> None:
    async with Client(embedded.metadata_service_uri) as client:
        async with client.create(ensemble=1, write_quorum=1, ack_quorum=1, password=PASSWORD) as ledger:
            await ledger.append_many([b"entry"] * 7)
        (only,) = (await client.metadata(ledger.ledger_id)).all_bookies()
        report = json.loads(await run(embedded, "safety-check", only, "--json", code=10))
        assert (report["is_safe"], report["no_copy"]) == (False, 1)
        assert report["listed"][0]["ledger_id"] == ledger.ledger_id
        other = next(bookie for bookie in embedded.bookies if bookie != only)
        port = embedded.bookies[other].http_port
        assert port is not None
        assert json.loads(await run(embedded, "safety-check", other, "--json"))["is_safe"]
        mistyped = await (await Command.start(embedded, "safety-check", f"{other}x")).end()
        assert f"warning: bookie {other}x has no cookie and is not registered" in mistyped[1]
        held = json.loads(await run(embedded, "replicas", str(ledger.ledger_id), "--json"))
        assert [(each["bookie"], each["held"]["count"]) for each in held["bookies"]] == [(only, 7)]
        assert held["bookies"][0]["missing"]["count"] == 0
        answer = await ask(port, f"/api/v1/ledger/replicas?ledger_id={ledger.ledger_id}")
        assert answer.json == {
            "ledgerId": ledger.ledger_id,
            "state": "CLOSED",
            "lastEntry": 6,
            "bookies": [
                {
                    "bookieId": only,
                    "registration": "writable",
                    "expected": {"count": 7, "runs": [[0, 6]]},
                    "held": {"count": 7, "runs": [[0, 6]]},
                    "missing": {"count": 0, "runs": []},
                    "surplus": {"count": 0, "runs": []},
                    "problem": None,
                }
            ],
        }
        answer = await ask(port, f"/api/v1/ledger/replicas?ledger_id={2**40}")
        assert answer.status == 404


async def test_over_http_another_bookie_carries_it_out(embedded: StandaloneCluster) -> None:
    async with Client(embedded.metadata_service_uri) as client:
        await write(client, 15)
    port = embedded.bookies["bookie-1"].http_port
    base = f"http://127.0.0.1:{port}/api/v1/autorecovery"
    query = f"bookie_id={GOING}"
    async with aiohttp.ClientSession() as http, asyncio.timeout(90):

        async def get(path: str) -> Any:
            async with http.get(f"{base}/{path}") as answer:
                return answer.status, await answer.json(content_type=None) if answer.status == 200 else None

        assert (await get(f"decommission/progress?{query}"))[0] == 404
        status, plan = await get(f"decommission/plan?{query}")
        assert (status, plan["presence"], plan["refusals"]) == (200, "writable", [])
        body = json.dumps({"bookie_src": GOING, "delete_cookie": "true"})
        async with http.put(f"{base}/decommission", data=body) as answer:
            assert answer.status == 200
            assert (await answer.text()).startswith(f"Success send decommission Bookie command {GOING}\n")
        while (await get(f"decommission/progress?{query}"))[1]["phase"] != "done":  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        status, safety = await get(f"safety_check?bookies={GOING}")
        assert (status, safety["safe"], safety["ledgersConcerned"]) == (200, True, 0)
        async with http.put(f"{base}/decommission/undo", data=json.dumps({"bookie_src": GOING})) as answer:
            assert answer.status == 409
    await check_gone(embedded)
    await embedded.bookies[GOING].stop()
    assert await check_all(embedded, GOING) == 1500


async def test_over_http_lost_bookies_are_recovered(embedded: StandaloneCluster) -> None:
    async with Client(embedded.metadata_service_uri) as client:
        await write(client, 15)
    await embedded.bookies[GOING].kill()
    base = f"http://127.0.0.1:{embedded.bookies['bookie-1'].http_port}/api/v1/autorecovery/bookie"
    async with aiohttp.ClientSession() as http, asyncio.timeout(90):
        while await mode(embedded) != "down":  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        async with http.put(base, data=json.dumps({"bookie_src": [GOING], "delete_cookie": True})) as answer:
            assert answer.status == 200
            assert (await answer.text()).startswith("Success send recovery request command.\n")
        while True:
            async with http.get(f"{base}/progress") as answer:
                state = await answer.json(content_type=None)
            if not state["running"]:
                break
            await asyncio.sleep(0.1)
    assert (state["problem"], state["failed"], state["cookiesDeleted"]) == ("", [], [GOING])
    assert await check_all(embedded, GOING) == 1500
