"""Connections of the HTTPS port whose TLS handshake is not over: nothing is known of them, and each has buffers.

Whoever can reach the port may open any number of them, so there are `most` at a time: beyond, of the address that has
the most of them the one goes that has been here for longest, so that a crowd that comes at once drives out nobody else.
It has `HANDSHAKE_S` at most. They begin in turns (`HandshakeTurns`).

Invariants
- Nothing of a connection is read but by TLS. A client says its first word as soon as it is connected, and uvloop reads
  whatever `connection_made` says of pausing; so what was accepted is given up there, and goes on by a descriptor of its
  own.

Event loop only.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final, cast

from bookie_pod.server.tls import HandshakeTurns
from bookie_protocol.lasting import heard

HANDSHAKE_S: Final = 10.0


class Handshakes:
    """Those of one server. `new_protocol`: of a connection whose handshake is over."""

    def __init__(self, context: ssl.SSLContext, new_protocol: Callable[[], asyncio.Protocol], most: int) -> None:
        self._context = context
        self._new_protocol = new_protocol
        self._most = most
        self._turns = HandshakeTurns(most)
        self._under_way: dict[asyncio.Task[None], socket.socket] = {}
        """Some wait for their turns."""
        self._of: dict[str, dict[asyncio.Task[None], None]] = {}
        """The same that are not being ended, by address, in the order in which they came."""
        self._stopped = False

    def __len__(self) -> int:
        return len(self._under_way)

    def protocol(self) -> asyncio.Protocol:
        """Of a connection that has just come."""
        return _Accepted(self._begin)

    def stop(self) -> None:
        """End them all, and begin no more: some may be accepted whose turn has not come."""
        self._stopped = True
        for task in self._under_way:
            task.cancel()

    def _begin(self, connection: socket.socket) -> None:
        if self._stopped:
            connection.close()
            return
        address = _address(connection)
        task = asyncio.get_running_loop().create_task(self._shake_hands(connection, address))
        self._under_way[task] = connection
        self._of.setdefault(address, {})[task] = None
        task.add_done_callback(partial(self._over, address))
        if len(self._under_way) > self._most:
            self._make_room()

    def _make_room(self) -> None:
        most_of_one = max(self._of, key=lambda address: len(self._of[address]))
        oldest = next(iter(self._of[most_of_one]))
        oldest.cancel()
        self._forget(oldest, most_of_one)

    def _forget(self, task: asyncio.Task[None], address: str) -> None:
        its = self._of.get(address, {})
        its.pop(task, None)
        if not its:
            self._of.pop(address, None)

    async def _shake_hands(self, connection: socket.socket, address: str) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())

        def secured() -> asyncio.Protocol:
            del self._under_way[task]  # its descriptor is its transport's, whatever becomes of the task
            self._forget(task, address)
            return self._new_protocol()

        async with self._turns.one(address):
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _Secured(secured), connection, ssl=self._context, ssl_handshake_timeout=HANDSHAKE_S
            )

    def _over(self, address: str, task: asyncio.Task[None]) -> None:
        heard(task)
        self._forget(task, address)
        connection = self._under_way.pop(task, None)
        if connection is not None:
            connection.close()


def _address(connection: socket.socket) -> str:
    try:
        return str(connection.getpeername()[0])
    except OSError:
        return ""  # gone already


class _Accepted(asyncio.Protocol):
    """A connection before its handshake: it hands itself on."""

    def __init__(self, begin: Callable[[socket.socket], None]) -> None:
        self._begin = begin

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        accepted = cast("asyncio.Transport", transport)  # uvloop's transports do not derive from it
        try:
            connection = socket.socket(fileno=os.dup(accepted.get_extra_info("socket").fileno()))
        except OSError:  # no descriptor is left: the client comes again
            return
        finally:
            accepted.abort()
        connection.setblocking(False)
        self._begin(connection)


class _Secured(asyncio.Protocol):
    """A connection whose handshake is over: it becomes what it is for."""

    def __init__(self, new_protocol: Callable[[], asyncio.Protocol]) -> None:
        self._new_protocol = new_protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        protocol = self._new_protocol()
        cast("asyncio.Transport", transport).set_protocol(protocol)
        protocol.connection_made(transport)
