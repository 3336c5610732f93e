"""Watches of all sessions, at the owner of the store.

Invariants
- A watch fires once. What fired waits, bounded, until the session's event stream takes it; beyond the bound the session
  is notified that everything fired.
- What is set and what fired has a bound over all sessions, and none has more of it than is left for the others.
- One stream takes: the one that began last.
- A session's watches go with it.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Final

from bookie_protocol.metadata_service.embedded.records import Change

MAX_FIRED: Final = 10_000
MAX_WATCHES: Final = 100_000
POLL_SECONDS: Final = 1.0
"""Seconds after which a watch beyond the limit fires."""
WATCH_BYTES: Final = 400
"""A watch that is set takes about so much besides its path."""
FIRED_BYTES: Final = 100
UNLIMITED: Final = 1 << 62

_Key = tuple[Change, str]


class SessionWatches:
    """The watches of one session."""

    def __init__(self, every: Watches) -> None:
        self._every = every
        self.nbytes = 0
        """Bytes of the watches that are set, and of those that fired."""
        self.set: dict[int, _Key] = {}
        self.fired: set[int] = set()
        self.overflowed = False
        self.signal = asyncio.Event()
        self.stream: object = None
        self._ended = False

    def fire(self, watch: int) -> None:
        if self._ended:
            return
        if watch not in self.fired:
            self.fired.add(watch)
            self.count(FIRED_BYTES)
        if len(self.fired) > MAX_FIRED or self.nbytes > self._every.left(self):
            self._take_fired()
            self.overflowed = True
        self.signal.set()

    def begin_stream(self) -> object:
        """A new stream, for which everything has fired that was set before; wakes the one before it, for it to end."""
        self.stream = stream = object()
        self._take_fired()
        self.overflowed = False
        self.signal.set()
        return stream

    def take(self) -> tuple[tuple[int, ...], bool]:
        """Return what fired since the last call (see `signal`), and True if everything counts as fired."""
        self.signal.clear()
        taken = tuple(self._take_fired())
        overflowed, self.overflowed = self.overflowed, False
        return taken, overflowed

    def end(self) -> None:
        """The session has ended, and with it its stream."""
        self._ended = True
        self._take_fired()
        self.signal.set()

    def count(self, nbytes: int) -> None:
        self.nbytes += nbytes
        self._every.nbytes += nbytes

    def _take_fired(self) -> set[int]:
        fired, self.fired = self.fired, set()
        self.count(-FIRED_BYTES * len(fired))
        return fired


class Watches:
    """All watches, by what they wait for."""

    def __init__(self, limit: int = UNLIMITED) -> None:
        """`limit` in bytes."""
        self._limit = limit
        self.nbytes = 0
        self._by_key: dict[_Key, dict[tuple[int, int], SessionWatches]] = defaultdict(dict)

    def add(self, session_id: int, watches: SessionWatches, watch: int, key: _Key) -> None:
        nbytes = _bytes_of(key)
        if len(watches.set) >= MAX_WATCHES or watches.nbytes + nbytes > self.left(watches):
            # It cannot be kept: the client reads again now and then instead.
            asyncio.get_running_loop().call_later(POLL_SECONDS, watches.fire, watch)
            return
        if watch in watches.set:  # the client has said that it chooses each once
            self.remove(session_id, watches, watch)
        watches.count(nbytes)
        watches.set[watch] = key
        self._by_key[key][session_id, watch] = watches

    def remove(self, session_id: int, watches: SessionWatches, watch: int) -> None:
        key = watches.set.pop(watch, None)
        if key is not None:
            watches.count(-_bytes_of(key))
            self._forget(key, session_id, watch)

    def remove_all(self, session_id: int, watches: SessionWatches) -> None:
        for watch in list(watches.set):
            self.remove(session_id, watches, watch)

    def fire(self, changes: set[_Key]) -> None:
        """Fire every watch that waits for one of these."""
        for key in changes:
            for (_, watch), watches in self._by_key.pop(key, {}).items():
                watches.set.pop(watch, None)
                watches.count(-_bytes_of(key))
                watches.fire(watch)

    def left(self, watches: SessionWatches) -> int:
        """Return the bytes that this session may have: half of what the others leave."""
        return max(0, self._limit - (self.nbytes - watches.nbytes)) // 2

    def _forget(self, key: _Key, session_id: int, watch: int) -> None:
        waiting = self._by_key[key]
        waiting.pop((session_id, watch), None)
        if not waiting:
            del self._by_key[key]


def _bytes_of(key: _Key) -> int:
    return WATCH_BYTES + len(key[1])
