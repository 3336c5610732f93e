"""Connections of the virtual network: two ends, and a pipe in each direction.

Invariants
- A protocol hears `connection_made` once, then data, then `connection_lost` once; nothing comes after that.
- Calls into a protocol never come from inside a call of that protocol.
- What servers write is whole frames of the bookie protocol where answers are repeated.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, cast

from bookie_protocol.wire.framing import LENGTH, LENGTH_SIZE

if TYPE_CHECKING:
    from tests.support.simulation.network import Network

HIGH_WATER = 64 * 1024
REPEAT_CHANCE: Final = 0.5
"""How often a frame comes again while answers are repeated."""
REPEAT_SECONDS: Final = 0.02
"""Mean time after which it does."""


class Signal(Enum):
    """What ends a direction of a connection."""

    EOF = "end of stream"
    RESET = "reset"


Piece = bytes | Signal


class Pipe:
    """One direction: pieces in order, each with the time at which it arrives."""

    __slots__ = ("_connection", "_network", "_pieces", "_target", "_timer", "held", "last_arrival", "nbytes", "source")

    def __init__(self, connection: VirtualConnection, source: End, target: End) -> None:
        self._connection = connection
        self._network = connection.network
        self.source = source
        self._target = target
        self._pieces: deque[tuple[float, Piece]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.last_arrival = 0.0
        self.nbytes = 0
        self.held = False

    def put(self, piece: Piece) -> None:
        network = self._network
        arrival = network.loop.time() + network.delay(self.source.host, self._target.host)
        self.last_arrival = arrival = max(arrival, self.last_arrival)
        self._pieces.append((arrival, piece))
        if isinstance(piece, bytes):
            self.nbytes += len(piece)
        if self._timer is None:
            self._wait()

    def put_data(self, data: bytes) -> None:
        network = self._network
        chance = network.options.split_chance
        if chance and len(data) > 1 and network.random.random() < chance:
            cut = 1 + int(network.random.random() * (len(data) - 1))
            self.put(data[:cut])
            data = data[cut:]
        self.put(data)

    def clear(self) -> None:
        """What is on its way is lost."""
        self._pieces.clear()
        self.nbytes = 0

    def kick(self) -> None:
        """Something that held the pieces back may be gone."""
        if self._timer is None and self._pieces:
            self._wait()

    def _wait(self) -> None:
        when = max(self._pieces[0][0], self._network.loop.time())
        self._timer = self._network.loop.call_at(when, self._deliver)

    def _deliver(self) -> None:
        self._timer = None
        target = self._target
        if not self._pieces or self._network.blocked(self.source.host, target.host) or target.paused:
            return
        now = self._network.loop.time()
        data: list[bytes] = []
        signal = None
        while self._pieces and self._pieces[0][0] <= now and signal is None:
            piece = self._pieces.popleft()[1]
            if isinstance(piece, bytes):
                data.append(piece)
                self.nbytes -= len(piece)
            else:
                signal = piece
        if self._pieces:
            self._wait()
        if data:
            target.receive(data[0] if len(data) == 1 else b"".join(data))
        if signal is not None:
            target.signalled(signal)
        if not self._pieces:
            self.source.drained()
            self._connection.tidy()


class End(asyncio.Transport):
    """One end: the transport that a protocol gets."""

    def __init__(self, connection: VirtualConnection, host: str, peer: str) -> None:
        super().__init__()
        self._connection = connection
        self._loop = connection.network.loop
        self.host = host
        self.peer = peer
        self.protocol: asyncio.Protocol | None = None
        self.pipe: Pipe
        self.paused = False
        self.closing = False
        self.over = False
        """Nothing is delivered here any more."""
        self._high, self._low = HIGH_WATER, HIGH_WATER // 4
        self._writer_paused = False
        self._refused = False

    # --- the transport --------------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self.peer, 40_000 + self._connection.number) if name == "peername" else default

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.closing or self.over or not data:
            return
        self.pipe.put_data(bytes(data))
        if self._connection.repeats_answers(self):
            self._repeat(bytes(data))
        if self.pipe.nbytes > self._high and not self._writer_paused and self.protocol is not None:
            self._writer_paused = True
            self._loop.call_soon(self.protocol.pause_writing)

    def _repeat(self, data: bytes) -> None:
        random, start = self._connection.network.random, 0
        while start < len(data):
            end = start + LENGTH_SIZE + int(LENGTH.unpack_from(data, start)[0])
            assert end <= len(data), "a write that is not whole frames"
            if random.random() < REPEAT_CHANCE:
                self._loop.call_later(random.expovariate(1.0) * REPEAT_SECONDS, self._again, data[start:end])
            start = end

    def _again(self, frame: bytes) -> None:
        if not self.closing and not self.over:
            self.pipe.put_data(frame)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if self.closing:
            return
        self.closing = True
        self.pipe.put(Signal.EOF)
        if not self.pipe.nbytes:
            self._loop.call_soon(self.lose, None)

    def abort(self) -> None:
        if self.over:
            return
        self.closing = True
        self.pipe.put(Signal.RESET)
        self._loop.call_soon(self.lose, None)

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        if self.paused:
            self.paused = False
            self._connection.kick()

    def is_reading(self) -> bool:
        return not self.paused

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_WATER if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self.pipe.nbytes

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = cast("asyncio.Protocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self.protocol is not None
        return self.protocol

    # --- the network's side ---------------------------------------------------------------------------------

    def open(self, protocol: asyncio.BaseProtocol) -> None:
        self.set_protocol(protocol)
        protocol.connection_made(self)
        self._connection.kick()

    def receive(self, data: bytes) -> None:
        if self.over:
            # Nobody is here any more: the host answers in its place, once.
            if not self._refused:
                self._refused = True
                self.pipe.put(Signal.RESET)
        elif not self.closing and self.protocol is not None:
            self.protocol.data_received(data)

    def signalled(self, signal: Signal) -> None:
        if self.over:
            return
        if signal is Signal.RESET:
            self.lose(ConnectionResetError(f"{self.peer} reset the connection"))
        elif self.closing:
            self.lose(None)
        else:
            if self.protocol is None or not self.protocol.eof_received():
                self.close()

    def drained(self) -> None:
        """Everything written was delivered."""
        if self.closing:
            self.lose(None)
        elif self._writer_paused and not self.over and self.protocol is not None:
            self._writer_paused = False
            self.protocol.resume_writing()

    def lose(self, error: Exception | None) -> None:
        if self.over:
            return
        self.over = self.closing = True
        if self.protocol is not None:
            self.protocol.connection_lost(error)
        self._connection.tidy()

    def vanish(self) -> None:
        """The process or host is gone: its protocol hears nothing, not even this."""
        self.over = self.closing = True
        self.protocol = None


class VirtualConnection:
    """`hosts`: the client's, then the server's."""

    def __init__(self, network: Network, number: int, hosts: tuple[str, str]) -> None:
        self.network = network
        self.number = number
        self.hosts = hosts
        client, server = hosts
        self.client = End(self, client, server)
        self.server = End(self, server, client)
        self.client.pipe = Pipe(self, self.client, self.server)
        self.server.pipe = Pipe(self, self.server, self.client)

    def __str__(self) -> str:
        return f"#{self.number} {self.hosts[0]}-{self.hosts[1]}"

    def end(self, host: str) -> End:
        return self.client if host == self.hosts[0] else self.server

    def other(self, end: End) -> End:
        return self.server if end is self.client else self.client

    # --- life -----------------------------------------------------------------------------------------------

    def accept(self, protocol: asyncio.BaseProtocol) -> None:
        self.server.open(protocol)

    def established(self, protocol: asyncio.BaseProtocol) -> None:
        self.client.open(protocol)

    def give_up(self, host: str) -> None:
        """An end that nobody uses any more."""
        end = self.end(host)
        if not end.over:
            end.pipe.put(Signal.RESET)
            end.vanish()

    def is_over(self, host: str) -> bool:
        return self.end(host).over

    def repeats_answers(self, end: End) -> bool:
        return end is self.server and self.network.repeats_answers(end.host)

    def kick(self) -> None:
        self.client.pipe.kick()
        self.server.pipe.kick()

    def tidy(self) -> None:
        if self.client.over and self.server.over:
            self.network.connections.pop(self.number, None)

    # --- faults ---------------------------------------------------------------------------------------------

    def lose_in_flight(self, source: str) -> None:
        """What one end sent and the other did not get yet is lost. Only together with the connection's end."""
        self.end(source).pipe.clear()

    def reset_at(self, host: str) -> None:
        """One end learns that the connection is gone; the other may go on believing in it."""
        end = self.end(host)
        if not end.over:
            self.network.loop.call_soon(end.lose, ConnectionResetError("connection reset by the network"))

    def hang_up(self, host: str) -> None:
        """This end resets the connection, and its protocol is told too."""
        end = self.end(host)
        if not end.over:
            end.closing = True
            end.pipe.put(Signal.RESET)
            self.reset_at(host)

    def vanish(self, host: str) -> None:
        """This end is gone without a word. The other end is told when something of it arrives at a living host."""
        end = self.end(host)
        end.pipe.clear()
        end.vanish()
        self.tidy()

    def die(self, host: str) -> None:
        """The process at this end is killed: its kernel resets the connection."""
        end = self.end(host)
        if not end.over:
            end.vanish()
            end.pipe.put(Signal.RESET)
