"""The running operation: ids, times, and what `status` is after each decision."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_operator.crds.cluster_status import BookieClusterStatus, OperationType
from bookie_operator.planner import operations
from bookie_operator.planner.actions import CreateStatefulSet, ScaleStatefulSet
from bookie_operator.planner.decision import Act, Finish, Record, Rest, Wait
from tests.unit.bookie_operator.planner.worlds import world


@given(st.integers(0, 4_000_000_000_000_000))
def test_times_survive_to_the_microsecond(microseconds: int) -> None:
    seconds = microseconds / 1e6
    text = operations.written(seconds)
    assert text.endswith("Z")
    assert abs(operations.read_time(text) - seconds) < 2e-6


def test_an_id_is_never_used_twice() -> None:
    status = BookieClusterStatus()
    first = operations.new(world(1.0, status), OperationType.SCALE_UP, "grow")
    status = operations.after(status, Record(first, "why"), 1.0)
    status = operations.after(status, Finish(first, "Done", "all there"), 2.0)
    second = operations.new(world(3.0, status), OperationType.SCALE_UP, "grow")
    assert (first.id, second.id) == ("ScaleUp-1", "ScaleUp-2")
    assert status.operation is None
    assert [(one.id, one.outcome) for one in status.history] == [("ScaleUp-1", "Done")]


def test_recording_a_step_does_not_count_as_another_operation() -> None:
    status = BookieClusterStatus(operations_begun=4)
    begun = operations.new(world(1.0, status), OperationType.EXPAND, "a")
    status = operations.after(status, Record(begun, "why"), 1.0)
    status = operations.after(status, Record(operations.stepped(world(2.0, status), begun, "b"), "why"), 2.0)
    assert status.operations_begun == 5
    assert status.operation is not None
    assert (status.operation.step, status.operation.id) == ("b", "Expand-5")


def test_the_history_is_bounded() -> None:
    status = BookieClusterStatus()
    for _ in range(15):
        begun = operations.new(world(1.0, status), OperationType.ROLLOUT, "a")
        status = operations.after(status, Record(begun, ""), 1.0)
        status = operations.after(status, Finish(begun, "Done", ""), 2.0)
    assert [one.id for one in status.history] == [f"Rollout-{n}" for n in range(15, 5, -1)]


def test_a_deadline_counts_from_the_last_progress_only() -> None:
    begun = operations.new(world(100.0), OperationType.ROLLOUT, "restart")
    told = operations.said(begun, "waits")
    assert operations.waited(world(150.0), told) == pytest.approx(50)
    assert not operations.overdue(world(159.9), told, 60)
    assert operations.overdue(world(160.0), told, 60)
    assert operations.waited(world(170.0), operations.progressed(world(165.0), told)) == pytest.approx(5)


def test_the_same_wait_is_written_once() -> None:
    begun = operations.new(world(1.0), OperationType.ROLLOUT, "restart")
    first = operations.wait(begun, "NotReady", "pod c-bookie-0 is not ready")
    assert first.operation is not None
    again = operations.wait(first.operation, "NotReady", "pod c-bookie-0 is not ready")
    assert again.operation is None
    stalled = operations.wait(first.operation, "NotReady", "pod c-bookie-0 is not ready", stalled=True)
    assert stalled.operation is not None
    assert stalled.operation.stalled


def test_replicas_are_recorded_with_what_scaled_them() -> None:
    status = operations.after(BookieClusterStatus(), Act(CreateStatefulSet("a", 3), ""), 1.0)
    status = operations.after(status, Act(CreateStatefulSet("b", 2), ""), 1.0)
    status = operations.after(status, Act(ScaleStatefulSet("a", "7", 3, 5), ""), 1.0)
    assert status.recorded_replicas == {"a": 5, "b": 2}


def test_fewer_replicas_than_recorded_are_the_operators_own_only_if_it_planned_them() -> None:
    status = BookieClusterStatus(recorded_replicas={"a": 4})
    assert operations.least_replicas(status, "a") == 4
    assert operations.least_replicas(status, "unknown") == 0
    planned = operations.new(world(1.0), OperationType.DECOMMISSION, "scale", saved=operations.planned_replicas("a", 3))
    status = operations.after(status, Record(planned, ""), 1.0)
    assert operations.least_replicas(status, "a") == 3
    assert operations.least_replicas(status, "b") == 0


def test_waiting_and_resting_leave_the_status_alone() -> None:
    status = BookieClusterStatus(replicas=3)
    assert operations.after(status, Rest(), 1.0) is status
    assert operations.after(status, Wait("X", "y"), 1.0) is status
