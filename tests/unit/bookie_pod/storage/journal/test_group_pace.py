"""When groups grow, how far, and that they shrink again."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_pod.metrics.journal import FlushReason, JournalMetrics
from bookie_pod.metrics.registry import Registry
from bookie_pod.storage.journal import batch_queue
from bookie_pod.storage.journal.batch import JournalBatch
from bookie_pod.storage.journal.batch_queue import BatchQueue
from bookie_pod.storage.journal.group_commit import MANY_ENTRIES, flush_reason
from bookie_pod.storage.journal.group_pace import LONGEST_WAIT_MS, GroupPace
from bookie_pod.storage.journal.options import JournalOptions

BUSY_MS = 1.5
IDLE_MS = 0.1


def paced(options: JournalOptions, *late_ms: float) -> float:
    pace = GroupPace(options)
    for each in late_ms:
        pace.woke(each)
    return pace.stretch


def test_beside_a_loop_with_time_to_spare_groups_are_as_configured() -> None:
    assert paced(JournalOptions(), *[IDLE_MS] * 1000) == 1


def test_beside_a_loop_that_is_always_busy_they_wait_longer() -> None:
    stretch = paced(JournalOptions(), *[BUSY_MS] * 100)
    assert stretch * JournalOptions().max_group_wait_ms == pytest.approx(8 * BUSY_MS, rel=0.01)


@pytest.mark.parametrize("late_ms", [BUSY_MS, 10_000.0])
def test_beside_a_loop_that_is_busy_half_of_the_time_they_are_as_configured(late_ms: float) -> None:
    """However late the thread was when it was: its clients would wait longer, and nothing would be gained."""
    pace = GroupPace(JournalOptions())
    for number in range(1000):
        pace.woke(late_ms if number % 5 < 2 else IDLE_MS)
        assert pace.stretch == 1
    for _ in range(30):
        pace.woke(BUSY_MS)
    assert pace.stretch > 2


def test_they_shrink_when_there_is_time_again() -> None:
    assert paced(JournalOptions(), *[BUSY_MS] * 100, *[IDLE_MS] * 60) == 1


def test_one_late_wake_up_changes_little() -> None:
    assert paced(JournalOptions(), *[IDLE_MS] * 100, 10_000) < 1.5


@given(
    late=st.lists(st.floats(0, 1e6), max_size=60),
    wait=st.sampled_from([-1, 0, 0.5, 2, 15.9, 16, 100]),
    adapts=st.booleans(),
    at_once=st.booleans(),
)
def test_the_wait_stays_within_its_bounds(late: list[float], wait: float, adapts: bool, at_once: bool) -> None:
    options = JournalOptions(max_group_wait_ms=wait, adaptive_groups=adapts, flush_when_queue_empty=at_once)
    stretch = paced(options, *late)
    assert stretch >= 1
    assert wait * stretch <= max(wait, LONGEST_WAIT_MS)
    if not (adapts and options.waits_for_group):
        assert stretch == 1


def test_wait_and_thresholds_grow_together() -> None:
    options = JournalOptions(group_entries=100)
    for entries, nbytes, age_ms in ((101, 1, 0.0), (1, options.group_bytes + 1, 0.0), (MANY_ENTRIES, 1, 2.0)):
        assert flush_reason(options, entries, nbytes, age_ms) is not None
        assert flush_reason(options, entries, nbytes, age_ms, 4.0) is None
        assert flush_reason(options, 4 * entries, 4 * nbytes, 4 * age_ms, 4.0) is not None


def test_few_records_wait_no_longer_than_ever() -> None:
    assert flush_reason(JournalOptions(), MANY_ENTRIES - 1, 1, 2.0, 8.0) is FlushReason.MAX_WAIT


class _LateWaits:
    """A clock, and an event whose timed waits end so late. Nothing else moves the clock."""

    def __init__(self, late_s: float) -> None:
        self.now = 1000.0
        self.late_s = late_s
        self.waits: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds + self.late_s

    def clear(self) -> None:
        pass

    def set(self) -> None:
        pass


@pytest.mark.parametrize(
    ("late_ms", "entries", "longest_ms"),
    [(BUSY_MS, MANY_ENTRIES, 8 * BUSY_MS), (BUSY_MS, MANY_ENTRIES - 1, 2.0), (IDLE_MS, MANY_ENTRIES, 2.0)],
)
def test_the_queue_waits_as_long_as_its_thread_is_late(
    late_ms: float, entries: int, longest_ms: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = _LateWaits(late_ms / 1000)
    monkeypatch.setattr(batch_queue, "time", late)
    queue = BatchQueue(JournalOptions(), JournalMetrics(Registry(), 0))
    monkeypatch.setattr(queue, "_wake", late)
    for _ in range(200):
        queue.append(JournalBatch([b"x"], entries, 1, True, None))
        assert queue.wait_for_group(lambda: False, lambda: 1.0) is FlushReason.MAX_WAIT
        assert len(queue.take_group(late.now)) == 1
    assert late.waits[0] == pytest.approx(0.002)
    assert late.waits[-1] == pytest.approx(longest_ms / 1000, rel=0.01)


def test_who_comes_alone_does_not_wait_and_groups_are_no_more_than_before(monkeypatch: pytest.MonkeyPatch) -> None:
    late = _LateWaits(1e-6)
    monkeypatch.setattr(batch_queue, "time", late)
    queue = BatchQueue(JournalOptions(), JournalMetrics(Registry(), 0))
    monkeypatch.setattr(queue, "_wake", late)
    left: list[float] = []
    for pause_ms in (0.0, 0.5, 1.9, 2.1, 10.0, 0.0, 0.0):
        late.now += pause_ms / 1000
        came = late.now
        queue.append(JournalBatch([b"x"], 1, 1, True, None))
        assert queue.wait_for_group(lambda: False, lambda: 1.0) is FlushReason.MAX_WAIT
        assert late.now - came == pytest.approx(max(0.0, 0.002 - (came - left[-1])) if left else 0.0, abs=1e-5)
        left.append(late.now)
        assert len(queue.take_group(late.now)) == 1
    assert all(after - before >= 0.002 for before, after in pairwise(left))


def test_a_thread_that_a_threshold_woke_is_late_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    late = _LateWaits(0.0)
    monkeypatch.setattr(batch_queue, "time", late)
    options = JournalOptions(group_bytes=10)
    queue = BatchQueue(options, JournalMetrics(Registry(), 0))

    def woken_by_a_large_batch(seconds: float) -> None:
        queue.append(JournalBatch([b"x" * 100], 1, 100, True, None))
        late.now += 0.0032

    monkeypatch.setattr(late, "wait", woken_by_a_large_batch)
    monkeypatch.setattr(queue, "_wake", late)
    seen: list[float] = []
    monkeypatch.setattr(queue.pace, "woke", seen.append)
    queue.take_group(late.now)
    queue.append(JournalBatch([b"x"], 1, 1, True, None))
    assert queue.wait_for_group(lambda: False, lambda: 1.0) is not None
    assert seen == [pytest.approx(3.2)]
