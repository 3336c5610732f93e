"""The replication worker: takes marked ledgers, several at a time, and sees each one to its end.

Invariants
- At most `ledgers_at_once` ledgers are checked, copied or recovered at a time; ledgers that wait (for their writer, or
  because they failed) take no such place. Of those that are locked at most `MAX_LEDGERS` are in hand.
- A lock is held from the first look at a ledger until its mark is gone or it has failed; however its round ends, the
  lock is given back. Who holds one may be about to name any bookie, and is waited for.
- A round that failed is noted in the ledger's mark: the worker, the reason, and the entries without a copy. So a
  process that starts again knows what others learnt. `findings.binding` says who rests after it: the worker itself, and
  all workers where no copy of an entry is left. No worker holds the lock meanwhile: a drain of a bookie needs it.
- Trouble with the metadata service or with bookies never ends the worker; it tries again after a pause. A defect (an
  error outside of the taxonomy) costs the ledger its round and is logged with its traceback.
- While auto-recovery is disabled no ledger is taken, and no writer is fenced.
- A ledger rests for twice as long after each failure, up to a limit.
- However many fail, they hold up no other ledger. Where more than can be remembered rest, the others are tried again,
  though no more than one in `SHORTEST_S` for each place at work.
- No rest is shorter than `SHORTEST_S`, whatever is configured: a ledger that cannot be repaired is no hot loop.
- A worker to which no bookie answers, round after round, suspects itself (`SelfDoubt`): it takes ledgers ever more
  slowly and says so, rather than taking every mark away from workers that are well.

Event loop only.

Source: docs/internals/auto-recovery.md, section 6.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import structlog

from bookie_pod.autorecovery.worker.ledger_repair import LedgerRepair, Outcome, RoundResult
from bookie_pod.autorecovery.worker.progress import LedgerNote, Phase, WorkerProgress, WorkerStatus
from bookie_pod.metrics.autorecovery import ReplicationWorkerMetrics
from bookie_protocol.errors import MetadataError, PodkeeperError
from bookie_protocol.metadata_service.findings import Failure, Trouble, binding
from bookie_protocol.metadata_service.ledger_guard import LedgerGuard
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.under_replication import LedgerLock, UnderreplicatedLedger
from bookie_protocol.pace import doubled
from bookie_protocol.shown import one_line

SHORTEST_S: Final = 0.1
_FIRST: Final = 32
"""Divisor of the full rest that gives the first one."""
MAX_LEDGERS: Final = 10_000
SICK_AFTER: Final = 8
"""Rounds in a row without an answer from any bookie, after which a worker suspects itself."""
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
_Work = Callable[[LedgerLock, LedgerNote], Coroutine[Any, Any, RoundResult]]
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Times in seconds."""

    ledgers_at_once: int = 8
    open_ledger_grace: float = 30.0
    failed_ledger_backoff: float = 300.0
    pause_after_error: float = 5.0
    tasks_per_second: float = 0.0
    """Ledgers taken from the metadata service; 0: no limit."""


class SelfDoubt:
    """Counts rounds in a row in which no bookie answered."""

    def __init__(self) -> None:
        self._rounds = 0

    @property
    def rounds(self) -> int:
        return self._rounds

    def ended(self, result: RoundResult) -> None:
        """A round ended. One that was about nothing tells nothing."""
        if result.outcome is Outcome.FAILED and result.trouble is Trouble.UNREACHABLE:
            self._rounds += 1
        elif result.outcome is not Outcome.WITHDRAWN:
            self._rounds = 0

    def pause(self) -> float:
        """Seconds to wait before the next ledger is taken."""
        if self._rounds < SICK_AFTER:
            return 0.0
        return doubled(FIRST_PAUSE_S, LONGEST_PAUSE_S, self._rounds - SICK_AFTER)

    def complaint(self) -> str | None:
        """Return a fault that needs attention; None: nothing."""
        if self._rounds < SICK_AFTER:
            return None
        return (
            f"no bookie answered the replication worker in {self._rounds} rounds in a row: check the network, the"
            " certificates and the descriptors of this process"
        )


class ReplicationWorker:
    """`run` until cancelled; once. `worker_id`: by which its failures are known; other workers have other ones."""

    def __init__(
        self,
        service: MetadataService,
        repair: LedgerRepair,
        options: WorkerOptions,
        progress: WorkerProgress,
        metrics: ReplicationWorkerMetrics,
        worker_id: str,
    ) -> None:
        self._worker_id = worker_id
        self._marks = service.under_replication
        self._repair = repair
        self._options = options
        self.progress = progress
        self._metrics = metrics
        self._guard = LedgerGuard(service)
        self._doubt = SelfDoubt()
        self._at_work = asyncio.Semaphore(options.ledgers_at_once)
        self._in_hand = asyncio.Semaphore(MAX_LEDGERS)
        self._next_task_at = 0.0

    def status(self) -> WorkerStatus:
        return self.progress.status()

    @property
    def locks_not_released(self) -> int:
        """Locks of this process that could not be given back yet."""
        return self._marks.locks_not_released

    @property
    def rounds_without_an_answer(self) -> int:
        """Rounds in a row in which no bookie answered."""
        return self._doubt.rounds

    def complaint(self) -> str | None:
        """Return why this worker may be the one that is ill; None: it is not."""
        return self._doubt.complaint()

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

    # --- taking -----------------------------------------------------------------------------------------------

    async def _take(self) -> LedgerLock:
        while True:
            await asyncio.sleep(self._doubt.pause())
            await self._turn()
            try:
                return await self._guard.take(self._rests)
            except MetadataError as error:
                _log.warning("no ledger can be taken", reason=str(error))
                self._metrics.failed_with(error)
            await asyncio.sleep(max(self._options.pause_after_error, 0.1))

    def _rests(self, mark: UnderreplicatedLedger) -> float:
        """Seconds for which this worker leaves a ledger with this mark alone."""
        failure = binding(mark.failures, self._worker_id)
        return 0.0 if failure is None else self._rest_after(failure.times)

    def _rest_after(self, times: int) -> float:
        longest = self._options.failed_ledger_backoff
        return max(SHORTEST_S, doubled(longest / _FIRST, longest, times - 1))

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
        note = self.progress.begin(lock.ledger_id)
        in_hand, place = _Place(self._in_hand, held=True), _Place(self._at_work)
        failed = False
        try:
            await place.enter()
            result: RoundResult | None = await self._round(lock, note, self._repair.repair)
            while result is not None and result.outcome is Outcome.OPEN:
                result = await self._after_the_grace(lock, note, place, result)
            if result is not None and result.outcome is Outcome.FAILED:
                await self._note_failure(lock, note, result)
                failed = True
                if self._marks.many_rest:
                    await asyncio.sleep(SHORTEST_S)  # in its place at work: this ledger may be tried again at once
        finally:
            place.leave()
            self.progress.end(note, keep=failed)
            in_hand.leave()
            await self._guard.give_back(lock)

    async def _after_the_grace(
        self, lock: LedgerLock, note: LedgerNote, place: _Place, found: RoundResult
    ) -> RoundResult | None:
        """Return the result, which is that another ledger of the id is open now, or an end; None: nothing was decided,
        and a worker takes the ledger again later."""
        grace = self._options.open_ledger_grace
        _log.info("open ledger: its writer has time", ledger=note.ledger_id, seconds=grace, reason=found.reason)
        self.progress.enter(note, Phase.WAITING_FOR_WRITER, reason=found.reason, wait=grace)
        place.leave()
        await asyncio.sleep(grace)
        await place.enter()
        try:
            if not await self._marks.is_enabled():
                return None
        except MetadataError as error:
            return RoundResult(Outcome.FAILED, str(error))
        result = await self._round(lock, note, partial(self._repair.recover, life=found.life))
        is_open_still = result.outcome is Outcome.OPEN and result.life == found.life
        return result._replace(outcome=Outcome.FAILED) if is_open_still else result

    async def _round(self, lock: LedgerLock, note: LedgerNote, work: _Work) -> RoundResult:
        loop = asyncio.get_running_loop()
        began = loop.time()
        self.progress.enter(note, Phase.CHECKING)
        try:
            result = await self._guard.work(lock, work(lock, note))
            if result.outcome in (Outcome.REPAIRED, Outcome.DELETED):
                await self._guard.remove_mark(lock)
        except PodkeeperError as error:
            self._metrics.failed_with(error)
            result = RoundResult(Outcome.FAILED, one_line(error))
        except Exception as error:
            _log.error("defect while a ledger was repaired", ledger=lock.ledger_id, exc_info=error)
            self._metrics.failed_with(error)
            result = RoundResult(Outcome.FAILED, f"a defect: {error!r}")
        self._metrics.processed(loop.time() - began, success=result.outcome in (Outcome.REPAIRED, Outcome.DELETED))
        self._count(lock.ledger_id, result)
        self._doubt.ended(result)
        return result

    def _count(self, ledger_id: int, result: RoundResult) -> None:
        match result.outcome:
            case Outcome.REPAIRED:
                self.progress.ledgers_repaired += 1
            case Outcome.DELETED:
                self._metrics.deleted()
                _log.info("marked ledger is deleted", ledger=ledger_id)
            case Outcome.FAILED:
                self.progress.ledgers_failed += 1

    async def _note_failure(self, lock: LedgerLock, note: LedgerNote, result: RoundResult) -> None:
        """Tell everybody, in the ledger's mark; where that cannot be written this process rests by itself."""
        note.attempts += 1
        note.lost_entries = result.lost_entries
        rest = self._rest_after(note.attempts)
        self._metrics.deferred()
        tell = _log.error if result.lost_entries and note.attempts == 1 else _log.warning
        tell(
            "ledger is not repaired",
            ledger=note.ledger_id,
            attempts=note.attempts,
            reason=result.reason,
            retry_in=round(rest, 1),
            **({"lost_entries": list(result.lost_entries)} if result.lost_entries else {}),
        )
        failure = Failure(self._worker_id, result.trouble, 1, result.lost_entries, result.reason)
        try:
            await self._guard.note_failure(lock, failure)
        except MetadataError as error:
            _log.warning("failure is not noted", ledger=note.ledger_id, reason=str(error))
            self._marks.rest(note.ledger_id, rest)
        self.progress.enter(note, Phase.BACKING_OFF, reason=result.reason, wait=rest)


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
