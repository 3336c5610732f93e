"""The client of the pods' admin API against the pods' own server: both sides mean the same."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from bookie_operator.api.admin import Admin, AdminAbsent, AdminRefused, AdminUnknown, AdminUnreachable, Endpoint
from bookie_operator.world.facts import DrainPhase
from bookie_protocol.admin_api import autorecovery
from bookie_protocol.admin_api.autorecovery import ReturnedBody
from bookie_protocol.admin_api.bodies import NOTHING, Route
from bookie_protocol.admin_api.bookie import BookieSpace
from bookie_protocol.errors import MetadataExists, MetadataUnavailable
from tests.support.fake_decommission import STATE
from tests.support.served_admin import TOKEN, ServedAdmin


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedAdmin]:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    server = ServedAdmin(file)
    yield server
    server.stop()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as found:
        yield found


def endpoint(server: ServedAdmin) -> Endpoint:
    return Endpoint("pod-0", "127.0.0.1", int(server.url.rpartition(":")[2]))


async def test_facts_of_a_bookie(served: ServedAdmin, session: aiohttp.ClientSession) -> None:
    served.admin.node.found_space = BookieSpace(40, 100, 87.5)
    facts = await Admin(session, TOKEN).bookie_facts(endpoint(served))
    assert facts is not None
    assert (facts.total_bytes, facts.used_bytes, facts.used_percent) == (100, 60, 87.5)
    assert facts.config is not None


async def test_facts_of_the_cluster(served: ServedAdmin, session: aiohttp.ClientSession) -> None:
    facts = await Admin(session, TOKEN).cluster_facts(endpoint(served))
    assert facts.instance_id == "i-1"
    assert facts.writable == {"a:1", "b:1"}
    assert facts.last_audit == 1_700_000_000.0
    assert (facts.under_replicated, facts.lost_bookie_recovery_delay, facts.unrecoverable) == (7, 300, 0)


async def test_a_metadata_service_that_does_not_answer_is_told_as_such(
    served: ServedAdmin, session: aiohttp.ClientSession
) -> None:
    served.admin.facts.fault = MetadataUnavailable("no session")
    admin = Admin(session, TOKEN)
    with pytest.raises(AdminUnreachable, match="no session"):
        await admin.cluster_facts(endpoint(served))
    assert await admin.proof(endpoint(served), "a:1") is None


@pytest.mark.parametrize("count", [3, 1100, 16_384])
async def test_any_number_of_accepted_losses_is_told(
    served: ServedAdmin, session: aiohttp.ClientSession, count: int
) -> None:
    admin, at = Admin(session, TOKEN), endpoint(served)
    losses = tuple(range(10**17, 10**17 + count))
    assert await admin.proof(at, "d:1", losses) is not None
    assert served.admin.facts.asked == [("d:1", set(losses))]
    await admin.delete_cookie(at, "b:1", losses)
    await admin.begin_drain(at, "b:1", losses)
    assert served.admin.decommission.losses == [set(losses), set(losses)]


async def test_proof_drain_and_safety(served: ServedAdmin, session: aiohttp.ClientSession) -> None:
    admin, at = Admin(session, TOKEN, now=lambda: STATE.updated_time / 1000), endpoint(served)
    proof = await admin.proof(at, "d:1", (3, 1))
    assert proof is not None
    assert proof.holds(instance_id="i-1", drained_since=0.0)
    assert served.admin.facts.asked == [("d:1", {1, 3})]
    drain = await admin.drain(at, STATE.bookie_id)
    assert drain is not None
    assert drain.ledgers_left == STATE.ledgers_left
    nobody = await admin.drain(at, "z:1")
    assert nobody is not None
    assert nobody.phase is DrainPhase.ABSENT
    safety = await admin.safety(at, frozenset({"b:1", "a:1"}))
    assert safety is not None
    assert (safety.without_copy, safety.unrecoverable) == (1, (7,))


async def test_requests(served: ServedAdmin, session: aiohttp.ClientSession) -> None:
    admin, at = Admin(session, TOKEN), endpoint(served)
    port = served.admin.decommission
    await admin.begin_drain(at, "b:1", (2, 1))
    assert port.begun == [("b:1", False)]
    assert port.losses == [frozenset({1, 2})]
    await admin.undo_drain(at, "b:1")
    assert port.undone == ["b:1"]
    await admin.delete_cookie(at, "b:1")
    with pytest.raises(AdminAbsent):
        await admin.delete_cookie(at, "b:1")
    port.refusal = "not enough bookies"
    with pytest.raises(AdminRefused):
        await admin.begin_drain(at, "b:1")
    await admin.set_config(at, {"majorCompactionInterval": "100"})
    await admin.set_recovery_delay(at, 900)
    await admin.trigger_audit(at)
    await admin.check_replicas(at)
    await admin.look_at_returned(at, ["b:1"])


async def test_a_path_that_an_earlier_release_does_not_have_is_no_refusal_of_what_was_asked(
    served: ServedAdmin, session: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin, at = Admin(session, TOKEN), endpoint(served)

    async def conflict(bookies: object) -> None:
        raise MetadataExists("changed by others 10 times")

    served.admin.auto_recovery.look_at_returned = conflict  # type: ignore[method-assign]
    with pytest.raises(AdminRefused) as refused:
        await admin.look_at_returned(at, ["b:1"])
    assert not isinstance(refused.value, AdminUnknown)
    later = Route("PUT", "/api/v1/autorecovery/of_tomorrow", NOTHING, body=ReturnedBody)
    monkeypatch.setattr(autorecovery, "LOOK_AT_RETURNED", later)
    with pytest.raises(AdminUnknown):
        await admin.look_at_returned(at, ["b:1"])


async def test_whether_the_metadata_service_answers_a_pod_is_one_read(
    served: ServedAdmin, session: aiohttp.ClientSession
) -> None:
    admin, at = Admin(session, TOKEN), endpoint(served)
    served.admin.facts.fault = MetadataUnavailable("counting the marks takes too long")
    assert await admin.tells(at)

    async def unavailable() -> bool:
        raise MetadataUnavailable("no session")

    served.admin.auto_recovery.is_enabled = unavailable  # type: ignore[method-assign]
    assert not await admin.tells(at)


async def test_without_the_token_nothing_is_known(served: ServedAdmin, session: aiohttp.ClientSession) -> None:
    for token in ("", "wrong"):
        assert await Admin(session, token).bookie_facts(endpoint(served)) is None
        with pytest.raises(AdminUnreachable, match="token"):
            await Admin(session, token).set_read_only(endpoint(served), True)


HUGE = b"1" + b"0" * 400


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b"null", b'{"readOnly": 1}', b'"x"'),
        # What would be a fact, but for a number with which nobody can reckon.
        b'{"readOnly": false, "freeSpace": 1, "totalSpace": ' + HUGE + b"}",
        b'{"readOnly": false, "freeSpace": 1, "totalSpace": 2, "fullestUsedPercent": 1e30}',
    ],
)
async def test_an_answer_that_cannot_be_read_is_no_fact(session: aiohttp.ClientSession, body: bytes) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=body)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    at = Endpoint("pod-0", "127.0.0.1", runner.addresses[0][1])
    admin = Admin(session)
    assert await admin.bookie_facts(at) is None
    assert await admin.proof(at, "a:1") is None
    assert await admin.drain(at, "a:1") is None
    assert await admin.safety(at, frozenset({"a:1"})) is None
    with pytest.raises(AdminUnreachable):
        await admin.cluster_facts(at)
    await runner.cleanup()


async def test_nobody_there_and_nobody_in_time(session: aiohttp.ClientSession, served: ServedAdmin) -> None:
    assert await Admin(session).bookie_facts(Endpoint("gone", "127.0.0.1", 1)) is None
    slow = Admin(session, TOKEN, timeout_s=0.000001)
    assert await slow.bookie_facts(endpoint(served)) is None


@pytest.fixture
def deaf() -> Iterator[Endpoint]:
    """Nobody takes connections: what comes beyond the first ones gets no answer, as from a node that is off."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, contextlib.ExitStack() as waiting:
        for _ in range(4):
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(server.getsockname())
        yield Endpoint("off", *server.getsockname())


async def test_a_pod_that_is_gone_holds_nobody_up(session: aiohttp.ClientSession, deaf: Endpoint) -> None:
    """Slow answers are waited for; connections are not."""
    admin = Admin(session, TOKEN, timeout_s=0.05)
    async with asyncio.timeout(10):
        with pytest.raises(AdminUnreachable):
            await admin.cluster_facts(deaf)
        assert await admin.proof(deaf, "b:1") is None


def test_addresses() -> None:
    assert Endpoint("p", "10.0.0.1").url == "http://10.0.0.1:8000"
    assert Endpoint("p", "::1").url == "http://[::1]:8000"
