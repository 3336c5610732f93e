"""An operation that waits for a bookie which lost its disks ends, so that the bookie can be started anew; so does a
rollout that waits while a bookie that never served is not asked for any more, which may be what it waits for; and a
replacement that stalls while more bookies are asked for, which its copies could go to, or fewer.

Only one operation runs at a time. So what cannot go on without the other ends in good order, as soon as that would
begin, and is begun again afterwards by the wish that began it.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from typing import Final

from bookie_operator.crds.cluster_status import Operation, OperationType
from bookie_operator.planner import gates, operations
from bookie_operator.planner.actions import SetRecoveryDelay
from bookie_operator.planner.decision import Act, Decision, Event, EventType, Finish, Needs, Record, Wait
from bookie_operator.planner.desired import Desired
from bookie_operator.planner.flows import (
    decommission,
    repair,
    repair_gates,
    rollout,
    rollout_state,
    scale_up,
    tasks,
)
from bookie_operator.world.model import World

_YIELDING: Final = frozenset({OperationType.ROLLOUT, OperationType.DECOMMISSION})
_LIVE: Final = frozenset({"Audit", "ReadOnly", "Drain", "Prove", "ProveAgain", "Scale", "Stop"})
"""Steps of a decommission whose bookie is still there, and can be given back."""


def needs(world: World, desired: Desired) -> Needs:
    """To tell whether what is given way to would begin."""
    operation = world.cluster.status.operation
    if operation is None:
        return Needs()
    if operation.type is OperationType.REPLACE:
        return scale_up.needs_to_begin(world, desired) if operation.stalled else Needs()
    return repair.needs_to_begin(world, desired) if operation.type in _YIELDING else Needs()


def instead(world: World, desired: Desired, operation: Operation, waiting: Wait) -> Decision | None:
    """What to do rather than wait; None: it waits for something else."""
    if operation.type is OperationType.REPLACE:
        return (
            _lost_again(world, desired, operation, waiting)
            or _back_already(world, desired, operation)
            or _given_up(world, desired, operation, waiting)
        )
    if operation.type not in _YIELDING:
        return None
    withdrawn = decommission.withdrawal(world, desired)
    if withdrawn is not None and operation.type is OperationType.ROLLOUT:
        return _end_rollout(world, operation, f"{withdrawn.operation.bookie} is taken away first")
    wanted = repair.begin(world, desired)
    wanted = wanted if isinstance(wanted, Record) else tasks.replacement(world, desired)
    if not isinstance(wanted, Record) or wanted.operation.bookie == operation.bookie:
        return None
    lost = wanted.operation.bookie
    if operation.type is OperationType.ROLLOUT:
        return _end_rollout(world, operation, f"{lost} is replaced first")
    if operation.step in _LIVE and waiting.stalled:
        return decommission.given_back(world, desired, operation, f"{lost} is replaced first")
    return None


def _end_rollout(world: World, operation: Operation, why: str) -> Decision:
    before = operation.saved.get(rollout_state.DELAY)
    if before and world.facts is not None and world.facts.lost_bookie_recovery_delay != int(before):
        return Act(SetRecoveryDelay(int(before)), f"the rollout gives way: {why}", operation)
    return Finish(operation, "Cancelled", f"{why}; what is left is rolled out afterwards")


def _lost_again(world: World, desired: Desired, operation: Operation, waiting: Wait) -> Decision | None:
    """Its new disks are gone too: another replacement starts from the beginning."""
    if operation.step != "Start" or operation.bookie not in repair_gates.lost_bookies(world, desired):
        return None
    message = f"{operation.bookie} lost its disks again: {waiting.message}"
    return Finish(operation, "Failed", message, event=Event("ReplacementFailed", message, EventType.WARNING))


def _back_already(world: World, desired: Desired, operation: Operation) -> Record | None:
    """It was lost before it had stamped its cookie, so nothing keeps the new one from starting: no cookie has to go."""
    if operation.step != "Cookie" or not gates.is_writable(world, desired, operation.bookie):
        return None
    return Record(operations.stepped(world, operation, "Start"), f"{operation.bookie} had no cookie, and started anew")


def _given_up(world: World, desired: Desired, operation: Operation, waiting: Wait) -> Record | None:
    """It stalls, and some other wish may be just what its message advises. Nothing of the bookie was deleted yet."""
    if operation.step not in repair.CANCELLABLE or not waiting.stalled:
        return None
    for other in (
        scale_up.begin(world, desired),
        rollout.mend(world, desired),
        decommission.withdrawal(world, desired),
    ):
        if isinstance(other, Record):
            return repair.given_back(world, desired, operation, f"something else goes first: {other.reason}")
    return None
