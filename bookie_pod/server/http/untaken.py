"""Answers that a client does not take: they count in the memory of clients, and end its connection.

An answer lies here until its client has taken it, be it whole or a piece of a stream, which has a place meanwhile. A
client that takes less than `LEAST` in `TAKEN_S` is cut off. What it takes shows in the kernel's queue at once, and in
the connection's own only when the kernel has room again, so both are looked at: a slow client is no silent one.

TLS hands on at once what is written at once, so it is given a piece at a time (`pieces`).

Event loop only.
"""

from __future__ import annotations

import array
import asyncio
import fcntl
import termios
import time
from collections.abc import Callable
from typing import Final

from bookie_pod.client_memory import Share

TAKEN_S: Final = 10.0
LEAST: Final = 128 * 1024
"""Bytes that a client takes in that time: a stream has a place, which costs its client that much."""
_COPIES: Final = 2
"""An answer lies here twice: as it was made, and with its head."""


class Untaken:
    """The answers of one connection, from when more of them lie here than its buffer takes. `end` it."""

    def __init__(self, transport: asyncio.Transport, share: Share, cut_off: Callable[[], None]) -> None:
        self.nbytes = _COPIES * transport.get_write_buffer_size()
        self._transport = transport
        self._share = share
        self._cut_off = cut_off
        self._left = self._to_take()
        share.hold(self.nbytes)
        share.stuck_since = time.perf_counter()
        loop = asyncio.get_running_loop()
        self._relief = loop.call_soon(share.relieve)  # not within a call of the transport's, which it may end
        self._timer = loop.call_later(TAKEN_S, self._look)

    def end(self) -> None:
        """It was taken, or its client is gone."""
        self._timer.cancel()
        self._relief.cancel()
        self._share.hold(-self.nbytes)

    def _look(self) -> None:
        left = self._to_take()
        if self._left - left < LEAST:
            self._cut_off()
            return
        self._left = left
        self._share.stuck_since = time.perf_counter()
        self._timer = asyncio.get_running_loop().call_later(TAKEN_S, self._look)

    def _to_take(self) -> int:
        queued = array.array("i", [0])
        fcntl.ioctl(self._transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, queued)
        return self._transport.get_write_buffer_size() + queued[0]
