"""The operator from its start to its end: connections, election, watching, health.

Its own HTTP port has `/healthz`, `/readyz`, `/metrics` and, for its own machine, `/ui` (`console`).

`/healthz` fails when no pass over any cluster has ended for `limit_s` although one was due: one cluster that is not
well is no reason to restart the operator, a loop that hangs is. And it fails when something is not watched any more:
nothing would be woken by its changes, and a new cluster would never be seen.

Invariants
- Without leadership nothing is written but the Lease. Losing it stops every pass before its next side effect.
- At the end passes under way may finish, for a while, then the Lease is given back.

Threads: one event loop; `api.transport` and kopf have threads of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import aiohttp
import structlog
from aiohttp import web
from kubernetes import client

from bookie_operator.api.errors import Absent, Forbidden, KubernetesError
from bookie_operator.api.kinds import BOOKIE_JOB, CLUSTER
from bookie_operator.api.kubernetes import Kubernetes
from bookie_operator.api.transport import Transport
from bookie_operator.console import OperatorConsole
from bookie_operator.handlers import Login, Watching
from bookie_operator.lease import LeaderElection, Scopes
from bookie_operator.metrics import CONTENT_TYPE, OperatorMetrics
from bookie_operator.reconcile.context import OperatorContext, Settings
from bookie_operator.reconcile.job_passing import run_job_pass
from bookie_operator.reconcile.keeping import Keeper
from bookie_operator.status.events import Events
from bookie_protocol.addresses import host_to_bind

_log = structlog.get_logger(__name__)
_CONNECTIONS: Final = 64
_KEPT_OPEN_S: Final = 2.0
"""A connection to a pod, which has 256 KiB of buffers: the pass that opened it uses it again at once, the next one is
most often half a minute later."""
_LEASE_THREADS: Final = 1
_SCOPE_THREADS: Final = 4
_DEFINED_S: Final = 5.0
MAX_CONNECTIONS: Final = 256
"""Connections to its own port. Above that, the oldest ones are closed: a probe is a new one."""
SHUTDOWN_S: Final = 2.0
"""Seconds for answers under way when the operator ends; a client may take one as slowly as it likes."""


@dataclass(frozen=True)
class RunOptions:
    namespaces: tuple[str, ...]
    """Empty: all of them."""
    settings: Settings = field(default_factory=Settings)
    lease_namespace: str = ""
    """Namespace of the Lease; empty: no election, and no other operator may run."""
    lease_name: str = "podkeeper-operator"
    identity: str = ""
    metrics_port: int = 8080
    liveness_s: float = 900.0
    """Seconds without the end of a pass after which the process counts as dead."""


def default_identity() -> str:
    """Unlike that of any other process, also of one that ran in the same pod before."""
    return f"{os.environ.get('POD_NAME') or socket.gethostname()}_{os.getpid()}_{os.urandom(4).hex()}"


class WatchingEnded(Exception):
    """The operator watches nothing any more; the log has the reason. The process should be restarted."""


async def run_operator(
    configuration: client.Configuration,
    options: RunOptions,
    *,
    login: Login | None = None,
    stop: asyncio.Event | None = None,
    serves: Callable[[int], None] = lambda port: None,
) -> None:
    """Work until `stop`, or without it until a signal. `serves` is called with the port of its own server.

    Raises WatchingEnded.
    """
    stop = stop or _signalled()
    identity = options.identity or default_identity()
    async with contextlib.AsyncExitStack() as stack:
        kubernetes = Kubernetes(Transport(configuration))
        stack.push_async_callback(kubernetes.close)
        connector = aiohttp.TCPConnector(limit=_CONNECTIONS, keepalive_timeout=_KEPT_OPEN_S)
        session = await stack.enter_async_context(
            # No pod has a cookie to give: one that is a stranger's would come along to others at its address.
            aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        )
        context = OperatorContext(
            kubernetes, session, Events(kubernetes, identity), OperatorMetrics(), options.settings
        )
        scopes = Scopes(kubernetes, "")
        if options.lease_namespace:
            # With a thread and a connection of its own: the Lease never waits behind the passes over many clusters.
            lane = Kubernetes(Transport(copy.copy(configuration), workers=_LEASE_THREADS))
            stack.push_async_callback(lane.close)
            election = LeaderElection(lane, options.lease_namespace, options.lease_name, identity)
            context.leading = lambda: election.leading
            await stack.enter_async_context(_electing(election))
            # In other namespaces, whose admission webhooks may be slow: the Lease does not wait behind these either.
            beside = Kubernetes(Transport(copy.copy(configuration), workers=_SCOPE_THREADS))
            stack.push_async_callback(beside.close)
            scopes = Scopes(beside, f"{options.lease_namespace}/{options.lease_name}")
            context.other_operator = scopes.other
        keeper = Keeper(context, peeks=context.peeks)
        stack.push_async_callback(keeper.stop)
        jobs = context.metrics.jobs
        job_keeper = Keeper(context, one_pass=run_job_pass, what="job", kept=jobs.kept, unexpected=jobs.failed)
        stack.push_async_callback(job_keeper.stop)
        watching = Watching(_from_threads(keeper), options.namespaces, login)
        console = OperatorConsole(context, options.namespaces)
        stack.push_async_callback(console.stop)
        port = await stack.enter_async_context(
            serving(
                options.metrics_port,
                context.metrics,
                idle_for=lambda: max(keeper.idle_for(), job_keeper.idle_for()),
                leading=lambda: context.leading(),
                not_watched=watching.fault,
                not_ready=lambda: _not_ready(watching, scopes),
                limit_s=options.liveness_s,
                add_pages=console.add_to,
            )
        )
        serves(port)
        if await _defined(kubernetes, options.namespaces, stop):
            watching.wake_job = _from_threads(job_keeper) if await _knows_jobs(kubernetes, options.namespaces) else None
            await stack.enter_async_context(watching)
            _log.info("watching", namespaces=list(options.namespaces) or "all", identity=identity)
            if await _first(stop, watching.ended) is not stop:
                raise WatchingEnded("watching has ended")


def _not_ready(watching: Watching, scopes: Scopes) -> str:
    """Return why it is not ready; empty: it is."""
    if not watching.ready:
        return watching.fault() or "not watching yet"
    others = scopes.kept_by_others
    each = ", ".join(f"{namespace} (by the one in {other})" for namespace, other in sorted(others.items())[:10])
    return f"other operators keep namespaces that this one is to keep, and it stays out: {each}" if others else ""


async def _defined(kubernetes: Kubernetes, namespaces: tuple[str, ...], stop: asyncio.Event) -> bool:
    """Wait until the API server knows BookieClusters: kopf looks only once. False: it is to stop."""
    while not stop.is_set():
        try:
            await kubernetes.list(CLUSTER, namespaces[0] if namespaces else "")
            return True
        except KubernetesError as exc:
            _log.warning("waits for the definition of BookieCluster", error=str(exc))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DEFINED_S):
                await stop.wait()
    return False


async def _knows_jobs(kubernetes: Kubernetes, namespaces: tuple[str, ...]) -> bool:
    """Clusters are kept without the definition of BookieJob too: it may not have been applied with an upgrade."""
    try:
        await kubernetes.list(BOOKIE_JOB, namespaces[0] if namespaces else "")
    except (Absent, Forbidden) as exc:
        _log.warning("BookieJobs are not kept: apply crds/ and the chart's rules, then restart", error=str(exc))
        return False
    except KubernetesError as exc:
        _log.warning("it is unknown whether there are BookieJobs: they are watched", error=str(exc))
    return True


def _from_threads(keeper: Keeper) -> Callable[[str, str, bool], None]:
    loop = asyncio.get_running_loop()

    def wake(namespace: str, name: str, new: bool) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing is to be woken any more
            loop.call_soon_threadsafe(lambda: keeper.wake(namespace, name, new=new))

    return wake


def _signalled() -> asyncio.Event:
    """Set by SIGTERM and SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


async def _first(*events: asyncio.Event) -> asyncio.Event:
    tasks = {asyncio.create_task(event.wait()): event for event in events}
    done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    return next(event for task, event in tasks.items() if task in done)


@contextlib.asynccontextmanager
async def _electing(election: LeaderElection) -> AsyncIterator[None]:
    task = asyncio.create_task(election.run(), name="leader election")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class _Connection(web.RequestHandler):
    """One to the operator's own port."""

    __slots__ = ()

    def force_close(self) -> None:
        """Close at once, whatever its client has not taken: aiohttp's waits until that is taken, for ever if need
        be."""
        transport = self.transport
        super().force_close()
        if transport is not None:
            transport.abort()


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
    add_pages: Callable[[web.Application], None] = lambda app: None,
) -> AsyncIterator[int]:
    """The port, which is another one for 0. `not_watched`: what is watched no more; `not_ready`: why the operator is
    not ready; empty: all is well. `add_pages`: adds further paths."""

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
    add_pages(app)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()

    def new_connection() -> web.RequestHandler:
        assert runner.server is not None, "it was set up"
        here = runner.server.connections
        for longest in here[: max(0, len(here) - MAX_CONNECTIONS + 1)]:
            longest.force_close()
        return _Connection(runner.server, loop=loop, access_log=None)  # type: ignore[arg-type]  # as the runner's

    listening, loop = None, asyncio.get_running_loop()
    try:
        listening = await loop.create_server(new_connection, host_to_bind("0.0.0.0", port), port)
        yield int(listening.sockets[0].getsockname()[1])
    finally:
        if listening is not None:
            listening.close()
        await runner.cleanup()
