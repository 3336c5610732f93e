"""The replication worker: takes marked ledgers, several at a time, and sees each one to its end.

Invariants
- At most `ledgers_at_once` ledgers are checked, copied or recovered at a time; ledgers that wait (for their writer, or
  because they failed) take no such place. Of those that are locked at most `MAX_LEDGERS` are in hand.
- A lock is held from the first look at a ledger until its mark is gone or it has failed; however its round ends, the
  lock is given back (`locks`). Who holds one may be about to name any bookie, and is waited for.
- A ledger that failed is left alone by all workers for as long as its back-off says, and is locked by nobody: whoever
  drains a bookie needs its lock, be it to find that nothing can be moved.
- Trouble with the metadata service or with bookies never ends the worker; it tries again after a pause. A defect (an
  error outside of the taxonomy) costs the ledger its round and is logged with its traceback.
- While auto-recovery is disabled no ledger is taken, and no writer is fenced.
- A ledger that could not be repaired is left alone for twice as long after each failure, up to a limit (`Backoff`).
  How often it failed is remembered of the last `REMEMBERED` that failed, ten times as many as a worker holds
  locks of: were it forgotten before its ledger's turn comes again, no delay would ever grow. Why it failed, which is
  for people, of the last `EXPLAINED`.
- No delay is shorter than `SHORTEST_S`, whatever is configured: a ledger that cannot be repaired is no hot loop.
- However many fail, they hold up no other ledger: at most `MAX_LEFT_ALONE` are left alone at a time, and of more the
  one is tried again that has the least time left, though no more than one in `SHORTEST_S` for each place at work.

Event loop only.

Source: reference auto-recovery, section 6.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from itertools import count
from typing import Final, NamedTuple, Protocol

import structlog

from bookie_pod.autorecovery.locks import LockKeeper
from bookie_pod.autorecovery.worker.progress import LedgerNote, Phase, WorkerProgress, WorkerStatus
from bookie_pod.metrics.autorecovery import ReplicationWorkerMetrics
from bookie_protocol.errors import MetadataError, PodkeeperError
from bookie_protocol.metadata_service.interface import MetadataService
from bookie_protocol.metadata_service.under_replication import LedgerLock
from bookie_protocol.pace import doubled
from bookie_protocol.shown import one_line

REMEMBERED: Final = 100_000
EXPLAINED: Final = 2_000
SHORTEST_S: Final = 0.1
_FIRST: Final = 32
"""What part of the full delay the first one is."""
MAX_LEDGERS: Final = 10_000
MAX_LEFT_ALONE: Final = 10_000
"""Each takes some 3 KB."""
STOP_SECONDS: Final = 5.0
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Failures:
    """What is remembered of a ledger. `reason`, `lost_entries`: of the last failure, see `worker.RoundResult`."""

    count: int
    reason: str = ""
    lost_entries: tuple[int, ...] = ()


class Backoff:
    """`longest_s`: the full delay in seconds; the first one is a 32nd of it."""

    def __init__(self, longest_s: float, remembered: int = REMEMBERED, explained: int = EXPLAINED) -> None:
        self._longest_s = longest_s
        self._remembered = remembered
        self._explained = explained
        self._counts: OrderedDict[int, int] = OrderedDict()
        self._failures: OrderedDict[int, Failures] = OrderedDict()

    def failures(self, ledger_id: int) -> Failures:
        """The failures since this ledger last succeeded, as far as they are remembered."""
        return self._failures.get(ledger_id) or Failures(self._counts.get(ledger_id, 0))

    def failed(self, ledger_id: int, reason: str = "", lost_entries: tuple[int, ...] = ()) -> float:
        """It failed (again): seconds until the next try."""
        before = self._counts.pop(ledger_id, 0)
        self._counts[ledger_id] = before + 1
        self._failures.pop(ledger_id, None)
        self._failures[ledger_id] = Failures(before + 1, reason, lost_entries)
        if len(self._counts) > self._remembered:
            self._counts.popitem(last=False)
        if len(self._failures) > self._explained:
            self._failures.popitem(last=False)
        return max(SHORTEST_S, doubled(self._longest_s / _FIRST, self._longest_s, before))

    def succeeded(self, ledger_id: int) -> None:
        """It is repaired, or gone."""
        self._counts.pop(ledger_id, None)
        self._failures.pop(ledger_id, None)


class Outcome(Enum):
    """How a round with a ledger ended."""

    REPAIRED = "repaired"
    """Nothing is missing; the mark may go."""
    DELETED = "deleted"
    WITHDRAWN = "withdrawn"
    """Its mark is gone; there is nothing to do."""
    OPEN = "open"
    """Its writer has to replace a lost bookie first, or the ledger has to be recovered."""
    FAILED = "failed"


class RoundResult(NamedTuple):
    """`reason`: why not, for people. `lost_entries`: entries of which no copy is left, the first few."""

    outcome: Outcome
    reason: str = ""
    lost_entries: tuple[int, ...] = ()


class Repair(Protocol):
    """What is done to one ledger whose lock is held. Raises `PodkeeperError` for a round that failed."""

    async def repair(self, lock: LedgerLock, note: LedgerNote) -> RoundResult:
        """Look at it and restore what can be restored without disturbing a writer."""
        ...

    async def recover(self, lock: LedgerLock, note: LedgerNote) -> RoundResult:
        """Look again at a ledger whose writer had its time, recover it if it still has to be, then repair it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Times in seconds."""

    ledgers_at_once: int = 8
    open_ledger_grace: float = 30.0
    failed_ledger_backoff: float = 300.0
    pause_after_error: float = 5.0
    tasks_per_second: float = 0.0
    """Ledgers taken from the metadata service; 0: no limit."""


class ReplicationWorker:
    """`run` until cancelled; once."""

    def __init__(
        self,
        service: MetadataService,
        repair: Repair,
        options: WorkerOptions,
        progress: WorkerProgress,
        metrics: ReplicationWorkerMetrics,
    ) -> None:
        self._marks = service.under_replication
        self._repair = repair
        self._options = options
        self.progress = progress
        self._metrics = metrics
        self._backoff = Backoff(options.failed_ledger_backoff)
        self._keeper = LockKeeper(self._marks)
        self._at_work = asyncio.Semaphore(options.ledgers_at_once)
        self._in_hand = asyncio.Semaphore(MAX_LEDGERS)
        self._left_alone = _Pauses(MAX_LEFT_ALONE)
        self._next_task_at = 0.0

    def status(self) -> WorkerStatus:
        return self.progress.status()

    @property
    def locks_not_released(self) -> int:
        """Locks that could not be given back yet."""
        return self._keeper.not_released

    async def run(self) -> None:
        """Work until cancelled; every lock is given back then, as far as the metadata service answers."""
        self.progress.is_running = True
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow_enabled())
                while True:
                    await self._in_hand.acquire()
                    async with self._at_work:  # not kept: ledgers whose waiting is over need it, and none may be marked
                        pass
                    lock = await self._take()
                    group.create_task(self._see_through(lock), name=f"repair of ledger {lock.ledger_id}")
                    await asyncio.sleep(0)  # it takes its place
        finally:
            self.progress.is_running = False
            await self._keeper.close(STOP_SECONDS)

    # --- taking -----------------------------------------------------------------------------------------------

    async def _take(self) -> LedgerLock:
        while True:
            await self._turn()
            try:
                return await self._acquire()
            except MetadataError as error:
                _log.warning("no ledger can be taken", reason=str(error))
                self._metrics.failed_with(error)
            await asyncio.sleep(max(self._options.pause_after_error, 0.1))

    async def _acquire(self) -> LedgerLock:
        """As the store's own; one that is taken at the very moment of the cancellation is given back."""
        taking = asyncio.ensure_future(self._marks.acquire())
        try:
            return await asyncio.shield(taking)
        except asyncio.CancelledError:
            taking.cancel()
            await asyncio.wait({taking})
            if not taking.cancelled() and taking.exception() is None:
                await self._keeper.give_back(taking.result())
            raise

    async def _turn(self) -> None:
        rate = self._options.tasks_per_second
        if rate <= 0:
            return
        now = asyncio.get_running_loop().time()
        due, self._next_task_at = self._next_task_at, max(self._next_task_at, now) + 1 / rate
        if due > now:
            await asyncio.sleep(due - now)

    async def _follow_enabled(self) -> None:
        while True:
            try:
                async with self._marks.watch_enabled() as states:
                    async for enabled in states:
                        if enabled is not self.progress.is_enabled:
                            _log.info("auto-recovery is enabled" if enabled else "auto-recovery is disabled")
                        self.progress.is_enabled = enabled
            except MetadataError as error:
                _log.warning("whether auto-recovery is enabled cannot be seen", reason=str(error))
            await asyncio.sleep(max(self._options.pause_after_error, 1.0))

    # --- one ledger -------------------------------------------------------------------------------------------

    async def _see_through(self, lock: LedgerLock) -> None:
        """Owns the lock."""
        ledger_id = lock.ledger_id
        before = self._backoff.failures(ledger_id)
        note = self.progress.begin(ledger_id, before.count)
        note.reason, note.lost_entries = before.reason, before.lost_entries
        in_hand, place = _Place(self._in_hand, held=True), _Place(self._at_work)
        try:
            await place.enter()
            result: RoundResult | None = await self._round(lock, note, self._repair.repair)
            if result is not None and result.outcome is Outcome.OPEN:
                result = await self._after_the_grace(lock, note, place, result)
            if result is not None and result.outcome is Outcome.FAILED:
                delay = self._back_off(note, result)
                if self._left_alone.are_many:
                    await asyncio.sleep(SHORTEST_S)  # in its place at work: one is tried again for it
                place.leave()
                async with self._marks.leaving_alone(ledger_id):
                    await self._keeper.give_back(lock)
                    in_hand.leave()
                    await self._left_alone.pause(delay)
        finally:
            place.leave()
            self.progress.end(ledger_id)
            in_hand.leave()
            await self._keeper.give_back(lock)

    async def _after_the_grace(
        self, lock: LedgerLock, note: LedgerNote, place: _Place, result: RoundResult
    ) -> RoundResult | None:
        """None: nothing was decided, somebody takes the ledger again later."""
        grace = self._options.open_ledger_grace
        _log.info("open ledger: its writer has time", ledger=note.ledger_id, seconds=grace, reason=result.reason)
        self.progress.enter(note, Phase.WAITING_FOR_WRITER, reason=result.reason, wait=grace)
        place.leave()
        await asyncio.sleep(grace)
        await place.enter()
        try:
            if not await self._marks.is_enabled():
                return None
        except MetadataError as error:
            return RoundResult(Outcome.FAILED, str(error))
        result = await self._round(lock, note, self._repair.recover)
        return result._replace(outcome=Outcome.FAILED) if result.outcome is Outcome.OPEN else result

    async def _round(
        self, lock: LedgerLock, note: LedgerNote, work: Callable[[LedgerLock, LedgerNote], Awaitable[RoundResult]]
    ) -> RoundResult:
        loop = asyncio.get_running_loop()
        began = loop.time()
        self.progress.enter(note, Phase.CHECKING)
        try:
            result = await work(lock, note)
            if result.outcome in (Outcome.REPAIRED, Outcome.DELETED):
                await self._keeper.finish(lock)
        except PodkeeperError as error:
            self._metrics.failed_with(error)
            result = RoundResult(Outcome.FAILED, one_line(error))
        except Exception as error:
            _log.error("defect while a ledger was repaired", ledger=lock.ledger_id, exc_info=error)
            self._metrics.failed_with(error)
            result = RoundResult(Outcome.FAILED, f"a defect: {error!r}")
        self._metrics.processed(loop.time() - began, success=result.outcome in (Outcome.REPAIRED, Outcome.DELETED))
        self._count(lock.ledger_id, result)
        return result

    def _count(self, ledger_id: int, result: RoundResult) -> None:
        match result.outcome:
            case Outcome.REPAIRED:
                self._backoff.succeeded(ledger_id)
                self.progress.ledgers_repaired += 1
            case Outcome.DELETED:
                self._backoff.succeeded(ledger_id)
                self._metrics.deleted()
                _log.info("marked ledger is deleted", ledger=ledger_id)
            case Outcome.FAILED:
                self.progress.ledgers_failed += 1

    def _back_off(self, note: LedgerNote, result: RoundResult) -> float:
        """Seconds until the next try."""
        delay = self._backoff.failed(note.ledger_id, result.reason, result.lost_entries)
        note.attempts += 1
        note.lost_entries = result.lost_entries
        self.progress.enter(note, Phase.BACKING_OFF, reason=result.reason, wait=delay)
        self._metrics.deferred()
        tell = _log.error if result.lost_entries and note.attempts == 1 else _log.warning
        tell(
            "ledger is not repaired",
            ledger=note.ledger_id,
            attempts=note.attempts,
            reason=result.reason,
            retry_in=round(delay, 1),
            **({"lost_entries": list(result.lost_entries)} if result.lost_entries else {}),
        )
        return delay


class _Place:
    """One of so many places: left and entered again any number of times."""

    def __init__(self, places: asyncio.Semaphore, *, held: bool = False) -> None:
        """`held`: it was taken already."""
        self._places = places
        self._held = held

    def leave(self) -> None:
        if self._held:
            self._held = False
            self._places.release()

    async def enter(self) -> None:
        await self._places.acquire()
        self._held = True


class _Pauses:
    """At most `most` pauses at a time: when there are more, the one ends that would end first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._ends: list[tuple[float, int, asyncio.Future[None]]] = []
        """A heap. Those that are over stand in front, since they go in the order of their ends."""
        self._number = count()

    @property
    def are_many(self) -> bool:
        """Whether one would end for another."""
        while self._ends and self._ends[0][2].done():
            heappop(self._ends)
        return len(self._ends) >= self._most

    async def pause(self, seconds: float) -> None:
        """Wait for so long, or until there are too many."""
        loop, ends = asyncio.get_running_loop(), self._ends
        ended: asyncio.Future[None] = loop.create_future()
        end = loop.time() + seconds
        timer = loop.call_at(end, _end, ended)
        heappush(ends, (end, next(self._number), ended))
        while len(ends) > self._most:
            _end(heappop(ends)[2])
        try:
            await ended
        finally:
            timer.cancel()


def _end(pause: asyncio.Future[None]) -> None:
    if not pause.done():
        pause.set_result(None)
