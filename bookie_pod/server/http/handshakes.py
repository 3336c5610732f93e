"""Connections of the HTTPS port whose TLS handshake is not over: nothing is known of them, and each has buffers.

Any client that reaches the port may open any number of them, so there are `most` at a time. Beyond that the oldest one
of the address with the most of them is closed, so that a crowd that comes at once drives out no other address. A
handshake has `HANDSHAKE_S` at most. They begin in turns (`HandshakeTurns`).

Invariants
- Nothing of a connection is read before its turn. A client says its first word as soon as it is connected, and uvloop
  reads whatever `connection_made` says of pausing; so what was accepted is given up there, and goes on by a descriptor
  of its own. What is read of that before TLS is there, TLS is given (`_BeforeItsProtocol`).
- TLS receives a part at a time, and a client whose bytes bring nothing loses its connection (`server.tls_reads`).

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
from bookie_pod.server.tls_reads import Told, shake_hands
from bookie_protocol.lasting import heard

HANDSHAKE_S: Final = 10.0


class Handshakes:
    """The handshakes of one server. `new_protocol` makes the protocol of a connection whose handshake is over."""

    def __init__(
        self,
        context: ssl.SSLContext,
        new_protocol: Callable[[], Receiver],
        refused: Callable[[object, str], None],
        most: int,
    ) -> None:
        """`refused` is called with an address, and the reason for which its connection ends."""
        self._context = context
        self._new_protocol = new_protocol
        self._refused = refused
        self._most = most
        self._turns = HandshakeTurns(most)
        self._under_way: dict[asyncio.Task[None], socket.socket] = {}
        """The handshakes under way, some of which wait for their turns."""
        self._of: dict[str, dict[asyncio.Task[None], None]] = {}
        """The same that are not being ended, by address, in the order in which they came."""
        self._stopped = False

    def __len__(self) -> int:
        return len(self._under_way)

    def protocol(self) -> asyncio.Protocol:
        """Return the protocol of a connection that has just come."""
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
        async with self._turns.one(address):
            first = _BeforeItsProtocol()
            plain, _ = await asyncio.get_running_loop().connect_accepted_socket(lambda: first, connection)
            own: list[asyncio.Transport] = []

            def received() -> int:
                return cast("Receiver", own[0].get_protocol()).received if own else 0

            def wasteful() -> None:
                self._refused(own[0].get_extra_info("peername"), "TLS without data")
                own[0].abort()

            told = Told(received, lambda: False, wasteful)
            try:
                secured = await shake_hands(
                    plain, first, self._context, told, self._turns.steps, begin=first.taken, timeout_s=HANDSHAKE_S
                )
            except BaseException:
                plain.abort()
                raise
        if secured is None or first.is_lost:
            return
        own.append(secured)
        del self._under_way[task]  # its descriptor is its transport's, whatever becomes of the task
        self._forget(task, address)
        first.become(self._new_protocol(), secured)

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


class Receiver(asyncio.Protocol):
    """This is what a connection becomes. It counts its data, because a client may send bytes without any."""

    __slots__ = ()
    received: int


class _BeforeItsProtocol(asyncio.Protocol):
    """A connection in its handshake, until it becomes what it is for: it keeps what comes before that."""

    def __init__(self) -> None:
        self._kept = b""
        self.is_lost = False

    def taken(self) -> bytes:
        """Return what came so far, once."""
        kept, self._kept = self._kept, b""
        return kept

    def data_received(self, data: bytes) -> None:
        self._kept += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True

    def become(self, protocol: asyncio.Protocol, transport: asyncio.Transport) -> None:
        """Hand over what came with the end of the handshake."""
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if self._kept:
            protocol.data_received(self.taken())
