"""What the operator costs: one pass over a healthy cluster, against the API server and bookies of the unit tests.

    python -m benchmarks.operator                 30 bookies, 50 passes
    python -m benchmarks.operator --profile       where the time goes

The fakes run in a process of their own, so that their time is not the operator's; on a machine with few processors they
still take some of it away. Targets: 200 ms a pass, 150 MB.
"""

from __future__ import annotations

import asyncio
import cProfile
import json
import os
import pstats
import resource
import statistics
import sys
import time
from typing import Any

import click


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


@click.command()
@click.option("--bookies", default=30, show_default=True)
@click.option("--passes", default=50, show_default=True)
@click.option("--profile", is_flag=True, help="Show where the time goes.")
@click.option("--serve", is_flag=True, hidden=True)
def main(bookies: int, passes: int, profile: bool, serve: bool) -> None:
    """Time and memory of one pass over a cluster at rest."""
    if serve:
        asyncio.run(_serve(bookies))
        return
    profiler = cProfile.Profile() if profile else None
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
