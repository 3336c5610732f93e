"""Answers on their way to one client: gathered, written, and counted until the client has taken them.

Invariants
- What a socket read brings and is answered at once leaves in one write at its end; all else that is answered in one
  turn of the event loop, in another.
- While the transport holds more than its high-water mark nothing is read from the client (`Stall.SLOW_RECEIVER`).
- A client that has taken nothing for `response_backpressure_timeout_ms` is disconnected, or further answers to it are
  dropped, as `close_on_response_timeout` says; with a negative time it is waited for as long as it is there.
- Who takes answers again is served again.

Threads: event loop only.

Source: docs/internals/wire-protocol.md, section 10.3.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from bookie_pod.client_memory import gone
from bookie_pod.server.tcp.context import ServerContext

JOIN_MAX: Final = 64 * 1024
"""Answers up to this many bytes are joined before the write; larger ones are handed over piece by piece."""


class Answers:
    """The answers of one connection."""

    def __init__(self, context: ServerContext, count_held: Callable[[], None]) -> None:
        """`count_held` counts what is kept for the client again."""
        self._context = context
        self._options = context.options
        self._count_held = count_held
        self.peer = "?"
        self.transport: asyncio.Transport | None = None
        """None before the connection is there, and when it is gone: it is a cycle, and TLS holds much."""
        self.gathers = False
        """True while everything sent leaves soon, in one write with the rest."""
        self.is_full = False
        """The transport has too much that the client does not take."""
        self.stuck_since: float | None = None
        """The time since which the client has taken none of the bytes for it; None if there are none. True after
        `held`.
        """
        self._drops = False
        """The client took none for too long."""
        self._pieces: list[bytes] = []
        self._nbytes = 0
        self._written = 0
        """Bytes of answers, ever."""
        self._large: deque[tuple[int, int]] = deque()
        """Writes of which a part may not have been taken: how many were written up to its end, and its size."""
        self._awaited = 0
        """The number of bytes that have to be taken; after that, all that were written meanwhile."""
        self._awaited_since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        """The timer of a client that takes nothing."""

    def send(self, answer: bytes) -> None:
        """Queue an answer; all answers of this turn of the loop leave together."""
        if self.transport is None or self._drops:
            return
        self._pieces.append(answer)
        self._nbytes += len(answer)
        if self._nbytes > self._options.write_buffer_high_water_mark_bytes:
            self.flush()  # so that it counts before what it was made of does not any more
        elif not self.gathers:
            self.gathers = True
            self._context.loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write what is queued."""
        self.gathers = False
        transport = self.transport
        if not self._pieces or transport is None or transport.is_closing():
            return
        pieces, size = self._pieces, self._nbytes
        self._pieces, self._nbytes = [], 0
        self._written += size
        if size > JOIN_MAX:
            self._large.append((self._written, size))
        if len(pieces) == 1:
            transport.write(pieces[0])
        elif size <= JOIN_MAX:
            transport.write(b"".join(pieces))
        else:
            transport.writelines(pieces)
            self._count_held()

    def end(self) -> None:
        """Drop everything: the connection is gone."""
        self.transport = None
        self._count_held = gone
        self._pieces.clear()
        self._nbytes = 0
        self._wait_no_more()

    # --- what the client takes ------------------------------------------------------------------------------

    def held(self, now: float) -> int:
        """Bytes that memory holds because the client has not taken them. `now`: as `time.perf_counter` has it."""
        buffered = self.transport.get_write_buffer_size() if self.transport is not None else 0
        unsent = buffered + self._nbytes
        taken = self._written - buffered
        if taken >= self._awaited:
            self._awaited, self._awaited_since = self._written, now
        self.stuck_since = self._awaited_since if unsent else None
        return unsent + self._taken_in_part(taken)

    def _taken_in_part(self, taken: int) -> int:
        """Bytes that the client has taken of a write that it has not taken wholly: the transport keeps all of it."""
        large = self._large
        while large and large[0][0] <= taken:
            large.popleft()
        if not large:
            return 0
        end, size = large[0]
        return max(0, taken - end + size)

    def full(self) -> None:
        """The transport holds too much."""
        self.is_full = True
        timeout_ms = self._options.response_backpressure_timeout_ms
        if timeout_ms >= 0 and self._timer is None:
            self._timer = self._context.loop.call_later(timeout_ms / 1000, self._too_slow)

    def drained(self) -> None:
        """The client took enough; a `flush` follows."""
        self.is_full = False
        self._wait_no_more()
        self._drops = False

    def _wait_no_more(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        close = self._options.close_channel_on_response_timeout
        action = "close" if close else "drop answers"
        self._context.complaints.warning("client reads its answers too slowly", peer=self.peer, action=action)
        if close and self.transport is not None:
            self.transport.abort()
        else:
            self._drops = True
