"""The running operation: how it begins, goes on, waits and ends, and what `status` is after a decision.

Invariants
- Ids never repeat: their number is the count of operations that were ever begun, which is written with the operation.
- `last_progress_at` changes only when something came nearer to its end: a waiting operation is written once, not in
  every pass, and deadlines are counted from there.
- `after` is the only place that turns a decision into a status; who carries out decisions writes what it returns.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from bookie_operator.crds.cluster_status import (
    BookieClusterStatus,
    FinishedOperation,
    Operation,
    OperationType,
)
from bookie_operator.planner.actions import CreateStatefulSet, RecordState, ScaleStatefulSet
from bookie_operator.planner.decision import Act, Decision, Finish, Record, Wait
from bookie_operator.world.model import TaskView, World

HISTORY_LENGTH: Final = 10
TASK: Final = "task"
"""Key of `saved`: name of the BookieTask that asked for the operation."""
TASK_UID: Final = "taskUid"
BEGUN_AGAIN: Final = "begunAgain"
AGAIN: Final = {BEGUN_AGAIN: "yes"}
"""Saved once a step was given its time again: the operator was away while it passed, or what it asks."""
_REPLICAS_KEY: Final = "replicas/"
_SKEW_S: Final = 300.0
_PIECE: Final = 12_000
"""Characters of a saved value, of the 16,384 that it may have."""


# --- times ------------------------------------------------------------------------------------------------------------


def written(seconds: float) -> str:
    """Seconds since 1970 as RFC 3339 in UTC, to the microsecond: audits are compared with it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def read_time(text: str) -> float:
    """Seconds since 1970; raises ValueError if it is no RFC 3339 time."""
    return datetime.fromisoformat(text).timestamp()


def is_ahead(at: float, now: float) -> bool:
    """Return whether a time in seconds since 1970 is of a clock that was wrong: clocks that are right differ by less
    than `_SKEW_S`."""
    return at > now + _SKEW_S


def waited(world: World, operation: Operation) -> float:
    """Seconds since the operation came nearer to its end for the last time."""
    return max(0.0, world.now - read_time(operation.last_progress_at))


def overdue(world: World, operation: Operation, seconds: float) -> bool:
    return waited(world, operation) >= seconds


# --- the operation ----------------------------------------------------------------------------------------------------


def new(
    world: World, kind: OperationType, step: str, *, bookie: str = "", saved: Mapping[str, str] | None = None
) -> Operation:
    """An operation that is not recorded yet: hand it to `Record` before its first side effect."""
    now = written(world.now)
    return Operation(
        id=f"{kind.value}-{world.cluster.status.operations_begun + 1}",
        type=kind,
        step=step,
        bookie=bookie,
        started_at=now,
        last_progress_at=now,
        saved=dict(saved or {}),
    )


def stepped(world: World, operation: Operation, step: str, *, saved: Mapping[str, str] | None = None) -> Operation:
    """Move to another step, which begins now; `saved` is added to what was saved."""
    return operation.model_copy(
        update={
            "step": step,
            "last_progress_at": written(world.now),
            "saved": {**operation.saved, **(saved or {})},
            "attempts": 0,
            "message": "",
            "stalled": False,
        }
    )


def progressed(
    world: World, operation: Operation, message: str = "", *, saved: Mapping[str, str] | None = None
) -> Operation:
    """Note progress in the same step: deadlines count from now."""
    return operation.model_copy(
        update={
            "last_progress_at": written(world.now),
            "saved": {**operation.saved, **(saved or {})},
            "message": message,
            "stalled": False,
        }
    )


def said(operation: Operation, message: str, *, stalled: bool = False) -> Operation:
    """Set what it waits for; its deadline goes on."""
    return operation.model_copy(update={"message": message, "stalled": stalled})


def forgotten(operation: Operation, *keys: str) -> Operation:
    """Remove these saved values."""
    return operation.model_copy(update={"saved": {k: v for k, v in operation.saved.items() if k not in keys}})


def in_pieces(key: str, words: Iterable[str]) -> dict[str, str]:
    """A list as saved values, each of which has a bound: `key`, `key.1` and so on."""
    pieces: list[list[str]] = [[]]
    room = _PIECE
    for word in words:
        if len(word) >= room and pieces[-1]:
            pieces.append([])
            room = _PIECE
        pieces[-1].append(word)
        room -= len(word) + 1
    return {f"{key}.{number}" if number else key: ",".join(piece) for number, piece in enumerate(pieces) if piece}


def joined(operation: Operation, key: str) -> list[str]:
    """The list that was saved so; empty: none was."""
    words: list[str] = []
    number, piece = 0, operation.saved.get(key, "")
    while piece:
        words += piece.split(",")
        number += 1
        piece = operation.saved.get(f"{key}.{number}", "")
    return words


def wait(operation: Operation, reason: str, message: str, *, seconds: float = 5.0, stalled: bool = False) -> Wait:
    """Wait, with the message in the operation too if it is another one than before."""
    changed = operation.message != message or operation.stalled != stalled
    return Wait(
        reason,
        message,
        seconds=seconds,
        operation=said(operation, message, stalled=stalled) if changed else None,
        stalled=stalled,
    )


def number(operation: Operation) -> int:
    """Its place among all operations of the cluster, from 1."""
    return int(operation.id.rpartition("-")[2])


# --- tasks ------------------------------------------------------------------------------------------------------------


def for_task(operation: Operation, task: TaskView) -> Operation:
    """Note who asked for it."""
    return operation.model_copy(update={"saved": {**operation.saved, TASK: task.name, TASK_UID: task.uid}})


def done_for(world: World, task: TaskView) -> list[FinishedOperation]:
    """The operations of a task that are over, the oldest first. Those of an earlier release have no UID."""
    return [
        one
        for one in reversed(world.cluster.status.history)
        if (one.task_uid or task.uid) == task.uid
        and one.task == task.name
        and (one.task_uid or read_time(one.started_at) >= task.created_at)
    ]


# --- replicas ---------------------------------------------------------------------------------------------------------


def planned_replicas(stateful_set: str, replicas: int) -> dict[str, str]:
    """Return what is saved in the operation before it scales.

    So its own scaling, whose status was never written, is not taken for that of others.
    """
    return {f"{_REPLICAS_KEY}{stateful_set}": str(replicas)}


def least_replicas(status: BookieClusterStatus, stateful_set: str) -> int:
    """Return the least replicas: fewer than this were not asked for by the operator: they are put back (I11)."""
    recorded = status.recorded_replicas.get(stateful_set, 0)
    planned = status.operation.saved.get(f"{_REPLICAS_KEY}{stateful_set}") if status.operation else None
    return min(recorded, int(planned)) if planned is not None else recorded


# --- status -----------------------------------------------------------------------------------------------------------


def after(status: BookieClusterStatus, decision: Decision, now: float) -> BookieClusterStatus:
    """The status once the decision was carried out, as far as operations and replicas go."""
    match decision:
        case Record(operation=operation):
            return status.model_copy(
                update={
                    "operation": operation,
                    "operations_begun": max(status.operations_begun, number(operation)),
                }
            )
        case Finish(operation=operation):
            return status.model_copy(
                update={"operation": None, "history": [_over(decision, now), *status.history][:HISTORY_LENGTH]}
            )
        case Act(action=action):
            changes: dict[str, object] = {}
            if decision.operation is not None:
                changes["operation"] = decision.operation
            if isinstance(action, ScaleStatefulSet):
                changes["recorded_replicas"] = {**status.recorded_replicas, action.name: action.after}
            elif isinstance(action, CreateStatefulSet):
                changes["recorded_replicas"] = {**status.recorded_replicas, action.name: action.replicas}
            elif isinstance(action, RecordState):
                changes["recorded_replicas"] = {**status.recorded_replicas, **action.replicas}
                changes["instance_id"] = status.instance_id or action.instance_id
                if action.instance_id and not status.instance_id:
                    changes["metadata_protected"] = True
                changes["metadata_service_uri"] = action.metadata_service_uri or status.metadata_service_uri
            return status.model_copy(update=changes) if changes else status
        case Wait(operation=operation) if operation is not None:
            return status.model_copy(update={"operation": operation})
        case _:
            return status


def _over(decision: Finish, now: float) -> FinishedOperation:
    operation = decision.operation
    return FinishedOperation(
        id=operation.id,
        type=operation.type,
        bookie=operation.bookie,
        started_at=operation.started_at,
        finished_at=written(now),
        outcome=decision.outcome,
        message=decision.message,
        task=operation.saved.get(TASK, ""),
        task_uid=operation.saved.get(TASK_UID, ""),
    )
