"""An embedded store behind gRPC.

Invariant: whatever gRPC itself reports is `ConnectionLost`; what the owner knows stands in its replies. So a
proxy or a wrong server can never make something look as if it did not exist. Proxies of the environment are not used:
the URI names the owner itself. A token is sent where nobody else can read it: over TLS, or to this machine.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc

from bookie_protocol.addresses import is_loopback
from bookie_protocol.auth.watched_file import WatchedFile
from bookie_protocol.bearer_tokens import shown_token
from bookie_protocol.errors import InvalidConfiguration
from bookie_protocol.metadata_service.embedded import embedded_metadata_pb2 as messages
from bookie_protocol.metadata_service.embedded.embedded_metadata_pb2_grpc import EmbeddedMetadataStub
from bookie_protocol.metadata_service.embedded.tree import EmbeddedTree
from bookie_protocol.metadata_service.interface import MetadataService
from bookie_protocol.metadata_service.options import MetadataServiceOptions, MetadataServiceUri, MetadataTls
from bookie_protocol.metadata_service.tree.nodes import ConnectionLost
from bookie_protocol.metadata_service.tree.service import TreeMetadataService

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
TOKEN_KEY: Final = "metadataServiceTokenFile"
_REFUSED: Final = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)

T = TypeVar("T")


class GrpcTransport:
    """A channel to the owner at `target` (host:port)."""

    def __init__(self, target: str, tls: MetadataTls | None = None, token_file: str | None = None) -> None:
        """Raises `InvalidConfiguration` for files that cannot be used."""
        self._target = target
        self._tls = tls
        self._token = None if token_file is None else WatchedFile(TOKEN_KEY, token_file, shown_token)
        self._silent = False  # what was asked last was not answered at all
        self._metadata()
        self._open()

    def _open(self) -> None:
        """Raises `InvalidConfiguration`, OSError: then everything is as before."""
        if self._tls is None:
            self._files = self._identity_of_files()
            self._channel = grpc.aio.insecure_channel(self._target, options=CHANNEL_OPTIONS)
        else:
            # gRPC itself tells of bad files by silence, and with an empty one trusts the authorities of the web.
            self._tls.check()
            files, credentials = self._identity_of_files(), _credentials(self._tls)
            self._channel = grpc.aio.secure_channel(self._target, credentials, options=CHANNEL_OPTIONS)
            self._files = files
        self._stub: Any = EmbeddedMetadataStub(self._channel)  # type: ignore[no-untyped-call]

    @property
    def target(self) -> str:
        return self._target

    async def open_session(self, request: messages.OpenSessionRequest, timeout: float) -> messages.OpenSessionReply:
        return await self._answer(self._stub.OpenSession, request, timeout)

    async def heartbeat(self, request: messages.SessionRequest, timeout: float) -> messages.Outcome:
        return await self._answer(self._stub.Heartbeat, request, timeout)

    async def close_session(self, request: messages.SessionRequest, timeout: float) -> messages.Outcome:
        return await self._answer(self._stub.CloseSession, request, timeout)

    async def execute(self, request: messages.ExecuteRequest, timeout: float) -> messages.ExecuteReply:
        return await self._answer(self._stub.Execute, request, timeout)

    async def events(self, request: messages.SessionRequest) -> AsyncIterator[messages.Event]:
        stream = self._stub.Events(request, metadata=self._credential())
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
        try:
            if self._silent or self._files != self._identity_of_files():
                old = self._channel
                self._open()
                self._silent = False
                await old.close()
        except (OSError, InvalidConfiguration):
            pass  # the files are being exchanged: until they are good, the last ones stay in use

    async def close(self) -> None:
        await self._channel.close()

    async def _answer(self, ask: Callable[..., Awaitable[T]], request: object, timeout: float) -> T:
        try:
            answer = await ask(request, timeout=timeout, metadata=self._credential())
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

    def _credential(self) -> tuple[tuple[str, str], ...]:
        """What every call shows. `ConnectionLost`: not now."""
        try:
            return self._metadata()
        except InvalidConfiguration as error:
            raise ConnectionLost(str(error)) from error

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return () if self._token is None else (("authorization", f"Bearer {self._token.value()}"),)

    def _identity_of_files(self) -> tuple[tuple[int, int, int], ...]:
        """Of TLS: another one when a file was exchanged. Raises OSError."""
        tls = self._tls or MetadataTls()
        found = [os.stat(path) for path in (tls.ca_file, tls.certificate_file, tls.key_file) if path is not None]
        return tuple((each.st_ino, each.st_mtime_ns, each.st_size) for each in found)

    def _lost(self, error: grpc.aio.AioRpcError) -> ConnectionLost:
        self._silent = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        if error.code() in _REFUSED:
            return ConnectionLost(
                f"the embedded metadata store at {self._target} refuses this client: {error.details()}; see {TOKEN_KEY}"
            )
        return ConnectionLost(
            f"no answer from the embedded metadata store at {self._target}: {error.code().name} {error.details()}"
        )


def _credentials(tls: MetadataTls) -> grpc.ChannelCredentials:
    """Raises OSError."""
    found = [
        None if path is None else Path(path).read_bytes() for path in (tls.ca_file, tls.key_file, tls.certificate_file)
    ]
    return grpc.ssl_channel_credentials(*found)


def _target(host: str, port: int) -> str:
    """gRPC knows names in ASCII alone."""
    return f"{host if host.isascii() else host.encode('idna').decode()}:{port}"


async def open_served(uri: MetadataServiceUri, options: MetadataServiceOptions) -> MetadataService:
    """Connect to a served store.

    `MetadataUnavailable` if nobody answers in time, or not to this token; `InvalidConfiguration` for files that cannot
    be used, and for a token that others could read on the way.
    """
    ((host, port),) = uri.hosts
    if options.token_file is not None and options.tls is None and not is_loopback(host.strip("[]")):
        raise InvalidConfiguration(
            f"{TOKEN_KEY}={options.token_file}: whoever listens on the way to {host} could read the token; set"
            " metadataServiceTlsEnable=true"
        )
    tree = EmbeddedTree(GrpcTransport(_target(host, port), options.tls, options.token_file), options.timeout)
    await tree.connect()
    service = TreeMetadataService(tree, uri.root, None, options)
    try:
        await service.prepare()
    except BaseException:
        await service.close()
        raise
    return service
