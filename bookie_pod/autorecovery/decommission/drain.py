"""Drains many ledgers, several at once, and tells how far that is.

Invariants
- At most `ledgers_at_once` ledgers are in work; a ledger that is blocked does not hold up the others.
- The meter holds numbers for the whole, and a reason for each blocked ledger, of which `SHOWN_BLOCKERS` are shown.

Threads: event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from bookie_pod.autorecovery.decommission.ledger_drain import LedgerDrain
from bookie_pod.autorecovery.decommission.state import SHOWN_BLOCKERS, Blocker, DrainProgress


class DrainMeter:
    """Counts of one drain, for people: `progress` is a snapshot."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = clock()
        self._sizes: dict[int, int] = {}
        self._done_bytes = 0
        self._done_ledgers = 0
        self._blocked: dict[int, str] = {}
        self._in_work: dict[int, int] = {}
        self.bytes_copied = 0

    @property
    def blocked(self) -> Mapping[int, str]:
        return self._blocked

    @property
    def in_work(self) -> Mapping[int, int]:
        """Ledgers in work, and the bytes copied of each."""
        return self._in_work

    def expect(self, sizes: Mapping[int, int]) -> None:
        """The ledgers that are left, with estimates of their bytes."""
        self._sizes = dict(sizes)
        self._blocked = {ledger_id: why for ledger_id, why in self._blocked.items() if ledger_id in self._sizes}

    def begin(self, ledger_id: int) -> Callable[[int], None]:
        """A ledger is in work; the answer takes bytes as they are copied."""
        self._in_work[ledger_id] = 0

        def copied(nbytes: int) -> None:
            self.bytes_copied += nbytes
            self._in_work[ledger_id] += nbytes

        return copied

    def end(self, ledger_id: int, reason: str | None) -> None:
        """It is drained, or blocked."""
        self._in_work.pop(ledger_id, None)
        if reason is not None:
            self._blocked[ledger_id] = reason
            return
        self._blocked.pop(ledger_id, None)
        self._done_bytes += self._sizes.pop(ledger_id, 0)
        self._done_ledgers += 1

    def progress(self) -> DrainProgress:
        """The progress as it is now."""
        ledgers_left, bytes_left = len(self._sizes), sum(self._sizes.values())
        for ledger_id, copied in self._in_work.items():
            bytes_left -= min(copied, self._sizes.get(ledger_id, 0))
        shown = sorted(self._blocked.items())[:SHOWN_BLOCKERS]
        return DrainProgress(
            ledgers_total=self._done_ledgers + ledgers_left,
            ledgers_left=ledgers_left,
            bytes_total=self._done_bytes + sum(self._sizes.values()),
            bytes_left=bytes_left,
            bytes_copied=self.bytes_copied,
            eta_s=self._eta(ledgers_left, bytes_left),
            blocked=len(self._blocked),
            blockers=tuple(Blocker(ledger_id, reason) for ledger_id, reason in shown),
        )

    def _eta(self, ledgers_left: int, bytes_left: int) -> float | None:
        """What is left by what was done so far, the slower of bytes and ledgers; None while too little is known."""
        took = self._clock() - self._began
        if not ledgers_left:
            return 0.0
        if not self._done_ledgers or len(self._blocked) == ledgers_left:
            return None
        estimates = [took * ledgers_left / self._done_ledgers]
        if self._done_bytes:
            estimates.append(took * bytes_left / self._done_bytes)
        return max(estimates)


async def drain_all(
    ledgers: Iterable[int],
    drain: LedgerDrain,
    meter: DrainMeter,
    at_once: int,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Try each ledger once. What could not be drained is in `meter.blocked` afterwards.

    `stop`: no further ledger is begun once it says so; those in work are finished.
    """
    waiting = iter(ledgers)

    async def work() -> None:
        for ledger_id in waiting:
            if stop():
                return
            copied = meter.begin(ledger_id)
            reason: str | None = "interrupted"
            try:
                reason = await drain.drain(ledger_id, copied)
            finally:
                meter.end(ledger_id, reason)

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(work())
