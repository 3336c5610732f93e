"""What happens on a new connection before its first request: START_TLS, then authentication.

`HandshakeProtocol` is the connection's protocol until `establish` returns; then the transport gets its real one.

Invariants
- No request goes out before both are done; an error in either ends the connection.
- What arrives in plain text behind the answer to START_TLS ends the connection: somebody else may have written it.
- Without TLS and authentication there is no handshake, and this module is not used.

Event loop only; `client_context` on any thread.

Source: reference wire protocol, sections 5 and 6.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from itertools import count
from typing import Final, cast

from bookie_client.connection.dialect import Dialect
from bookie_client.connection.dialect_v3 import V3Dialect
from bookie_client.connection.request import Answer
from bookie_client.options import ClientOptions, TlsOptions
from bookie_protocol.errors import (
    BadRequest,
    BookieUnavailable,
    ConnectionLost,
    InvalidConfiguration,
    ProtocolViolation,
    Unauthorized,
    fresh,
)
from bookie_protocol.tls_limits import limit_tls
from bookie_protocol.tls_stores import BadStore, load_own, load_trusted
from bookie_protocol.wire.auth import AuthMessage, ClientAuthentication, Peer
from bookie_protocol.wire.framing import FrameReader

FIRST_TXN_ID: Final = 1 << 62
"""Transaction ids of the handshake; those of requests stay far below, so that no late answer meets one."""


class HandshakeProtocol(asyncio.Protocol):
    """Frames in and out, one at a time."""

    def __init__(self, bookie_id: str, max_frame_size: int) -> None:
        self.bookie_id = bookie_id
        self.transport: asyncio.Transport
        self._max_frame_size = max_frame_size
        self._reader = FrameReader(max_frame_size)
        self._frames: deque[bytes] = deque()
        self._arrived = asyncio.Event()
        self.error: BookieUnavailable | ProtocolViolation | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._frames.extend(self._reader.feed(data))
        except ProtocolViolation as error:
            self.error = ProtocolViolation(f"bookie {self.bookie_id}: {error}")
            self.transport.abort()
        self._arrived.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.error is None:
            detail = f": {exc}" if exc else ""
            self.error = ConnectionLost(f"bookie {self.bookie_id} closed the connection during the handshake{detail}")
        self._arrived.set()

    def hand_over(self, connection: asyncio.BaseProtocol) -> None:
        """The handshake is done: `connection` is the transport's protocol from now on. Raises what went wrong
        meanwhile."""
        if self.error is None and (self._frames or self._reader.pending):
            # This is how a bookie refuses a certificate that TLS itself accepts.
            self.error = BookieUnavailable(f"bookie {self.bookie_id} refused this client after the handshake")
            self.transport.abort()
        if self.error is not None:
            raise fresh(self.error)
        self.transport.set_protocol(connection)
        connection.connection_made(self.transport)

    async def ask(self, frame: bytes) -> bytes:
        """Send a frame and return the body of the next one. Raises `ConnectionLost`, `ProtocolViolation`."""
        self.transport.write(frame)
        while not self._frames:
            if self.error is not None:
                raise fresh(self.error)
            self._arrived.clear()
            await self._arrived.wait()
        return self._frames.popleft()

    async def start_tls(self, context: ssl.SSLContext, host: str) -> bytes | None:
        """Encrypt from here on; returns the bookie's certificate (DER). Raises `BookieUnavailable`."""
        if self._frames or self._reader.pending:
            raise ProtocolViolation(f"bookie {self.bookie_id} sent plain text behind its answer to START_TLS")
        loop = asyncio.get_running_loop()
        try:
            secured = await loop.start_tls(self.transport, self, context, server_hostname=host)
        except (OSError, ssl.SSLError) as error:
            raise BookieUnavailable(f"bookie {self.bookie_id} at {host}: TLS handshake failed: {error}") from error
        if secured is None:
            raise ConnectionLost(f"bookie {self.bookie_id} closed the connection during the TLS handshake")
        self.transport = secured
        session = secured.get_extra_info("ssl_object")
        return cast("bytes | None", session.getpeercert(binary_form=True)) if session is not None else None


async def establish(protocol: HandshakeProtocol, dialect: Dialect, options: ClientOptions, host: str) -> None:
    """Make the connection ready for requests.

    Raises `Unauthorized` (either side refuses), `BookieUnavailable` (no TLS there, a certificate that does not
    fit, or files of this client that cannot be used just now), `ConnectionLost`, `ProtocolViolation`.
    """
    certificate = None
    if options.tls is not None:
        certificate = await _upgrade(protocol, options.tls, host)
    try:
        await _authenticate(protocol, dialect, *await _begin(protocol, options, Peer(host, certificate)))
    except InvalidConfiguration as error:  # of files of this client: no bookie has refused anything
        raise BookieUnavailable(f"bookie {protocol.bookie_id}: this client cannot log in: {error}") from error


async def _upgrade(protocol: HandshakeProtocol, options: TlsOptions, host: str) -> bytes | None:
    try:
        context = tls_context(options)
    except BadRequest as error:
        raise BookieUnavailable(f"bookie {protocol.bookie_id}: {error}") from error
    start = V3Dialect()
    _, frame = start.start_tls(FIRST_TXN_ID)
    answer = await _ask(protocol, start, frame)
    if answer.error is not None:
        raise BookieUnavailable(
            f"bookie {protocol.bookie_id} answered {answer.error.v3.name} to START_TLS: it has no TLS configured"
        )
    return await protocol.start_tls(context, host)


async def _begin(
    protocol: HandshakeProtocol, options: ClientOptions, peer: Peer
) -> tuple[ClientAuthentication, AuthMessage | None]:
    """The exchange, and what this client says first."""
    try:
        authentication = ClientAuthentication(options.auth, peer)
        if options.tls is not None:
            await authentication.tls_established(peer)
        return authentication, await authentication.first()
    except InvalidConfiguration:
        raise
    except Exception as error:
        raise Unauthorized(f"bookie {protocol.bookie_id}: authentication plug-in failed: {error}") from error


async def _authenticate(
    protocol: HandshakeProtocol, dialect: Dialect, authentication: ClientAuthentication, message: AuthMessage | None
) -> None:
    for number in count(FIRST_TXN_ID + 1):
        if message is None and authentication.authenticated:
            return
        if message is None:
            raise Unauthorized(f"bookie {protocol.bookie_id}: the authentication plug-in has nothing more to say")
        _, frame = dialect.auth(number, message)
        if authentication.authenticated:
            # The last token; the bookie need not answer it, and what it would answer decides nothing.
            protocol.transport.write(frame)
            return
        answer = await _ask(protocol, dialect, frame)
        if answer.error is not None:
            raise Unauthorized(f"bookie {protocol.bookie_id} answered {answer.error.v3.name} to the authentication")
        if not isinstance(answer.detail, AuthMessage):
            raise ProtocolViolation(f"bookie {protocol.bookie_id}: the answer to an AUTH request holds no token")
        try:
            message = await authentication.answer(answer.detail)
        except Unauthorized as error:
            raise Unauthorized(f"bookie {protocol.bookie_id}: {error}") from error


async def _ask(protocol: HandshakeProtocol, dialect: Dialect, frame: bytes) -> Answer:
    body = await protocol.ask(frame)
    try:
        return dialect.decode(body)
    except ProtocolViolation as error:
        raise ProtocolViolation(f"bookie {protocol.bookie_id}: {error}") from error


def tls_context(options: TlsOptions) -> ssl.SSLContext:
    """The context that START_TLS upgrades to. Raises `BadRequest` for files that cannot be used, and
    for versions and cipher suites that are not there."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = options.check_hostname
    try:
        limit_tls(context, options.protocols, options.cipher_suites)
        if options.ca_file is None:
            context.load_default_certs()
        else:
            load_trusted(context, options.ca_type, options.ca_file, options.ca_password_file)
        own = options.key_file or options.certificate_file
        if own is not None:
            load_own(context, options.key_type, own, options.key_password_file, options.certificate_file)
    except InvalidConfiguration as error:
        raise BadRequest(f"TLS options of this client: {error}") from error
    except (OSError, BadStore) as error:
        raise BadRequest(
            f"TLS files of this client (ca_file, certificate_file, key_file, key_password_file) cannot be used: {error}"
        ) from error
    return context
