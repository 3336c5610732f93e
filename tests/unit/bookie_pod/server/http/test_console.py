"""The console's door: who gets in, with what, and what a page of elsewhere can make of a browser that is logged in."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from bookie_pod.admin.console import BASE, CONSOLE
from bookie_pod.admin.routes import RESOURCES
from bookie_pod.config.sections.service import AccessConfig, HttpConfig
from bookie_pod.metrics.registry import Registry
from bookie_pod.roles import Role
from bookie_pod.server.http.api import dispatch
from bookie_pod.server.http.start import start_http
from bookie_protocol.admin_api.cluster import KnownBookie
from bookie_protocol.web_console.source import AGE_S
from tests.support.certificates import Certificates
from tests.support.fake_admin import FakeAdmin
from tests.support.http_answers import HttpAnswer, ask
from tests.unit.bookie_pod.server.nodes import FakeNode

LOOK, RUN, WRITE = (f"{name}-of-sixteen-characters" for name in ("look", "run", "write"))
ELSEWHERE = {"X-Forwarded-For": "10.0.0.7"}
LOCATION = "\"><script>alert('map')</script>"


def basic(token: str, user: str = "any body") -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{token}".encode()).decode()}


class Served:
    def __init__(self, port: int, admin: FakeAdmin, log: Path) -> None:
        self.port = port
        self.admin = admin
        self.log = log

    async def __call__(self, path: str = BASE, method: str = "GET", **headers: str) -> HttpAnswer:
        return await ask(self.port, path, method, **headers)

    def lines(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Served]:
    """With tokens, without TLS."""
    (tmp_path / "tokens").write_text(f"{LOOK} viewer dashboards\n{RUN} operator ci\n{WRITE} writer orders\n")
    async for each in _served(tmp_path, HttpConfig(auth_token_file=str(tmp_path / "tokens"))):
        yield each


@pytest.fixture
async def unguarded(tmp_path: Path) -> AsyncIterator[Served]:
    async for each in _served(tmp_path, HttpConfig()):
        yield each


async def _served(work: Path, config: HttpConfig) -> AsyncIterator[Served]:
    admin, log = FakeAdmin(), work / "audit.log"
    admin.cluster.known_bookies = [
        KnownBookie(admin.node.bookie_id, "writable", True, False, "h1", LOCATION, None),
        KnownBookie("other:3181", "writable", True, False, "h2", None, None),
    ]
    config = replace(config, server_port=0, server_host="127.0.0.1")
    rules = AccessConfig(audit_log_file=str(log))
    server = await start_http(
        config, FakeNode(), Registry(), lambda: admin, table=RESOURCES, pages=CONSOLE, rules=rules
    )
    assert server is not None
    yield Served(server.port, admin, log)
    await server.stop()


async def test_a_browser_logs_in_with_a_token_as_its_password(guarded: Served) -> None:
    stranger = await guarded()
    assert stranger.status == 401
    assert stranger.headers["WWW-Authenticate"].startswith("Basic ")
    for token in (LOOK, RUN, WRITE):
        assert (await guarded(**basic(token))).status == 200
    assert (await guarded(Authorization=f"Bearer {LOOK}")).status == 200
    for wrong in (basic("wrong-of-sixteen-chars"), basic(""), {"Authorization": "Basic !"}, basic(LOOK[:-1])):
        assert (await guarded(**wrong)).status == 401, wrong
    assert (await guarded(Authorization="Basic " + base64.b64encode(b"\xff\xfe:x").decode())).status == 401
    assert {(line["what"], line["outcome"]) for line in guarded.lines()} == {(f"GET {BASE}", "refused")}
    assert LOOK not in guarded.log.read_text()


async def test_other_bookies_are_asked_with_the_token_of_who_looks(guarded: Served) -> None:
    await guarded(**basic(LOOK))
    assert {(bookie, token) for bookie, _, token in guarded.admin.watching.asked} == {("other:3181", LOOK)}


@pytest.mark.parametrize("path", ["/api/v1/bookie/info", "/api/v1/cluster/bookies"])
async def test_the_api_takes_no_password_and_asks_for_none(guarded: Served, path: str) -> None:
    for headers in (basic(LOOK), basic(RUN)):
        answer = await guarded(path, **headers)
        assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
async def test_a_password_changes_nothing(guarded: Served, method: str) -> None:
    for path in ("/api/v1/bookie/gc", "/api/v1/bookie/state/readonly", "/api/v1/ledger/delete?ledger_id=5", BASE):
        assert (await guarded(path, method, **basic(RUN))).status in (401, 403, 405), path
    assert guarded.admin.gc.forced == []
    assert guarded.admin.ledgers.deleted == []


async def test_a_password_that_others_could_read_does_not_count(guarded: Served) -> None:
    answer = await guarded(**basic(LOOK), **ELSEWHERE)
    assert answer.status == 403
    assert "WWW-Authenticate" not in answer.headers
    assert (await guarded(Authorization=f"Bearer {LOOK}", **ELSEWHERE)).status == 200  # as everywhere


async def test_credentials_that_are_given_twice_count_as_none(guarded: Served) -> None:
    pairs = [("Authorization", basic(LOOK)["Authorization"])] * 2
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{guarded.port}{BASE}", headers=pairs) as answer,
    ):
        assert answer.status == 401


@pytest.mark.parametrize(
    ("site", "mode", "dest", "status"),
    [
        ("none", "navigate", "document", 200),
        ("same-origin", "cors", "empty", 200),  # the page's own script
        ("cross-site", "navigate", "document", 200),  # a link that a person follows
        ("cross-site", "navigate", "iframe", 403),
        ("cross-site", "no-cors", "image", 403),
        ("cross-site", "cors", "empty", 403),
        ("same-site", "no-cors", "script", 403),
    ],
)
async def test_a_page_of_elsewhere_gets_nothing_of_a_browser_that_is_logged_in(
    guarded: Served, site: str, mode: str, dest: str, status: int
) -> None:
    told = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": dest}
    assert (await guarded(**basic(LOOK), **told)).status == status


@pytest.mark.parametrize("path", [BASE, f"{BASE}/bookie?id=nowhere", f"{BASE}/ledger?id=x", f"{BASE}/healing"])
async def test_every_answer_has_the_headers_of_the_console(guarded: Served, path: str) -> None:
    for headers in ({}, basic(LOOK), ELSEWHERE, {"Sec-Fetch-Site": "cross-site"}):
        answer = await guarded(path, **headers)
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert "<script>alert" not in answer.body


async def test_where_nobody_is_known_everybody_looks(unguarded: Served) -> None:
    for path, headers in ((BASE, {}), (BASE, ELSEWHERE), (f"{BASE}/", {})):
        answer = await unguarded(path, **headers)
        assert answer.status == 200
        assert "&lt;script&gt;alert(&#39;map&#39;)" in answer.body


async def test_what_a_page_shows_is_asked_for_as_a_viewer(unguarded: Served) -> None:
    for resource in CONSOLE:
        for operation in resource.operations:
            assert operation.route.method == "GET"
    assert (await unguarded(f"{BASE}/bookie?id=nowhere")).status == 404
    assert (await unguarded(f"{BASE}/ledgers?first=&state=&bookie=")).status == 200
    assert (await unguarded(f"{BASE}/ledgers?first=x")).status == 400
    assert unguarded.admin.finder.asked[0].bookie is None


@pytest.mark.parametrize(("token", "runs"), [(LOOK, False), (WRITE, False), (RUN, True)])
async def test_the_page_of_an_operator_does_not_stand_in_the_line_of_viewers(
    guarded: Served, token: str, runs: bool
) -> None:
    """It shows no more than theirs."""
    assert (await guarded(f"{BASE}/ledgers", **basic(token))).status == 200
    (caller,) = guarded.admin.finder.callers
    assert (caller.runs_cluster, caller.roles) == (runs, {Role.VIEWER})


async def test_over_tls_a_browser_from_elsewhere_logs_in(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(f"{LOOK} viewer\n")
    Certificates(tmp_path).make_all()
    config = HttpConfig(
        auth_token_file=str(tmp_path / "tokens"),
        tls_enable=True,
        tls_client_authentication=False,
        key_store_path=str(tmp_path / "bookie.key"),
        certificate_path=str(tmp_path / "bookie.pem"),
    )
    async for served in _served(tmp_path, config):
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"https://127.0.0.1:{served.port}{BASE}", ssl=False, headers=basic(LOOK) | ELSEWHERE) as answer,
        ):
            assert answer.status == 200


async def test_pages_do_not_take_the_places_of_the_admin_api(
    unguarded: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go = asyncio.Semaphore(0), asyncio.Event()

    async def slow(**_: object) -> list[KnownBookie]:
        begun.release()
        await go.wait()
        return []

    unguarded.admin.cluster.known = slow  # type: ignore[method-assign]
    monkeypatch.setattr(dispatch, "PAGE_CALLS", 2)
    monkeypatch.setattr(dispatch, "ADMIN_CALLS", 1)
    pages = [asyncio.create_task(unguarded()) for _ in range(3)]
    (refused,), others = await asyncio.wait(pages, return_when=asyncio.FIRST_COMPLETED)
    assert refused.result().status == 503
    assert (await unguarded("/api/v1/bookie/gc")).status == 200
    go.set()
    assert {answer.status for answer in await asyncio.gather(*others)} == {200}


def test_looks_are_not_so_frequent_that_they_cost() -> None:
    assert AGE_S >= 1
