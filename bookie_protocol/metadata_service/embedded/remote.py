"""An embedded store behind gRPC.

Invariant: whatever gRPC itself reports is `ConnectionLost`; what the owner knows is in its replies. So a proxy or a
wrong server can never make something look as if it did not exist. A token is sent only where no third party can read
it: over TLS, or to this machine.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final, TypeVar

import grpc

from bookie_protocol.addresses import is_loopback
from bookie_protocol.auth.watched_file import WatchedFile
from bookie_protocol.bearer_tokens import shown_token
from bookie_protocol.errors import InvalidConfiguration
from bookie_protocol.metadata_service.embedded import embedded_metadata_pb2 as messages
from bookie_protocol.metadata_service.embedded.embedded_metadata_pb2_grpc import EmbeddedMetadataStub
from bookie_protocol.metadata_service.embedded.tree import EmbeddedTree
from bookie_protocol.metadata_service.grpc_channel import ServiceChannel, grpc_target
from bookie_protocol.metadata_service.options import MetadataServiceOptions, MetadataServiceUri, MetadataTls
from bookie_protocol.metadata_service.tree.nodes import ConnectionLost
from bookie_protocol.metadata_service.tree.service import MetadataService

TOKEN_KEY: Final = "metadataServiceTokenFile"
_REFUSED: Final = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)

T = TypeVar("T")


class GrpcTransport:
    """A channel to the owner at `target` (host:port)."""

    def __init__(self, target: str, tls: MetadataTls | None = None, token_file: str | None = None) -> None:
        """Raises `InvalidConfiguration` for files that cannot be used."""
        self._token = None if token_file is None else WatchedFile(TOKEN_KEY, token_file, shown_token)
        self._metadata()
        self._channel = ServiceChannel("the embedded metadata store", (target,), tls, EmbeddedMetadataStub)

    @property
    def target(self) -> str:
        return self._channel.target

    async def open_session(self, request: messages.OpenSessionRequest, timeout: float) -> messages.OpenSessionReply:
        return await self._answer(self._channel.stub.OpenSession, request, timeout)

    async def heartbeat(self, request: messages.SessionRequest, timeout: float) -> messages.Outcome:
        return await self._answer(self._channel.stub.Heartbeat, request, timeout)

    async def close_session(self, request: messages.SessionRequest, timeout: float) -> messages.Outcome:
        return await self._answer(self._channel.stub.CloseSession, request, timeout)

    async def execute(self, request: messages.ExecuteRequest, timeout: float) -> messages.ExecuteReply:
        return await self._answer(self._channel.stub.Execute, request, timeout)

    async def events(self, request: messages.SessionRequest) -> AsyncIterator[messages.Event]:
        stream = self._channel.stub.Events(request, metadata=self._credential())
        try:
            async for event in stream:
                yield event
        except grpc.aio.AioRpcError as error:
            raise self._lost(error) from error
        except asyncio.CancelledError as error:
            raise self._channel.given_up() from error
        finally:
            stream.cancel()

    async def reconnect(self) -> None:
        await self._channel.reconnect()

    async def close(self) -> None:
        await self._channel.close()

    async def _answer(self, ask: Callable[..., Awaitable[T]], request: object, timeout: float) -> T:
        try:
            answer = await ask(request, timeout=timeout, metadata=self._credential())
        except grpc.aio.AioRpcError as error:
            raise self._lost(error) from error
        except asyncio.CancelledError as error:
            raise self._channel.given_up() from error
        self._channel.heard()
        return answer

    def _credential(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata that every call carries. Raises `ConnectionLost` if there is none now."""
        try:
            return self._metadata()
        except InvalidConfiguration as error:
            raise ConnectionLost(str(error)) from error

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return () if self._token is None else (("authorization", f"Bearer {self._token.value()}"),)

    def _lost(self, error: grpc.aio.AioRpcError) -> ConnectionLost:
        unanswered = self._channel.unanswered(error)
        if error.code() in _REFUSED:
            return ConnectionLost(
                f"the embedded metadata store at {self.target} refuses this client: {error.details()}; see {TOKEN_KEY}"
            )
        return unanswered


async def open_served(uri: MetadataServiceUri, options: MetadataServiceOptions) -> MetadataService:
    """Connect to a served store.

    `MetadataUnavailable` if there is no answer in time, or not to this token; `InvalidConfiguration` for files that
    cannot be used, and for a token that others could read on the way.
    """
    ((host, port),) = uri.hosts
    if options.token_file is not None and options.tls is None and not is_loopback(host.strip("[]")):
        raise InvalidConfiguration(
            f"{TOKEN_KEY}={options.token_file}: a listener on the way to {host} could read the token; set"
            " metadataServiceTlsEnable=true"
        )
    tree = EmbeddedTree(GrpcTransport(grpc_target(host, port), options.tls, options.token_file), options.timeout)
    await tree.connect()
    return await MetadataService(tree, uri.root, None, options).open()
