"""The path to one bookie: it connects on demand, reconnects with back-off and fails fast while the bookie is down.

On a new connection START_TLS and authentication come before the first request.

`HandshakeProtocol` is the connection's protocol until `establish` returns; then the transport gets its real one.

Invariants
- Sending never blocks: the request goes out, waits for a connection attempt under way, or fails at the next
  turn of the loop. It always ends.
- After a failed attempt no other is made before the delay has passed; requests fail at once meanwhile, so one
  dead bookie costs a reader or writer nothing but the turn to the next replica.
- The bookie's address is asked for, and its name resolved, at every attempt.
- No request goes out before TLS and authentication are done; an error in either ends the connection.
- Plain text behind the answer to START_TLS ends the connection: an attacker may have injected it.

Event loop only.

Sources: docs/internals/client-protocol.md, sections 2 and 18; docs/internals/metadata-layout.md, section 4;
docs/internals/wire-protocol.md, sections 5 and 6.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from math import ceil
from typing import Final, NamedTuple, cast

from bookie_client.connection.connection import BookieConnection
from bookie_client.connection.dialect import Dialect
from bookie_client.connection.dialect_v3 import V3Dialect
from bookie_client.connection.latency import Lateness
from bookie_client.connection.network import Network
from bookie_client.connection.request import Answer, BookieRequest, FramedRequest
from bookie_client.options import ClientOptions, TlsOptions
from bookie_protocol.addresses import host_and_port, server_name
from bookie_protocol.errors import (
    BadRequest,
    BookieBusy,
    BookieUnavailable,
    ConnectionLost,
    InvalidConfiguration,
    MetadataError,
    MetadataNotFound,
    PodkeeperError,
    ProtocolViolation,
    Unauthorized,
    fresh,
)
from bookie_protocol.logs import get_logger
from bookie_protocol.tls import BadStore, limit_tls, load_own, load_trusted
from bookie_protocol.wire.auth import AuthMessage, ClientAuthentication, Peer
from bookie_protocol.wire.framing import FrameReader

FIRST_TXN_ID: Final = 1 << 62
"""Transaction ids of the handshake; those of requests stay far below, so that no late answer meets one."""
_log = get_logger(__name__)
SHUT_DOWN_SECONDS: Final = 1.0
"""Seconds that closing waits for a bookie to take what was sent to it."""


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
            secured = await loop.start_tls(self.transport, self, context, server_hostname=server_name(host))
        except (OSError, ValueError) as error:  # the last for a name that no certificate can have
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
    """Return the exchange, and what this client says first."""
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
    """Return the context that START_TLS upgrades to. Raises `BadRequest` for files that cannot be used, and
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


class _Waiting(NamedTuple):
    """A request that waits for the connection."""

    frame: bytes
    key: bytes
    request: BookieRequest
    ticks: int
    measured: bool


class Channel:
    """Made by `ChannelPool`."""

    def __init__(self, network: Network, bookie_id: str, dialect: Dialect) -> None:
        self.bookie_id = bookie_id
        self.dialect = dialect
        self._network = network
        self._record = network.health.record(bookie_id)
        self._loop = asyncio.get_running_loop()
        self._connection: BookieConnection | None = None
        self._attempt: asyncio.Task[None] | None = None
        self._waiting: list[_Waiting] = []
        self._retry_at = 0.0
        self._connected_at = 0.0
        self._delay = 0.0
        self._error: PodkeeperError | None = None
        self.connection_number = 0
        """Number of the present or last connection among all of the client; 0: this channel had none yet."""
        self.on_lost: dict[Callable[[], None], None] = {}
        """Called, each, whenever a connection that stood is gone: the bookie may have been restarted."""

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    # --- sending --------------------------------------------------------------------------------------------

    def send_add(self, frame: bytes, key: bytes, request: BookieRequest) -> None:
        """Send an add, with the time-out of adds."""
        if self._connection is not None:
            self._connection.send(frame, key, request, self._network.add_ticks)
        else:
            self._send_later(_Waiting(frame, key, request, self._network.add_ticks, False))

    def send_adds(self, frames: bytes, adds: Sequence[FramedRequest]) -> None:
        """Send many adds at once; `frames` are their frames, one behind the other."""
        if self._connection is not None:
            self._connection.send_many(frames, adds, self._network.add_ticks)
            return
        for add in adds:
            self.send_add(add.frame, add.key, add)

    def send_read(self, frame: bytes, key: bytes, request: BookieRequest) -> None:
        """Send a plain read, with the time-out of reads; how long it takes is measured."""
        if self._connection is not None:
            self._connection.send_measured(frame, key, request, self._network.read_ticks)
        else:
            self._send_later(_Waiting(frame, key, request, self._network.read_ticks, True))

    def send(self, frame: bytes, key: bytes, request: BookieRequest, timeout: float) -> None:
        """Send any other request, with its own time-out in seconds."""
        # One tick more, because it may be sent just before one.
        ticks = ceil(timeout / self._network.ticker.seconds) + 1
        if self._connection is not None:
            self._connection.send_at_once(frame, key, request, ticks)
        else:
            self._send_later(_Waiting(frame, key, request, ticks, False))

    def _send_later(self, waiting: _Waiting) -> None:
        if self._network.is_closed:
            self._refuse_soon(waiting, self._network.closed_error(self.bookie_id))
        elif self._attempt is not None:
            self._waiting.append(waiting)
        elif self._error is not None and self._loop.time() < self._retry_at:
            self._refuse_soon(waiting, self._error)
        else:
            self._waiting.append(waiting)
            self._start_attempt()

    def _refuse_soon(self, waiting: _Waiting, error: PodkeeperError) -> None:
        self._loop.call_soon(waiting.request.refused, self.bookie_id, error)

    # --- connecting -----------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Have a connection that takes requests, whatever the back-off says. Raises `BookieUnavailable`, also when
        either side refused the other, and `BookieBusy`."""
        if self._connection is not None:
            refusal = self._connection.refusal()
            if isinstance(refusal, BookieBusy):
                raise refusal
            return
        if self._attempt is None:
            self._start_attempt()
        attempt = self._attempt
        assert attempt is not None
        try:
            await asyncio.shield(attempt)
        except asyncio.CancelledError:
            waits = asyncio.current_task()
            if not attempt.cancelled() or (waits is not None and waits.cancelling()):
                raise  # else `close` ended the attempt, and the waiting callers were not cancelled
        if self._connection is None:
            error = self._error or self._network.closed_error(self.bookie_id)
            raise fresh(error) if isinstance(error, BookieUnavailable) else BookieUnavailable(str(error))

    def _start_attempt(self) -> None:
        self._attempt = self._loop.create_task(self._open(), name=f"connect {self.bookie_id}")

    async def _open(self) -> None:
        options, bookie, where = self._network.options, self.bookie_id, ""
        error: PodkeeperError
        try:
            async with asyncio.timeout(options.connect_timeout):
                host, port = await self._network.addresses.resolve(bookie)
                where = f" at {host_and_port(host, port)}"
                connection = await self._connect(host, port)
        except TimeoutError:
            error = BookieUnavailable(f"bookie {bookie}{where}: no connection in {options.connect_timeout:g} s")
        except OSError as problem:
            error = BookieUnavailable(f"bookie {bookie}{where}: cannot connect: {problem}")
        except MetadataNotFound:
            error = BookieUnavailable(f"bookie {bookie} is not registered: it is down")
        except MetadataError as problem:
            error = BookieUnavailable(f"bookie {bookie}: address unknown: {problem}")
        except PodkeeperError as problem:
            error = fresh(problem)
        except Exception as problem:
            # Whatever it is, those who wait must hear of it.
            _log.error("connection attempt failed", bookie=bookie, exc_info=problem)
            error = BookieUnavailable(f"bookie {bookie}{where}: cannot connect: {problem!r}")
        else:
            self._attempt_succeeded(connection)
            return
        self._attempt_failed(error)

    async def _connect(self, host: str, port: int) -> BookieConnection:
        network, options = self._network, self._network.options
        lateness = None
        if options.adaptive_timeouts:
            lateness = Lateness(options, network.ticker, self._record.adds, self._record.reads, self._loop.time)
        connection = BookieConnection(
            self.bookie_id,
            self.dialect,
            max_frame_size=options.received_frame_size,
            ticker=network.ticker,
            patience=network.add_ticks - 1,
            silence_ticks=network.silence_ticks,
            lateness=lateness,
            record=self._record,
            on_closed=self._closed,
        )
        if options.tls is None and options.auth is None:
            await network.connector(lambda: connection, host, port)
            return connection
        handshake = HandshakeProtocol(self.bookie_id, options.max_frame_size)
        await network.connector(lambda: handshake, host, port)
        try:
            await establish(handshake, self.dialect, options, host)
        except BaseException:
            handshake.transport.abort()
            raise
        handshake.hand_over(connection)
        return connection

    def _attempt_succeeded(self, connection: BookieConnection) -> None:
        self._attempt = None
        if not connection.is_open:
            # A bookie that is starting up accepts and hangs up at once.
            self._attempt_failed(BookieUnavailable(f"bookie {self.bookie_id} is not ready: it closed the connection"))
            return
        self._connection, self._error, self._delay = connection, None, 0.0
        self._connected_at = self._loop.time()
        self._network.connections += 1
        self.connection_number = self._network.connections
        self._record.connected(connection)
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.request.is_wanted:
                continue
            send = connection.send_measured if each.measured else connection.send
            send(each.frame, each.key, each.request, each.ticks)

    def _attempt_failed(self, error: PodkeeperError) -> None:
        self._attempt = None
        self._back_off(error)
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.request.refused(self.bookie_id, error)

    def _back_off(self, error: PodkeeperError) -> None:
        options = self._network.options
        self._error = error
        self._delay = min(max(self._delay * 2, options.reconnect_delay), options.max_reconnect_delay)
        self._retry_at = self._loop.time() + self._delay
        self._record.connection_failed(options.max_reconnect_delay)

    def _closed(self, connection: BookieConnection) -> None:
        self._record.connections.discard(connection)
        if self._connection is connection:
            self._connection = None
            lost, now = BookieUnavailable(f"bookie {self.bookie_id}: connection lost"), self._loop.time()
            if now < self._connected_at + self._network.options.reconnect_delay:
                self._back_off(lost)  # a bookie that hangs up at once counts as down
            else:  # whatever cuts connections to all replicas would fail every read meanwhile
                self._error, self._retry_at = lost, now
                self._record.connection_failed(self._network.options.max_reconnect_delay)
            for told in list(self.on_lost):
                told()

    async def close(self, reason: PodkeeperError) -> None:
        """End the attempt under way, or the connection; what is outstanding fails."""
        if self._attempt is not None:
            self._attempt.cancel()
            await asyncio.wait([self._attempt])
            self._attempt_failed(reason)
        if self._connection is not None:
            await self._connection.shut_down(reason, SHUT_DOWN_SECONDS)
