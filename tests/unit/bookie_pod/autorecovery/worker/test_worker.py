"""The loop of the worker, its locks and its waiting, on an embedded metadata service.

How long a failing ledger is left alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

import pytest

from bookie_pod.autorecovery.decommission.survey import survey_unclaimed
from bookie_pod.autorecovery.worker import worker as worker_module
from bookie_pod.autorecovery.worker.ledger_repair import LedgerRepair, Outcome, RoundResult
from bookie_pod.autorecovery.worker.progress import LedgerNote, Phase, WorkerProgress
from bookie_pod.autorecovery.worker.worker import (
    SHORTEST_S,
    SICK_AFTER,
    ReplicationWorker,
    WorkerOptions,
)
from bookie_pod.metrics.autorecovery import ReplicationWorkerMetrics
from bookie_pod.metrics.registry import Registry
from bookie_protocol.errors import BookieUnavailable, MetadataUnavailable
from bookie_protocol.metadata_service.findings import ENOUGH_WORKERS, Trouble
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.under_replication import LedgerLock
from bookie_protocol.versioned import LedgerLife
from tests.support.metadata_drivers import EmbeddedUnderTest
from tests.support.until import until

REPAIRED = RoundResult(Outcome.REPAIRED)


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[EmbeddedUnderTest]:
    made = EmbeddedUnderTest(str(tmp_path))
    yield made
    await made.close()


@pytest.fixture
async def service(driver: EmbeddedUnderTest) -> MetadataService:
    made = await driver.open(timeout=4.0)
    await made.cluster.initialize()
    return made


class Repairs(LedgerRepair):
    """Repairs by two functions."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.recovered: list[int] = []
        self.waited_for: list[LedgerLife | None] = []
        self.at_once = 0
        self.most_at_once = 0
        self.how: Callable[[int], Awaitable[RoundResult]] = self._fine
        self.after_grace: Callable[[int], Awaitable[RoundResult]] = self._fine

    async def _fine(self, ledger_id: int) -> RoundResult:
        return REPAIRED

    async def repair(self, lock: LedgerLock, note: LedgerNote) -> RoundResult:
        ledger_id = lock.ledger_id
        self.begun.append(ledger_id)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return await self.how(ledger_id)
        finally:
            self.at_once -= 1

    async def recover(self, lock: LedgerLock, note: LedgerNote, life: LedgerLife | None) -> RoundResult:
        self.recovered.append(lock.ledger_id)
        self.waited_for.append(life)
        return await self.after_grace(lock.ledger_id)


async def _fail(ledger_id: int) -> RoundResult:
    return RoundResult(Outcome.FAILED, "no copy is left", (0,), Trouble.NO_COPY)


async def _unanswered(ledger_id: int) -> RoundResult:
    return RoundResult(Outcome.FAILED, "no bookie answers", (), Trouble.UNREACHABLE)


@asynccontextmanager
async def working(
    service: MetadataService,
    repairs: Repairs,
    registry: Registry | None = None,
    worker_id: str = "w1",
    **options: float,
) -> AsyncIterator[ReplicationWorker]:
    settings = {"open_ledger_grace": 0.05, "failed_ledger_backoff": 3.2, "pause_after_error": 0.05, **options}
    metrics = ReplicationWorkerMetrics(registry or Registry(), embedded=False)
    worker = ReplicationWorker(service, repairs, WorkerOptions(**settings), WorkerProgress(), metrics, worker_id)  # type: ignore[arg-type]
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def marked(service: MetadataService) -> list[int]:
    return [found.ledger_id async for found in service.under_replication.list()]


async def none_marked(service: MetadataService) -> None:
    async with asyncio.timeout(10):
        while await marked(service):  # noqa: ASYNC110 - the store of marks gives no event
            await asyncio.sleep(0.01)


async def mark(service: MetadataService, *ledger_ids: int) -> None:
    for ledger_id in ledger_ids:
        await service.under_replication.mark(ledger_id, ["gone:1"], ctime_ms=1)


class TestTaking:
    async def test_marks_go_as_ledgers_are_repaired(self, service: MetadataService) -> None:
        repairs = Repairs()
        await mark(service, *range(20))
        async with working(service, repairs) as worker:
            await none_marked(service)
            await mark(service, 77)
            await none_marked(service)
            await until(lambda: not worker.progress.notes)
            assert worker.status().ledgers_repaired == 21
        assert sorted(repairs.begun) == [*range(20), 77]
        assert await service.under_replication.locks() == {}

    async def test_so_many_at_once(self, service: MetadataService) -> None:
        repairs, gate = Repairs(), asyncio.Event()

        async def wait(ledger_id: int) -> RoundResult:
            await gate.wait()
            return REPAIRED

        repairs.how = wait
        await mark(service, *range(10))
        async with working(service, repairs, ledgers_at_once=3) as worker:
            await until(lambda: repairs.at_once == 3)
            await asyncio.sleep(0.05)
            assert len(await service.under_replication.locks()) == 3
            assert worker.progress.is_busy()
            gate.set()
            await none_marked(service)
        assert repairs.most_at_once == 3

    async def test_no_more_than_the_rate(self, service: MetadataService) -> None:
        repairs = Repairs()
        await mark(service, *range(50))
        began = time.monotonic()
        async with working(service, repairs, tasks_per_second=20.0):
            await asyncio.sleep(0.5)
            assert 1 <= len(repairs.begun) <= 4 + 20 * (time.monotonic() - began)

    async def test_nothing_while_auto_recovery_is_disabled(self, service: MetadataService) -> None:
        repairs = Repairs()
        await service.under_replication.disable()
        await mark(service, 1)
        async with working(service, repairs) as worker:
            await until(lambda: worker.progress.is_enabled is False)
            assert repairs.begun == []
            await service.under_replication.enable()
            await none_marked(service)
            await until(lambda: worker.progress.is_enabled)

    @pytest.mark.parametrize("question", ["acquire", "watch_enabled"])
    async def test_a_question_without_an_answer_ends_nothing(
        self, service: MetadataService, monkeypatch: pytest.MonkeyPatch, question: str
    ) -> None:
        silences = 0

        def silent(*asked: object) -> NoReturn:
            nonlocal silences
            silences += 1
            monkeypatch.undo()
            raise MetadataUnavailable("no answer")

        monkeypatch.setattr(service.under_replication, question, silent)
        async with working(service, Repairs()):
            await until(lambda: silences)
            await mark(service, 1)
            await none_marked(service)
        assert silences == 1

    async def test_a_mark_that_is_renewed_meanwhile_stays(self, service: MetadataService) -> None:
        repairs, again = Repairs(), iter([True])

        async def renew(ledger_id: int) -> RoundResult:
            if next(again, False):
                await service.under_replication.mark(ledger_id, ["another:1"], ctime_ms=2)
            return REPAIRED

        repairs.how = renew
        await mark(service, 1)
        async with working(service, repairs):
            await none_marked(service)
        assert repairs.begun == [1, 1]

    async def test_a_ledger_that_fails_and_is_gone_then(self, service: MetadataService) -> None:
        repairs = Repairs()
        rounds = iter((Outcome.FAILED, Outcome.FAILED, Outcome.DELETED))

        async def fails_then_gone(ledger_id: int) -> RoundResult:
            return RoundResult(next(rounds))

        repairs.how = fails_then_gone
        await mark(service, 1)
        async with working(service, repairs, failed_ledger_backoff=0.1) as worker:
            await none_marked(service)
            await until(lambda: not worker.progress.notes)
            assert repairs.begun == [1, 1, 1]

    async def test_a_mark_that_is_made_again_while_its_ledger_is_found_deleted_is_looked_at_again(
        self, service: MetadataService
    ) -> None:
        """It may be that of another ledger, which got the id meanwhile."""
        repairs = Repairs()

        async def gone(ledger_id: int) -> RoundResult:
            if repairs.begun == [1]:
                await service.under_replication.renew(1)
            return RoundResult(Outcome.DELETED)

        repairs.how = gone
        await mark(service, 1)
        async with working(service, repairs):
            await none_marked(service)
        assert repairs.begun == [1, 1]

    async def test_a_deleted_ledgers_mark_goes_and_a_withdrawn_one_stays_away(self, service: MetadataService) -> None:
        repairs = Repairs()

        async def gone(ledger_id: int) -> RoundResult:
            if ledger_id == 2:
                await service.under_replication.unmark(2)
                return RoundResult(Outcome.WITHDRAWN)
            return RoundResult(Outcome.DELETED)

        repairs.how = gone
        await mark(service, 1, 2)
        async with working(service, repairs) as worker:
            await none_marked(service)
            await until(lambda: not worker.progress.notes)
        assert sorted(repairs.begun) == [1, 2]
        assert await service.under_replication.locks() == {}


class TestFailing:
    async def test_a_failing_ledger_is_left_alone_longer_and_longer(self, service: MetadataService) -> None:
        repairs, times = Repairs(), []

        async def fail(ledger_id: int) -> RoundResult:
            times.append(asyncio.get_running_loop().time())
            return RoundResult(Outcome.FAILED, "no spare", (7, 8))

        repairs.how = fail
        await mark(service, 1)
        async with working(service, repairs) as worker:
            await until(lambda: len(times) >= 4 and worker.progress.notes[1].phase is Phase.BACKING_OFF)
            (seen,) = worker.status().ledgers
            assert (seen.reason, seen.lost_entries) == ("no spare", (7, 8))
        pauses = [after - before for before, after in pairwise(times)]
        assert [pause >= expected for pause, expected in zip(pauses, (0.1, 0.2, 0.4), strict=False)] == [True] * 3
        assert await marked(service) == [1]
        assert await service.under_replication.locks() == {}

    async def test_others_go_on_beside_it(self, service: MetadataService) -> None:
        repairs = Repairs()

        async def fail_some(ledger_id: int) -> RoundResult:
            if ledger_id % 2:
                raise BookieUnavailable("no answer")
            return REPAIRED

        repairs.how = fail_some
        await mark(service, *range(10))
        async with working(service, repairs, ledgers_at_once=1, failed_ledger_backoff=1000) as worker:
            await until(lambda: worker.progress.ledgers_repaired == 5)
            await until(lambda: sum(note.phase is Phase.BACKING_OFF for note in worker.progress.notes.values()) == 5)
            assert not worker.progress.is_busy()
            assert {seen.reason for seen in worker.status().ledgers} == {"no answer"}

    async def test_whoever_needs_its_lock_gets_it(self, service: MetadataService) -> None:
        """Be it to find that nothing can be moved; and no proof waits for a lock under which nobody does anything."""
        repairs = Repairs()
        repairs.how = _fail
        await mark(service, 1)
        async with working(service, repairs, failed_ledger_backoff=1000) as worker:
            await until(lambda: worker.progress.notes and worker.progress.notes[1].phase is Phase.BACKING_OFF)
            async with asyncio.timeout(5):
                while await service.under_replication.locked_by(1) is not None:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            found, locked = await survey_unclaimed(service, "other:1", 0.0)
            assert (found.left(), locked) == (set(), frozenset())
            mine = await service.under_replication.lock(1)
            await service.under_replication.release(mine)
            await mark(service, 2)
            await until(lambda: 2 in repairs.begun)
            assert repairs.begun == [1, 2], "it backs off all the same"
            assert worker.progress.notes[1].phase is Phase.BACKING_OFF

    async def test_no_other_worker_tries_it_while_an_entry_has_no_copy(
        self, driver: EmbeddedUnderTest, service: MetadataService
    ) -> None:
        """Nor does a process that begins anew."""
        repairs, others = Repairs(), Repairs()
        repairs.how = _fail
        await mark(service, 1)
        async with working(service, repairs, failed_ledger_backoff=1000) as worker:
            await until(lambda: worker.progress.notes and worker.progress.notes[1].phase is Phase.BACKING_OFF)
        async with working(await driver.open(timeout=4.0), others, worker_id="w2", failed_ledger_backoff=1000):
            await mark(service, 2)
            await until(lambda: others.begun == [2])
            await mark(service, 3)
            await until(lambda: others.begun == [2, 3])

    async def test_others_try_at_once_what_may_be_the_workers_own_trouble(
        self, driver: EmbeddedUnderTest, service: MetadataService
    ) -> None:
        sick, well = Repairs(), Repairs()
        sick.how = _unanswered
        await mark(service, *range(5))
        async with working(service, sick, failed_ledger_backoff=1000, ledgers_at_once=1):
            await until(lambda: len(sick.begun) == 5)
            async with working(await driver.open(timeout=4.0), well, worker_id="w2", failed_ledger_backoff=1000):
                await none_marked(service)
        assert sorted(well.begun) == list(range(5))

    async def test_what_many_workers_failed_at_rests(self, driver: EmbeddedUnderTest, service: MetadataService) -> None:
        """A cluster without a spare bookie is the trouble of no worker."""
        await mark(service, 1)
        workers = [Repairs() for _ in range(ENOUGH_WORKERS + 2)]
        async with AsyncExitStack() as stack:
            for number, repairs in enumerate(workers):
                repairs.how = _unanswered
                other = await driver.open(timeout=4.0)
                await stack.enter_async_context(
                    working(other, repairs, worker_id=f"w{number}", failed_ledger_backoff=1000)
                )
            await until(lambda: sum(len(each.begun) for each in workers) == ENOUGH_WORKERS)
            await asyncio.sleep(0.2)
        assert sum(len(each.begun) for each in workers) == ENOUGH_WORKERS

    async def test_a_worker_to_which_no_bookie_answers_slows_down_and_says_so(self, service: MetadataService) -> None:
        repairs = Repairs()
        repairs.how = _unanswered
        await mark(service, *range(SICK_AFTER + 5))
        async with working(service, repairs, failed_ledger_backoff=1000, ledgers_at_once=1) as worker:
            await until(lambda: len(repairs.begun) >= SICK_AFTER)
            await until(lambda: worker.complaint() is not None)
            begun = len(repairs.begun)
            await asyncio.sleep(0.3)
            assert len(repairs.begun) <= begun + 1
            assert worker.rounds_without_an_answer >= SICK_AFTER
            repairs.how = repairs._fine
            await until(lambda: worker.complaint() is None)
            assert worker.rounds_without_an_answer == 0

    async def test_it_is_tried_again_when_its_time_has_come(self, service: MetadataService) -> None:
        """Though nothing changes in the metadata service that would tell of it."""
        repairs = Repairs()
        repairs.how = _fail
        await mark(service, 1)
        async with working(service, repairs):
            await until(lambda: len(repairs.begun) >= 4)

    async def test_however_many_back_off_others_have_their_turn(
        self, service: MetadataService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(worker_module, "MAX_LEDGERS", 3)
        repairs = Repairs()

        async def fail_some(ledger_id: int) -> RoundResult:
            return await _fail(ledger_id) if ledger_id < 9 else REPAIRED

        repairs.how = fail_some
        await mark(service, *range(9))
        async with working(service, repairs, failed_ledger_backoff=1000) as worker:
            await until(lambda: sorted(repairs.begun) == list(range(9)))
            await mark(service, 9)
            await until(lambda: worker.progress.ledgers_repaired == 1)
            assert sorted(repairs.begun) == list(range(10)), "each backs off all the same"

    async def test_more_than_can_rest_are_no_hot_loop(
        self, service: MetadataService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(service.under_replication._locks._resting, "_most", 3)
        repairs, began = Repairs(), list[float]()

        async def fail(ledger_id: int) -> RoundResult:
            began.append(asyncio.get_running_loop().time())
            return await _fail(ledger_id)

        repairs.how = fail
        await mark(service, *range(4))
        async with working(service, repairs, failed_ledger_backoff=1000, ledgers_at_once=1):
            await until(lambda: len(began) >= 9)
        assert began[8] - began[3] >= 4 * SHORTEST_S

    async def test_a_defect_costs_one_round(self, service: MetadataService) -> None:
        repairs, registry = Repairs(), Registry()

        async def defect(ledger_id: int) -> RoundResult:
            if len(repairs.begun) == 1:
                raise KeyError("who did this")
            return REPAIRED

        repairs.how = defect
        await mark(service, 1)
        async with working(service, repairs, registry):
            await none_marked(service)
        assert "replication_worker_exceptions_KeyError 1" in registry.render()


class TestOpenLedgers:
    async def test_the_writer_has_its_time_and_takes_no_place(self, service: MetadataService) -> None:
        repairs, grace = Repairs(), 0.3

        async def open_one(ledger_id: int) -> RoundResult:
            return RoundResult(Outcome.OPEN, "a bookie is gone") if ledger_id == 1 else REPAIRED

        repairs.how = open_one
        await mark(service, 1)
        async with working(service, repairs, ledgers_at_once=1, open_ledger_grace=grace) as worker:
            await until(lambda: worker.progress.notes and worker.progress.notes[1].phase is Phase.WAITING_FOR_WRITER)
            (seen,) = worker.status().ledgers
            assert seen.retry_in is not None
            assert 0 < seen.retry_in <= grace
            await mark(service, 2)
            await until(lambda: 2 in repairs.begun)
            assert repairs.recovered == []
            assert await service.under_replication.locked_by(1) is not None
            await none_marked(service)
        assert (repairs.begun, repairs.recovered) == ([1, 2], [1])

    async def test_nobody_is_fenced_while_auto_recovery_is_disabled(self, service: MetadataService) -> None:
        repairs = Repairs()

        async def open_one(ledger_id: int) -> RoundResult:
            await service.under_replication.disable()
            return RoundResult(Outcome.OPEN, "a bookie is gone")

        repairs.how = open_one
        await mark(service, 1)
        async with working(service, repairs) as worker:
            await until(lambda: repairs.begun and not worker.progress.notes)
            assert repairs.recovered == []
        assert await marked(service) == [1]
        assert await service.under_replication.locks() == {}

    async def test_nor_while_nobody_can_tell_whether_it_is(
        self, service: MetadataService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        repairs = Repairs()

        async def silent() -> bool:
            raise MetadataUnavailable("no answer")

        async def open_one(ledger_id: int) -> RoundResult:
            monkeypatch.setattr(service.under_replication, "is_enabled", silent)
            return RoundResult(Outcome.OPEN, "a bookie is gone")

        repairs.how = open_one
        await mark(service, 1)
        async with working(service, repairs, failed_ledger_backoff=1000) as worker:
            await until(lambda: worker.progress.notes and worker.progress.notes[1].phase is Phase.BACKING_OFF)
            assert worker.progress.notes[1].reason == "no answer"
        assert repairs.recovered == []

    async def test_a_recovery_that_fails_backs_off(self, service: MetadataService) -> None:
        repairs = Repairs()

        async def still_open(ledger_id: int) -> RoundResult:
            return RoundResult(Outcome.OPEN, "still open")

        repairs.how = repairs.after_grace = still_open
        await mark(service, 1)
        async with working(service, repairs, failed_ledger_backoff=1000) as worker:
            await until(lambda: worker.progress.notes and worker.progress.notes[1].phase is Phase.BACKING_OFF)
        assert repairs.recovered == [1]

    async def test_the_next_ledger_of_the_id_has_the_same_time(self, service: MetadataService) -> None:
        repairs, lives = Repairs(), [LedgerLife(1, 0, token) for token in (1, 2)]

        async def open_one(ledger_id: int) -> RoundResult:
            return RoundResult(Outcome.OPEN, "a bookie is gone", life=lives[0])

        async def next_one(ledger_id: int) -> RoundResult:
            return REPAIRED if len(repairs.recovered) > 1 else RoundResult(Outcome.OPEN, "another one", life=lives[1])

        repairs.how, repairs.after_grace = open_one, next_one
        await mark(service, 1)
        async with working(service, repairs, failed_ledger_backoff=1000):
            await none_marked(service)
        assert (repairs.begun, repairs.recovered, repairs.waited_for) == ([1], [1, 1], lives)


class TestLocks:
    async def test_whatever_a_worker_does_when_it_is_stopped_its_locks_go(self, service: MetadataService) -> None:
        """Stopped while it looks for work, locks, checks, waits for a writer or backs off."""
        outcomes = [REPAIRED, RoundResult(Outcome.OPEN, "open"), RoundResult(Outcome.FAILED, "failed")]
        for turns in range(0, 60, 2):
            repairs = Repairs()

            async def some(ledger_id: int) -> RoundResult:
                await asyncio.sleep(0)
                return outcomes[ledger_id % 3]

            repairs.how = some
            await mark(service, *range(6))
            async with working(service, repairs, ledgers_at_once=2, open_ledger_grace=10):
                for _ in range(turns):
                    await asyncio.sleep(0.0005)
            async with asyncio.timeout(5):
                while await service.under_replication.locks():  # noqa: ASYNC110
                    await asyncio.sleep(0.05)

    async def test_an_expired_session_leaves_nothing_behind(
        self, driver: EmbeddedUnderTest, service: MetadataService
    ) -> None:
        """What the worker goes on with afterwards does no harm: another one may have the lock."""
        repairs, gate = Repairs(), asyncio.Event()

        async def wait(ledger_id: int) -> RoundResult:
            await gate.wait()
            return REPAIRED

        repairs.how = wait
        other = await driver.open()
        await mark(service, 1)
        async with working(service, repairs, ledgers_at_once=1):
            await until(lambda: repairs.begun == [1])
            await driver.expire(service)
            async with asyncio.timeout(10):
                lock = await other.under_replication.acquire()
            gate.set()
            await asyncio.sleep(0.1)
            assert await other.under_replication.locked_by(1) is not None
            await other.under_replication.release(lock)

    async def test_nothing_is_begun_under_a_lock_that_has_ended(
        self, driver: EmbeddedUnderTest, service: MetadataService, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its session ended while the ledger's writer had time: another worker has the ledger by now."""
        repairs = Repairs()

        async def never(rests: object) -> None:
            await asyncio.Event().wait()

        async def open_one(ledger_id: int) -> RoundResult:
            # The worker looks for more work while this ledger's writer has time: it must not be the one that finds it.
            monkeypatch.setattr(service.under_replication, "acquire", never)
            return RoundResult(Outcome.OPEN, "a bookie is gone")

        repairs.how = open_one
        other = await driver.open()
        await mark(service, 1)
        rests = {"open_ledger_grace": 1.0, "failed_ledger_backoff": 1000}
        async with working(service, repairs, ledgers_at_once=1, **rests) as worker:
            await until(lambda: worker.progress.notes and worker.progress.notes[1].phase is Phase.WAITING_FOR_WRITER)
            await driver.expire(service)
            lock = await other.under_replication.lock(1)
            await service.session.wait_connected()
            await until(lambda: worker.progress.notes[1].phase is Phase.BACKING_OFF)
            assert (repairs.begun, repairs.recovered) == ([1], [])
            await other.under_replication.release(lock)


def test_rests_double_up_to_the_full_one_and_none_is_a_hot_loop(service: MetadataService) -> None:
    def rests(longest: float) -> list[float]:
        options = WorkerOptions(failed_ledger_backoff=longest)
        metrics = ReplicationWorkerMetrics(Registry(), embedded=False)
        worker = ReplicationWorker(service, Repairs(), options, WorkerProgress(lambda: 0.0), metrics, "w1")
        return [worker._rest_after(times) for times in range(1, 9)]

    assert rests(320.0) == [10, 20, 40, 80, 160, 320, 320, 320]
    assert set(rests(0.0)) == {SHORTEST_S}
