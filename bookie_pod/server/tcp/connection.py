"""One client connection: frames in (`ingest`), answers out (`answers`), and everything that makes it wait.

Invariants
- A socket read is parsed in one loop over one buffer; a frame is never copied before it is complete.
- A connection that has a reason to wait (`Stall`) reads nothing more: what it received already stays in `_rest`, which
  is bounded by the largest frame plus one socket read. The reasons are independent; the last one to go resumes it.
- Bytes that are no frame close the connection, with one log line (see `FewLines`); so does a fault of ours while a
  frame is served.
- Frames that are not complete, adds that wait and answers that wait count in the process's `MemoryGovernor`; a read
  whose client takes no answers is not begun. A large frame is read to its end when there is room for all of it
  (`FrameRooms`).
- A closed connection whose client does not take the last answers is cut off after `LINGER_S`.

Threads: event loop only.

Source: docs/internals/wire-protocol.md, sections 1, 2 and 10.3.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from bookie_pod.client_memory import LEAVES, SMALL, Waiter
from bookie_pod.server.tcp.answers import Answers
from bookie_pod.server.tcp.connection_stalls import COLD_BYTES, LARGE_FRAME_BYTES, Stall
from bookie_pod.server.tcp.context import V3_HEAD_BYTES
from bookie_pod.server.tcp.hot_reads import AT_ONCE
from bookie_pod.server.tcp.ingest import ingest_v2, ingest_v3
from bookie_pod.server.tcp.security import ConnectionSecurity
from bookie_pod.server.tcp.strangers import check_frame
from bookie_protocol.errors import ProtocolViolation

if TYPE_CHECKING:
    from bookie_pod.server.tcp.context import ServerContext
    from bookie_pod.server.tcp.parked_adds import ParkedAdds

_LENGTH = struct.Struct(">I")

READS_IN_FLIGHT_MAX: Final = 1024
READ_BYTES_IN_FLIGHT_MAX: Final = 32 * 1024 * 1024
_HEADER_TAG: Final = b"\x0a"
"""The first byte of every request of version 3."""
_EXPECTED_READ_BYTES: Final = 16 * 1024
LOST_PER_TURN: Final = 1000
"""The number of `on_lost` callbacks that are called in one turn of the loop."""
POSTPONED_MAX: Final = 1024
"""Reads that were put aside, at which no more requests are taken."""
POSTPONED_PER_TURN: Final = 16
"""Reads that were put aside, how many are begun at once."""
FRAME_S: Final = 60.0
"""Seconds that a client may take to send one frame."""
LINGER_S: Final = 10.0
"""Seconds that a closed connection may take to hand over its last answers."""


PIECE_BYTES: Final = 64
"""Bytes of a piece of a frame besides its own: the object that it is."""
UNCOUNTED_BYTES: Final = 4096
"""Bytes of the beginning of a frame that are not counted: most reads of the socket end in one."""
MOST_PIECES: Final = 1024
"""The number of pieces of a frame, at most; more are joined."""


class Connection(asyncio.Protocol):
    """The server's end of one TCP connection."""

    def __init__(self, context: ServerContext) -> None:
        self.context = context
        self.peer = "?"
        self.lanes = context.operations.lanes()
        self.security = ConnectionSecurity(self)
        self.authenticated = self.security.authenticated
        self.closed = False
        self.speaks_v2 = False
        self.parked: ParkedAdds | None = None
        self.asked_requests = self.asked_bytes = 0
        """Requests that wait for an answer of the metadata service (`metadata_questions`), and their bytes."""
        self.on_lost: dict[Callable[[], None], None] = {}
        """Called, each once, when the connection is gone."""
        self.received_at = time.perf_counter()
        """The time at which the socket was last read: the latency of adds counts from there."""
        self.transport: asyncio.Transport | None = None
        self._stalls = Stall(0)
        self._stalled_at = 0.0
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._rest_since = 0.0
        """The time at which the frame began whose first bytes are kept."""
        self._need = 4
        self.received = 0
        """Bytes of data, ever."""
        self._frame = context.frame_rooms.of(self._read_on, self._give_frame_up)
        self._copies = 1
        """The copies of bytes that are kept and not taken: TLS has them once in plain and once encrypted."""
        self._linger_timer: asyncio.TimerHandle | None = None
        self.answers = Answers(self)
        self.send: Final = self.answers.send
        self.share = context.memory.share(self._cut_off, self._recount)
        self._postponed: deque[tuple[Callable[[], None], int]] = deque()
        """Reads that were not begun, because there was no room for their answers, and for how many bytes they need it
        at least."""
        self._waiter: Waiter | None = None
        """The wait for room of the first postponed read."""
        self.reads_at_once = AT_ONCE
        """The number of reads that are looked up together: see `hot_reads`."""
        self._cold_bytes = 0
        """The bytes that cold requests count, by `COLD_BYTES`, since others had their turn."""
        self._requests = 0
        self._reads = 0
        self._read_bytes = 0
        self._expected_read = _EXPECTED_READ_BYTES

    # --- life -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface but not the base class.
        self.transport = transport = cast("asyncio.Transport", transport)
        if not self.context.accepting:
            # The port is bound before the journals are replayed; until then no client is served.
            transport.abort()
            return
        if len(self.context.connections) >= self.context.max_connections:
            self.context.connections_refused += 1
            transport.abort()
            return
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if peer else "?"
        options = self.context.options
        self._limit_write_buffer(transport)
        raw: socket.socket | None = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, int(options.sock_keepalive))
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, int(options.tcp_no_delay))
            for option, value in (
                (socket.TCP_KEEPIDLE, options.tcp_keep_idle_seconds),
                (socket.TCP_KEEPINTVL, options.tcp_keep_interval_seconds),
                (socket.TCP_KEEPCNT, options.tcp_keep_count),
            ):
                if value > 0:
                    raw.setsockopt(socket.IPPROTO_TCP, option, value)
        self.context.connections.add(self)
        self.security.came()

    def secured(self, transport: asyncio.Transport) -> None:
        """Let everything go through TLS from now on."""
        self.transport = transport
        self._copies = 2
        self._limit_write_buffer(transport)
        if self._stalls:
            transport.pause_reading()  # as the plain one was, but this one is new
        # The plain transport reports only to TLS that the client took earlier bytes.
        if self.answers.is_full:
            self.resume_writing()

    def _limit_write_buffer(self, transport: asyncio.Transport) -> None:
        options = self.context.options
        transport.set_write_buffer_limits(
            high=options.write_buffer_high_water_mark_bytes, low=options.write_buffer_low_water_mark_bytes
        )

    def connection_lost(self, exc: Exception | None) -> None:
        if self.closed:
            return
        self.closed = True
        self.context.connections.discard(self)
        self._forget_rest()
        self.answers.end()
        self._wait_no_more()
        if self.parked is not None:
            self.parked.drop_all()
        self.share.end()
        self._go_on()
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        self._tell_lost()
        self.security.cancel()
        self.context.reads_in_progress.forget(self)
        self.transport = None  # the connection is a cycle, and lives until the next collection: TLS holds much

    def _tell_lost(self) -> None:
        """A few at a time: a client may have hundreds of thousands of long polls, and others are waiting."""
        for _ in range(min(LOST_PER_TURN, len(self.on_lost))):
            self.on_lost.popitem()[0]()
        if self.on_lost:
            self.context.loop.call_soon(self._tell_lost)

    def stop_reading(self) -> None:
        """The bookie stops: requests that are not read yet are left to other bookies."""
        self.stall(Stall.STOPPING)

    def close(self, error: ProtocolViolation | None = None) -> None:
        """Close after what is under way was written; with an error, log it once."""
        if self.closed or self.transport is None or self.transport.is_closing():
            return
        if error is not None:
            self.context.connection_errors += 1
            self.context.complaints.warning("connection closed", peer=self.peer, reason=str(error))
        self.answers.flush(for_good=True)
        self.transport.close()
        self._linger_timer = self.context.loop.call_later(LINGER_S, self.transport.abort)

    # --- in -------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self.received_at = time.perf_counter()
        self.received += len(data)
        if self._rest_bytes:
            self._rest.append(data)
            self._rest_bytes += len(data)
            if len(self._rest) >= MOST_PIECES:
                self._rest = [b"".join(self._rest)]
            if self._rest_bytes < self._need or self._stalls:
                if self._frame.nbytes:
                    self._frame.came(self._copies * self._rest_bytes)
                self.count_held()
                self.share.relieve()  # now: others receive too in this turn of the loop
                if self._rest_bytes > LARGE_FRAME_BYTES:
                    self._took_large(len(data))
                return
            data = self._take_rest()
        self.answers.gathers = True  # what is answered at once leaves below, without another turn of the loop
        self._ingest(data)
        self.answers.flush()
        if self.share.held or self._rest_bytes > UNCOUNTED_BYTES:
            self.count_held()
            memory = self.context.memory
            if memory.total > memory.limit + memory.limit // LEAVES:
                self.share.relieve()  # others receive too in this turn of the loop, and there may be thousands of them

    def _ingest(self, data: bytes) -> None:
        try:
            if self._stalls:
                self._keep(data)
                return
            consumed = 0
            if not self.speaks_v2:
                consumed = ingest_v3(self, data)
            if self.speaks_v2:
                consumed = ingest_v2(self, data, consumed)
            if consumed < len(data) and not self.closed:
                self._keep(data[consumed:] if consumed else data)
        except ProtocolViolation as error:
            self.close(error)
        except Exception as error:
            self.broke(error)

    def broke(self, defect: Exception) -> None:
        """Close the connection after an internal error: it is unknown what the client was answered."""
        self.context.complaints.error(
            "unexpected error while serving a frame", peer=self.peer, error=repr(defect), exc_info=defect
        )
        self.close(ProtocolViolation("a frame could not be served"))

    def _keep(self, data: bytes) -> None:
        """Hold back an incomplete frame, or everything while stalled."""
        if len(data) >= 4:
            length = _LENGTH.unpack_from(data)[0]
            self.check_length(length, data, 0)
            self._need = length + 4 if len(data) > 4 else 5
        else:
            self._need = 4
        self._rest = [data]
        self._rest_bytes = len(data)
        self._rest_since = self.received_at
        if self._need > LARGE_FRAME_BYTES:
            self._begin_large()

    def _take_rest(self) -> bytes:
        """Return the kept bytes, which hold a complete frame."""
        data = b"".join(self._rest)
        self._forget_rest()
        return data

    def _forget_rest(self) -> None:
        self._rest.clear()
        self._rest_bytes = 0
        self._frame.end()

    def _begin_large(self) -> None:
        """Read the frame to its end when there is room for it, if it is a large one. Strangers' are short."""
        is_large = self._need > LARGE_FRAME_BYTES and self._rest_bytes < self._need
        if is_large and self.authenticated and not self._stalls and not self._frame.nbytes:
            if self._frame.begin(self._copies * self._need):
                self._frame.came(self._copies * self._rest_bytes)
            else:
                self.stall(Stall.ROOM)
            self.count_held()

    def _read_on(self) -> None:
        self.count_held()
        self.unstall(Stall.ROOM)

    def _give_frame_up(self) -> None:
        """Others wait for the room of a frame that does not come."""
        if self._stalls:  # which is for us to change; it asks again then
            self._frame.end()
            self.count_held()
        else:
            self._cut_off()

    def check_length(self, length: int, data: bytes, pos: int) -> None:
        """Raise ProtocolViolation for a length word, that at `pos`, which no frame may have."""
        if not self.authenticated and not self._stalls:  # else what is under way may authenticate it
            check_frame(length)
        longest = self.context.options.max_frame_size_bytes - 4
        if 0 < length <= longest:
            return
        # Before a client has said which version it speaks, the first byte of its frame does.
        has_head = not self.speaks_v2 and data[pos + 4 : pos + 5] in (b"", _HEADER_TAG)
        if not (has_head and 0 < length <= longest + V3_HEAD_BYTES):
            raise ProtocolViolation(
                f"frame length {length} is outside 1 to {longest} (nettyMaxFrameSizeBytes counts the length word too)"
            )

    @property
    def has_unread_bytes(self) -> bool:
        """True if bytes have come that no frame has been made of yet."""
        return self._rest_bytes > 0

    # --- waiting --------------------------------------------------------------------------------------------

    @property
    def stalled(self) -> bool:
        return self._stalls != 0

    def stall(self, reason: Stall) -> None:
        """Read nothing more until `unstall` of every reason."""
        if not self._stalls:
            self._stalled_at = time.perf_counter()
        if not self._stalls and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()
        self._stalls |= reason

    def unstall(self, reason: Stall) -> None:
        if not self._stalls & reason:
            return
        self._stalls &= ~reason
        if not self._stalls and not self.closed and self.transport is not None and not self.transport.is_closing():
            now = time.perf_counter()  # here, not in `_resume`: it may stall again before it goes on
            self._rest_since += now - max(self._stalled_at, self._rest_since)
            self.context.loop.call_soon(self._resume)

    def took_cold(self) -> None:
        """A request was dealt with by itself."""
        self._cold_bytes += COLD_BYTES
        if not self.context.turns.came(COLD_BYTES, self._others_had_their_turn, self._cold_bytes):
            self._cold_bytes = 0
            self.stall(Stall.TURN)

    def _took_large(self, nbytes: int) -> None:
        """Note a part of a large frame. A connection that stalls already takes no more."""
        if not (self._stalls or self.closed or self.context.turns.came(nbytes, self._others_had_their_turn)):
            self.stall(Stall.TURN)

    def _others_had_their_turn(self) -> None:
        self.unstall(Stall.TURN)

    def _resume(self) -> None:
        if self._stalls or self.closed or self.transport is None or self.transport.is_closing():
            return
        if self._rest_bytes >= self._need:
            self._ingest(self._take_rest())
            self._rest_since = time.perf_counter()  # until now it was kept back here
        elif self._rest_bytes:
            try:
                if self._rest_bytes > 4:  # what was under way may not have authenticated it
                    self.check_length(self._need - 4, self._rest[0], 0)
            except ProtocolViolation as error:
                self.close(error)
                return
            self._begin_large()
        if self.share.held:
            self.count_held()
        if not self._stalls and not self.transport.is_closing():
            self.transport.resume_reading()

    def request_began(self) -> None:
        """One is under way that is answered later; neither an add nor one of many plain reads."""
        self._requests += 1
        self.context.requests.count += 1
        if self._requests >= self.context.requests.most_of_one:
            self.stall(Stall.REQUESTS)

    def request_ended(self) -> None:
        """It is answered, or waits for what may never come (a long poll)."""
        self._requests -= 1
        self.context.requests.count -= 1
        if self._stalls & Stall.REQUESTS and self._requests <= self.context.requests.most_of_one // 2:
            self.unstall(Stall.REQUESTS)

    def read_started(self, most: int = 0) -> int:
        """Reserve memory for one answer, `most` bytes if that is known; the value goes back to `read_finished`."""
        reserved = max(most, self._expected_read)
        self._reads += 1
        self._read_bytes += reserved
        self.context.reads_in_progress.started(self)
        if self._reads >= READS_IN_FLIGHT_MAX or self._read_bytes >= READ_BYTES_IN_FLIGHT_MAX:
            self.stall(Stall.READS_IN_FLIGHT)
        return reserved

    def read_paused(self, reserved: int) -> None:
        """Give a reservation back without an answer; the connection goes on as after an answer."""
        self._reads -= 1
        self._read_bytes -= reserved
        self.context.reads_in_progress.finished()
        if self._stalls & Stall.READS_IN_FLIGHT and (
            self._reads <= READS_IN_FLIGHT_MAX // 2 and self._read_bytes <= READ_BYTES_IN_FLIGHT_MAX // 2
        ):
            self.unstall(Stall.READS_IN_FLIGHT)

    def read_finished(self, reserved: int, size: int) -> None:
        self._expected_read = max(size, self._expected_read * 7 // 8, 64)
        self.read_paused(reserved)
        if self._postponed:
            self.context.loop.call_soon(self._go_on)

    @property
    def must_wait(self) -> bool:
        """Return whether no more answers are to be made for this client now. Any thread."""
        share = self.share
        # A client that holds little is never full: that is nearly every client, at each read from a disk.
        return self.answers.is_full or (share.held + share.making > SMALL and share.is_full)

    def postpone(self, again: Callable[[], None], nbytes: int = 0) -> None:
        """Call `again` when so many bytes were taken for it from what clients may hold; 0: when there may be room."""
        self._postponed.append((again, nbytes))
        if len(self._postponed) >= POSTPONED_MAX:
            self.stall(Stall.READS_PUT_ASIDE)
        self.count_held()
        if self.closed or not (self.answers.is_full or self._waiter):
            self.context.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Begin a few of the reads that were put aside; after the connection closed, drop all of them."""
        if self._postponed:
            self.count_held()
        for _ in range(len(self._postponed) if self.closed else min(POSTPONED_PER_TURN, len(self._postponed))):
            again, nbytes = self._postponed[0]
            if self.closed:
                self.share.make(nbytes)
            elif self.answers.is_full or self._waiter:
                break
            elif not self.share.take(nbytes):
                self._waiter = self.share.wait(nbytes, self._has_room)
                break
            self._postponed.popleft()
            again()
        if len(self._postponed) <= POSTPONED_MAX // 2:
            self.unstall(Stall.READS_PUT_ASIDE)

    def _has_room(self) -> None:
        self._waiter = None
        self._postponed.popleft()[0]()
        self._go_on()

    def _wait_no_more(self) -> None:
        if self._waiter is not None:
            self.context.memory.leave(self._waiter)
            self._waiter = None

    # --- memory ---------------------------------------------------------------------------------------------

    def look(self, now: float, asleep: float = 0.0) -> None:
        """Every now and then: what the client does not take counts, and a frame that does not come to its end is given
        up. `now`: as `time.perf_counter` has it; `asleep`: for how long nothing was received though it may have come,
        in seconds."""
        self._rest_since = min(now, self._rest_since + asleep)
        self.count_held()
        if self._postponed:
            self._go_on()
        if self._rest_bytes and not self._stalls and now - self._rest_since > FRAME_S:
            self.close(ProtocolViolation(f"a frame of {self._need} bytes was not complete after {FRAME_S:.0f} s"))

    def made(self, nbytes: int) -> None:
        """Count so many bytes of answers that are on their way to the client."""
        self.count_held()
        self.share.make(-nbytes)

    def count_held(self) -> None:
        """Count again what is kept for this client."""
        self._recount()
        if self.context.memory.total > self.context.memory.limit:
            self.context.loop.call_soon(self.share.relieve)

    def _recount(self) -> None:
        share, now = self.share, time.perf_counter()
        kept = max(self._copies * (self._rest_bytes + PIECE_BYTES * len(self._rest)), self._frame.nbytes)
        parked = self.parked.nbytes if self.parked is not None else 0
        share.hold(kept + parked + self.asked_bytes + self._copies * self.answers.held(now) - share.held)
        share.waits = self._frame.waits
        sends = self._rest_since if self._rest_bytes and (share.waits or not self._stalls) else None
        takes = self.answers.stuck_since
        share.stuck_since = sends if takes is None else takes if sends is None else min(sends, takes)
        share.is_kept_back = share.stuck_since is None and share.held > 0

    def drop(self) -> None:
        """Close at once, whatever is under way."""
        if not self.closed and self.transport is not None:
            self.transport.abort()
            self.context.encrypted.gone(self)  # now: who comes in its place is counted before its transport tells
            if self._stalls & Stall.HANDSHAKE:
                self.connection_lost(None)  # of which a transport says nothing in the middle of a TLS handshake

    def _cut_off(self) -> None:
        """There is not memory enough for all, and this client has done nothing for longest."""
        if not self.closed and self.transport is not None:
            self.context.connection_errors += 1
            reason = "memory is short, and it makes no progress"
            self.context.complaints.warning("connection closed", peer=self.peer, reason=reason)
            self._forget_rest()
            self.drop()

    # --- out ------------------------------------------------------------------------------------------------

    def flush_now(self) -> asyncio.Transport | None:
        """Write what is queued; the transport, or None if the connection is closing."""
        self.answers.flush()
        return None if self.transport is None or self.transport.is_closing() else self.transport

    def pause_writing(self) -> None:
        self.answers.full()
        self._wait_no_more()
        self.count_held()

    def resume_writing(self) -> None:
        self.answers.drained()
        self.count_held()
        self._go_on()
