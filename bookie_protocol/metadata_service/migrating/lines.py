"""Log lines that others can cause in any number, by what they write to ZooKeeper: one of a kind in a while, and short.

Event loop.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

from bookie_protocol.shown import one_line

REMINDER_S: Final = 60.0
"""Seconds between two lines of a kind."""
LONGEST_FIELD: Final = 300
"""Characters of a field."""


class Lines:
    """The lines of one participant."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], float] = {}
        """Time of the loop at which the last line of each event and kind was written."""

    def write(
        self, write: Callable[..., None], event: str, kind: str = "", *, every: float = REMINDER_S, **fields: object
    ) -> None:
        """Call `write`, unless a line of this event and kind was written less than `every` seconds ago."""
        now = asyncio.get_running_loop().time()
        if now >= self._last.get((event, kind), -math.inf) + every:
            self._last[event, kind] = now
            write(event, **{name: _short(each) for name, each in fields.items()})


def _short(field: object) -> object:
    return one_line(field, LONGEST_FIELD) if isinstance(field, str) else field
