"""An embedded store behind gRPC.

Invariant: whatever gRPC itself reports is `ConnectionLost`; what the owner knows stands in its replies. So a
proxy or a wrong server can never make something look as if it did not exist. Proxies of the environment are not used:
the URI names the owner itself.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any, Final, TypeVar

import grpc

from bookie_protocol.metadata_service.embedded import embedded_metadata_pb2 as messages
from bookie_protocol.metadata_service.embedded.embedded_metadata_pb2_grpc import EmbeddedMetadataStub
from bookie_protocol.metadata_service.embedded.tree import EmbeddedTree
from bookie_protocol.metadata_service.interface import MetadataService
from bookie_protocol.metadata_service.options import MetadataServiceOptions
from bookie_protocol.metadata_service.tree.nodes import ConnectionLost
from bookie_protocol.metadata_service.tree.service import TreeMetadataService
from bookie_protocol.metadata_service.uri import MetadataServiceUri

MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)

T = TypeVar("T")


class GrpcTransport:
    """A channel to the owner at `target` (host:port)."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._silent = False  # what was asked last was not answered at all
        self._open()

    def _open(self) -> None:
        self._channel = grpc.aio.insecure_channel(self._target, options=CHANNEL_OPTIONS)
        self._stub: Any = EmbeddedMetadataStub(self._channel)  # type: ignore[no-untyped-call]

    @property
    def target(self) -> str:
        return self._target

    async def open_session(self, request: messages.OpenSessionRequest, timeout: float) -> messages.OpenSessionReply:
        return await self._answer(self._stub.OpenSession(request, timeout=timeout))

    async def heartbeat(self, request: messages.SessionRequest, timeout: float) -> messages.Outcome:
        return await self._answer(self._stub.Heartbeat(request, timeout=timeout))

    async def close_session(self, request: messages.SessionRequest, timeout: float) -> messages.Outcome:
        return await self._answer(self._stub.CloseSession(request, timeout=timeout))

    async def execute(self, request: messages.ExecuteRequest, timeout: float) -> messages.ExecuteReply:
        return await self._answer(self._stub.Execute(request, timeout=timeout))

    async def events(self, request: messages.SessionRequest) -> AsyncIterator[messages.Event]:
        stream = self._stub.Events(request)
        try:
            async for event in stream:
                yield event
        except grpc.aio.AioRpcError as error:
            raise self._lost(error) from error
        except asyncio.CancelledError as error:
            raise self._given_up() from error
        finally:
            stream.cancel()

    async def reconnect(self) -> None:
        if self._silent:
            old = self._channel
            self._silent = False
            self._open()
            await old.close()

    async def close(self) -> None:
        await self._channel.close()

    async def _answer(self, call: Awaitable[T]) -> T:
        try:
            answer = await call
        except grpc.aio.AioRpcError as error:
            raise self._lost(error) from error
        except asyncio.CancelledError as error:
            raise self._given_up() from error
        self._silent = False
        return answer

    def _given_up(self) -> BaseException:
        """gRPC cancels what is under way on a channel that is closed: that cancels nobody who waits for it."""
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            return asyncio.CancelledError()
        return ConnectionLost(f"the connection to the embedded metadata store at {self._target} was given up")

    def _lost(self, error: grpc.aio.AioRpcError) -> ConnectionLost:
        self._silent = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        return ConnectionLost(
            f"no answer from the embedded metadata store at {self._target}: {error.code().name} {error.details()}"
        )


async def open_served(uri: MetadataServiceUri, options: MetadataServiceOptions) -> MetadataService:
    """Connect to a served store. `MetadataUnavailable` if nobody answers in time."""
    tree = EmbeddedTree(GrpcTransport(uri.connect_string), options.timeout)
    await tree.connect()
    service = TreeMetadataService(tree, uri.root, None, options)
    try:
        await service.prepare()
    except BaseException:
        await service.close()
        raise
    return service
