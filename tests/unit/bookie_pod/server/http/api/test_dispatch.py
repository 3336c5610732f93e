"""What every path has in common: bounds, time-outs, errors, the token."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_pod.admin.routes import RESOURCES
from bookie_pod.config.sections.service import HttpConfig
from bookie_pod.metrics.registry import Registry
from bookie_pod.roles import Caller, Role
from bookie_pod.server import tokens
from bookie_pod.server.http import untaken
from bookie_pod.server.http.api import dispatch
from bookie_pod.server.http.api.context import Workers
from bookie_pod.server.http.api.rendering import gson, jackson
from bookie_pod.server.http.api.table import METHODS, Group
from bookie_pod.server.http.connection import MAX_BODY_BYTES
from bookie_pod.server.http.routes import resources
from bookie_pod.server.http.server import HttpServer
from bookie_pod.server.http.start import start_http
from bookie_protocol.aside import STEPS
from bookie_protocol.errors import InvalidConfiguration, TooManyRequests
from tests.support.fake_admin import FakeAdmin
from tests.support.http_answers import ask
from tests.unit.bookie_pod.admin.conftest import Served
from tests.unit.bookie_pod.admin.conftest import served as served  # a fixture
from tests.unit.bookie_pod.server.nodes import FakeNode


async def test_a_bookie_that_does_not_serve_says_what_it_does(served: Served) -> None:
    served.serving, served.node.unready = False, "replaying journals"
    answer = await served.get("bookie/gc_details")
    assert (answer.status, answer.body) == (503, "the bookie does not serve: replaying journals")
    assert answer.headers["Retry-After"] == "1"
    assert (await served.get("bookie/state")).status == 200
    assert (await served("/openapi.json")).status == 200


async def test_an_unforeseen_fault_is_logged_and_not_told(served: Served) -> None:
    served.admin.node.fault = KeyError("secret")
    answer = await served.get("bookie/info")
    assert (answer.status, answer.body) == (500, "Internal Server Error")
    served.admin.node.fault = None
    assert (await served.get("bookie/info")).status == 200


async def test_too_many_requests_at_a_time(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "ADMIN_CALLS", 2)
    begun, go = asyncio.Semaphore(0), asyncio.Event()

    async def slow() -> bool:
        begun.release()
        await go.wait()
        return True

    served.admin.node.check_sanity = slow  # type: ignore[method-assign]
    running = [asyncio.create_task(served.get("bookie/sanity")) for _ in range(2)]
    for _ in running:
        await asyncio.wait_for(begun.acquire(), 10)
    assert (await served.get("bookie/gc")).status == 503
    assert (await served("/readyz")).status == 200
    go.set()
    assert [answer.status for answer in await asyncio.gather(*running)] == [200, 200]
    assert (await served.get("bookie/gc")).status == 200


async def test_an_operation_that_takes_too_long(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    from bookie_pod.admin import bookie

    (resource,) = (each for each in bookie.RESOURCES if each.path.endswith("/sanity"))
    operation = resource.operations[0]
    old = operation.timeout_s
    ended = asyncio.Event()

    async def stuck() -> bool:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()
        return True

    served.admin.node.check_sanity = stuck  # type: ignore[method-assign]
    object.__setattr__(operation, "timeout_s", 0.05)
    try:
        answer = await served.get("bookie/sanity")
    finally:
        object.__setattr__(operation, "timeout_s", old)
    assert (answer.status, answer.body) == (504, "no result within 0.05 s")
    assert ended.is_set()


async def test_of_several_values_the_first_counts(served: Served) -> None:
    served.admin.cluster.read_only = {"b1": "h"}
    assert (await served.get("bookie/list_bookies?type=ro&type=xx")).json == {"b1": None}


async def test_a_body_beyond_the_limit(served: Served) -> None:
    answer = await served.put("bookie/gc", "x" * (MAX_BODY_BYTES + 1))
    assert answer.status == 413
    assert served.admin.gc.forced == []


async def test_workers_are_bounded_also_when_nobody_waits_any_more() -> None:
    workers, go = Workers(threads=1, waiting=1), threading.Event()
    first, second = (asyncio.ensure_future(workers.run(go.wait)) for _ in range(2))
    await asyncio.sleep(0)
    with pytest.raises(TooManyRequests):
        await workers.run(lambda: None)
    first.cancel()
    await asyncio.sleep(0)
    with pytest.raises(TooManyRequests):  # its thread still runs
        await workers.run(lambda: None)
    go.set()
    assert await second
    assert await workers.run(lambda: 5) == 5
    workers.stop()


async def test_a_quarter_of_the_workers_places_is_for_callers_who_may_change_something() -> None:
    workers, go = Workers(threads=1, waiting=3), threading.Event()
    viewers = [asyncio.ensure_future(workers.run(go.wait)) for _ in range(4)]
    operator = asyncio.ensure_future(workers.run(go.wait, Caller("ops", "10.0.0.1", frozenset({Role.OPERATOR}))))
    with pytest.raises(TooManyRequests):
        await viewers[-1]
    go.set()
    assert await asyncio.gather(*viewers[:-1], operator) == [True] * 4
    workers.stop()


# --- tokens -----------------------------------------------------------------------------------------------


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("the-first-token-of-all\n\n  the-second-token-of-all  \n")
    return path


def put(path: Path, content: str) -> None:
    """As a mounted secret changes: at once."""
    other = path.with_name("other")
    other.write_text(content)
    os.replace(other, path)


async def start(token_file: Path, *, probes: bool = False) -> HttpServer:
    config = HttpConfig(server_port=0, server_host="127.0.0.1", auth_token_file=str(token_file), auth_probes=probes)
    admin = FakeAdmin()
    server = await start_http(config, FakeNode(), Registry(), lambda: admin, table=RESOURCES)
    assert server is not None
    return server


@pytest.fixture
async def guarded(token_file: Path) -> AsyncIterator[HttpServer]:
    server = await start(token_file)
    yield server
    await server.stop()


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "Basic the-first-token-of-all",
        "the-first-token-of-all",
        "Bearer the-first-token-of-all the-second-token-of-all",
    ],
)
async def test_without_the_token_nothing_is_told(guarded: HttpServer, authorization: str | None) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    for path in ("/api/v1/bookie/gc_details", "/api/v1/bookie/state", "/api/v1/ledger/list"):
        answer = await ask(guarded.port, path, **headers)
        assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert (await ask(guarded.port, path, "POST", **headers)).status == 401


async def test_no_operation_forgets_the_token(guarded: HttpServer) -> None:
    guarded_paths = [each.path for each in resources(RESOURCES, frozenset()) if each.group is Group.ADMIN]
    assert len(guarded_paths) > 25
    for path in guarded_paths:
        for method in METHODS:
            assert (await ask(guarded.port, path, method)).status == 401, f"{method} {path}"


async def test_probes_and_metrics_stay_open_unless_they_are_closed_too(guarded: HttpServer, token_file: Path) -> None:
    closed = await start(token_file, probes=True)
    for path in ("/readyz", "/healthz", "/heartbeat", "/metrics", "/api/v1/bookie/is_ready", "/openapi.json"):
        assert (await ask(guarded.port, path)).status == 200
        assert (await ask(closed.port, path)).status == 401
        assert (await ask(closed.port, path, Authorization="bearer the-second-token-of-all")).status == 200
    await closed.stop()


async def test_tokens_change_without_a_restart(
    guarded: HttpServer, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "CHECK_S", 0.0)

    async def status(token: str) -> int:
        return (await ask(guarded.port, "/api/v1/bookie/gc", Authorization=f"Bearer {token}")).status

    assert [await status(token) for token in ("the-first-token-of-all", "the-third-token-of-all")] == [200, 401]
    put(token_file, "the-third-token-of-all")
    assert [await status(token) for token in ("the-first-token-of-all", "the-third-token-of-all")] == [401, 200]
    os.unlink(token_file)
    assert await status("the-third-token-of-all") == 401
    put(token_file, "the-fourth-token-of-all")
    assert await status("the-fourth-token-of-all") == 200


@pytest.mark.parametrize(("content", "reason"), [(None, "No such"), ("", "no token"), (" \n\n", "no token")])
async def test_a_file_without_a_token_stops_the_start(tmp_path: Path, content: str | None, reason: str) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InvalidConfiguration, match=f"httpServerAuthTokenFile=.*{reason}"):
        await start(path)


async def test_no_admin_api_where_it_is_switched_off() -> None:
    config = HttpConfig(server_enabled=False, stats_address="127.0.0.1", stats_port=0)
    admin = FakeAdmin()
    server = await start_http(config, FakeNode(), Registry(), lambda: admin, table=RESOURCES)
    assert server is not None
    assert (await ask(server.port, "/api/v1/bookie/gc_details")).status == 404
    assert (await ask(server.port, "/metrics")).status == 200
    assert "/api/v1/bookie/gc_details" not in (await ask(server.port, "/openapi.json")).json["paths"]
    await server.stop()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_it_is_json(value: object) -> None:
    assert json.loads(jackson(value)) == value


@given(st.dictionaries(st.text(), st.text()))
def test_so_is_the_other_layout(value: dict[str, str]) -> None:
    assert json.loads(gson(value)) == value


def test_nesting() -> None:
    assert jackson([{"a": [1, 2], "b": {}, "c": [{"d": None}]}, []]) == (
        '[ {\n  "a" : [ 1, 2 ],\n  "b" : { },\n  "c" : [ {\n    "d" : null\n  } ]\n}, [ ] ]'
    )


def test_half_a_character_becomes_a_question_mark() -> None:
    assert jackson("\ud800x").encode() == b'"?x"'


# --- streams ----------------------------------------------------------------------------------------------


async def test_a_long_list_of_ids_leaves_turns_to_others(served: Served) -> None:
    turns, seen = 0, list[int]()

    def turn() -> None:
        nonlocal turns
        turns += 1
        loop.call_soon(turn)

    async def ids() -> AsyncIterator[int]:
        for ledger_id in range(5_000):  # not a whole piece
            seen.append(turns)
            yield ledger_id

    served.admin.ledgers.ids = ids  # type: ignore[method-assign]
    loop = asyncio.get_running_loop()
    turn()
    assert len((await served.get("ledger/list")).json) == 5_000
    assert max(Counter(seen).values()) <= STEPS + 1


async def test_a_stream_of_which_nothing_is_taken_ends(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untaken, "TAKEN_S", 0.1)
    ended = asyncio.Event()

    async def endless() -> AsyncIterator[int]:
        try:
            for ledger_id in count():
                yield ledger_id
        finally:
            ended.set()

    served.admin.ledgers.ids = endless  # type: ignore[method-assign]
    reader, writer = await asyncio.open_connection("127.0.0.1", served.server.port, limit=1)
    writer.write(b"GET /api/v1/ledger/list HTTP/1.1\r\nHost: x\r\n\r\n")
    assert await reader.readexactly(4) == b"HTTP"
    async with asyncio.timeout(20):
        await ended.wait()
    writer.close()
