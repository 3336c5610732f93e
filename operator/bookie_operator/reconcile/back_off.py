"""When an action that failed is tried again.

Kept in memory for each cluster, beside `operation.attempts`: it only spaces tries, and an operator that starts anew may
try at once.

Threads: one event loop.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from bookie_operator.world.model import RefusedAction
from bookie_protocol.pace import doubled

FIRST_S: Final = 1.0
MOST_S: Final = 60.0
_SPREAD: Final = 1.2
_LONGEST_S: Final = MOST_S * _SPREAD
_MOST_KEPT: Final = 16
"""Of one cluster; the earliest make way."""


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
    """The delays of all clusters."""

    def __init__(self, draw: random.Random | None = None) -> None:
        self._failures: dict[tuple[str, str], list[Failure]] = {}
        self._draw = draw or random.Random()

    def waiting(self, key: tuple[str, str], action: object, now: float) -> Failure | None:
        """What this action waits for; None: it may be tried."""
        failure = self._of(key, action)
        return failure if failure is not None and _waits(failure, now) else None

    def refused(self, key: tuple[str, str], now: float) -> tuple[RefusedAction, ...]:
        """Actions that need a person and are not to be tried yet."""
        return tuple(
            RefusedAction(one.action, one.message, one.not_before)
            for one in self._failures.get(key, ())
            if one.needs_person and _waits(one, now)
        )

    def failed(self, key: tuple[str, str], action: object, message: str, now: float, *, needs_person: bool) -> Failure:
        """Seconds double with each failure of the same action, with up to a fifth more so that clusters spread."""
        before = self._of(key, action)
        count = before.count + 1 if before is not None else 1
        delay = doubled(FIRST_S, MOST_S, count - 1) * self._draw.uniform(1.0, _SPREAD)
        failure = Failure(action, count, now + delay, message, needs_person)
        others = [one for one in self._failures.get(key, ()) if one.action != action]
        self._failures[key] = [*others, failure][-_MOST_KEPT:]
        return failure

    def done(self, key: tuple[str, str], action: object) -> None:
        """It was carried out."""
        left = [one for one in self._failures.get(key, ()) if one.action != action]
        if left:
            self._failures[key] = left
        else:
            self._failures.pop(key, None)

    def forget(self, key: tuple[str, str]) -> None:
        """Nothing of the cluster is left to be done."""
        self._failures.pop(key, None)

    def _of(self, key: tuple[str, str], action: object) -> Failure | None:
        return next((one for one in self._failures.get(key, ()) if one.action == action), None)


def _waits(failure: Failure, now: float) -> bool:
    # A clock that was set back makes nobody wait longer than any failure does.
    return now < failure.not_before <= now + _LONGEST_S
