"""A client that does not take its answers: how long it is waited for, and what happens then.

Invariants
- While the transport holds more than its high-water mark nothing is read from the client (`Stall.SLOW_RECEIVER`).
- A client that has taken nothing for `response_backpressure_timeout_ms` is disconnected, or further answers to it are
  dropped, as `close_on_response_timeout` says; with a negative time it is waited for as long as it is there.
- Who takes answers again is served again.

Threads: event loop only.

Source: reference wire protocol, section 10.3.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bookie_pod.server.tcp.connection_stalls import Stall

if TYPE_CHECKING:
    from bookie_pod.server.tcp.connection import Connection


class SlowReceiver:
    """Watches one connection; it sets `Connection.drops_answers`."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._timer: asyncio.TimerHandle | None = None

    def full(self) -> None:
        """The transport holds too much: take no more requests."""
        conn = self._conn
        conn.stall(Stall.SLOW_RECEIVER)
        timeout_ms = conn.context.options.response_backpressure_timeout_ms
        if timeout_ms >= 0 and self._timer is None:
            self._timer = conn.context.loop.call_later(timeout_ms / 1000, self._too_slow)

    def drained(self) -> None:
        """The client took enough."""
        self.cancel()
        self._conn.drops_answers = False
        self._conn.unstall(Stall.SLOW_RECEIVER)

    def cancel(self) -> None:
        """Nobody waits any more, as when the connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        conn = self._conn
        close = conn.context.options.close_on_response_timeout
        action = "close" if close else "drop answers"
        conn.context.complaints.warning("client reads its answers too slowly", peer=conn.peer, action=action)
        if close and conn.transport is not None:
            conn.transport.abort()
        else:
            conn.drops_answers = True
