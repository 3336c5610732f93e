"""kazoo's client as the driver needs it, and the way from kazoo's threads to the event loop.

The client reconnects for ever, shares its time between servers, logs in, and uses TLS. Reads asked for together, or in
one turn of the event loop, are sent as one request (`ReadBatches`, ZooKeeper's `multiRead`): kazoo hands every request
from the loop to a thread, and its answer back, which costs more than the read itself.

Invariants
- The loop never waits for kazoo: requests are queued by kazoo and answered through `call_soon_threadsafe`.
- A request is sent on the connection that the loop knows of when it hands the request over, or fails. So no request of
  a session is sent in another one, however far kazoo's thread is ahead: each connection has a queue of its own, which
  kazoo forgets with the connection (`Client`).
- A loop that is gone swallows what still arrives: kazoo's threads never see an error of ours.
- The loop hears of a change that a watch tells before it hears an answer that came later on the same connection. kazoo
  itself hands events and answers to two threads, of which either may be ahead.
- Of reads that go together each has its own outcome: one node that is missing fails no other read. A read alone in its
  turn is an ordinary request, as all reads are on a server before 3.6, which has no `multiRead`. No request asks for
  more than `NODES_AT_ONCE` nodes, and reads whose callers have given up are not sent.

Threads: `make_client` anywhere; requests, `await_result` and `hop` are called on the loop; the rest, and what these two
hand to kazoo, runs on kazoo's threads: watches on the connection thread, so they may not block. What they raise is
logged.

Sources: docs/internals/metadata-layout.md, sections 12 and 13; ZooKeeper 3.6, `MultiOperationRecord` and
`MultiResponse` (operation 22): each record is a header (type, done, error) and a body, and a header of type -1 with
`done` ends them.
"""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import (
    EXCEPTIONS,
    AuthFailedError,
    ConnectionDropped,
    ConnectionLoss,
    SessionClosedRequireSaslError,
    UnimplementedError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.paths import _prefix_root
from kazoo.protocol.serialization import (
    SASL,
    Connect,
    GetData,
    int_struct,
    multiheader_struct,
    read_buffer,
    stat_struct,
)
from kazoo.protocol.states import Callback, ZnodeStat
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL

from bookie_protocol.addresses import server_name
from bookie_protocol.auth.digest_md5 import DigestMd5Client
from bookie_protocol.auth.kerberos import KerberosAuth, KerberosClient
from bookie_protocol.errors import InvalidConfiguration, Unauthorized
from bookie_protocol.metadata_service.options import MetadataTls, SaslLogin, SaslMechanism
from bookie_protocol.metadata_service.tree.nodes import NODES_AT_ONCE

logging.getLogger("kazoo").addHandler(logging.NullHandler())  # a program without logging sees no lines of a library

_log = logging.getLogger(__name__)

_RECONNECT_PAUSE: Final = 0.1
LONGEST_RECONNECT_PAUSE: Final = 2.0
Found = tuple[bytes, ZnodeStat]
_ERROR: Final = -1
_END: Final[bytes] = multiheader_struct.pack(-1, True, -1)
_DIGEST_HOST: Final = "zk-sasl-md5"
"""The name that every ZooKeeper server has in logins by DIGEST-MD5."""
_MOST_STEPS: Final = 8
"""Answers of a server after which a login is given up; a sound one needs four."""
_HANDSHAKES_PER_SESSION: Final = 4
"""A server that is just starting accepts connections that it never answers. Waiting for one of them must not use up the
time in which the session could be saved by another."""


def make_client(
    hosts: str,
    timeout: float,
    auth: Sequence[tuple[str, str]],
    sasl: SaslLogin | None,
    on_agreed: Callable[[float], None],
    *,
    secure: bool,
    tls: MetadataTls | None,
) -> Any:
    """A client that is not started; see `ZooKeeperTree`. `on_agreed` hears, with each connection, after how many
    seconds of silence the session ends: the server has the last word on that. Raises `InvalidConfiguration`."""
    client = Client(
        hosts=hosts,
        timeout=timeout,
        handler=_Handler(timeout / len(hosts.split(",")), tls),
        auth_data=list(auth) or None,
        default_acl=CREATOR_ALL_ACL if secure else None,
        connection_retry=KazooRetry(
            max_tries=-1, delay=_RECONNECT_PAUSE, max_delay=LONGEST_RECONNECT_PAUSE, ignore_expire=True
        ),
        logger=logging.getLogger("kazoo.client"),
    )
    _wrap_handshakes(client, timeout / _HANDSHAKES_PER_SESSION, on_agreed)
    if sasl is not None:
        log_in_by(client, sasl)
    return client


class Client(KazooClient):  # type: ignore[misc]
    """kazoo's client with a queue for each connection.

    kazoo has one for as long as a session may live. It fails what is in it when the connection ends, but not what is
    appended behind that, which it sends on the next connection, or even in the next session.
    """

    _queue: deque[tuple[Any, Any]]
    queue_of_loop: deque[tuple[Any, Any]]
    """The queue of the connection that the loop knows of."""

    @property
    def queue(self) -> deque[tuple[Any, Any]]:
        """The queue of the connection of now; on the connection thread."""
        return self._queue

    def _call(self, request: Any, result: Any) -> None:
        """Hand a request over; on the loop. kazoo calls it for each request but the last one of a session."""
        self.queue_of_loop.append((request, result))
        if self._queue is not self.queue_of_loop:  # otherwise its end is still to come, and finds what was appended
            _fail(self.queue_of_loop)
            return  # without a byte: kazoo reads none while it is not connected, and a full pair stops the loop
        with suppress(AttributeError, OSError):  # the client was closed just now
            self._connection._write_sock.send(b"\0")

    def _notify_pending(self, state: Any) -> None:
        """End the queue; on the connection thread. kazoo calls it whenever a connection ends that stood."""
        super()._notify_pending(state)
        ended, self._queue = self._queue, deque()
        _fail(ended)


def _fail(queue: deque[tuple[Any, Any]]) -> None:
    """Fail what was not sent; on either thread."""
    with suppress(IndexError):
        while True:
            _, result = queue.popleft()
            if result is not None:
                result.set_exception(ConnectionLoss())


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """A handler for several servers: one that does not even refuse must leave time for the others.

    `connect_timeout` in seconds. TLS is ours: kazoo's own trusts the authorities of the system in any case.
    """

    def __init__(self, connect_timeout: float, tls: MetadataTls | None) -> None:
        super().__init__()
        self._connect_timeout = connect_timeout
        self._tls = tls
        self.failure = ""
        """The reason why TLS or the login failed last."""
        if tls is not None:
            tls.check()

    def create_connection(self, *args: Any, timeout: float, hostname: str | None = None, **kwargs: Any) -> Any:
        limit = min(timeout, self._connect_timeout)
        connection = super().create_connection(*args, timeout=limit, **kwargs)
        if self._tls is None:
            return connection
        try:
            connection.settimeout(limit)
            return self._tls.context().wrap_socket(connection, server_hostname=hostname and server_name(hostname))
        except OSError as error:
            self.failure = f": {error}"
            connection.close()
            raise

    def dispatch_callback(self, callback: Callback) -> None:
        """Call a watch at once, on the connection thread, which reads no later answer before.

        kazoo calls all watches of an event in turn, so an error of one must not keep the others from being called.
        """
        try:
            callback.func(*callback.args)
        except Exception as error:
            _log.error("a watch of ZooKeeper failed", exc_info=error)

    def select(self, readable: list[Any], *others: Any, **kwargs: Any) -> Any:
        """Return the sockets that can be read, those included whose data TLS has decrypted already.

        Such data shows on no socket, and answers that came together would wait for the next.
        """
        held = [each for each in readable if isinstance(each, ssl.SSLSocket) and each.pending()]
        return (held, [], []) if held else super().select(readable, *others, **kwargs)


def _wrap_handshakes(client: Any, longest: float, on_agreed: Callable[[float], None]) -> None:
    """Limit the time for each answer while a connection is made to `longest` seconds; then the connection is given
    up."""
    invoke = client._connection._invoke

    def hastened(timeout: float, request: Any, xid: int | None = None) -> Any:
        answer = invoke(min(timeout, longest), request, xid)
        if isinstance(request, Connect) and answer[0].time_out > 0:
            on_agreed(answer[0].time_out / 1000)
        return answer

    client._connection._invoke = hastened


def log_in_by(client: Any, login: SaslLogin) -> None:
    """Make this client of kazoo log in by SASL on each of its connections. Raises `InvalidConfiguration`.

    If this client has logged in before, a login that no server has refused (the connection ended, there is no ticket)
    is tried again for as long as a session lasts. Otherwise a server that hangs up is taken to refuse.
    """
    connection, new_login = client._connection, _logins(login)
    failing_since = -math.inf

    def authenticate(host: str, timeout: float) -> None:
        nonlocal failing_since
        try:
            _exchange(connection, new_login(host), timeout)
        except (Unauthorized, SessionClosedRequireSaslError, ConnectionDropped, InvalidConfiguration) as error:
            hung_up = isinstance(error, ConnectionDropped)
            why = "the server hung up, as it does when it refuses a login" if hung_up else str(error)
            client.handler.failure = f": {why or type(error).__name__}"
            failing_since = min(failing_since, time.monotonic())
            refused = not (hung_up or isinstance(error, InvalidConfiguration))
            if not refused and time.monotonic() < failing_since + client._session_timeout / 1000:
                raise ConnectionDropped(f"login{client.handler.failure}") from error
            # kazoo knows this refusal; any other ends its connection thread with a traceback
            raise AuthFailedError(f"login{client.handler.failure}") from error
        failing_since, client.handler.failure = math.inf, ""

    connection.sasl_options = {}  # not None: kazoo logs in
    connection._authenticate_with_sasl = authenticate


class _Login(Protocol):
    """A login to a server by either mechanism."""

    complete: bool

    def first(self) -> bytes: ...

    def answer(self, token: bytes) -> bytes | None: ...


def _logins(login: SaslLogin) -> Callable[[str], _Login]:
    """Return what makes a new login to the server of a host name. Raises `InvalidConfiguration`."""
    if login.mechanism is SaslMechanism.GSSAPI:
        auth = KerberosAuth(login.username, service=login.service)
        return lambda host: KerberosClient(auth, f"{login.service}@{host}")
    return lambda _: DigestMd5Client(login.username or "", login.password or "", login.service, _DIGEST_HOST)


def _exchange(connection: Any, login: _Login, timeout: float) -> None:
    """Log in on a new connection, within `timeout` seconds for each answer.

    Raises `Unauthorized`, `InvalidConfiguration`, and kazoo's errors.
    """
    token: bytes | None = login.first()
    for number in range(1, _MOST_STEPS + 1):
        connection._submit(SASL(token), timeout, number)
        header, content, offset = connection._read_header(timeout)
        if header.err:
            raise EXCEPTIONS[header.err]()
        if header.xid != number:
            raise Unauthorized(f"the server answered request {header.xid} instead of {number} of a login")
        if login.complete:
            return
        challenge, _ = SASL.deserialize(content, offset)
        token = login.answer(challenge or b"")
        if token is None:
            return
    raise Unauthorized(f"the login did not end within {_MOST_STEPS} steps")


def hop(loop: asyncio.AbstractEventLoop, callback: Callable[..., None]) -> Callable[..., None]:
    """A function for any thread that runs `callback` on the loop."""

    def from_any_thread(*arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: there is no waiter any more
            loop.call_soon_threadsafe(callback, *arguments)

    return from_any_thread


async def await_result(result: Any) -> Any:
    """The value of a kazoo `IAsyncResult`, or its exception."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(_: object) -> None:
        if future.done():
            return
        error = result.exception
        if error is None:
            future.set_result(result.value)
        else:
            future.set_exception(error)

    result.rawlink(hop(loop, settle))
    return await future


@dataclass(frozen=True, slots=True)
class MultiRead:
    """A request for kazoo's queue; `paths` with the chroot of the client."""

    type: ClassVar[int] = 22
    paths: Sequence[str]

    def serialize(self) -> bytes:
        header: bytes = multiheader_struct.pack(GetData.type, False, -1)
        return b"".join([header + GetData(path, None).serialize() for path in self.paths]) + _END

    @classmethod
    def deserialize(cls, answer: bytes, offset: int) -> list[Found | Exception]:
        """Return what was found, or the error, in the order of the paths."""
        outcomes: list[Found | Exception] = []
        while True:
            kind, done, _ = multiheader_struct.unpack_from(answer, offset)
            offset += multiheader_struct.size
            if done:
                return outcomes
            if kind == _ERROR:
                outcomes.append(EXCEPTIONS[int_struct.unpack_from(answer, offset)[0]]())
                offset += int_struct.size
            else:
                data, offset = read_buffer(answer, offset)
                outcomes.append((data, ZnodeStat._make(stat_struct.unpack_from(answer, offset))))
                offset += stat_struct.size


class ReadBatches:
    """Reads of one kazoo client."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[str, asyncio.Future[Found]]] = []
        self._single = False

    async def get(self, path: str) -> Found:
        """Data and stat of a node. Raises what kazoo's `get` raises."""
        future: asyncio.Future[Found] = self._loop.create_future()
        if not self._waiting:
            self._loop.call_soon(self._send)
        self._waiting.append((path, future))
        try:
            return await future
        except UnimplementedError:
            self._single = True
            found: Found = await await_result(self._client.get_async(path))
            return found

    async def get_each(self, paths: Sequence[str]) -> list[Found | BaseException]:
        """Return what `get` returns or raises for each of at most `NODES_AT_ONCE`. Raises the error of the whole
        request."""
        if not self._single:
            try:
                outcomes: list[Found | BaseException] = await await_result(self._multi_read(paths))
                return outcomes
            except UnimplementedError:
                self._single = True
        gets: list[Awaitable[Found]] = [await_result(self._client.get_async(path)) for path in paths]
        return await asyncio.gather(*gets, return_exceptions=True)

    def _multi_read(self, paths: Sequence[str]) -> Any:
        """kazoo's result, whose value are the outcomes."""
        result = self._client.handler.async_result()
        self._client._call(MultiRead([_prefix_root(self._client.chroot, path) for path in paths]), result)
        return result

    def _send(self) -> None:
        waiting = [(path, future) for path, future in self._waiting if not future.done()]
        self._waiting.clear()
        most = 1 if self._single else NODES_AT_ONCE
        for first in range(0, len(waiting), most):
            self._send_batch(waiting[first : first + most])

    def _send_batch(self, reads: Sequence[tuple[str, asyncio.Future[Found]]]) -> None:
        if len(reads) == 1:
            result = self._client.get_async(reads[0][0])
        else:
            result = self._multi_read([path for path, _ in reads])
        futures = [future for _, future in reads]
        result.rawlink(hop(self._loop, lambda _: _settle(futures, result)))


def _settle(futures: Sequence[asyncio.Future[Found]], result: Any) -> None:
    if result.exception is not None:
        outcomes: Sequence[Found | Exception] = [result.exception] * len(futures)
    else:
        outcomes = [result.value] if len(futures) == 1 else result.value
    for future, outcome in zip(futures, outcomes, strict=True):
        if future.done():
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
