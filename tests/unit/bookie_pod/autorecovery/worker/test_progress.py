"""What a worker shows of its work."""

from __future__ import annotations

import math

import pytest

from bookie_pod.autorecovery.worker import progress as progress_module
from bookie_pod.autorecovery.worker.progress import (
    SHOWN_AFTER_S,
    LedgerProgress,
    Phase,
    Rate,
    WorkerProgress,
    WorkerStatus,
)
from bookie_protocol.metadata_service.findings import Failure, Trouble
from tests.support.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


@pytest.fixture
def progress(clock: Clock) -> WorkerProgress:
    return WorkerProgress(clock)


def test_a_snapshot_of_each_ledger_in_order(progress: WorkerProgress, clock: Clock) -> None:
    progress.begin(9)
    note = progress.begin(3)
    note.take([Failure("a", Trouble.OTHER, 1), Failure("b", Trouble.NO_COPY, 2, (7,), "no copy")])
    assert (note.reason, note.lost_entries) == ("no copy", (7,))
    progress.enter(note, Phase.BACKING_OFF, reason="no spare", wait=30.0)
    clock.now += 10
    status = progress.status()
    assert [each.ledger_id for each in status.ledgers] == [3, 9]
    assert (status.ledgers[0].seconds, status.ledgers[0].retry_in, status.ledgers[0].attempts) == (10, 20, 2)
    assert (status.ledgers[1].phase, status.ledgers[1].retry_in) == (Phase.CHECKING, None)
    progress.end(note)
    assert [each.ledger_id for each in status.ledgers] == [3, 9], "a snapshot does not change"
    assert [each.ledger_id for each in progress.status().ledgers] == [9]


def test_ledgers_that_rest_are_shown_for_a_while(
    progress: WorkerProgress, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_module, "MAX_RESTING_SHOWN", 2)
    for ledger_id in (1, 2, 3):
        note = progress.begin(ledger_id)
        progress.enter(note, Phase.BACKING_OFF, wait=30.0)
        progress.end(note, keep=True)
    assert list(progress.notes) == [2, 3], "of too many the first is not shown any more"
    clock.now += 30 + SHOWN_AFTER_S + 1
    progress.end(progress.begin(4))
    assert list(progress.notes) == [], "another worker has them by now"


def test_the_next_phase_forgets_the_wait_and_keeps_the_reason(progress: WorkerProgress) -> None:
    note = progress.begin(3)
    progress.enter(note, Phase.WAITING_FOR_WRITER, reason="a is gone", wait=30.0)
    progress.enter(note, Phase.CHECKING)
    (seen,) = progress.status().ledgers
    assert (seen.reason, seen.retry_in) == ("a is gone", None)


@pytest.mark.parametrize("phase", list(Phase))
def test_waiting_is_no_work(progress: WorkerProgress, phase: Phase) -> None:
    assert not progress.is_busy()
    progress.enter(progress.begin(3), phase)
    assert progress.is_busy() is (phase not in (Phase.WAITING_FOR_WRITER, Phase.BACKING_OFF))


def test_the_rate_comes_near_what_is_copied_and_fades(progress: WorkerProgress, clock: Clock) -> None:
    note = progress.begin(3)
    for _ in range(300):
        clock.now += 1
        progress.copied(note, 10, 5000)
    assert progress.status().bytes_per_second == pytest.approx(5000, rel=0.05)
    assert (note.entries_copied, progress.status().bytes_copied) == (3000, 1_500_000)
    assert progress.moved_at == clock.now
    clock.now += 300
    assert progress.status().bytes_per_second < 1


def test_a_snapshot_has_all_that_was_noted(progress: WorkerProgress, clock: Clock) -> None:
    assert progress.status() == WorkerStatus(False, (), 0, 0, 0, 0, 0, 0.0, None)
    note = progress.begin(3)
    note.bad_fragments, note.done_fragments, note.entries_to_copy, note.lost_entries = 4, 2, 100, (7, 8)
    progress.copied(note, 10, 500)
    progress.enter(note, Phase.BACKING_OFF, reason="why", wait=5.0)
    clock.now += 9
    (seen,) = progress.status().ledgers
    assert seen == LedgerProgress(3, Phase.BACKING_OFF, 9.0, 4, 2, 10, 100, 500, 0, "why", (7, 8), 0.0)
    clock.now = 0  # no time is less than none
    assert progress.status().ledgers[0].seconds == 0
    progress.is_running, progress.is_enabled = True, False
    progress.ledgers_repaired, progress.ledgers_failed, progress.ledgers_recovered = 5, 6, 7
    status = progress.status()
    assert (status.is_running, status.is_enabled, status.entries_copied, status.bytes_copied) == (True, False, 10, 500)
    assert (status.ledgers_repaired, status.ledgers_failed, status.ledgers_recovered) == (5, 6, 7)


def test_whatever_goes_on_moves_it(progress: WorkerProgress, clock: Clock) -> None:
    moved = []
    note = progress.begin(3)
    for step in (
        lambda: progress.begin(4),
        lambda: progress.enter(note, Phase.COPYING),
        lambda: progress.copied(note, 1, 1),
        lambda: progress.end(note),
        lambda: progress.end(note),
    ):
        clock.now += 1
        step()
        moved.append(progress.moved_at)
    assert moved == [101, 102, 103, 104, 105]


def test_a_rate_fades_by_its_time_constant(clock: Clock) -> None:
    rate = Rate(clock, 10.0)
    rate.add(1000)
    assert rate.value == 100
    clock.now += 10
    assert rate.value == pytest.approx(100 / math.e)
    rate.add(1000)
    assert rate.value == pytest.approx(100 / math.e + 100)
