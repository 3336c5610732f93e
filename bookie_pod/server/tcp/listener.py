"""The BookKeeper port: bound early, serving when the bookie is ready, drained when it stops.

Threads: event loop only.

Source: reference wire protocol, section 1; on-disk formats, section 14.
"""

from __future__ import annotations

import asyncio
import errno
from typing import Final

from bookie_pod.server.tcp.connection import Connection
from bookie_pod.server.tcp.context import ServerContext
from bookie_protocol.errors import ServerStartFailed

BACKLOG: Final = 1024
DRAIN_POLL_S: Final = 0.005


class TcpListener:
    """Accepts connections for one `ServerContext`."""

    def __init__(self, context: ServerContext, host: str | None, port: int) -> None:
        self._context = context
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """The port bound (of interest when 0 was asked for)."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def bind(self) -> None:
        """Take the port. Connections are dropped until the context accepts. Raises ServerStartFailed."""
        try:
            self._server = await self._context.loop.create_server(
                lambda: Connection(self._context), self._host, self._port, backlog=BACKLOG, reuse_address=True
            )
        except OSError as error:
            where = f"{self._host or '*'}:{self._port}"
            if error.errno == errno.EADDRINUSE:
                raise ServerStartFailed(
                    f"port in use: {where} (bookiePort); stop the other process or choose another"
                ) from error
            raise ServerStartFailed(
                f"cannot listen on {where} (bookiePort, listeningInterface): {error.strerror}"
            ) from error

    async def stop(self, drain_s: float) -> None:
        """Take no more connections or requests, let what is under way be answered for at most `drain_s` seconds."""
        self._context.accepting = False
        if self._server is not None:
            self._server.close()
        connections = list(self._context.connections)
        for conn in connections:
            conn.stop_reading()
        deadline = self._context.loop.time() + drain_s
        while self._context.busy and self._context.loop.time() < deadline:  # noqa: ASYNC110 - once in a life
            await asyncio.sleep(DRAIN_POLL_S)
        for conn in connections:
            conn.close()
