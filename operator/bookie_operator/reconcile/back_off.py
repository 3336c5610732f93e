"""The times at which a failed action (`BackOff`), or an application that does not last (`Repairs`), is tried again.

An object does not stay as it was applied because a webhook changes it on its way in, or another writer changes it again
and again.

A change that is made once is undone at once. One that has to be undone again and again is left for ever longer, and
reported: nothing else waits for it.

Kept in memory for each cluster, beside `operation.attempts`: it only spaces tries, and an operator that restarts may
try at once.

Threads: one event loop.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bookie_operator.world.model import RefusedAction
from bookie_protocol.pace import doubled

FIRST_S: Final = 1.0
MOST_S: Final = 60.0
_SPREAD: Final = 1.2
_LONGEST_S: Final = MOST_S * _SPREAD
_MOST_KEPT: Final = 16
"""Failures kept for one cluster; the earliest make way."""
_AT_ONCE: Final = 2
"""Number of times that the same content is applied without waiting."""
_FIRST_S: Final = 4.0
_MOST_S: Final = 600.0
_REMEMBERED_S: Final = 1800.0


@dataclass
class Failure:
    action: object
    """The action that failed; another action is tried at once."""
    count: int
    not_before: float
    """Seconds since 1970."""
    message: str
    needs_person: bool
    """True if it fails until a person does something."""


class BackOff:
    """The delays of all clusters."""

    def __init__(self, draw: random.Random | None = None) -> None:
        self._failures: dict[tuple[str, str], list[Failure]] = {}
        self._draw = draw or random.Random()

    def waiting(self, key: tuple[str, str], action: object, now: float) -> Failure | None:
        """Return the failure that this action waits for; None: it may be tried."""
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
        """Forget the cluster: nothing of it is left to be done."""
        self._failures.pop(key, None)

    def _of(self, key: tuple[str, str], action: object) -> Failure | None:
        return next((one for one in self._failures.get(key, ()) if one.action == action), None)


def _waits(failure: Failure, now: float) -> bool:
    # A clock that was set back makes no action wait longer than any failure does.
    return now < failure.not_before <= now + _LONGEST_S


@dataclass(frozen=True)
class _Applied:
    digest: str
    count: int
    at: float

    @property
    def until(self) -> float:
        """Time at which it may be applied again."""
        later = self.count - _AT_ONCE
        return self.at + (min(_MOST_S, _FIRST_S * 2.0 ** min(later, 10)) if later >= 0 else 0.0)


class Repairs:
    """The repairs of all clusters, each known by namespace and name."""

    def __init__(self) -> None:
        self._applied: dict[tuple[str, str], dict[str, _Applied]] = {}

    def applied(self, cluster: tuple[str, str], digests: Mapping[str, str], now: float) -> None:
        """Note that these objects were applied, with this content each."""
        kept = {key: one for key, one in self._applied.get(cluster, {}).items() if self._remembered(one, now)}
        for key, digest in digests.items():
            before = kept.get(key)
            again = before.count if before is not None and before.digest == digest else 0
            kept[key] = _Applied(digest, again + 1, now)
        self._applied[cluster] = kept

    def unstable(self, cluster: tuple[str, str], now: float) -> dict[str, str]:
        """Objects that are not to be applied again yet, with the content that does not stay."""
        kept = self._applied.get(cluster, {})
        # A clock that was set back makes no object wait longer.
        return {key: one.digest for key, one in kept.items() if one.at <= now < one.until}

    def forget(self, cluster: tuple[str, str]) -> None:
        self._applied.pop(cluster, None)

    @staticmethod
    def _remembered(one: _Applied, now: float) -> bool:
        return abs(now - one.at) <= _REMEMBERED_S
