"""The gRPC server: `grpc.health.v1.Health`, reflection, and what the node adds to them.

Invariants
- The services "" and "bookie", and those of the node, are SERVING exactly while the node has no reason to be unready; a
  change shows within `POLL_S`, at once after `refresh`. Other names are NOT_FOUND.
- Calls of health and reflection have `MAX_CONCURRENT_RPCS` places, half of them for the watchers of the health, and
  `PLACES_OF_ONE` at most of a connection. Others have as many as the node's services may have (`places`). So neither
  those services nor the watchers can keep the probes out, and watchers leave nothing behind. gRPC itself answers
  RESOURCE_EXHAUSTED only when many more calls begin or end at the same time.
- At most `MAX_CONNECTIONS` connections are open, fewer where descriptors are few, and one whose handshake has not ended
  after `HANDSHAKE_MS` is closed. Those of which no call was let in but of health have half of them at most, and go
  after `STRANGER_S`.
- What callers make the process hold is governed (`receiving`, `bookie_pod.callers`).
- Every service is NOT_SERVING from the moment that `stop` begins.
- With TLS nothing is served unencrypted. No call is served but those of health whose caller lacks the role that its
  service names for it (`tls`, `access`).

Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from bookie_pod.audit import Audit
from bookie_pod.callers import Callers
from bookie_pod.client_memory import UNGOVERNED_BYTES, MemoryGovernor
from bookie_pod.config.sections.service import GrpcConfig
from bookie_pod.descriptors import side_connections
from bookie_pod.roles import Role
from bookie_pod.server.access import Access
from bookie_pod.server.grpc.access import DemandRole, Strangers
from bookie_pod.server.grpc.places import Places
from bookie_pod.server.grpc.receiving import FEW_STREAMS, FewHeaders, GovernedCalls, bounds
from bookie_pod.server.grpc.resident import MakeBound, ResidentBound
from bookie_pod.server.grpc.tls import server_credentials
from bookie_pod.server.status import NodeStatus
from bookie_protocol.addresses import host_and_port
from bookie_protocol.errors import ServerStartFailed
from bookie_protocol.lasting import lasting_task

if TYPE_CHECKING:
    from bookie_pod.telemetry.otlp import Tracer

SERVICES: Final = ("", "bookie")
POLL_S: Final = 0.5
MAX_CONCURRENT_RPCS: Final = 128
MAX_WATCHES: Final = MAX_CONCURRENT_RPCS // 2
PLACES_OF_ONE: Final = 16
MAX_CONNECTIONS: Final = 1024
UNSEEN_CALLS: Final = 8 * FEW_STREAMS
"""Eight clients may send all that they may at once, while the server is busy."""
CHECK: Final = f"/{health.SERVICE_NAME}/Check"
WATCH: Final = f"/{health.SERVICE_NAME}/Watch"
REFLECT: Final = f"/{reflection.SERVICE_NAME}/ServerReflectionInfo"
STOP_GRACE_S: Final = 1.0
STRANGER_S: Final = 300.0
"""Seconds for a stranger's connection. A client that watches the health is let in again at once."""
KEEPALIVE_MS: Final = 60_000
_MAX_MESSAGE_BYTES: Final = 1024 * 1024
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class GrpcService(Protocol):
    """A service that the node adds; it is stopped with the server.

    The gateway implements it, which the server must not import.
    """

    @property
    def names(self) -> Sequence[str]:
        """Full names, for reflection and health."""
        ...

    @property
    def max_message_bytes(self) -> int:
        """Largest request that it takes."""
        ...

    @property
    def roles(self) -> Mapping[str, Role]:
        """The roles, by the full name of each call, as in `/package.Service/Call`."""
        ...

    @property
    def max_calls(self) -> int:
        """Calls that it may have at a time."""
        ...

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register its handlers."""
        ...

    async def stop(self) -> None:
        """Take no more calls, and end what they opened."""
        ...


class _Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """The health of the services.

    This is not gRPC's own servicer: there a watcher that receives nothing holds a lock that `set` needs, so that no
    watcher would learn of a change, and the bookie could not stop.
    """

    def __init__(self) -> None:
        self._statuses: dict[str, int] = {}
        self._changed = asyncio.Event()
        self._final = False

    def set(self, service: str, status: int) -> None:
        """Ignored after `shut_down`."""
        if not self._final and self._statuses.get(service) != status:
            self._statuses[service] = status
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()

    def shut_down(self) -> None:
        """Set all services to NOT_SERVING for good, whatever `set` says from now on."""
        for service in self._statuses:
            self.set(service, _NOT_SERVING)
        self._final = True

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> Any:  # noqa: N802 - its name in gRPC
        status = self._statuses.get(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND)
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> None:  # noqa: N802 - its name in gRPC
        told = None
        while True:
            status = self._statuses.get(request.service, health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
            if status == told:
                await self._changed.wait()
            else:
                told = status
                await context.write(health_pb2.HealthCheckResponse(status=status))


class GrpcServer:
    """Serves the health of one node, and `services`."""

    def __init__(
        self,
        config: GrpcConfig,
        status: NodeStatus,
        services: Sequence[GrpcService] = (),
        callers: Callers | None = None,
        *,
        access: Access,
        audit: Audit,
        resident: MakeBound | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        """`callers`: those whose memory is governed. `access`: who may what. `resident` makes the last bound of the
        process; without one it has none. `tracer`: traces the calls."""
        self._tracer = tracer
        self._make_bound = resident
        self._bound: ResidentBound | None = None
        self._access = access
        self._audit = audit
        self._callers = callers or Callers(MemoryGovernor(UNGOVERNED_BYTES))
        self._services = services
        self._names = [*SERVICES, *(name for service in services for name in service.names)]
        self._config = config
        self._status = status
        self._health = _Health()
        self._probes = Places(MAX_CONCURRENT_RPCS - MAX_WATCHES, of_one=PLACES_OF_ONE, brief=True)
        self._watches = Places(MAX_WATCHES, of_one=PLACES_OF_ONE, brief=True)
        self._server: grpc.aio.Server | None = None
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self._port = 0

    @property
    def port(self) -> int:
        """The port that is listened on; the configured one unless that is 0."""
        return self._port

    async def start(self) -> None:
        """Listen; `ServerStartFailed` if that is not possible, `InvalidConfiguration` for bad TLS files."""
        credentials = await asyncio.to_thread(server_credentials, self._config)
        largest = max((_MAX_MESSAGE_BYTES, *(service.max_message_bytes for service in self._services)))
        most = sum(service.max_calls for service in self._services)
        public = dict.fromkeys((CHECK, REFLECT), self._probes) | {WATCH: self._watches}
        governed = GovernedCalls(self._callers, largest, Places(most), public=public)
        roles = {call: role for service in self._services for call, role in service.roles.items()}
        calls = MAX_CONCURRENT_RPCS + most
        connections = min(MAX_CONNECTIONS, side_connections())
        strangers = Strangers(connections // 2, STRANGER_S)
        asks = DemandRole(self._access, self._audit, roles, let_in=strangers.let_in, tracer=self._tracer)
        server = grpc.aio.server(
            interceptors=(FewHeaders(), asks, governed),
            maximum_concurrent_rpcs=calls + UNSEEN_CALLS,
            options=[
                ("grpc.so_reuseport", 0),  # else two bookies would share the port without noticing
                ("grpc.max_receive_message_length", largest),
                *bounds(calls, UNSEEN_CALLS, connections),
                ("grpc.max_send_message_length", -1),
                # Clients that vanished without a word hold streams: they are asked whether they still live.
                ("grpc.keepalive_time_ms", KEEPALIVE_MS),
                ("grpc.http2.max_pings_without_data", 0),
            ],
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        for service in self._services:
            service.add_to(server)
        names = (health.SERVICE_NAME, reflection.SERVICE_NAME, *self._names[len(SERVICES) :])
        reflection.enable_server_reflection(names, server)
        host, port = self._config.server_host, self._config.server_port
        try:
            address = host_and_port(host, port)
            if credentials is None:
                self._port = server.add_insecure_port(address)
            else:
                self._port = server.add_secure_port(address, credentials)
        except RuntimeError as error:
            await server.stop(None)
            raise ServerStartFailed(
                f"gRPC port {port} on {host} cannot be opened: it is in use or the address is not this host's; "
                "choose another grpcServerPort or grpcServerHost"
            ) from error
        self._server = server
        self.refresh()
        await server.start()
        if self._make_bound is not None:
            self._bound = self._make_bound(lambda: strangers.known)
            self._bound.start(self._port)
        self._tasks = (
            lasting_task(self._follow_status(), "health over gRPC"),
            lasting_task(strangers.guard(self._port), "guard of gRPC's connections"),
        )

    def refresh(self) -> None:
        """Show the node's present readiness."""
        serving = _SERVING if self._status.unready_reason() is None else _NOT_SERVING
        for service in self._names:
            self._health.set(service, serving)

    async def stop(self) -> None:
        """Report NOT_SERVING, let calls end for `STOP_GRACE_S` at most, close. May be called more than
        once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = ()
        self._health.shut_down()
        services, self._services = self._services, ()
        for service in services:
            await service.stop()
        if self._server is not None:
            await self._server.stop(STOP_GRACE_S)
            self._server = None
        if self._bound is not None:
            await asyncio.to_thread(self._bound.stop)

    async def _follow_status(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            self.refresh()
