"""How long the worker leaves ledgers alone, and how fast it takes them; on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from bookie_pod.autorecovery.worker.progress import LedgerNote, Phase, WorkerProgress
from bookie_pod.autorecovery.worker.worker import (
    Outcome,
    ReplicationWorker,
    RoundResult,
    WorkerOptions,
    _Pauses,
    _Place,
)
from bookie_protocol.errors import BookieUnavailable, MetadataUnavailable
from bookie_protocol.metadata_service.subscription import Subscription
from bookie_protocol.metadata_service.under_replication import LedgerLock
from tests.support.virtual_loop import on_a_virtual_clock


def test_of_too_many_pauses_the_one_ends_that_would_end_first() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        pauses = _Pauses(2)
        ended: dict[str, float] = {}

        async def pause(name: str, seconds: float) -> None:
            await pauses.pause(seconds)
            ended[name] = loop.time()

        assert not pauses.are_many
        tasks = [asyncio.create_task(pause("long", 10))]
        await asyncio.sleep(1)
        assert not pauses.are_many
        tasks.append(asyncio.create_task(pause("short", 5)))
        await asyncio.sleep(1)
        assert (pauses.are_many, ended) == (True, {})
        tasks.append(asyncio.create_task(pause("middle", 7)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert ended == {"short": 2}
        assert pauses.are_many
        await asyncio.sleep(7.5)  # until 9.5
        assert ended == {"short": 2, "middle": 9}
        assert not pauses.are_many, "those that are over do not count"
        tasks.append(asyncio.create_task(pause("shortest", 0)))
        await asyncio.gather(*tasks)
        assert ended == {"short": 2, "middle": 9, "shortest": 9.5, "long": 10}

    on_a_virtual_clock(main())


def test_a_pause_that_is_cut_short_leaves_no_timer() -> None:
    async def main() -> None:
        pauses = _Pauses(10)
        running = asyncio.create_task(pauses.pause(3600))
        await asyncio.sleep(1)
        running.cancel()
        await asyncio.wait([running])
        (pause,) = pauses._ends
        assert pause[2].cancelled()
        assert not pauses.are_many
        assert pauses._ends == []

    on_a_virtual_clock(main())


def test_a_place_is_given_back_once() -> None:
    async def main() -> None:
        places = asyncio.Semaphore(1)
        place = _Place(places)
        place.leave()
        assert not places.locked()
        await place.enter()
        assert places.locked()
        place.leave()
        place.leave()
        await places.acquire()
        assert places.locked()
        held = _Place(places, held=True)
        held.leave()
        assert not places.locked()

    on_a_virtual_clock(main())


class Marks:
    """Gives locks; what it raises comes first."""

    def __init__(self) -> None:
        self.raises: list[Exception] = []
        self.taken: list[float] = []
        self.takes = 0.0
        self.released: list[int] = []

    async def acquire(self) -> LedgerLock:
        await asyncio.sleep(self.takes)
        if self.raises:
            raise self.raises.pop()
        self.taken.append(asyncio.get_running_loop().time())
        return LedgerLock(len(self.taken), 0, 1)

    async def release(self, lock: LedgerLock) -> None:
        self.released.append(lock.ledger_id)


def a_worker(marks: Marks, **options: float) -> tuple[ReplicationWorker, list[BaseException]]:
    failures: list[BaseException] = []
    service: Any = SimpleNamespace(under_replication=marks)
    metrics: Any = SimpleNamespace(failed_with=failures.append)
    repair: Any = None
    made = ReplicationWorker(service, repair, WorkerOptions(**options), WorkerProgress(), metrics)  # type: ignore[arg-type]
    return made, failures


def test_ledgers_are_taken_at_the_rate_and_nothing_is_saved_up() -> None:
    async def main() -> None:
        marks = Marks()
        worker, _ = a_worker(marks, tasks_per_second=2.0)
        for _ in range(3):
            await worker._take()
        await asyncio.sleep(10)
        for _ in range(3):
            await worker._take()
        assert marks.taken == [0, 0.5, 1.0, 11.0, 11.5, 12.0]
        unlimited, _ = a_worker(marks)
        for _ in range(3):
            await unlimited._take()
        assert marks.taken[6:] == [12.0] * 3

    on_a_virtual_clock(main())


@pytest.mark.parametrize(("pause", "waits"), [(5.0, 5.0), (0.0, 0.1)])
def test_who_gets_no_ledger_asks_again_after_a_pause(pause: float, waits: float) -> None:
    async def main() -> None:
        marks = Marks()
        errors: list[Exception] = [MetadataUnavailable("first"), MetadataUnavailable("second")]
        marks.raises = list(errors)
        worker, failures = a_worker(marks, pause_after_error=pause)
        lock = await worker._take()
        assert (lock.ledger_id, marks.taken) == (1, [2 * waits])
        assert failures == errors[::-1]

    on_a_virtual_clock(main())


@pytest.mark.parametrize("how", ["taken", "fails", "waits"])
def test_a_ledger_that_is_taken_in_the_moment_of_the_end_is_given_back(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        marks = Marks()
        worker, _ = a_worker(marks)
        given_back: list[int] = []

        async def give_back(lock: LedgerLock) -> None:
            given_back.append(lock.ledger_id)

        monkeypatch.setattr(worker._keeper, "give_back", give_back)
        gate = asyncio.Event()

        async def acquire() -> LedgerLock:
            try:
                await gate.wait()
            except asyncio.CancelledError:
                if how == "waits":
                    raise
            if how == "fails":
                raise MetadataUnavailable("no answer")
            return LedgerLock(7, 0, 1)

        monkeypatch.setattr(marks, "acquire", acquire)
        taking = asyncio.create_task(worker._acquire())
        await asyncio.sleep(1)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        assert given_back == ([7] if how == "taken" else [])

    on_a_virtual_clock(main())


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (BookieUnavailable("nobody answers"), "nobody answers"),
        (ZeroDivisionError("by zero"), "a defect: ZeroDivisionError('by zero')"),
    ],
)
def test_a_round_that_fails_is_counted_and_told(raised: Exception, reason: str) -> None:
    async def main() -> None:
        worker, failures = a_worker(Marks())
        processed: list[tuple[float, bool]] = []
        metrics: Any = worker._metrics
        metrics.processed = lambda seconds, success: processed.append((seconds, success))

        async def work(lock: LedgerLock, note: LedgerNote) -> RoundResult:
            assert note.phase is Phase.CHECKING
            await asyncio.sleep(3)
            raise raised

        note = worker.progress.begin(7, 0)
        note.phase = Phase.BACKING_OFF
        assert await worker._round(LedgerLock(7, 0, 1), note, work) == RoundResult(Outcome.FAILED, reason)
        assert (failures, processed, worker.progress.ledgers_failed) == ([raised], [(3, False)], 1)

    on_a_virtual_clock(main())


@pytest.mark.parametrize(("pause", "waits"), [(5.0, 5.0), (0.0, 1.0)])
def test_whether_it_is_enabled_is_followed_again_after_a_pause(pause: float, waits: float) -> None:
    async def main() -> None:
        marks: Any = Marks()
        followed: list[float] = []
        answers: list[list[bool] | None] = [None, [True, False], None, [True]]

        def watch() -> Subscription[bool]:
            async def feed(publish: Callable[[bool], None]) -> None:
                followed.append(asyncio.get_running_loop().time())
                values = answers.pop(0)
                if values is None:
                    raise MetadataUnavailable("no answer")
                for value in values:
                    publish(value)
                    await asyncio.sleep(0.25)

            return Subscription(feed)

        marks.watch_enabled = watch
        worker, _ = a_worker(marks, pause_after_error=pause)
        following = asyncio.create_task(worker._follow_enabled())
        seen = [worker.status().is_enabled]
        for _ in range(2):
            await asyncio.sleep(waits + 0.1)
            seen.append(worker.status().is_enabled)
            await asyncio.sleep(0.4)
            seen.append(worker.status().is_enabled)
            await asyncio.sleep(waits)
        assert seen[:3] == [None, True, False]
        assert followed[:3] == [0.0, waits, 2 * waits + 0.5]
        following.cancel()

    on_a_virtual_clock(main())
