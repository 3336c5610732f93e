"""The whole operator, with kopf, as a process would run it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import aiohttp
import kopf
import pytest
from yarl import URL

from bookie_operator import handlers
from bookie_operator.api.kinds import CLUSTER, LEASE, POD
from bookie_operator.api.transport import Request, Transport
from bookie_operator.handlers import Watches
from bookie_operator.running import RunOptions, run_operator
from tests.support import unheard
from tests.support.fake_kubernetes.cluster import NAME, NAMESPACE, FakeCluster, fake_cluster
from tests.support.fake_kubernetes.jobs import FakeJobs


async def reached(fake: FakeCluster, what: Callable[[], bool]) -> None:
    """Controllers run beside the operator until then."""
    async with asyncio.timeout(60):
        while not what():
            fake.run_controllers()
            fake.time += 0.05
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def operator(
    fake: FakeCluster,
    identity: str = "one",
    loops: list[asyncio.AbstractEventLoop] | None = None,
    lease_name: str = "podkeeper-operator",
) -> AsyncIterator[int]:
    """The port of its own server. `loops` gets kopf's."""
    stop, port = asyncio.Event(), asyncio.get_running_loop().create_future()
    settings = fake.operators[0].settings
    options = RunOptions((NAMESPACE,), settings, NAMESPACE, lease_name, identity=identity, metrics_port=0)

    def login(**_: object) -> kopf.ConnectionInfo:
        if loops is not None:
            loops.append(asyncio.get_running_loop())
        return kopf.ConnectionInfo(server=fake.server.host)

    running = asyncio.create_task(
        run_operator(fake.server.configuration(), options, login=login, stop=stop, serves=port.set_result)
    )
    try:
        yield await port
    finally:
        stop.set()
        await running


async def get(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as answer:
        return answer.status, await answer.text()


async def shown(port: int, line: str) -> None:
    """Until a metric is what the pass that has just written the status will tell."""
    async with asyncio.timeout(20):
        while line not in (await get(port, "/metrics"))[1]:  # noqa: ASYNC110 - the metrics give no event
            await asyncio.sleep(0.01)


async def test_a_cluster_from_its_resource_to_its_end() -> None:
    async with fake_cluster() as fake:
        fake.apply(replicas=3)
        async with operator(fake) as port:
            await reached(fake, lambda: fake.condition("Ready") == "True")
            assert await get(port, "/healthz") == (200, "OK\n")
            assert await get(port, "/readyz") == (200, "OK\n")
            status, text = await get(port, "/metrics")
            assert status == 200
            assert "podkeeper_operator_leader 1.0" in text
            assert 'podkeeper_operator_decisions_total{cluster="demo"' in text
            await shown(
                port, 'cluster_condition{cluster="demo",condition="Ready",namespace="storage",status="True"} 1.0'
            )
            fake.store.delete(POD, NAMESPACE, "demo-bookie-1")
            await reached(fake, lambda: len(fake.bookkeeper.writable) == 3)
            fake.apply(replicas=4)
            await reached(fake, lambda: fake.status.get("replicas") == 4)
            metadata = fake.resource["metadata"]
            assert metadata["finalizers"] == ["podkeeper.dev/operator"]
            assert not metadata.get("annotations")
            fake.store.delete(CLUSTER, NAMESPACE, NAME)
            await reached(fake, lambda: fake.store.find(CLUSTER, NAMESPACE, NAME) is None)
        assert fake.store.get(LEASE, NAMESPACE, "podkeeper-operator")["spec"]["holderIdentity"] == ""
        assert not [thread for thread in threading.enumerate() if thread.name == "kopf"]


async def test_the_lease_waits_behind_no_other_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a connection and a thread of its own."""
    carried: dict[int, set[str]] = {}
    request = Transport.request

    async def recorded(self: Transport, what: Request) -> Any:
        carried.setdefault(id(self), set()).add(what.path)
        return await request(self, what)

    monkeypatch.setattr(Transport, "request", recorded)
    async with fake_cluster() as fake:
        fake.apply(replicas=3)
        async with operator(fake):
            await reached(fake, lambda: fake.condition("Ready") == "True")
    (beside,) = [paths for paths in carried.values() if any(path.endswith("/podkeeper-operator") for path in paths)]
    assert all("/leases" in path for path in beside), beside


async def test_a_second_operator_takes_over_when_the_first_one_ends() -> None:
    async with fake_cluster() as fake:
        fake.apply(replicas=3)
        async with operator(fake, "two") as second:
            await reached(fake, lambda: fake.store.find(LEASE, NAMESPACE, "podkeeper-operator") is not None)
            async with operator(fake, "one") as first:
                await reached(fake, lambda: fake.condition("Ready") == "True")
                assert "podkeeper_operator_leader 0.0" in (await get(first, "/metrics"))[1]
                assert "podkeeper_operator_leader 1.0" in (await get(second, "/metrics"))[1]
                assert await get(first, "/healthz") == (200, "OK\n")


async def test_two_releases_in_one_namespace_work_beside_each_other() -> None:
    """Each leads by its own Lease; of a namespace that both watch the first one keeps what is there."""
    async with fake_cluster() as fake:
        fake.apply(replicas=3)
        async with operator(fake, "one") as first:
            await reached(fake, lambda: fake.condition("Ready") == "True")
            async with operator(fake, "two", lease_name="two-operator") as second:
                await reached(fake, lambda: fake.store.find(LEASE, NAMESPACE, "two-operator") is not None)
                await shown(second, "podkeeper_operator_leader 1.0")
                assert await get(first, "/readyz") == (200, "OK\n")
                async with asyncio.timeout(20):
                    while (status := await get(second, "/readyz"))[0] == 200:  # noqa: ASYNC110 - nothing tells
                        await asyncio.sleep(0.01)
                assert f"{NAMESPACE}/podkeeper-operator" in status[1]


async def test_a_job_beside_its_cluster() -> None:
    """What happens to its Job wakes it: it does not wait for the next look."""
    async with fake_cluster(rest_s=3600.0) as fake:
        fake.apply(replicas=3)
        jobs = FakeJobs(fake)
        jobs.apply(schedule="@daily")
        async with operator(fake) as port:
            await reached(fake, lambda: jobs.phase == "Scheduled")
            jobs.fire()
            await reached(fake, lambda: jobs.phase == "Running")
            jobs.ends(0, '{"ledgers": 1}')
            await reached(fake, lambda: jobs.status["lastResult"] == {"ledgers": 1})
            text = (await get(port, "/metrics"))[1]
            assert "podkeeper_operator_jobs 1.0" in text
            assert "podkeeper_operator_clusters 1.0" in text
            jobs.delete()
            while "podkeeper_operator_jobs 0.0" not in text:
                await asyncio.sleep(0.02)
                text = (await get(port, "/metrics"))[1]
            assert 'job="weekly"' not in text


async def test_what_is_watched_is_its_own_and_metadata_alone() -> None:
    """An API server that many others use is no reason to read of what they do."""
    async with fake_cluster() as fake:
        fake.apply(replicas=3)
        stranger = {"name": "stranger", "labels": {"app.kubernetes.io/name": "shop"}}
        fake.store.create(POD, NAMESPACE, {"metadata": stranger, "spec": {}, "status": {"phase": "Succeeded"}})
        async with operator(fake):
            await reached(fake, lambda: fake.condition("Ready") == "True")
        assert {plural for plural, _, metadata in fake.server.watches if not metadata} == {"bookietasks"}
        own = {"bookieclusters", "bookietasks", "bookiejobs"}
        for plural, selector, _ in fake.server.watches:
            assert (plural in own) is (selector == ""), plural
            assert selector in ("", "app.kubernetes.io/name in (podkeeper,podkeeper-job),app.kubernetes.io/instance")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("plural", ["bookieclusters", "bookietasks", "pods", "cronjobs"])
async def test_a_watch_that_ended_shows_from_outside(plural: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """kopf goes on without it, and does not end any more when it is told to: only a new process watches again."""
    monkeypatch.setattr(handlers, "_STOP_S", 0.0)
    loops: list[asyncio.AbstractEventLoop] = []
    async with fake_cluster() as fake, operator(fake, loops=loops) as port:
        async with asyncio.timeout(60):
            while plural not in {each for each, _, _ in fake.server.watches}:  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.01)
        assert (await get(port, "/healthz"))[0] == 200
        fake.server.broken_watches.add(plural)
        fake.apply(replicas=3)
        async with asyncio.timeout(60):
            while (await get(port, "/healthz"))[0] == 200:  # noqa: ASYNC110 - nothing tells a prober
                await asyncio.sleep(0.01)
        status, text = await get(port, "/healthz")
        assert (status, text.rpartition("/")[2]) == (503, f"{plural} has ended: the log tells why\n")
        assert await get(port, "/readyz") == (503, text)
    await ended(loops[0])
    # kopf's own callbacks trip over the end of a watch.
    unheard._heard[:] = [each for each in unheard._heard if "request_cancel_callback" not in each]


async def ended(loop: asyncio.AbstractEventLoop) -> None:
    """Its watchers swallow what cancels them once, and the thread would stay."""

    def cancel() -> None:
        for task in asyncio.all_tasks(loop):
            if task.get_name().startswith("watcher for"):
                task.cancel()

    async with asyncio.timeout(60):
        while not loop.is_closed():
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                loop.call_soon_threadsafe(cancel)
            await asyncio.sleep(0.05)


async def test_a_watch_that_asks_for_nothing_counts_as_ended() -> None:
    now = 0.0
    watches = Watches(lambda: now)

    async def unanswered(_: aiohttp.ClientRequest) -> aiohttp.ClientResponse:
        raise aiohttp.ServerDisconnectedError

    async def asks(path: str) -> None:
        request: Any = SimpleNamespace(method="GET", url=URL(f"http://api{path}"))
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await watches.ask(request, unanswered)

    await asks("/api/v1/namespaces/a/pods")
    await asks("/api/v1/namespaces/b/pods")
    await asks("/version")
    now = 600.0
    await asks("/api/v1/namespaces/a/pods")
    assert watches.fault() == ""
    now = 661.0
    assert watches.fault() == "the watch of /api/v1/namespaces/b/pods has asked for nothing for 661 s"
    await asks("/api/v1/namespaces/b/pods")
    assert watches.fault() == ""


async def test_clusters_are_kept_where_jobs_are_not_defined() -> None:
    """The definition may not have been applied with an upgrade."""
    async with fake_cluster() as fake:
        fake.apply(replicas=3)
        fake.server.unknown.add("bookiejobs")
        async with operator(fake) as port:
            await reached(fake, lambda: fake.condition("Ready") == "True")
            assert (await get(port, "/readyz"))[0] == 200


async def test_it_waits_for_the_definition_of_its_resource() -> None:
    async with fake_cluster() as fake:
        fake.server.unknown.add("bookieclusters")
        async with operator(fake) as port:
            asked = len(fake.server.requests)
            await reached(fake, lambda: len(fake.server.requests) > asked)
            assert (await get(port, "/readyz"))[0] == 503
            assert (await get(port, "/healthz"))[0] == 200
