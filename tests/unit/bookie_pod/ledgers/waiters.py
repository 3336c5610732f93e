"""Waiters for the last add confirmed of a ledger."""

from __future__ import annotations

from collections.abc import Callable

from bookie_pod.ledgers.state import LacWaiter


class Waiter(LacWaiter):
    """Says to a callable whether it was woken by a newer one."""

    def __init__(self, previous_lac: int, told: Callable[[bool], object] = lambda newer: None) -> None:
        super().__init__(previous_lac)
        self._told = told

    def wake(self, newer: bool) -> None:
        self._told(newer)
