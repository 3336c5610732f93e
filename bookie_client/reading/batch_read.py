"""One batch read: consecutive entries from one replica, with fall-over and speculation.

Invariants
- The outcome is the first answer with at least one undamaged entry. What others answer later is dropped, and
  their requests are given up.
- A bookie that does not know batch reads is remembered; if that is why nobody served, the outcome is
  `BatchRefused` and single reads may still succeed.
- Nothing of it is under way once `run` has ended or was cancelled.

Event loop only.

Source: reference client protocol, section 11.5.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from bookie_client.batch_support import BatchSupport
from bookie_client.connection.operations import BookieOperations
from bookie_client.reading.entry_read import ReadObserver
from bookie_client.reading.read_failure import read_failure
from bookie_client.reading.speculation import SpeculationPolicy
from bookie_client.reading.verified import Verified, verify_packed
from bookie_protocol.digest import DigestManager
from bookie_protocol.errors import PodkeeperError
from bookie_protocol.wire.packed_entries import PackedEntries


class BatchRefused(Exception):
    """No replica served the batch, and some of them do not know batch reads."""


class BatchAnswer(NamedTuple):
    """What one replica gave; at least one entry is good."""

    bookie: str
    verified: Verified


class BatchParts(NamedTuple):
    """What all batch reads of one handle share."""

    operations: BookieOperations
    support: BatchSupport
    digest: DigestManager
    observer: ReadObserver
    policy: SpeculationPolicy
    fan_out: int


class BatchRead:
    """Asks `order` in turn for up to `count` entries from `first` on. `delay`: seconds the first one has."""

    def __init__(
        self,
        parts: BatchParts,
        ledger_id: int,
        first: int,
        count: int,
        max_bytes: int,
        order: Sequence[str],
        delay: float,
    ) -> None:
        self._parts = parts
        self._what = ledger_id, first, count, max_bytes
        self._order = order
        self._delay = delay
        self._asked: list[str] = []
        self._under_way: dict[asyncio.Task[PackedEntries], str] = {}
        self._errors: dict[str, PodkeeperError] = {}
        self._refusals = 0

    async def run(self) -> BatchAnswer:
        """The first good answer. Raises `BatchRefused`, or the error that counts for the first entry, as
        single reads would."""
        try:
            for _ in range(self._parts.fan_out):
                self._ask_next()
            while self._under_way:
                answer = await self._next_answer()
                if answer is not None:
                    return answer
                if not self._under_way:
                    self._ask_next()
            if self._refusals:
                raise BatchRefused
            raise read_failure(self._what[0], self._what[1], self._errors)
        finally:
            await self._give_up()

    def _ask_next(self) -> None:
        if len(self._asked) == len(self._order):
            return
        bookie = self._order[len(self._asked)]
        self._asked.append(bookie)
        task = asyncio.get_running_loop().create_task(self._parts.operations.batch_read(bookie, *self._what))
        self._under_way[task] = bookie

    async def _next_answer(self) -> BatchAnswer | None:
        """Wait until somebody answers or speculation is due; a good answer, if there was one."""
        may_speculate = not self._parts.policy.is_off and len(self._asked) < len(self._order)
        done, _ = await asyncio.wait(
            self._under_way,
            timeout=self._delay if may_speculate else None,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if not done:
            self._ask_next()
            self._delay = self._parts.policy.next_delay(self._delay)
        for task in done:
            bookie = self._under_way.pop(task)
            try:
                answer = self._take(bookie, task.result())
            except PodkeeperError as error:
                self._failed(bookie, error)
            else:
                self._tell_slow(bookie)
                return answer
        return None

    async def _give_up(self) -> None:
        for task in self._under_way:
            task.cancel()
        if self._under_way:
            for task in (await asyncio.wait(self._under_way))[0]:
                if not task.cancelled():
                    task.exception()  # a loser's; nobody else looks at it

    def _take(self, bookie: str, entries: PackedEntries) -> BatchAnswer:
        parts = self._parts
        ledger_id, first, count, _ = self._what
        verified = verify_packed(parts.digest, ledger_id, first, entries, count)
        parts.support.served(bookie)
        if len(verified.damaged) == len(verified.entries):
            for place, error in verified.damaged.items():
                parts.observer.damaged(bookie, first + place, error)
            raise verified.damaged[0]
        return BatchAnswer(bookie, verified)

    def _failed(self, bookie: str, error: PodkeeperError) -> None:
        parts = self._parts
        self._errors[bookie] = error
        if parts.support.judge(bookie, error, asyncio.get_running_loop().time()):
            self._refusals += 1
        else:
            parts.observer.failed(bookie, error)

    def _tell_slow(self, winner: str) -> None:
        before = self._asked[: self._asked.index(winner)]
        slow = [bookie for bookie in before if bookie not in self._errors]
        if slow and self._parts.fan_out == 1:
            self._parts.observer.outrun(slow)
