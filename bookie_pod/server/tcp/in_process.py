"""A connection between two protocols of one process: what one end writes the other receives, without the kernel.

For clients that live in the bookie's own process. Through a socket each entry would be copied into the kernel, out of
it and into an object again, and chunks would end in the middle of frames. Many adds of one ledger need not become
bytes at all: they arrive as the client has them, if the server's protocol takes them so.

Invariants
- Bytes arrive in order, and never inside the call that wrote them: at the next turn of the loop, about `TURN_BYTES` a
  turn, so that one connection leaves the loop to others as a socket would.
- An end that closes, or aborts, hears nothing more; the other one receives all that was written before, then
  `connection_lost`. Each end hears that once.
- Back-pressure is that of a socket: an end that does not read keeps what came, and its writer is paused above the
  high-water mark. Nothing is dropped.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol, cast

from bookie_protocol.wire.add_frames import AddFrames

TURN_BYTES: Final = 256 * 1024
"""Bytes that one end receives in one turn of the loop; a single write may be larger."""
_HIGH_WATER: Final = 64 * 1024
_LOW_WATER_PART: Final = 4


class TakesAdds(Protocol):
    """A protocol that takes adds as they are, in their place among the bytes."""

    def adds_received(self, adds: AddFrames) -> None: ...


def connect_in_process(
    loop: asyncio.AbstractEventLoop,
    client: Callable[[], asyncio.BaseProtocol],
    server: Callable[[], asyncio.BaseProtocol],
) -> asyncio.Transport:
    """Connect two new protocols; the client's transport."""
    near, far = _End(loop), _End(loop)
    near.peer, far.peer = far, near
    far.bind(server())
    near.bind(client())
    return near


class _End(asyncio.Transport):
    """One end. What was written to it and not received yet is in `_arrived`."""

    peer: _End

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__({"peername": ("in-process", 0)})
        self._loop = loop
        self._protocol: asyncio.Protocol
        self._arrived: deque[bytes | AddFrames] = deque()
        self._arrived_bytes = 0
        self._delivery_due = False
        self._reading = True
        self._closed = False
        self._writer_paused = False
        self._high, self._low = _HIGH_WATER, _HIGH_WATER // _LOW_WATER_PART

    def bind(self, protocol: asyncio.BaseProtocol) -> None:
        """The connection stands."""
        self.set_protocol(protocol)
        protocol.connection_made(self)

    # --- out ------------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview | AddFrames]) -> None:
        if self._closed:
            return
        if self.peer._closed:
            self._end()
            return
        self.peer._take(list_of_data)
        if not self._writer_paused and self.get_write_buffer_size() > self._high:
            self._writer_paused = True
            self._protocol.pause_writing()

    @property
    def takes_adds(self) -> bool:
        """Whether `AddFrames` may be among what is written."""
        return hasattr(self.peer._protocol, "adds_received")

    def get_write_buffer_size(self) -> int:
        return self.peer._arrived_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high if high is not None else _HIGH_WATER if low is None else low * _LOW_WATER_PART
        self._low = low if low is not None else self._high // _LOW_WATER_PART

    def can_write_eof(self) -> bool:
        return False

    # --- in -------------------------------------------------------------------------------------------------

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._deliver_soon()

    def is_reading(self) -> bool:
        return self._reading and not self._closed

    def _take(self, pieces: Iterable[bytes | bytearray | memoryview | AddFrames]) -> None:
        """The peer has written."""
        for piece in pieces:
            if piece:
                self._arrived.append(piece if isinstance(piece, AddFrames) else bytes(piece))
                self._arrived_bytes += len(piece)
        self._deliver_soon()

    def _deliver_soon(self) -> None:
        if not self._delivery_due and self._reading and not self._closed:
            self._delivery_due = True
            self._loop.call_soon(self._deliver)

    def _deliver(self) -> None:
        self._delivery_due = False
        if not self.is_reading():
            return
        if self._arrived:
            self._receive()
            self.peer._drained()
        if self._arrived:
            self._deliver_soon()
        elif self.peer._closed:
            self._end()

    def _receive(self) -> None:
        """One turn's worth; pieces of it are not copied when one is enough."""
        first = self._arrived.popleft()
        size = len(first)
        if isinstance(first, AddFrames):
            self._arrived_bytes -= size
            cast("TakesAdds", self._protocol).adds_received(first)
            return
        pieces = [first]
        while self._arrived and not isinstance(piece := self._arrived[0], AddFrames):
            if size + len(piece) > TURN_BYTES:
                break
            pieces.append(piece)
            size += len(piece)
            self._arrived.popleft()
        self._arrived_bytes -= size
        self._protocol.data_received(first if len(pieces) == 1 else b"".join(pieces))

    def _drained(self) -> None:
        """The peer has received some of what was written here."""
        if self._writer_paused and not self._closed and self.get_write_buffer_size() <= self._low:
            self._writer_paused = False
            self._protocol.resume_writing()

    # --- the end --------------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._end()

    def abort(self) -> None:
        self._end()

    def _end(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._arrived.clear()
        self._arrived_bytes = 0
        self._loop.call_soon(self._protocol.connection_lost, None)
        self.peer._drained()  # who waits until this end reads would wait for ever
        self.peer._deliver_soon()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast("asyncio.Protocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol
