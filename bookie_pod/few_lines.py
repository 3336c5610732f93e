"""Log lines that strangers can cause: a few in full, of all others their number.

Invariant: in `PER_S` seconds at most `MOST` lines are written and one that says how many were not; whoever wants to
fill the log gets no more than that.

Threads: event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

MOST: Final = 20
PER_S: Final = 60.0


class FewLines:
    """Lines of one kind."""

    def __init__(self, log: Any, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._until = clock() + PER_S
        self._written = 0
        self._left_out = 0

    def warning(self, event: str, **fields: object) -> None:
        """A client did what it must not."""
        if self._may_write():
            self._log.warning(event, **fields)

    def error(self, event: str, **fields: object) -> None:
        """A request showed a fault of ours."""
        if self._may_write():
            self._log.error(event, **fields)

    def look(self) -> None:
        """To be called every now and then: say what was left out, once its time is over."""
        if self._clock() >= self._until:
            left_out, self._left_out = self._left_out, 0
            self._written = 0
            self._until = self._clock() + PER_S
            if left_out:
                self._log.warning("more lines of this kind were left out", lines=left_out, seconds=PER_S)

    def _may_write(self) -> bool:
        self.look()
        if self._written >= MOST:
            self._left_out += 1
            return False
        self._written += 1
        return True
