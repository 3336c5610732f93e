"""What the operator costs, against the API server and bookies of the unit tests: one pass over a healthy cluster, or a
whole operator that keeps many of them among many objects of other people.

    python -m benchmarks.operator                 30 bookies, 50 passes
    python -m benchmarks.operator --profile       where the time goes
    python -m benchmarks.operator --clusters 100  of 3 bookies each, with 500 nodes and 5,000 pods of others

The fakes run in a process of their own, so that their time is not the operator's; on a machine with few processors they
still take some of it away. Targets: 200 ms a pass, 150 MB; for 100 clusters 200 MB and 5 % of a processor.
"""

from __future__ import annotations

import asyncio
import cProfile
import itertools
import json
import os
import pstats
import resource
import statistics
import sys
import time
from typing import Any

import click

_STRANGER_BYTES = 7500
_NODE_BYTES = 11_700
_PODS_OF_A_CLUSTER = 8
_COUNT = "podkeeper_operator_reconcile_seconds_count"


async def _serve(bookies: int) -> None:
    """A cluster at rest, then its addresses on standard output, until standard input ends."""
    from tests.support.fake_kubernetes.cluster import fake_cluster

    async with fake_cluster() as fake:
        fake.apply(replicas=bookies)
        await fake.settle(limit=500)
        fake.server.requests.clear()
        fake.admin.requests.clear()
        settings = fake.operators[0].settings
        print(json.dumps({"host": fake.server.host, "admin_port": settings.admin_port, "time": fake.time}), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        counts = {"requests": len(fake.server.requests), "admin_requests": len(fake.admin.requests)}
        print(json.dumps({"writes": fake.server.writes(), **counts}), flush=True)


async def _measure(at: dict[str, Any], passes: int, profile: cProfile.Profile | None) -> dict[str, float]:
    import aiohttp
    from kubernetes import client

    from bookie_operator.api.kubernetes import Kubernetes
    from bookie_operator.api.transport import Transport
    from bookie_operator.reconcile.context import OperatorContext, Settings
    from bookie_operator.reconcile.passing import run_pass
    from bookie_operator.status.events import Events

    def now() -> float:
        return float(at["time"])

    kubernetes = Kubernetes(Transport(client.Configuration(host=at["host"])))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=64)) as session:
        settings = Settings(admin_port=at["admin_port"])
        context = OperatorContext(kubernetes, session, Events(kubernetes, "benchmark"), settings=settings, now=now)
        for _ in range(3):
            await run_pass(context, "demo", "storage")
        took = []
        cpu = time.process_time()
        if profile is not None:
            profile.enable()
        for _ in range(passes):
            begun = time.perf_counter()
            rested = await run_pass(context, "demo", "storage")
            took.append(time.perf_counter() - begun)
            if rested != settings.rest_s:
                raise click.ClickException(f"the cluster is not at rest: next pass in {rested} s")
        if profile is not None:
            profile.disable()
        cpu = time.process_time() - cpu
    await kubernetes.close()
    return {
        "median_ms": 1000 * statistics.median(took),
        "p90_ms": 1000 * sorted(took)[int(0.9 * (len(took) - 1))],
        "cpu_ms": 1000 * cpu / passes,
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


async def _against_fakes(bookies: int, passes: int, profile: cProfile.Profile | None) -> dict[str, float]:
    import kopf  # noqa: F401  what the operator's process has loaded counts as its memory

    arguments = [sys.executable, "-m", "benchmarks.operator", "--bookies", str(bookies), "--serve"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    pipe = asyncio.subprocess.PIPE
    fakes = await asyncio.create_subprocess_exec(
        *arguments, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL, env=environment
    )
    if fakes.stdin is None or fakes.stdout is None:
        raise click.ClickException("the fakes have no pipes")
    try:
        at = json.loads(await _line(fakes.stdout))
        measured = await _measure(at, passes, profile)
        fakes.stdin.close()
        told = json.loads(await _line(fakes.stdout))
    finally:
        if fakes.returncode is None:
            fakes.kill()
        await fakes.wait()
    each = {name: told[name] / (passes + 3) for name in ("requests", "admin_requests")}
    return {**measured, "writes": len(told["writes"]), **each}


async def _line(stream: asyncio.StreamReader) -> bytes:
    """The next one that is an answer: logs go the same way."""
    while line := await stream.readline():
        if line.startswith(b"{"):
            return line
    raise click.ClickException("the fakes ended")


# --- many clusters ----------------------------------------------------------------------------------------------------


async def _serve_fleet(clusters: int, nodes: int, strangers: int) -> None:
    """Clusters at rest, each in a namespace of its own, and what stands around them; as `_serve`."""
    from bookie_operator.api.kinds import NODE, POD
    from tests.support.fake_kubernetes import admin_api, api_server
    from tests.support.fake_kubernetes.store import Store

    store, pods = Store(time.time), _AdminApis()
    for number in range(clusters):
        await _settle_one(number, store, pods.members)
    for number in range(strangers):
        filler = [{"name": f"VARIABLE_{each}", "value": "x" * 50} for each in range(_STRANGER_BYTES // 85)]
        metadata = {"name": f"pod-{number}", "labels": {"app.kubernetes.io/name": "shop"}}
        spec = {"containers": [{"name": "shop", "image": "shop:1", "env": filler}]}
        store.create(POD, f"shop-{number % 50}", {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}})
    for number in range(nodes):
        images = [{"names": ["registry/" + "x" * 180], "sizeBytes": 1} for _ in range(_NODE_BYTES // 215)]
        status = {"conditions": [{"type": "Ready", "status": "True"}], "images": images}
        store.create(NODE, "", {"metadata": {"name": f"node-{number}"}, "spec": {}, "status": status})
    async with api_server.serving(store) as server, admin_api.serving(pods.as_api()) as port:
        print(json.dumps({"host": server.host, "admin_port": port}), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        writes = [each for each in server.writes() if "/leases" not in each]
        print(json.dumps({"writes": writes, "requests": len(server.requests)}), flush=True)


async def _settle_one(number: int, store: Any, members: dict[str, Any]) -> None:
    """A cluster that has settled in a world of its own, put into `store`; and its pods' admin API into `members`."""
    from bookie_operator.api.kinds import POD
    from tests.support.fake_kubernetes.cluster import fake_cluster

    async with fake_cluster(namespace=f"team-{number}") as fake:
        fake.time = time.time()
        fake.store._uids = itertools.count(1 + 1000 * number)
        fake.controllers._addresses = itertools.count(2 + _PODS_OF_A_CLUSTER * number)
        fake.apply(replicas=3)
        await fake.settle(limit=500)
        for resource, objects in fake.store.objects.items():
            store.kind(resource).update(objects)
        store._managers |= fake.store._managers
        store._updates |= fake.store._updates
        store._versions = itertools.count(max(store.version, fake.store.version) + 1)
        store.version = next(store._versions)
        for pod in fake.store.list(POD):
            members[(pod.get("status") or {}).get("podIP", "")] = fake.admin


class _AdminApis:
    """Of many clusters on one port, each by the addresses of its pods."""

    def __init__(self) -> None:
        self.members: dict[str, Any] = {}

    def as_api(self) -> Any:
        from tests.support.fake_kubernetes.admin_api import AdminApi
        from tests.support.fake_kubernetes.bookkeeper import FakeBookKeeper

        members = self.members

        class Dispatching(AdminApi):
            async def handle(self, request: Any) -> Any:
                address = request.transport.get_extra_info("sockname")[0]
                return await members[address].handle(request)

        def certificate_at(address: str) -> tuple[str, str] | None:
            return members[address].certificate_at(address) if address in members else None

        return Dispatching(FakeBookKeeper(time.time), lambda address: None, certificate_at)


async def _operate(host: str, admin_port: int, warm_s: float, measured_s: float) -> dict[str, float]:
    """The operator as it runs, for so long."""
    import kopf
    from kubernetes import client

    from bookie_operator.reconcile.context import Settings
    from bookie_operator.running import RunOptions, run_operator

    stop, port = asyncio.Event(), asyncio.get_running_loop().create_future()
    options = RunOptions((), Settings(admin_port=admin_port), "operators", metrics_port=0)
    running = asyncio.create_task(
        run_operator(
            client.Configuration(host=host),
            options,
            login=lambda **_: kopf.ConnectionInfo(server=host),
            stop=stop,
            serves=port.set_result,
        )
    )
    await asyncio.sleep(warm_s)
    passes = await _passes(await port)
    cpu, begun = time.process_time(), time.perf_counter()
    await asyncio.sleep(measured_s)
    share = (time.process_time() - cpu) / (time.perf_counter() - begun)
    passes = await _passes(await port) - passes
    stop.set()
    await running
    return {"share": share, "passes": passes, "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


async def _passes(port: int) -> float:
    """How many there have been."""
    import aiohttp

    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(_COUNT))


async def _fleet(arguments: list[str], warm_s: float, measured_s: float) -> dict[str, Any]:
    pipe, quiet = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    program = [sys.executable, "-m", "benchmarks.operator"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    fakes = await asyncio.create_subprocess_exec(
        *program, *arguments, "--serve", stdin=pipe, stdout=pipe, stderr=quiet, env=environment
    )
    if fakes.stdin is None or fakes.stdout is None:
        raise click.ClickException("the fakes have no pipes")
    try:
        at = json.loads(await _line(fakes.stdout))
        where = ["--operate", json.dumps([at["host"], at["admin_port"], warm_s, measured_s])]
        environment["MALLOC_ARENA_MAX"] = "2"  # as the chart has it
        operator = await asyncio.create_subprocess_exec(*program, *where, stdout=pipe, stderr=quiet, env=environment)
        if operator.stdout is None:
            raise click.ClickException("the operator has no pipe")
        measured = json.loads(await _line(operator.stdout))
        await operator.wait()
        fakes.stdin.close()
        return {**measured, **json.loads(await _line(fakes.stdout))}
    finally:
        if fakes.returncode is None:
            fakes.kill()
        await fakes.wait()


@click.command()
@click.option("--bookies", default=30, show_default=True)
@click.option("--clusters", default=0, help="Measure an operator that keeps so many clusters instead.")
@click.option("--nodes", default=500, show_default=True)
@click.option("--strangers", default=5000, show_default=True, help="Pods of others.")
@click.option("--warm", default=90.0, show_default=True, help="Seconds before the processor's time is measured.")
@click.option("--seconds", default=240.0, show_default=True, help="For which it is measured.")
@click.option("--passes", default=50, show_default=True)
@click.option("--profile", is_flag=True, help="Show where the time goes.")
@click.option("--serve", is_flag=True, hidden=True)
@click.option("--operate", default="", hidden=True)
def main(
    bookies: int,
    clusters: int,
    nodes: int,
    strangers: int,
    warm: float,
    seconds: float,
    passes: int,
    profile: bool,
    serve: bool,
    operate: str,
) -> None:
    """Time and memory of one pass over a cluster at rest, or of an operator that keeps many."""
    if serve:
        asyncio.run(_serve_fleet(clusters, nodes, strangers) if clusters else _serve(bookies))
    elif operate:
        print(json.dumps(asyncio.run(_operate(*json.loads(operate)))), flush=True)
    elif clusters:
        arguments = ["--clusters", str(clusters), "--nodes", str(nodes), "--strangers", str(strangers)]
        told = asyncio.run(_fleet(arguments, warm, seconds))
        click.echo(
            f"{clusters} clusters at rest, {nodes} nodes, {strangers} pods of others: at most {told['rss_mb']:.0f} MB, "
            f"{100 * told['share']:.1f} % of a processor for {told['passes']:.0f} passes in {seconds:.0f} s, "
            f"{told['requests']} requests to the API server in "
            f"{warm + seconds:.0f} s, {len(told['writes'])} writes beside the Lease"
        )
    else:
        _one_cluster(bookies, passes, profile)


def _one_cluster(bookies: int, passes: int, profile: bool) -> None:
    profiler = cProfile.Profile(time.process_time) if profile else None
    measured = asyncio.run(_against_fakes(bookies, passes, profiler))
    click.echo(
        f"{bookies} bookies: median {measured['median_ms']:.0f} ms, p90 {measured['p90_ms']:.0f} ms, "
        f"{measured['cpu_ms']:.0f} ms CPU a pass, {measured['requests']:.0f} requests to the API server "
        f"and {measured['admin_requests']:.0f} to pods, {measured['writes']} writes, rss {measured['rss_mb']:.0f} MB"
    )
    if profiler is not None:
        pstats.Stats(profiler).sort_stats("cumulative").print_stats(45)


if __name__ == "__main__":
    main()
