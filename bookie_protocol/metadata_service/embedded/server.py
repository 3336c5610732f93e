"""Serving an embedded store to other processes over gRPC.

Clients use our own protocol, or that of Oxia if the owner keeps notices.

For development and single machines. Who may, and over what, its caller says (`ServingBounds`): by default everybody,
in plain text, at the loopback address.

Threads: event loop only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final

import grpc

from bookie_protocol.addresses import host_and_port
from bookie_protocol.errors import ServerStartFailed
from bookie_protocol.metadata_service.embedded import embedded_metadata_pb2 as messages
from bookie_protocol.metadata_service.embedded.embedded_metadata_pb2_grpc import (
    EmbeddedMetadataServicer,
    add_EmbeddedMetadataServicer_to_server,
)
from bookie_protocol.metadata_service.embedded.owner import EmbeddedOwner
from bookie_protocol.metadata_service.embedded.oxia_service import OxiaService, OxiaServing
from bookie_protocol.metadata_service.grpc_channel import MAX_MESSAGE_BYTES
from bookie_protocol.metadata_service.options import DEFAULT_ROOT

_STOP_GRACE_SECONDS: Final = 0.5
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),
    # Clients that vanished without a word hold streams and descriptors: they are asked whether they still live.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Java's clients of Oxia ask every ten seconds, also without a call; more often than this ends their connection.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
)
OXIA: Final = OxiaServing()


@dataclass(frozen=True, slots=True)
class ServingBounds:
    """Limits for unauthenticated clients; unlimited by default."""

    interceptors: Sequence[grpc.aio.ServerInterceptor] = ()
    options: Sequence[tuple[str, int]] = ()
    """Options of the gRPC server, which override those here."""
    calls: int | None = None
    """Maximum number of calls that run at a time."""
    credentials: grpc.ServerCredentials | None = None
    """Credentials of TLS; None: nothing is encrypted."""


class EmbeddedMetadataServer:
    """A server for one owner at host and port (0: any free one). The caller that opened the owner closes it."""

    def __init__(
        self,
        owner: EmbeddedOwner,
        host: str = "127.0.0.1",
        port: int = 0,
        bounds: ServingBounds = ServingBounds(),
        oxia: OxiaServing = OXIA,
    ) -> None:
        self._owner = owner
        self._bounds = bounds
        self._host = host
        self._port = port
        self._server: grpc.aio.Server | None = None
        self._oxia = oxia
        self._oxia_service: OxiaService | None = None

    @property
    def port(self) -> int:
        return self._port

    def uri(self, root: str = DEFAULT_ROOT) -> str:
        """Return the URI that other processes set as `metadataServiceUri`."""
        return f"embedded://{host_and_port(self._host, self._port)}{root}"

    async def start(self) -> None:
        """Listen. `ServerStartFailed` if the address cannot be bound."""
        bounds = self._bounds
        server = grpc.aio.server(
            interceptors=bounds.interceptors,
            options=tuple((dict(_OPTIONS) | dict(bounds.options)).items()),
            maximum_concurrent_rpcs=bounds.calls,
        )
        add_EmbeddedMetadataServicer_to_server(_Servicer(self._owner), server)  # type: ignore[no-untyped-call]
        address = host_and_port(self._host, self._port)
        try:
            if bounds.credentials is None:
                self._port = server.add_insecure_port(address)
            else:
                self._port = server.add_secure_port(address, bounds.credentials)
        except RuntimeError as error:
            raise ServerStartFailed(
                f"the embedded metadata store cannot listen on {address}: {error}; is the port in use?"
            ) from error
        if self._owner.notices is not None:
            leader = self._oxia.leader or host_and_port(self._oxia.host or self._host, self._port)
            self._oxia_service = OxiaService(self._owner, self._oxia.namespaces, leader)
            server.add_generic_rpc_handlers(self._oxia_service.handlers())
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """Stop listening and break all streams; sessions remain until they expire."""
        if self._oxia_service is not None:
            self._oxia_service.end()
        if self._server is not None:
            await self._server.stop(_STOP_GRACE_SECONDS)
            self._server = None


class _Servicer(EmbeddedMetadataServicer):
    def __init__(self, owner: EmbeddedOwner) -> None:
        self._owner = owner

    async def OpenSession(  # noqa: N802
        self, request: messages.OpenSessionRequest, context: grpc.aio.ServicerContext
    ) -> messages.OpenSessionReply:
        return await self._owner.open_session(request, peer=context.peer())

    async def Heartbeat(  # noqa: N802
        self, request: messages.SessionRequest, context: grpc.aio.ServicerContext
    ) -> messages.Outcome:
        return self._owner.heartbeat(request)

    async def CloseSession(  # noqa: N802
        self, request: messages.SessionRequest, context: grpc.aio.ServicerContext
    ) -> messages.Outcome:
        return await self._owner.close_session(request)

    async def Execute(  # noqa: N802
        self, request: messages.ExecuteRequest, context: grpc.aio.ServicerContext
    ) -> messages.ExecuteReply:
        return await self._owner.execute(request)

    async def Events(  # noqa: N802
        self, request: messages.SessionRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[messages.Event]:
        async for event in self._owner.events(request):
            yield event
