"""The end of one connection that requests see: their answers go out here, and here they make the client wait.

Invariants
- A connection that has a reason to wait (`Stall`) reads nothing more. The reasons are independent; the last one to go
  resumes it.
- Answers that are being made, and those that wait, count in the process's `MemoryGovernor`; a read whose client takes
  no answers is not begun.
- A closed connection whose client does not take the last answers is cut off after `LINGER_S`.

Threads: event loop only, but for `must_wait` and the share.

Source: docs/internals/wire-protocol.md, section 10.3.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from bookie_pod.client_memory import SMALL, Share, Waiter, gone
from bookie_pod.ledgers.operations import WriteLane
from bookie_pod.server.tcp.answers import Answers
from bookie_pod.server.tcp.connection_stalls import COLD_BYTES, Stall
from bookie_pod.server.tcp.context import ServerContext
from bookie_pod.server.tcp.joined import add_ended
from bookie_pod.server.tcp.parked_adds import ParkedAdds
from bookie_pod.server.tcp.request_log import traced_adds
from bookie_protocol.errors import ProtocolViolation

READS_IN_FLIGHT_MAX: Final = 1024
READ_BYTES_IN_FLIGHT_MAX: Final = 32 * 1024 * 1024
_EXPECTED_READ_BYTES: Final = 16 * 1024
AT_ONCE: Final = 256
"""Reads that are looked up together, at most; of a connection that had to wait before so many, twice as many as it had
before: what is looked up in vain is looked up again."""
LOST_PER_TURN: Final = 1000
"""The number of `on_lost` callbacks that are called in one turn of the loop."""
POSTPONED_MAX: Final = 1024
"""Reads that were put aside, at which no more requests are taken."""
POSTPONED_PER_TURN: Final = 16
"""Reads that were put aside, how many are begun at once."""
LINGER_S: Final = 10.0
"""Seconds that a closed connection may take to hand over its last answers."""
LENGTH_BYTES: Final = 4
"""Bytes of the length prefix of a journal record."""


class Wire:
    """The way back to one client."""

    def __init__(
        self, context: ServerContext, share: Share, resume: Callable[[], None], dropped: Callable[[], None]
    ) -> None:
        """`share`: what the client makes the process hold. `resume` is called when the last `Stall` is gone, `dropped`
        when the connection was closed without a word."""
        self.context = context
        self.share = share
        self._resume = resume
        self._dropped = dropped
        self.peer = "?"
        self.authenticated = False
        self.closed = False
        self.speaks_v2 = False
        self.lanes = context.operations.lanes()
        self.parked: ParkedAdds | None = None
        self.asked: dict[Callable[[], None], None] = {}
        """Requests that wait for an answer of the metadata service (`metadata_questions`). Each is called when the
        connection is gone, and takes itself away."""
        self.asked_bytes = 0
        self.on_lost: dict[Callable[[], None], None] = {}
        """Called, each once, when the connection is gone."""
        self.received = 0
        """Bytes of data, ever."""
        self.received_at = time.perf_counter()
        """The time at which the socket was last read: the latency of adds counts from there."""
        self.is_encrypted = False
        self.copies = 1
        """The copies of bytes that were received and are kept: TLS has them once encrypted and once in plain."""
        self.answers = Answers(context, self.count_held)
        self.send: Final = self.answers.send
        self.stalls = Stall(0)
        self.stalled_at = 0.0
        self.reads_at_once = AT_ONCE
        """The number of reads that are looked up together: see `hot_reads`."""
        self._linger_timer: asyncio.TimerHandle | None = None
        self._postponed: deque[tuple[Callable[[], None], int]] = deque()
        """Reads that were not begun, because there was no room for their answers, and for how many bytes they need it
        at least."""
        self._waiter: Waiter | None = None
        """The wait for room of the first postponed read."""
        self._cold_bytes = 0
        """The bytes that cold requests count, by `COLD_BYTES`, since others had their turn."""
        self._requests = 0
        self._reads = 0
        self._read_bytes = 0
        self._expected_read = _EXPECTED_READ_BYTES

    # --- life -----------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Return whether requests may still come, and answers leave."""
        transport = self.answers.transport
        return not self.closed and transport is not None and not transport.is_closing()

    def opened(self, transport: asyncio.Transport, peer: str) -> None:
        """The client is there."""
        self.peer = self.answers.peer = peer
        self._take(transport)

    def secured(self, transport: asyncio.Transport) -> None:
        """Let everything go through TLS from now on."""
        self.is_encrypted, self.copies = True, 2
        self._take(transport)
        if self.stalls:
            transport.pause_reading()  # as the plain one was, but this one is new
        # The plain transport reports only to TLS that the client took earlier bytes.
        if self.answers.is_full:
            self.resume_writing()

    def _take(self, transport: asyncio.Transport) -> None:
        self.answers.transport = transport
        options = self.context.options
        transport.set_write_buffer_limits(
            high=options.write_buffer_high_water_mark_bytes, low=options.write_buffer_low_water_mark_bytes
        )

    def close(self, error: ProtocolViolation | None = None) -> None:
        """Close after what is under way was written; with an error, log it once."""
        transport = self.answers.transport
        if not self.is_open or transport is None:
            return
        if error is not None:
            self.context.connection_errors += 1
            self.context.complaints.warning("connection closed", peer=self.peer, reason=str(error))
        self.answers.flush()
        transport.close()
        self._linger_timer = self.context.loop.call_later(LINGER_S, transport.abort)

    def flush_now(self) -> asyncio.Transport | None:
        """Write what is queued. Return the transport, or None if the connection is closing."""
        self.answers.flush()
        return self.answers.transport if self.is_open else None

    def broke(self, defect: Exception) -> None:
        """Close the connection after an internal error: it is unknown what the client was answered."""
        self.context.complaints.error(
            "unexpected error while serving a frame", peer=self.peer, error=repr(defect), exc_info=defect
        )
        self.close(ProtocolViolation("a frame could not be served"))

    def drop(self) -> None:
        """Close at once, whatever is under way."""
        if not self.closed and self.answers.transport is not None:
            self.answers.transport.abort()
            self._dropped()

    def lost(self) -> None:
        """The connection is gone."""
        self.closed = True
        self.answers.end()
        self._wait_no_more()
        for lost in tuple(self.asked):
            try:
                lost()
            except Exception as defect:
                self.broke(defect)
        if self.parked is not None:
            self.parked.drop_all()
            self.parked = None  # its callbacks hold this
        self.share.end()
        self._go_on()
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        self._tell_lost()
        self.context.reads_in_progress.forget(self._reads_are_fewer)
        # So that it is freed at once: a cycle would be left to the collector, and thousands of them are a long turn.
        self._resume = self._dropped = self.share.recount = gone

    def _tell_lost(self) -> None:
        """A few at a time: a client may have hundreds of thousands of long polls, and others are waiting."""
        for _ in range(min(LOST_PER_TURN, len(self.on_lost))):
            self.on_lost.popitem()[0]()
        if self.on_lost:
            self.context.loop.call_soon(self._tell_lost)

    def keep_out(self, what: str, reason: str) -> None:
        """Record a refusal in the audit trail."""
        self.context.audit.kept_out(self.address, what, reason)

    @property
    def address(self) -> str:
        """Return the client's address, without its port."""
        return self.peer.rpartition(":")[0] or self.peer

    # --- adds -----------------------------------------------------------------------------------------------

    def submit_lanes(self, *, sync: bool = True) -> None:
        """Hand what a read of the socket gathered to the journals."""
        for lane in self.lanes:
            if lane.answers:
                context, entries = self.context, len(lane.data) // 2
                acknowledge = _Acknowledge(self, lane, entries)
                context.admission.started(entries - lane.counted)
                nbytes = context.operations.submit(lane, entries, acknowledge, sync=sync) - entries * LENGTH_BYTES
                context.metrics.adds_admitted(entries, nbytes, (time.perf_counter() - self.received_at) * 1000)

    # --- waiting --------------------------------------------------------------------------------------------

    @property
    def stalled(self) -> bool:
        return self.stalls != 0

    def stall(self, reason: Stall) -> None:
        """Read nothing more until `unstall` of every reason."""
        if not self.stalls:
            self.stalled_at = time.perf_counter()
            if self.answers.transport is not None and not self.answers.transport.is_closing():
                self.answers.transport.pause_reading()
        self.stalls |= reason

    def unstall(self, reason: Stall) -> None:
        if self.stalls & reason:
            self.stalls &= ~reason
            if not self.stalls and self.is_open:
                self._resume()

    def read_on(self) -> None:
        """Let the client send again."""
        if self.answers.transport is not None and not self.answers.transport.is_closing():
            self.answers.transport.resume_reading()

    def took_cold(self) -> None:
        """A request was dealt with by itself."""
        self._cold_bytes += COLD_BYTES
        if not self.context.turns.came(COLD_BYTES, self._others_had_their_turn, self._cold_bytes):
            self._cold_bytes = 0
            self.stall(Stall.TURN)

    def took_large(self, nbytes: int) -> None:
        """Note a part of a large frame. A connection that stalls already takes no more."""
        if not (self.stalls or self.closed or self.context.turns.came(nbytes, self._others_had_their_turn)):
            self.stall(Stall.TURN)

    def _others_had_their_turn(self) -> None:
        self.unstall(Stall.TURN)

    def pause_writing(self) -> None:
        """The transport holds too much: take no more requests."""
        self.answers.full()
        self.stall(Stall.SLOW_RECEIVER)
        self._wait_no_more()
        self.count_held()

    def resume_writing(self) -> None:
        """The client took enough."""
        self.answers.drained()
        self.unstall(Stall.SLOW_RECEIVER)
        self.answers.flush()
        self.count_held()
        self._go_on()

    # --- requests under way -----------------------------------------------------------------------------------

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
        if self.stalls & Stall.REQUESTS and self._requests <= self.context.requests.most_of_one // 2:
            self.unstall(Stall.REQUESTS)

    def read_started(self, most: int = 0) -> int:
        """Reserve memory for one answer, `most` bytes if that is known; the value goes back to `read_finished`."""
        reserved = max(most, self._expected_read)
        self._reads += 1
        self._read_bytes += reserved
        if self.context.reads_in_progress.started():
            self.context.reads_in_progress.wait(self._reads_are_fewer)
            self.stall(Stall.READS_LIMIT)
        if self._reads >= READS_IN_FLIGHT_MAX or self._read_bytes >= READ_BYTES_IN_FLIGHT_MAX:
            self.stall(Stall.READS_IN_FLIGHT)
        return reserved

    def _reads_are_fewer(self) -> None:
        self.unstall(Stall.READS_LIMIT)

    def read_paused(self, reserved: int) -> None:
        """Give a reservation back without an answer; the connection goes on as after an answer."""
        self._reads -= 1
        self._read_bytes -= reserved
        self.context.reads_in_progress.finished()
        if self.stalls & Stall.READS_IN_FLIGHT and (
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

    def look(self) -> None:
        """Every now and then: what the client does not take counts, and what was put aside may go on."""
        self.count_held()
        if self._postponed:
            self._go_on()

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

    def made(self, nbytes: int) -> None:
        """Count so many bytes of answers that are on their way to the client."""
        self.count_held()
        self.share.make(-nbytes)

    def count_held(self) -> None:
        """Count again what is kept for this client."""
        self.share.recount()
        if self.context.memory.total > self.context.memory.limit:
            self.context.loop.call_soon(self.share.relieve)


class _Acknowledge:
    """Sends the answers of one lane when its journal has acknowledged it."""

    __slots__ = ("_admitted", "_answers", "_entries", "_joined", "_since", "_wire")

    def __init__(self, wire: Wire, lane: WriteLane, entries: int) -> None:
        self._wire = wire
        self._answers = b"".join(lane.answers)
        self._entries = entries
        self._since = wire.received_at
        self._joined = lane.joined
        tracer = wire.context.tracer
        is_traced = tracer is not None and (bool(lane.joined) or random.random() < tracer.ratio)
        self._admitted = time.perf_counter() if is_traced else 0.0
        """The time at which adds that are traced were handed to the journal; 0 for all others."""

    def __call__(self, error: BaseException | None) -> None:
        # With an error nothing is answered: the journal has failed, and the bookie is about to stop.
        # Sent before `finished`, which may admit adds of this connection that waited: answers keep the adds' order.
        context = self._wire.context
        if error is None:
            self._wire.send(self._answers)
        context.admission.finished(self._entries)
        elapsed_ms = (time.perf_counter() - self._since) * 1000
        context.metrics.adds_done(self._entries, elapsed_ms, error is None)
        if elapsed_ms >= context.request_log.slow_ms:
            context.request_log.adds_were_slow(self._wire.peer, self._answers, elapsed_ms)
        if self._admitted:
            self._trace(context, elapsed_ms, failed=error is not None)

    def _trace(self, context: ServerContext, elapsed_ms: float, *, failed: bool) -> None:
        for request in self._joined:
            add_ended(context, request, self._admitted, elapsed_ms, failed=failed)
        tracer = context.tracer
        if not self._joined and tracer is not None:
            attributes = traced_adds(self._wire.peer, self._answers, self._entries)
            trace_id = tracer.adds(attributes, self._since, self._admitted, failed=failed)
            context.metrics.add_traced(elapsed_ms, trace_id, success=not failed)
