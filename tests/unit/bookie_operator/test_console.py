"""The operator's console: its clusters, their pages, and its door."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from bookie_operator import console as console_module
from bookie_operator.api import admin as admin_module
from bookie_operator.api.admin import Endpoint
from bookie_operator.api.kinds import CLUSTER
from bookie_operator.console import BASE, OperatorConsole, PodsOfCluster, PodsSource
from bookie_protocol.admin_api.cluster import STATE
from bookie_protocol.errors import CouldNotTell, NoSuchLedger, NotThere, PodkeeperError, Refused, Unauthorized
from bookie_protocol.web_console.site import PAGES
from tests.support.fake_kubernetes.cluster import NAME, NAMESPACE, FakeCluster, fake_cluster

CLUSTER_BASE = f"{BASE}/{NAMESPACE}/{NAME}"
HOSTILE = "\"><script>alert('zone')</script>"


@asynccontextmanager
async def served(fake: FakeCluster) -> AsyncIterator[str]:
    console = OperatorConsole(fake.operators[0], (NAMESPACE,))
    app = web.Application()
    console.add_to(app)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await console.stop()
        await runner.cleanup()


async def get(url: str, method: str = "GET", **headers: str) -> tuple[int, str, dict[str, str]]:
    async with aiohttp.ClientSession() as session, session.request(method, url, headers=headers) as answer:
        return answer.status, await answer.text(), dict(answer.headers)


async def test_clusters_are_listed_with_what_the_operator_waits_for() -> None:
    async with fake_cluster() as fake, served(fake) as url:
        fake.apply(replicas=3)
        await fake.settle()
        status, text, headers = await get(url + BASE)
        assert status == 200
        assert f'href="{CLUSTER_BASE}"' in text
        assert "3 of 3" in text
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["Cache-Control"] == "no-store"
        status, text, _ = await get(f"{url}{CLUSTER_BASE}/operation")
        assert status == 200
        assert "Conditions" in text
        assert "Running operation" in text


async def test_the_pages_of_a_cluster_are_made_of_what_its_pods_answer() -> None:
    async with fake_cluster() as fake, served(fake) as url:
        fake.apply(replicas=3)
        await fake.settle()
        fake.admin.silent = {sorted(fake.bookkeeper.cookies)[1]}
        status, text, _ = await get(url + CLUSTER_BASE)
        assert status == 200
        assert "3 of 3" in text
        assert "zone-a" in text
        assert all(bookie_id in text for bookie_id in fake.bookkeeper.cookies)
        assert text.count("tells nothing about itself") == 1
        assert fake.admin.shown_to_strangers == set()
        queries = {
            "/bookie": f"?id={sorted(fake.bookkeeper.cookies)[0]}",
            "/log": "?bookie=b&entryLog=0.log",
            "/ledger": "?id=5",
            "/stream": "?name=x",
        }
        for page in PAGES:
            status, _, _ = await get(f"{url}{CLUSTER_BASE}{page.path}{queries.get(page.path, '')}")
            assert status == 200, page.path  # what a pod does not know stands in its place
        assert (await get(f"{url}{CLUSTER_BASE}/bookie?id=nowhere"))[0] == 404
        assert (await get(f"{url}{BASE}/{NAMESPACE}/nowhere"))[0] == 404
        assert (await get(f"{url}{BASE}/elsewhere/{NAME}"))[0] == 404
        assert (await get(f"{url}{CLUSTER_BASE}/ledgers?first=x"))[0] == 400


async def test_what_others_wrote_into_a_resource_is_text() -> None:
    async with fake_cluster() as fake, served(fake) as url:
        fake.apply(replicas=3)
        await fake.settle()
        stored = fake.store.get(CLUSTER, NAMESPACE, NAME)
        stored["status"]["bookies"][0]["message"] = HOSTILE
        stored["status"]["conditions"][0]["message"] = HOSTILE
        _, text, _ = await get(f"{url}{CLUSTER_BASE}/operation")
        assert "<script>alert" not in text
        assert "&lt;script&gt;alert(&#39;zone&#39;)" in text


async def test_only_its_own_machine_looks_and_no_page_of_elsewhere() -> None:
    async with fake_cluster() as fake, served(fake) as url:
        fake.apply(replicas=3)
        for headers in (
            {"X-Forwarded-For": "10.0.0.7"},
            {"Host": "operator.podkeeper.svc:8080"},
            {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
            {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"},
        ):
            status, text, answered = await get(url + BASE, **headers)
            assert status == 403, headers
            assert f"{NAMESPACE}/{NAME}" not in text
            assert answered["X-Content-Type-Options"] == "nosniff"
        linked = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
        assert (await get(url + BASE, **linked))[0] == 200


async def test_pages_are_for_looking_only() -> None:
    async with fake_cluster() as fake, served(fake) as url:
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert (await get(url + BASE, method))[0] == 405


async def test_few_pages_are_made_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_module, "AT_ONCE", 0)
    async with fake_cluster() as fake, served(fake) as url:
        assert (await get(url + BASE))[0] == 503


async def test_what_pages_show_is_bounded_and_what_the_operator_reads_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_module, "_MAX_FOR_PAGES", 10)
    async with fake_cluster() as fake, served(fake) as url:
        fake.apply(replicas=3)
        await fake.settle()
        status, text, _ = await get(url + CLUSTER_BASE)
        assert status == 200
        assert "3 of 3" in text
        assert text.count("tells nothing about itself") == 3


async def test_a_fault_of_a_page_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: object) -> None:
        raise KeyError(HOSTILE)

    monkeypatch.setattr(console_module, "cluster_list", fails)
    async with fake_cluster() as fake, served(fake) as url:
        with capture_logs() as lines:
            for _ in range(5):
                status, text, headers = await get(url + BASE)
                assert (status, headers["X-Frame-Options"]) == (500, "DENY")
                assert HOSTILE not in text
    assert [line["log_level"] for line in lines] == ["error"]


@pytest.mark.parametrize(
    ("first", "goes_on"),
    [
        (CouldNotTell("x"), True),
        (Unauthorized("its token is another"), True),
        (NotThere("an earlier release has no such path"), True),
        (NoSuchLedger("x"), False),
        (Refused("x"), False),
    ],
)
async def test_another_pod_is_asked_if_the_first_cannot_answer(first: PodkeeperError, goes_on: bool) -> None:
    class Admin:
        async def look(self, at: Endpoint, route: object, query: object) -> str:
            if at.pod == "a":
                raise first
            return at.pod

    candidates = [Endpoint("a", "10.0.0.1"), Endpoint("b", "10.0.0.2")]
    source = PodsSource(PodsOfCluster(Admin(), {}, candidates))  # type: ignore[arg-type]
    if goes_on:
        assert str(await source.cluster(STATE)) == "b"
        return
    with pytest.raises(type(first)):
        await source.cluster(STATE)


async def test_looks_at_a_cluster_that_is_not_kept_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_module, "MOST_KEPT", 1)
    looked = asyncio.Event()

    class Hanging:
        own_bookie = None

        async def cluster(self, *given: Any) -> Any:
            looked.set()
            await asyncio.Event().wait()

        bookie = cluster

    async with fake_cluster() as fake:
        console = OperatorConsole(fake.operators[0], (NAMESPACE,))
        first, second = (SimpleNamespace(uid=uid) for uid in "ab")
        waiting = asyncio.create_task(console._of(first).watcher.look(Hanging()))
        await looked.wait()
        console._of(second)
        with pytest.raises(CouldNotTell):
            await waiting
        await console.stop()


async def test_the_clusters_are_read_once_however_many_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_module, "AGE_S", 60.0)
    async with fake_cluster() as fake, served(fake) as url:
        fake.apply(replicas=3)
        lists = 0
        kubernetes = fake.operators[0].kubernetes
        inner = kubernetes.list

        async def counted(resource: Any, *rest: Any, **more: Any) -> Any:
            nonlocal lists
            lists += resource is CLUSTER
            return await inner(resource, *rest, **more)

        monkeypatch.setattr(kubernetes, "list", counted)
        for _ in range(5):
            await get(url + BASE)
        assert lists == 1
