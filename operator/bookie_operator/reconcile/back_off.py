"""When an action that failed is tried again.

Kept in memory for each cluster, beside `operation.attempts`: it only spaces tries, and an operator that starts anew may
try at once.

Threads: one event loop.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

FIRST_S: Final = 1.0
MOST_S: Final = 60.0
_SPREAD: Final = 1.2
_LONGEST_S: Final = MOST_S * _SPREAD


@dataclass
class Failure:
    action: object
    """What failed; another action is tried at once."""
    count: int
    not_before: float
    """Seconds since 1970."""
    message: str
    needs_person: bool
    """It fails until somebody does something."""


class BackOff:
    """Of all clusters."""

    def __init__(self, draw: random.Random | None = None) -> None:
        self._failures: dict[tuple[str, str], Failure] = {}
        self._draw = draw or random.Random()

    def waiting(self, key: tuple[str, str], action: object, now: float) -> Failure | None:
        """What this action waits for; None: it may be tried."""
        failure = self._failures.get(key)
        if failure is None or failure.action != action:
            return None
        # A clock that was set back makes nobody wait longer than any failure does.
        return failure if now < failure.not_before <= now + _LONGEST_S else None

    def failed(self, key: tuple[str, str], action: object, message: str, now: float, *, needs_person: bool) -> Failure:
        """Seconds double with each failure of the same action, with up to a fifth more so that clusters spread."""
        before = self._failures.get(key)
        count = before.count + 1 if before is not None and before.action == action else 1
        delay = min(MOST_S, FIRST_S * 2 ** min(count - 1, 10)) * self._draw.uniform(1.0, _SPREAD)
        failure = Failure(action, count, now + delay, message, needs_person)
        self._failures[key] = failure
        return failure

    def done(self, key: tuple[str, str]) -> None:
        self._failures.pop(key, None)
