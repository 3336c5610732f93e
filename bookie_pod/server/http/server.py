"""The HTTP server's socket and its bounds.

Invariants
- At most `MAX_CONNECTIONS` connections are open. Beyond that the server looks at how a connection begins. One that has
  begun takes the place of the one that has been silent, or idle after its answer, for longest; not of one that has not
  had `UNREAD_S` to begin. When all are being served, `PROBE_CONNECTIONS` more are taken for the probes alone, and any
  other request is answered 503 and closed. `MOST_LOOKED_AT` more may say nothing, and go when more come: no number of
  connections or requests keeps the probes out. Where descriptors are few, so are all of these.
- With TLS all this begins when the handshake is over; those in the middle of it are bounded by `Handshakes`.
- What may be received of one connection, and what is kept of it, is bounded by `Connection`. A request with a
  `Content-Encoding` is answered 415.
- An idle connection is closed after `KEEPALIVE_S`, one whose first request is not complete after `FIRST_REQUEST_S` too,
  so that silent peers cannot keep the probes out.
- `stop` ends within `SHUTDOWN_S`, whatever clients do.

Event loop only.
"""

from __future__ import annotations

import asyncio
import errno
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, cast

from aiohttp import web

from bookie_pod.audit import Audit
from bookie_pod.client_memory import UNGOVERNED_BYTES, MemoryGovernor
from bookie_pod.config.sections.service import HttpConfig, HttpListener
from bookie_pod.descriptors import side_connections
from bookie_pod.metrics.registry import Registry
from bookie_pod.server.access import Access
from bookie_pod.server.http.api.context import Context, FindAdmin, Workers
from bookie_pod.server.http.api.dispatch import Dispatcher, plain_errors
from bookie_pod.server.http.api.table import Resource
from bookie_pod.server.http.connection import (
    BUSY,
    MAX_BODY_BYTES,
    MAX_HEAD_BYTES,
    TURNED_AWAY_S,
    Complaints,
    Connection,
)
from bookie_pod.server.http.handshakes import Handshakes, Receiver
from bookie_pod.server.http.routes import PROBE_PATHS, guarded_groups, resources
from bookie_pod.server.http.tls import server_context
from bookie_pod.server.status import NodeStatus
from bookie_protocol.addresses import host_and_port, host_to_bind, resolving
from bookie_protocol.errors import ServerStartFailed

MAX_CONNECTIONS: Final = 256
PROBE_CONNECTIONS: Final = 32
FIRST_REQUEST_S: Final = 10.0
UNREAD_S: Final = 1.0
"""Seconds for which the beginning of a connection may lie unread while very many come at once."""
SHUTDOWN_S: Final = 2.0
_BACKLOG: Final = 512
"""The backlog of the socket.

The kernel drops a connection beyond it while the event loop is busy, and the client comes again after a second: too
late for a probe.
"""
MOST_LOOKED_AT: Final = 2 * _BACKLOG
"""A backlog of them comes at once, before anything that they sent is read."""
MOST_HANDSHAKES: Final = 256
"""The number of handshakes under way, at most; each takes some 100 KB."""
_PROBE: Final = re.compile(rb"(GET|HEAD) (%s)[ ?]" % "|".join(sorted(PROBE_PATHS)).encode())
_LONGEST_METHOD: Final = len("HEAD ")
_LONGEST_BEGIN: Final = 64


class HttpServer:
    """Serves the probes, the metrics and the admin API of one node."""

    def __init__(
        self,
        listener: HttpListener,
        config: HttpConfig,
        status: NodeStatus,
        registry: Registry,
        *,
        find_admin: FindAdmin = lambda: None,
        access: Access,
        audit: Audit,
        table: Sequence[Resource] = (),
        pages: Sequence[Resource] = (),
        memory: MemoryGovernor | None = None,
    ) -> None:
        """`find_admin`: the rooms of the admin API, None while the bookie does not serve. `access`: who may
        what. `table`: the admin API. `pages`: the console. `memory`: of the clients of this process."""
        self._memory = memory or MemoryGovernor(UNGOVERNED_BYTES)
        self._complaints = Complaints()
        self._listener = listener
        tls = server_context(config)
        self._handshakes = (
            Handshakes(tls, self._protocol, self._complaints.refused, self._most_handshakes)
            if tls is not None
            else None
        )
        self._silent: OrderedDict[Connection, asyncio.TimerHandle] = OrderedDict()
        """Connections without a request so far, each with the timer that will close it."""
        self._idle: OrderedDict[Connection, None] = OrderedDict()
        """Connections whose last request was answered; those that are gone stay until there are many."""
        self._looked_at: OrderedDict[_LookedAt, None] = OrderedDict()
        """Connections beyond those that have not said yet what they want."""
        self._for_probes: set[Connection] = set()
        """Connections beyond those that may be open; those that are gone stay until the next of them comes."""
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._note_request, plain_errors])
        self._workers = Workers()
        guarded = guarded_groups(config)
        Dispatcher(Context(status, registry, find_admin, self._workers), access, audit, guarded=guarded).add_to(
            app, (*resources(table, guarded), *pages) if listener.admin else resources((), guarded)
        )
        self._runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=SHUTDOWN_S)
        self._server: asyncio.Server | None = None

    @property
    def _bounds(self) -> tuple[int, int, int]:
        """Return how many connections may be open, how many more looked at, and how many more taken for the probes
        alone.
        """
        all_kinds = side_connections()
        if self._handshakes is not None:
            all_kinds -= self._most_handshakes
        most, probes = min(MAX_CONNECTIONS, all_kinds // 2), min(PROBE_CONNECTIONS, max(1, all_kinds // 8))
        return most, min(MOST_LOOKED_AT, all_kinds - most - probes), probes

    @property
    def _most_handshakes(self) -> int:
        return min(MOST_HANDSHAKES, side_connections() // 4)

    @property
    def port(self) -> int:
        """The port that is listened on; the configured one unless that is 0."""
        assert self._server is not None, "not started"
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def start(self) -> None:
        """Listen; `ServerStartFailed` if that is not possible."""
        await self._runner.setup()
        host, port = self._listener.host, self._listener.port
        try:
            with resolving():
                self._server = await asyncio.get_running_loop().create_server(
                    self._protocol if self._handshakes is None else self._handshakes.protocol,
                    host_to_bind(host, port),
                    port,
                    backlog=_BACKLOG,
                )
        except OSError as error:
            await self._runner.cleanup()
            key = self._listener.port_key
            if error.errno == errno.EADDRINUSE:
                message = f"HTTP port {port} is in use: stop what uses it or choose another {key}"
            else:
                message = f"HTTP server cannot listen on {host_and_port(host, port)} ({key}): {error.strerror or error}"
            raise ServerStartFailed(message) from error

    async def stop(self) -> None:
        """Stop listening and close every connection. May be called more than once."""
        if self._server is not None:
            self._server.close()
        if self._handshakes is not None:
            self._handshakes.stop()
        for connection in tuple(self._looked_at):
            connection.turn_away()
        await self._runner.cleanup()
        self._workers.stop()
        for timer in self._silent.values():
            timer.cancel()
        self._silent.clear()
        self._idle.clear()

    @web.middleware
    async def _note_request(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        connection = cast("Connection", request.protocol)
        connection.dealt_with()
        self._idle.pop(connection, None)
        timer = self._silent.pop(connection, None)
        if timer is not None:
            timer.cancel()
        if sum(len(name) + len(value) for name, value in request.raw_headers) > MAX_HEAD_BYTES:
            return _closing(431, f"a head has at most {MAX_HEAD_BYTES} bytes")
        if request.headers.get("Content-Encoding", "identity") != "identity":
            return _closing(415, "a body must not be compressed: send it without Content-Encoding")
        if connection in self._for_probes and request.path not in PROBE_PATHS:
            return _closing(503, "too many connections: only probes are answered")
        try:
            return await handler(request)
        finally:
            connection.dealt_with()
            self._idle[connection] = None
            if len(self._idle) > 2 * MAX_CONNECTIONS:
                self._idle = OrderedDict.fromkeys(each for each in self._idle if each.transport is not None)

    def _make_way(self) -> bool:
        """Close the connection that has done nothing for longest; False if all are being served, or have just come."""
        came_before = asyncio.get_running_loop().time() - UNREAD_S
        for _ in range(min(len(self._silent), MAX_CONNECTIONS)):
            connection, timer = next(iter(self._silent.items()))
            if timer.when() - FIRST_REQUEST_S > came_before:
                break
            if connection.transport is not None:
                self._silent.pop(connection).cancel()
                connection.force_close()
                return True
            self._silent.move_to_end(connection)  # gone, or not there yet: its timer sees to it
        while self._idle:
            connection, _ = self._idle.popitem(last=False)
            if connection.transport is not None:
                connection.force_close()
                return True
        return False

    def _give_up(self, connection: Connection) -> None:
        del self._silent[connection]
        connection.force_close()

    def _protocol(self) -> Receiver:
        server = self._runner.server
        assert server is not None, "the runner was set up"
        most, looked_at, _ = self._bounds
        if len(server.connections) < most:
            return self._new_connection()
        return _LookedAt(self._looked_at, self._take, looked_at)

    def _new_connection(self) -> Connection:
        assert self._runner.server is not None
        connection = Connection(self._runner.server, self._memory, self._complaints)
        loop = asyncio.get_running_loop()
        self._silent[connection] = loop.call_later(FIRST_REQUEST_S, self._give_up, connection)
        return connection

    def _take(self, transport: asyncio.Transport, begin: bytes, is_probe: bool) -> bool:
        """Serve a connection that has begun with this; False: there is no room for it."""
        assert self._runner.server is not None
        most, _, probes = self._bounds
        has_room = len(self._runner.server.connections) < most or self._make_way()
        if not has_room:
            self._for_probes = {each for each in self._for_probes if each.transport is not None}
            if not is_probe or len(self._for_probes) >= probes:
                return False
        connection = self._new_connection()
        if not has_room:
            self._for_probes.add(connection)
        transport.set_protocol(connection)
        connection.connection_made(transport)
        connection.data_received(begin)
        return True


def _closing(status: int, text: str) -> web.Response:
    """Return an answer after which the connection is closed."""
    answer = web.Response(status=status, text=text)
    answer.force_close()
    return answer


class _LookedAt(Receiver):
    """One connection too many, until it is known whether it is a probe's."""

    def __init__(
        self, others: OrderedDict[_LookedAt, None], take: Callable[[asyncio.Transport, bytes, bool], bool], most: int
    ) -> None:
        """`others`: that are looked at, `most` of them at a time. `take` is given one with what it began with, and
        whether that is a probe, and says whether there is room for it."""
        self._others = others
        self._take = take
        self._most = most
        self._transport: asyncio.Transport
        self._begin = b""
        self.received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports do not derive from it
        self._others[self] = None
        if len(self._others) > self._most:
            next(iter(self._others)).turn_away()

    def data_received(self, data: bytes) -> None:
        self._begin += data
        self.received = len(self._begin)
        is_probe = _PROBE.match(self._begin) is not None
        if is_probe or len(self._begin) >= _LONGEST_BEGIN or b" " in self._begin[_LONGEST_METHOD:]:
            self._others.pop(self, None)
            if not self._take(self._transport, self._begin, is_probe):
                self.turn_away()

    def connection_lost(self, exc: Exception | None) -> None:
        self._others.pop(self, None)

    def turn_away(self) -> None:
        """Answer that there is no room, and close it."""
        self._others.pop(self, None)
        if not self._transport.is_closing():
            self._transport.write(BUSY)
            self._transport.close()
            asyncio.get_running_loop().call_later(TURNED_AWAY_S, self._transport.abort)
