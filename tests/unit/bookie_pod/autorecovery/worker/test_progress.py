"""What a worker shows of its work."""

from __future__ import annotations

import pytest

from bookie_pod.autorecovery.worker.progress import Phase, WorkerProgress
from tests.support.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


@pytest.fixture
def progress(clock: Clock) -> WorkerProgress:
    return WorkerProgress(clock)


def test_a_snapshot_of_each_ledger_in_order(progress: WorkerProgress, clock: Clock) -> None:
    progress.begin(9, 0)
    note = progress.begin(3, 2)
    progress.enter(note, Phase.BACKING_OFF, reason="no spare", wait=30.0)
    clock.now += 10
    status = progress.status()
    assert [each.ledger_id for each in status.ledgers] == [3, 9]
    assert (status.ledgers[0].seconds, status.ledgers[0].retry_in, status.ledgers[0].attempts) == (10, 20, 2)
    assert (status.ledgers[1].phase, status.ledgers[1].retry_in) == (Phase.CHECKING, None)
    progress.end(3)
    assert [each.ledger_id for each in status.ledgers] == [3, 9], "a snapshot does not change"
    assert [each.ledger_id for each in progress.status().ledgers] == [9]


def test_the_next_phase_forgets_the_wait_and_keeps_the_reason(progress: WorkerProgress) -> None:
    note = progress.begin(3, 0)
    progress.enter(note, Phase.WAITING_FOR_WRITER, reason="a is gone", wait=30.0)
    progress.enter(note, Phase.CHECKING)
    (seen,) = progress.status().ledgers
    assert (seen.reason, seen.retry_in) == ("a is gone", None)


@pytest.mark.parametrize("phase", list(Phase))
def test_waiting_is_no_work(progress: WorkerProgress, phase: Phase) -> None:
    assert not progress.is_busy()
    progress.enter(progress.begin(3, 0), phase)
    assert progress.is_busy() is (phase not in (Phase.WAITING_FOR_WRITER, Phase.BACKING_OFF))


def test_the_rate_comes_near_what_is_copied_and_fades(progress: WorkerProgress, clock: Clock) -> None:
    note = progress.begin(3, 0)
    for _ in range(300):
        clock.now += 1
        progress.copied(note, 10, 5000)
    assert progress.status().bytes_per_second == pytest.approx(5000, rel=0.05)
    assert (note.entries_copied, progress.status().bytes_copied) == (3000, 1_500_000)
    assert progress.moved_at == clock.now
    clock.now += 300
    assert progress.status().bytes_per_second < 1
