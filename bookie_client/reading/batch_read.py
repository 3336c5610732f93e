"""One batch read: consecutive entries from one replica, or every so many-th, with fall-over and speculation.

Invariants
- The outcome is the first answer with at least one undamaged entry. Later answers of others are dropped, and their
  requests are given up.
- A bookie that does not know batch reads is remembered; if that is why no replica served, the outcome is `BatchRefused`
  and single reads may still succeed.
- `done` is called exactly once, unless the read was abandoned before; then never. Never from inside `send`.

Nothing here is a task: a range of a hundred entries is often one batch, and tasks cost as much as verifying it does.
Event loop only.

Source: docs/internals/client-protocol.md, section 11.5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

from bookie_client.connection.operations import BatchRequest, BookieOperations
from bookie_client.context import BatchSupport
from bookie_client.reading.choice import ReplicaChoice
from bookie_client.reading.entry_read import read_failure
from bookie_client.reading.speculation import SpeculationPolicy
from bookie_client.reading.verified import Verified, verify_packed
from bookie_protocol.digest import DigestManager
from bookie_protocol.errors import PodkeeperError, fresh
from bookie_protocol.wire.v2 import PackedEntries


class BatchRefused(Exception):
    """An error: no replica served the batch, and some of them do not support batch reads."""


class BatchAnswer(NamedTuple):
    """The answer of one replica; at least one entry is good."""

    bookie: str
    first: int
    verified: Verified
    step: int = 1

    def has_all(self, count: int) -> bool:
        """Return True if the answer has `count` entries, and none of them is damaged."""
        return len(self.verified.entries) == count and not self.verified.damaged


class BatchQuestion(NamedTuple):
    """Up to `most` entries from `first` on, one step apart, in a frame of at most `max_bytes`."""

    ledger_id: int
    first: int
    most: int
    max_bytes: int
    step: int = 1


class BatchParts(NamedTuple):
    """The parts that all batch reads of one handle share. `clock`: that of the event loop."""

    operations: BookieOperations
    support: BatchSupport
    digest: DigestManager
    observer: ReplicaChoice
    policy: SpeculationPolicy
    fan_out: int
    clock: Callable[[], float]


class BatchRead:
    """A read that asks the bookies of `order` in turn.

    `done` gets the answer, or an exception: `BatchRefused`, the error that single reads would raise for the first
    entry, or a defect."""

    def __init__(
        self,
        parts: BatchParts,
        question: BatchQuestion,
        order: Sequence[str],
        done: Callable[[BatchRead, BatchAnswer | Exception], None],
    ) -> None:
        self.started = parts.clock()
        self.due = inf
        self._parts = parts
        self._question = question
        self._order = order
        self._done = done
        self._delay = inf
        self._asked = 0
        self._under_way: dict[str, BatchRequest] = {}
        self._errors: dict[str, PodkeeperError] = {}
        self._refusals = 0

    def send(self, delay: float) -> None:
        """Ask the first replica, or as many at once as wanted. It has `delay` seconds before the next one is asked."""
        self._delay = delay
        for _ in range(min(self._parts.fan_out, len(self._order))):
            self._ask_next()
        self._wait_from(self.started)

    def speculate(self, now: float, alive: frozenset[str]) -> None:
        """Ask the next replica; see `speculation.Waiting`.

        A batch is a scan's worth of work, so a slow bookie gets no extra time for serving other requests."""
        self._ask_next()
        self._delay = self._parts.policy.next_delay(self._delay)
        self._wait_from(now)

    def abandon(self) -> None:
        """Give up the requests under way: the caller does not wait any more."""
        self.due = inf
        for request in self._under_way.values():
            request.abandon()
        self._under_way.clear()

    def _ask_next(self) -> None:
        bookie = self._order[self._asked]
        self._asked += 1
        ledger_id, first, most, max_bytes, step = self._question
        self._under_way[bookie] = self._parts.operations.send_batch_read(
            bookie, ledger_id, first, most, max_bytes, self._answered, step=step
        )

    def _wait_from(self, now: float) -> None:
        may_speculate = self._asked < len(self._order) and not self._parts.policy.is_off
        self.due = now + self._delay if may_speculate else inf

    def _answered(self, bookie: str, answer: PackedEntries | PodkeeperError) -> None:
        del self._under_way[bookie]
        try:
            outcome = self._outcome(bookie, answer)
        except Exception as defect:  # a connection called: the caller that waits for the batch must see it
            outcome = defect
        if outcome is not None:
            self.abandon()
            self._done(self, outcome)

    def _outcome(self, bookie: str, answer: PackedEntries | PodkeeperError) -> BatchAnswer | Exception | None:
        """None: it goes on."""
        taken = answer if isinstance(answer, PodkeeperError) else self._take(bookie, answer)
        if isinstance(taken, BatchAnswer):
            self._tell_slow(bookie)
            return taken
        self._failed(bookie, taken)
        if not self._under_way:
            if self._asked == len(self._order):
                return BatchRefused() if self._refusals else read_failure(*self._question[:2], self._errors)
            self._ask_next()
        self._wait_from(self._parts.clock())
        return None

    def _take(self, bookie: str, entries: PackedEntries) -> BatchAnswer | PodkeeperError:
        parts = self._parts
        ledger_id, first, most, _, step = self._question
        try:
            verified = verify_packed(parts.digest, ledger_id, first, entries, most, step)
        except PodkeeperError as problem:
            return fresh(problem)
        parts.support.served(bookie)
        if len(verified.damaged) == len(verified.entries):
            for place, error in verified.damaged.items():
                parts.observer.damaged(bookie, first + place * step, error)
            return verified.damaged[0]
        return BatchAnswer(bookie, first, verified, step)

    def _failed(self, bookie: str, error: PodkeeperError) -> None:
        parts = self._parts
        self._errors[bookie] = error
        if parts.support.judge(bookie, error, parts.clock()):
            self._refusals += 1
        else:
            parts.observer.failed(bookie, error)

    def _tell_slow(self, winner: str) -> None:
        if self._asked == 1 or self._parts.fan_out > 1:
            return
        slow = [bookie for bookie in self._order[: self._order.index(winner)] if bookie not in self._errors]
        if slow:
            self._parts.observer.outrun(slow)
