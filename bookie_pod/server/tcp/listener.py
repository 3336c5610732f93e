"""The BookKeeper port: taken first thing, serving when the bookie is ready, drained when it stops.

Threads: event loop only.

Source: docs/internals/wire-protocol.md, section 1; docs/internals/on-disk-formats.md, section 14.
"""

from __future__ import annotations

import asyncio
import errno
from typing import Final, cast

from bookie_pod.server.tcp.clients import Clients
from bookie_pod.server.tcp.connection import Connection
from bookie_pod.server.tcp.connection_stalls import Stall
from bookie_protocol.addresses import host_and_port, resolving
from bookie_protocol.errors import ServerStartFailed

BACKLOG: Final = 1024
DRAIN_POLL_S: Final = 0.005
LOOK_S: Final = 1.0
"""Seconds between looks at connections that do nothing by themselves."""


class TcpListener:
    """Accepts connections: drops them until `serve`, then hands them to `Clients`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, host: str | None, port: int) -> None:
        self._loop = loop
        self._clients: Clients | None = None
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        """The port bound (of interest when 0 was asked for)."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def bind(self) -> None:
        """Take the port. Connections are dropped for the time being. Raises ServerStartFailed."""
        try:
            with resolving():
                self._server = await self._loop.create_server(
                    self._new_connection, self._host, self._port, backlog=BACKLOG, reuse_address=True
                )
        except OSError as error:
            where = host_and_port(self._host or "*", self._port)
            if error.errno == errno.EADDRINUSE:
                raise ServerStartFailed(
                    f"port in use: {where} (bookiePort); stop the other process or choose another"
                ) from error
            raise ServerStartFailed(
                f"cannot listen on {where} (bookiePort, listeningInterface): {error.strerror}"
            ) from error

    def serve(self, clients: Clients) -> None:
        """Hand new connections to `clients`, which takes them while `clients.accepting`."""
        self._clients = clients
        self._look()

    def _look(self) -> None:
        assert self._clients is not None
        self._timer = self._loop.call_later(LOOK_S, self._look)
        self._clients.look()

    def _new_connection(self) -> asyncio.Protocol:
        return Connection(self._clients) if self._clients is not None else _Dropped()

    def drop(self) -> None:
        """Close the port and all connections at once: pending requests get no answer."""
        if self._server is not None:
            self._server.close()
        if self._clients is not None:
            self._clients.accepting = False
            for wire in list(self._clients.connections):
                wire.drop()

    async def stop(self, drain_s: float) -> None:
        """Take no more connections or requests, let what is under way be answered for at most `drain_s` seconds."""
        if self._server is not None:
            self._server.close()
        clients = self._clients
        if clients is None:
            return
        clients.accepting = False
        if self._timer is not None:
            self._timer.cancel()
        connections = list(clients.connections)
        for wire in connections:
            wire.stall(Stall.STOPPING)  # requests that are not read yet are left to other bookies
        deadline = self._loop.time() + drain_s
        while clients.context.busy and self._loop.time() < deadline:  # noqa: ASYNC110 - once in a life
            await asyncio.sleep(DRAIN_POLL_S)
        for wire in connections:
            wire.close()


class _Dropped(asyncio.Protocol):
    """A connection that comes before the bookie serves: closed at once, so that the client tries another."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).abort()
