"""What a bookie's garbage collection makes of ledgers that do not name the bookie (any more).

As the real one: only of ledgers that are closed, and not while anybody holds the ledger's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from tests.support.simulation.bookie import VirtualBookie

if TYPE_CHECKING:
    from tests.support.simulation.healing.judge import HealingJudge
    from tests.support.simulation.history import History


class Collector:
    """Looks after one bookie until the run is over."""

    def __init__(
        self, bookie: VirtualBookie, history: History, judge: HealingJudge, random: Random, mean_seconds: float
    ) -> None:
        self._bookie = bookie
        self._history = history
        self._judge = judge
        self._random = random
        self._mean = mean_seconds
        self.is_over: Callable[[], bool] = lambda: False
        self._again()

    def _again(self) -> None:
        self._bookie.loop.call_later(self._random.expovariate(1 / self._mean), self._look)

    def _look(self) -> None:
        if self.is_over():
            return
        if self._bookie.is_running:
            for ledger_id in dict.fromkeys(ledger_id for ledger_id, _ in self._bookie.disk.entries):
                if self._is_surplus(ledger_id):
                    self._history.count("collected")
                    self._bookie.drop(ledger_id)
                    self._judge.losses(self._history.ledgers[ledger_id], self._bookie.host)
        self._again()

    def _is_surplus(self, ledger_id: int) -> bool:
        metadata = self._history.ledgers[ledger_id].metadata
        named = self._bookie.bookie_id in metadata.all_bookies()
        return metadata.is_closed and not named and ledger_id not in self._judge.locks
