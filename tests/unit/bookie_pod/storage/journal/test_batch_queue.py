"""When groups grow, how far, and that they shrink again."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_pod.config.sections.journal import JournalConfig
from bookie_pod.metrics.journal import FlushReason, JournalMetrics
from bookie_pod.metrics.registry import Registry
from bookie_pod.storage.journal import batch_queue
from bookie_pod.storage.journal.batch_queue import (
    LONGEST_WAIT_MS,
    MANY_ENTRIES,
    BatchQueue,
    GroupPace,
    JournalBatch,
    flush_reason,
    slices,
)
from tests.support.journal_rig import FOREVER, JournalRig, an_add, records_of, small_options
from tests.support.memory_files import MemoryFiles

BUSY_MS = 1.5
IDLE_MS = 0.1


def paced(options: JournalConfig, *late_ms: float) -> float:
    pace = GroupPace(options)
    for each in late_ms:
        pace.woke(each)
    return pace.stretch


def test_beside_a_loop_with_time_to_spare_groups_are_as_configured() -> None:
    assert paced(JournalConfig(), *[IDLE_MS] * 1000) == 1


def test_beside_a_loop_that_is_always_busy_they_wait_longer() -> None:
    stretch = paced(JournalConfig(), *[BUSY_MS] * 100)
    assert stretch * JournalConfig().max_group_wait_ms == pytest.approx(8 * BUSY_MS, rel=0.01)


@pytest.mark.parametrize("late_ms", [BUSY_MS, 10_000.0])
def test_beside_a_loop_that_is_busy_half_of_the_time_they_are_as_configured(late_ms: float) -> None:
    """However late the thread was when it was: its clients would wait longer, and nothing would be gained."""
    pace = GroupPace(JournalConfig())
    for number in range(1000):
        pace.woke(late_ms if number % 5 < 2 else IDLE_MS)
        assert pace.stretch == 1
    for _ in range(30):
        pace.woke(BUSY_MS)
    assert pace.stretch > 2


def test_they_shrink_when_there_is_time_again() -> None:
    assert paced(JournalConfig(), *[BUSY_MS] * 100, *[IDLE_MS] * 60) == 1


def test_one_late_wake_up_changes_little() -> None:
    assert paced(JournalConfig(), *[IDLE_MS] * 100, 10_000) < 1.5


@given(
    late=st.lists(st.floats(0, 1e6), max_size=60),
    wait=st.sampled_from([-1, 0, 0.5, 2, 15.9, 16, 100]),
    adapts=st.booleans(),
    at_once=st.booleans(),
)
def test_the_wait_stays_within_its_bounds(late: list[float], wait: float, adapts: bool, at_once: bool) -> None:
    options = JournalConfig(max_group_wait_ms=wait, adaptive_group_writes=adapts, flush_when_queue_empty=at_once)
    stretch = paced(options, *late)
    assert stretch >= 1
    assert wait * stretch <= max(wait, LONGEST_WAIT_MS)
    if not (adapts and options.waits_for_group):
        assert stretch == 1


def test_wait_and_thresholds_grow_together() -> None:
    options = JournalConfig(buffered_entries_threshold=100)
    too_much = options.buffered_writes_threshold_bytes + 1
    for entries, nbytes, age_ms in ((101, 1, 0.0), (1, too_much, 0.0), (MANY_ENTRIES, 1, 2.0)):
        assert flush_reason(options, entries, nbytes, age_ms) is not None
        assert flush_reason(options, entries, nbytes, age_ms, 4.0) is None
        assert flush_reason(options, 4 * entries, 4 * nbytes, 4 * age_ms, 4.0) is not None


def test_few_records_wait_no_longer_than_ever() -> None:
    assert flush_reason(JournalConfig(), MANY_ENTRIES - 1, 1, 2.0, 8.0) is FlushReason.MAX_WAIT


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
    queue = BatchQueue(JournalConfig(), JournalMetrics(Registry(), 0))
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
    queue = BatchQueue(JournalConfig(), JournalMetrics(Registry(), 0))
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
    options = JournalConfig(buffered_writes_threshold_bytes=10)
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


class _Wakes:
    """A `threading.Event` that notes how it is used, and never waits."""

    def __init__(self) -> None:
        self.sets = 0
        self.waits: list[float | None] = []

    def set(self) -> None:
        self.sets += 1

    def clear(self) -> None:
        pass

    def wait(self, seconds: float | None) -> None:
        self.waits.append(seconds)


def test_a_busy_journal_is_woken_once_for_each_group(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = BatchQueue(JournalConfig(buffered_writes_threshold_bytes=10), JournalMetrics(Registry(), 0))
    wakes = _Wakes()
    monkeypatch.setattr(queue, "_wake", wakes)
    sets = []
    for _ in range(5):
        queue.append(JournalBatch([b"x" * 4], 1, 4, True, None))
        sets.append(wakes.sets)
    assert sets == [0, 0, 1, 1, 1]


def test_nobody_sleeps_who_has_something_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was there, or the end was, before the queue knew that its thread sleeps: nobody wakes it then."""
    queue = BatchQueue(JournalConfig(), JournalMetrics(Registry(), 0))
    wakes = _Wakes()
    monkeypatch.setattr(queue, "_wake", wakes)
    queue._sleep_while_empty(lambda: True, 5.0)
    assert wakes.waits == []
    queue._sleep_while_empty(lambda: False, 5.0)
    queue._sleep_while_empty(lambda: False, math.inf)
    assert wakes.waits == [5.0, None]
    queue.append(JournalBatch([b"x"], 1, 1, True, None))
    assert wakes.sets == 0, "nobody sleeps any more"
    queue._sleep_while_empty(lambda: False, 5.0)
    assert wakes.waits == [5.0, None]


def test_an_empty_queue_is_left_as_soon_as_something_is_to_be_synced() -> None:
    queue = BatchQueue(JournalConfig(), JournalMetrics(Registry(), 0))
    for seconds in (0.0, -1.0):
        limits = iter([seconds])
        assert queue.wait_for_group(lambda: False, lambda: next(limits)) is None  # noqa: B023 -- asked at once
    assert queue.wait_for_group(lambda: True, lambda: next(iter(()))) is None


DEFAULT = JournalConfig()
FEW = JournalConfig(buffered_entries_threshold=10)


@pytest.mark.parametrize(
    ("options", "entries", "nbytes", "age_ms", "expected"),
    [
        (DEFAULT, 0, 0, 1e9, None),
        (DEFAULT, 1, 100, 1.99, None),
        (DEFAULT, 1, 100, 2.0, FlushReason.MAX_WAIT),
        (DEFAULT, 1, 524_288, 0, None),
        (DEFAULT, 1, 524_289, 0, FlushReason.MAX_OUTSTANDING),
        (DEFAULT, 1, 524_289, 5, FlushReason.MAX_WAIT),
        (DEFAULT, 1 << 20, 1, 0, None),
        (FEW, 10, 1, 0, None),
        (FEW, 11, 1, 0, FlushReason.MAX_OUTSTANDING),
        (JournalConfig(buffered_writes_threshold_bytes=0), 1, 1 << 30, 0, None),
        (replace(FEW, buffered_writes_threshold_bytes=0), 11, 1, 0, FlushReason.MAX_OUTSTANDING),
        (JournalConfig(flush_when_queue_empty=True), 1, 1, 0, FlushReason.EMPTY_QUEUE),
        (JournalConfig(flush_when_queue_empty=True), 0, 0, 9, None),
        (JournalConfig(flush_when_queue_empty=True), 1, 600_000, 0, FlushReason.MAX_OUTSTANDING),
        (JournalConfig(max_group_wait_ms=0), 1, 1, 0, FlushReason.EMPTY_QUEUE),
        (JournalConfig(max_group_wait_ms=-1), 1, 1, 0, FlushReason.EMPTY_QUEUE),
    ],
)
def test_triggers(
    options: JournalConfig, entries: int, nbytes: int, age_ms: float, expected: FlushReason | None
) -> None:
    assert flush_reason(options, entries, nbytes, age_ms) is expected


@given(
    batches=st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=5), max_size=12),
    limit=st.integers(1, 100),
)
def test_slices_keep_every_byte_in_order_and_stay_small(batches: list[list[bytes]], limit: int) -> None:
    runs = list(slices(((pieces, sum(map(len, pieces))) for pieces in batches), limit))
    assert b"".join(b"".join(run) for run in runs) == b"".join(b"".join(pieces) for pieces in batches)
    for run in runs:
        assert run
        assert sum(map(len, run)) <= limit or len([piece for piece in run if piece]) == 1


def test_slices_leave_the_pieces_of_a_batch_alone() -> None:
    pieces = [b"a", b"b"]
    assert list(slices([(pieces, 2), ([b"c"], 1)], 10)) == [[b"a", b"b", b"c"]]
    assert pieces == [b"a", b"b"]


def test_a_group_leaves_no_sooner_behind_another_than_the_group_wait() -> None:
    metrics = JournalMetrics(Registry(), 0)
    with JournalRig(options=small_options(max_group_wait_ms=40.0), metrics=metrics) as rig:
        began = time.monotonic()
        for entry_id in range(3):
            rig.add(an_add(7, entry_id))
        assert time.monotonic() - began >= 0.08
        assert metrics.groups[FlushReason.MAX_WAIT].value == 3


def test_records_within_the_group_wait_share_a_write() -> None:
    with JournalRig(options=small_options(max_group_wait_ms=200.0)) as rig:
        rig.add(an_add(7, 0))
        rig.add(*[an_add(7, i) for i in range(1, 51)])
        assert rig.files.faults.counts["pwrite"] == 3  # type: ignore[attr-defined]
        assert len(rig.acknowledged.calls) == 2


def test_too_many_bytes_are_written_at_once() -> None:
    metrics = JournalMetrics(Registry(), 0)
    options = small_options(max_group_wait_ms=FOREVER, buffered_writes_threshold_bytes=1000)
    with JournalRig(options=options, metrics=metrics) as rig:
        rig.add(an_add(7, 0))
        rig.add(an_add(7, 1, bytes(900)), an_add(7, 2, bytes(900)))
        assert metrics.groups[FlushReason.MAX_OUTSTANDING].value == 1


def test_too_many_records_are_written_at_once() -> None:
    with JournalRig(options=small_options(max_group_wait_ms=FOREVER, buffered_entries_threshold=3)) as rig:
        rig.add(an_add(7, 0))
        rig.add(*[an_add(7, i) for i in range(1, 5)])


def test_a_large_backlog_is_cut_into_groups() -> None:
    files = MemoryFiles()
    options = small_options(max_group_wait_ms=FOREVER, buffered_writes_threshold_bytes=1000)
    with JournalRig(files, options) as rig:
        gate = files.faults.hold("pwrite")
        rig.journal.append(an_add(7, 0, bytes(2000)))  # alone: it does not wait
        gate.reached()
        for i in range(1, 11):
            rig.journal.append(an_add(7, i, bytes(476)))
        gate.open()
        rig.acknowledged.wait_for(10)
    assert files.faults.counts["pwrite"] >= 6
    assert records_of(rig) == [(7, i) for i in range(11)]


def test_an_empty_queue_is_reason_enough_if_allowed() -> None:
    metrics = JournalMetrics(Registry(), 0)
    options = small_options(max_group_wait_ms=FOREVER, flush_when_queue_empty=True)
    with JournalRig(options=options, metrics=metrics) as rig:
        rig.add(an_add(7, 0))
        assert metrics.groups[FlushReason.EMPTY_QUEUE].value == 1


def test_an_idle_journal_does_nothing() -> None:
    with JournalRig() as rig:
        rig.add(an_add(7, 0))
        before = rig.files.faults.mutations  # type: ignore[attr-defined]
        time.sleep(0.05)
        assert rig.files.faults.mutations == before  # type: ignore[attr-defined]
