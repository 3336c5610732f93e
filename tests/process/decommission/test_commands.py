"""What operators do around a decommission: undo it, interrupt it, ask whether it is safe, and see to cookies."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

from bookie_client import Client
from bookie_pod.node.standalone.cluster import StandaloneCluster
from tests.process.decommission.leaving import (
    GOING,
    PASSWORD,
    Command,
    check_all,
    check_gone,
    has_cookie,
    mode,
    phase,
    run,
    until_phase,
    write,
)
from tests.support.http_answers import ask


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
