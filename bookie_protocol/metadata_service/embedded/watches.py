"""Watches of all sessions, at the owner of the store.

Invariants
- A watch fires once. What fired waits, bounded, until the session's event stream takes it; beyond the bound
  the session is told that everything fired.
- One stream takes: the one that began last.
- A session's watches go with it.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Final

from bookie_protocol.metadata_service.embedded.store import Change

MAX_FIRED: Final = 10_000
MAX_WATCHES: Final = 100_000
POLL_SECONDS: Final = 1.0
"""So long after it was set a watch fires that is one too many."""

_Key = tuple[Change, str]


class SessionWatches:
    """The watches of one session."""

    def __init__(self) -> None:
        self.set: dict[int, _Key] = {}
        self.fired: set[int] = set()
        self.overflowed = False
        self.signal = asyncio.Event()
        self.stream: object = None

    def fire(self, watch: int) -> None:
        self.fired.add(watch)
        if len(self.fired) > MAX_FIRED:
            self.fired.clear()
            self.overflowed = True
        self.signal.set()

    def begin_stream(self) -> object:
        """A new stream, for which everything has fired that was set before; wakes the one before it, for it to end."""
        self.stream = stream = object()
        self.fired.clear()
        self.overflowed = False
        self.signal.set()
        return stream

    def take(self) -> tuple[tuple[int, ...], bool]:
        """What fired since the last call (see `signal`); and whether everything is to count as fired."""
        self.signal.clear()
        taken, self.fired = tuple(self.fired), set()
        overflowed, self.overflowed = self.overflowed, False
        return taken, overflowed


class Watches:
    """All watches, by what they wait for."""

    def __init__(self) -> None:
        self._by_key: dict[_Key, dict[tuple[int, int], SessionWatches]] = defaultdict(dict)

    def add(self, session_id: int, watches: SessionWatches, watch: int, key: _Key) -> None:
        if len(watches.set) >= MAX_WATCHES:
            # It cannot be kept: the client reads again now and then instead.
            asyncio.get_running_loop().call_later(POLL_SECONDS, watches.fire, watch)
            return
        watches.set[watch] = key
        self._by_key[key][session_id, watch] = watches

    def remove(self, session_id: int, watches: SessionWatches, watch: int) -> None:
        key = watches.set.pop(watch, None)
        if key is not None:
            self._forget(key, session_id, watch)

    def remove_all(self, session_id: int, watches: SessionWatches) -> None:
        for watch in list(watches.set):
            self.remove(session_id, watches, watch)

    def fire(self, changes: set[_Key]) -> None:
        """Fire every watch that waits for one of these."""
        for key in changes:
            for (_, watch), watches in self._by_key.pop(key, {}).items():
                watches.set.pop(watch, None)
                watches.fire(watch)

    def _forget(self, key: _Key, session_id: int, watch: int) -> None:
        waiting = self._by_key[key]
        waiting.pop((session_id, watch), None)
        if not waiting:
            del self._by_key[key]
