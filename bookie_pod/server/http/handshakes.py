"""Connections of the HTTPS port whose TLS handshake is not over: nothing is known of them, and each has buffers.

Whoever can reach the port may open any number of them, so there are `most` at a time: beyond, the one goes that has
been here for longest. It has `HANDSHAKE_S` at most.

Event loop only.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final, cast

from bookie_protocol.lasting import heard

HANDSHAKE_S: Final = 10.0


class Handshakes:
    """Those of one server. `new_protocol`: of a connection whose handshake is over."""

    def __init__(self, context: ssl.SSLContext, new_protocol: Callable[[], asyncio.Protocol], most: int) -> None:
        self._context = context
        self._new_protocol = new_protocol
        self._most = most
        self._under_way: dict[_Handshake, None] = {}
        """In the order in which they came."""

    def __len__(self) -> int:
        return len(self._under_way)

    def protocol(self) -> asyncio.Protocol:
        """Of a connection that has just come."""
        return _Handshake(self)

    def came(self, handshake: _Handshake) -> None:
        """It is connected."""
        self._under_way[handshake] = None
        if len(self._under_way) > self._most:
            next(iter(self._under_way)).abort()

    def gone(self, handshake: _Handshake) -> None:
        """It is over, or has failed."""
        self._under_way.pop(handshake, None)

    async def upgrade(self, transport: asyncio.Transport, handshake: _Handshake) -> None:
        """Shake hands, and hand the connection over to its protocol."""
        secured = await asyncio.get_running_loop().start_tls(
            transport, handshake, self._context, server_side=True, ssl_handshake_timeout=HANDSHAKE_S
        )
        if secured is not None and not secured.is_closing():
            protocol = self._new_protocol()
            secured.set_protocol(protocol)
            protocol.connection_made(secured)
            if handshake.received:
                protocol.data_received(bytes(handshake.received))

    def stop(self) -> None:
        """End them all."""
        for handshake in tuple(self._under_way):
            handshake.abort()


class _Handshake(asyncio.Protocol):
    """One connection. What comes with the last message of the handshake is kept for the protocol behind it."""

    def __init__(self, others: Handshakes) -> None:
        self._others = others
        self.received = bytearray()
        self._transport: asyncio.Transport
        self._task: asyncio.Task[None]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports do not derive from it
        self._transport.pause_reading()  # until there is somebody who understands it
        self._task = asyncio.get_running_loop().create_task(self._others.upgrade(self._transport, self))
        self._task.add_done_callback(self._over)
        self._others.came(self)

    def data_received(self, data: bytes) -> None:
        self.received += data

    def abort(self) -> None:
        """It has had its time."""
        self._others.gone(self)
        self._task.cancel()

    def _over(self, task: asyncio.Task[None]) -> None:
        self._others.gone(self)
        if task.cancelled() or task.exception() is not None:
            heard(task)
            self._transport.abort()
