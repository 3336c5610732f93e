"""The operator's own HTTP port: `/healthz`, `/readyz` and `/metrics`.

`/healthz` fails when no pass over any cluster has ended for `limit_s` although one was due: one cluster that is not
well is no reason to restart the operator, a loop that stands still is. And it fails when something is not watched any
more: nobody would be woken by what happens to it, and a new cluster of it never be seen.

Threads: one event loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from bookie_operator.metrics import CONTENT_TYPE, OperatorMetrics
from bookie_protocol.addresses import host_to_bind


@asynccontextmanager
async def serving(
    port: int,
    metrics: OperatorMetrics,
    *,
    idle_for: Callable[[], float],
    leading: Callable[[], bool],
    not_watched: Callable[[], str],
    not_ready: Callable[[], str],
    limit_s: float,
    host: str = "0.0.0.0",
) -> AsyncIterator[int]:
    """The port, which is another one for 0. `not_watched`: what is watched no more; `not_ready`: why the operator is
    not ready; empty: all is well."""

    async def healthz(request: web.Request) -> web.Response:
        idle = idle_for()
        if idle > limit_s:
            return web.Response(status=503, text=f"no pass over any cluster has ended for {idle:.0f} s\n")
        if why := not_watched():
            return web.Response(status=503, text=f"{why}\n")
        return web.Response(text="OK\n")

    async def readyz(request: web.Request) -> web.Response:
        why = not_ready()
        return web.Response(status=503, text=f"{why}\n") if why else web.Response(text="OK\n")

    async def show(request: web.Request) -> web.Response:
        metrics.leader.set(leading())
        return web.Response(body=metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", show)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, host_to_bind(host, port), port).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
