"""Back-pressure of one writer, or of all appends of a gateway: how many adds, and how many bytes, may be under way.

Invariants
- Room is given in the order in which it was asked for.
- An add larger than the whole window passes when nothing else is under way, so nothing waits for ever.
- Acknowledged adds that a slow bookie has not answered keep their bytes; they have a limit of their own, so a
  slow bookie outside the ack quorum slows the writer only when it is far behind.

Event loop only.

Source: docs/internals/client-protocol.md, section 18.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from bookie_client.options import ClientOptions


class Window:
    """Limits are in entries, bytes, and bytes of acknowledged adds without all their answers."""

    def __init__(self, max_entries: int, max_bytes: int, max_linger_bytes: int) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._max_linger = max_linger_bytes
        self.entries = 0
        self.nbytes = 0
        self.lingering = 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._granted = 0  # so many waiters at the front have room, and do not run yet: none may overtake them

    @classmethod
    def of(cls, options: ClientOptions) -> Window:
        """The window that these options give a writer."""
        return cls(options.write_window_entries, options.write_window_bytes, options.write_linger_bytes)

    def try_acquire(self, nbytes: int, entries: int = 1) -> bool:
        """Take room for an add of this size, or for `entries` of this total size. Return False if there is no room
        or another add waits for it."""
        # As in `_fits`; written out, because every add comes by.
        if self._waiters or self.lingering > self._max_linger:
            return False
        all_entries, all_bytes = self.entries + entries, self.nbytes + nbytes
        # One alone passes whatever its size.
        if (all_entries > self._max_entries or all_bytes > self._max_bytes) and all_entries > 1:
            return False
        self.entries, self.nbytes = all_entries, all_bytes
        return True

    async def acquire(self, nbytes: int) -> None:
        """Take room for an add of this size as soon as there is some."""
        if self.try_acquire(nbytes):
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (nbytes, granted)
        self._waiters.append(waiter)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self._leave(waiter)
                self.release(1, nbytes)
            else:
                with suppress(ValueError):  # `_grant` may have passed it over already
                    self._waiters.remove(waiter)
                self._grant()
            raise
        self._leave(waiter)

    def take(self, nbytes: int) -> None:
        """Take room whether there is some or not: for adds that have waited elsewhere, within limits of their
        own."""
        self.entries += 1
        self.nbytes += nbytes

    def release(self, entries: int, nbytes: int, lingering: int = 0) -> None:
        """Adds were acknowledged or failed; `lingering`: bytes of those that some bookie has not answered
        yet."""
        self.entries -= entries
        self.nbytes -= nbytes
        self.lingering += lingering
        if self._waiters:
            self._grant()

    def release_lingering(self, nbytes: int) -> None:
        """The last answer of a lingering add came."""
        self.lingering -= nbytes
        if self._waiters:
            self._grant()

    def _fits(self, nbytes: int) -> bool:
        if self.lingering > self._max_linger:
            return False
        return self.entries == 0 or (self.entries < self._max_entries and self.nbytes + nbytes <= self._max_bytes)

    def _leave(self, waiter: tuple[int, asyncio.Future[None]]) -> None:
        """One that was granted room runs now."""
        self._waiters.remove(waiter)
        self._granted -= 1
        self._grant()

    def _grant(self) -> None:
        waiters = self._waiters
        while len(waiters) > self._granted and self._fits(waiters[self._granted][0]):
            nbytes, granted = waiters[self._granted]
            if granted.done():
                del waiters[self._granted]  # cancelled in this very turn of the loop, and does not know it yet
                continue
            self.entries += 1
            self.nbytes += nbytes
            self._granted += 1
            granted.set_result(None)
