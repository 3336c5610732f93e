"""The bytes that a connection gave to its transport and that the bookie has not taken yet.

An add that times out leaves the window of its writer, but its bytes stay in the transport's buffer until the bookie
takes them. They are counted here: once for each connection, whatever became of their requests.

Invariants
- A connection is *behind* while its buffer holds bytes that have waited for longer than a request may take. It sends
  nothing then, because the bookie could not answer in time either. So the buffer holds no more than what the windows
  of the writers allowed before the oldest byte was too old.
- Counting costs one addition for each write of a batch. The rest is done once in a tick, or while the connection is
  behind.

Event loop only.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple


class _Mark(NamedTuple):
    """The number of bytes that the connection had written at a tick."""

    tick: int
    written: int


class Backlog:
    """The unsent bytes of one connection. `unsent` is the size of the transport's buffer in bytes."""

    def __init__(self) -> None:
        self.written = 0
        """Bytes given to the transport since the connection was made."""
        self._marks: deque[_Mark] = deque()
        """Ascending; only marks whose bytes have not all left."""
        self._overdue = 0
        """The bytes up to this position of the stream have waited too long."""

    def tick(self, now: int, unsent: int, patience: int) -> bool:
        """Look at the age of the unsent bytes at a tick; `patience` is in ticks. Return whether the connection is
        behind."""
        marks, left = self._marks, self._left(unsent)
        while marks and marks[0].written <= left:
            marks.popleft()
        for mark in marks:
            if now - mark.tick < patience:
                break
            self._overdue = mark.written
        if unsent and (not marks or marks[-1].written < self.written):
            marks.append(_Mark(now, self.written))
        return self.is_behind(unsent)

    def is_behind(self, unsent: int) -> bool:
        """Return whether bytes that have waited too long are still in the buffer."""
        return self._left(unsent) < self._overdue

    def _left(self, unsent: int) -> int:
        """Return how many of the written bytes have left. The buffer may hold more bytes than were written: TLS adds
        some to each frame."""
        return max(0, self.written - unsent)
