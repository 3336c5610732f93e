"""One client connection: frames in (`ingest`), answers out (`wire`), and the part of a frame that has come.

Invariants
- A socket read is parsed in one loop over one buffer; a frame is never copied before it is complete.
- What a connection that has to wait received already stays in `_rest`, which is bounded by the largest frame plus one
  socket read.
- Bytes that are no frame close the connection, with one log line (see `FewLines`); so does a fault of ours while a
  frame is served.
- Frames that are not complete, adds that wait and answers that wait count in the process's `MemoryGovernor`. A large
  frame is read to its end when there is room for all of it (`FrameRooms`).

Threads: event loop only.

Source: docs/internals/wire-protocol.md, sections 1, 2 and 10.3.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from typing import Final, cast

from bookie_pod.client_memory import LEAVES
from bookie_pod.server.tcp.clients import Clients
from bookie_pod.server.tcp.connection_stalls import LARGE_FRAME_BYTES, Stall
from bookie_pod.server.tcp.ingest import check_length, ingest_v2, ingest_v3
from bookie_pod.server.tcp.security import Session
from bookie_pod.server.tcp.wire import Wire
from bookie_pod.server.tls_writes import hand_on_all
from bookie_protocol.errors import ProtocolViolation

_LENGTH = struct.Struct(">I")
FRAME_S: Final = 60.0
"""Seconds that a client may take to send one frame."""
PIECE_BYTES: Final = 64
"""Bytes of a piece of a frame besides its own: the object that it is."""
UNCOUNTED_BYTES: Final = 4096
"""Bytes of the beginning of a frame that are not counted: most reads of the socket end in one."""
MOST_PIECES: Final = 1024
"""The number of pieces of a frame, at most; more are joined."""


class Connection(asyncio.Protocol):
    """The server's end of one TCP connection. Nothing but its transport and its own parts know it: all else sees its
    `Wire`."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._context = context = clients.context
        self._share = context.memory.share(self._cut_off, self._recount)
        self._frame = context.frame_rooms.of(self._read_on, self._give_frame_up)
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._rest_since = 0.0
        """The time at which the frame began whose first bytes are kept."""
        self._need = 4
        self.wire = Wire(context, self._share, self._unstalled, self._dropped)
        self._answers = self.wire.answers
        self._session = Session(self.wire, clients, self)
        self.pause_writing: Final = self.wire.pause_writing
        self.resume_writing: Final = self.wire.resume_writing

    # --- life -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface but not the base class.
        transport = cast("asyncio.Transport", transport)
        clients, wire = self._clients, self.wire
        if not clients.accepting:
            # The port is bound before the journals are replayed; until then no client is served.
            transport.abort()
            return
        if len(clients.connections) >= clients.max_connections:
            clients.connections_refused += 1
            transport.abort()
            return
        peer = transport.get_extra_info("peername")
        wire.opened(transport, f"{peer[0]}:{peer[1]}" if peer else "?")
        options = self._context.options
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
        clients.connections[wire] = self.look
        self._session.came()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.wire.closed:
            return
        self._clients.connections.pop(self.wire, None)
        self._forget_rest()
        self._frame.leave()
        self.wire.lost()
        self._session.cancel()

    def eof_received(self) -> None:
        self._answers.flush()
        hand_on_all(self._answers.transport)

    def _dropped(self) -> None:
        self._clients.encrypted.gone(self.wire)  # now: who comes in its place is counted before its transport tells
        if self.wire.stalls & Stall.HANDSHAKE:
            self.connection_lost(None)  # of which a transport says nothing in the middle of a TLS handshake

    # --- in -------------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        wire = self.wire
        wire.received_at = time.perf_counter()
        wire.received += len(data)
        if self._rest_bytes:
            self._rest.append(data)
            self._rest_bytes += len(data)
            if len(self._rest) >= MOST_PIECES:
                self._rest = [b"".join(self._rest)]
            if self._rest_bytes < self._need or wire.stalls:
                if self._frame.nbytes:
                    self._frame.came(wire.copies * self._rest_bytes)
                wire.count_held()
                self._share.relieve()  # now: others receive too in this turn of the loop
                if self._rest_bytes > LARGE_FRAME_BYTES:
                    wire.took_large(len(data))
                return
            data = self._take_rest()
        self._answers.gathers = True  # what is answered at once leaves below, without another turn of the loop
        self._ingest(data)
        self._answers.flush()
        if self._share.held or self._rest_bytes > UNCOUNTED_BYTES:
            wire.count_held()
            memory = self._context.memory
            if memory.total > memory.limit + memory.limit // LEAVES:
                self._share.relieve()  # others receive too in this turn of the loop, and there may be thousands of them

    def _ingest(self, data: bytes) -> None:
        wire = self.wire
        try:
            if wire.stalls:
                self._keep(data)
                return
            consumed = 0
            if not wire.speaks_v2:
                consumed = ingest_v3(self._session, data)
            if wire.speaks_v2:
                consumed = ingest_v2(self._session, data, consumed)
            if consumed < len(data) and not wire.closed:
                self._keep(data[consumed:] if consumed else data)
        except ProtocolViolation as error:
            wire.close(error)
        except Exception as error:
            wire.broke(error)

    def _keep(self, data: bytes) -> None:
        """Hold back an incomplete frame, or everything while stalled."""
        if len(data) >= 4:
            length = _LENGTH.unpack_from(data)[0]
            check_length(self.wire, length, data, 0)
            self._need = length + 4 if len(data) > 4 else 5
        else:
            self._need = 4
        self._rest = [data]
        self._rest_bytes = len(data)
        self._rest_since = self.wire.received_at
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
        wire = self.wire
        is_large = self._need > LARGE_FRAME_BYTES and self._rest_bytes < self._need
        if is_large and wire.authenticated and not wire.stalls and not self._frame.nbytes:
            if self._frame.begin(wire.copies * self._need):
                self._frame.came(wire.copies * self._rest_bytes)
            else:
                wire.stall(Stall.ROOM)
            wire.count_held()

    def _read_on(self) -> None:
        self.wire.count_held()
        self.wire.unstall(Stall.ROOM)

    def _give_frame_up(self) -> None:
        """Others wait for the room of a frame that does not come."""
        if self.wire.stalls:  # which is for us to change; it asks again then
            self._frame.end()
            self.wire.count_held()
        else:
            self._cut_off()

    def _unstalled(self) -> None:
        now = time.perf_counter()  # here, not in `_resume`: it may stall again before it goes on
        self._rest_since += now - max(self.wire.stalled_at, self._rest_since)
        self._context.loop.call_soon(self._resume)

    def _resume(self) -> None:
        wire = self.wire
        if wire.stalls or not wire.is_open:
            return
        if self._rest_bytes >= self._need:
            self._ingest(self._take_rest())
            self._rest_since = time.perf_counter()  # until now it was kept back here
        elif self._rest_bytes:
            try:
                if self._rest_bytes > 4:  # what was under way may not have authenticated it
                    check_length(wire, self._need - 4, self._rest[0], 0)
            except ProtocolViolation as error:
                wire.close(error)
                return
            self._begin_large()
        if self._share.held:
            wire.count_held()
        if not wire.stalls:
            wire.read_on()

    # --- memory ---------------------------------------------------------------------------------------------

    def look(self, now: float, asleep: float = 0.0) -> None:
        """Every now and then: what the client does not take counts, and a frame that does not come to its end is given
        up. `now`: as `time.perf_counter` has it; `asleep`: for how long nothing was received though it may have come,
        in seconds."""
        self._rest_since = min(now, self._rest_since + asleep)
        self.wire.look()
        if self._rest_bytes and not self.wire.stalls and now - self._rest_since > FRAME_S:
            self.wire.close(ProtocolViolation(f"a frame of {self._need} bytes was not complete after {FRAME_S:.0f} s"))

    def _recount(self) -> None:
        wire, share, now = self.wire, self._share, time.perf_counter()
        kept = max(wire.copies * (self._rest_bytes + PIECE_BYTES * len(self._rest)), self._frame.nbytes)
        parked = wire.parked.nbytes if wire.parked is not None else 0
        share.hold(kept + parked + wire.asked_bytes + self._answers.held(now) - share.held)
        share.waits = self._frame.waits
        sends = self._rest_since if self._rest_bytes and (share.waits or not wire.stalls) else None
        takes = self._answers.stuck_since
        share.stuck_since = sends if takes is None else takes if sends is None else min(sends, takes)
        share.is_kept_back = share.stuck_since is None and share.held > 0

    def _cut_off(self) -> None:
        """There is not memory enough for all, and this client has done nothing for longest."""
        if not self.wire.closed and self._answers.transport is not None:
            self._context.connection_errors += 1
            reason = "memory is short, and it makes no progress"
            self._context.complaints.warning("connection closed", peer=self.wire.peer, reason=reason)
            self._forget_rest()
            self.wire.drop()
