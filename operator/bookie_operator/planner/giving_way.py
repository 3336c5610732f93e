"""The order in which bookies are changed; what runs ends in good order for what comes before it.

Only one operation runs at a time, and some of them wait for what only another one brings. So there is one order,
`ORDER`, and two sentences about it:

- While nothing runs, the first of them that may begin does.
- What runs and stalls gives way to what comes before it and may begin now, as long as it can still be taken back. The
  wish that began it is still there, and begins it again afterwards.

None gives way to what comes later, so two never take turns without end: one that comes earlier ends with less to do, or
waits where nothing earlier helps. For that, each of them begins only if it can do something: a rollout that begins at
once has a template to stage or a pod to delete (`rollout.mend`), and room is made only if everybody else serves.

Two do not stall first. A rollout is only work that can wait: it gives way at once to a bookie that is lost, or that is
to leave. And a replacement does to a template that is put right, which may be all that its bookie needs; so a rollout
that is about to put one right comes as early as that. The bookie of a decommission is that one's own to repair. A
bookie that is moved while it serves counts like one that is taken out.

Volumes that grow come before all of these, and need no further step once they were asked for: if they stall, whatever
may begin does, and they are waited for again afterwards.

Bookies that do not come up are replaced once `spec` was mended, else reported with the remedy (`unstick`). A
StatefulSet never replaces a broken pod of an old template by itself, and a rollout does not begin while a bookie is
away. So:

1. Pods that are broken and have another template than `spec` has now are replaced by a rollout that begins at once,
   without its gates: they serve no client. The bookies that work are restarted after them, through all gates.
2. Every other broken pod is reported, with what to do about it. Lost volumes and directories are another flow's.

An operation that waits may be impossible to take back: its bookie has left already, or no pod can tell the state of
the cluster. `rollout.mend_beside` then replaces the broken pods of other bookies while the operation runs.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from bookie_operator.crds.cluster_status import Operation, OperationType
from bookie_operator.planner import gates, operations, view
from bookie_operator.planner.decision import Decision, Event, EventType, Finish, Needs, Record, Wait
from bookie_operator.planner.desired import Desired
from bookie_operator.planner.flows import decommission, repair, rollout, scale_up, tasks
from bookie_operator.planner.flows.decommission_steps import MAKES_ROOM
from bookie_operator.planner.view import REASONS, remedy
from bookie_operator.world.model import PodFault, PodView, World

Rule = Callable[[World, Desired], Decision | None]

_LOST = frozenset({PodFault.VOLUME, PodFault.COOKIE})


def unstick(world: World, desired: Desired) -> Decision | None:
    mended = rollout.mend(world, desired)
    if mended is not None:
        return mended
    broken = _broken(world)
    if not broken:
        return None
    others = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
    return Wait(REASONS[broken[0].fault], f"{broken[0].name}: {remedy(broken[0])}{others}", seconds=10.0, stalled=True)


def _broken(world: World) -> list[PodView]:
    expected = frozenset(view.expected_pods(world))
    return sorted(
        (
            pod
            for pod in world.pods
            if pod.name in expected and not pod.ready and not pod.deleting and pod.fault and pod.fault not in _LOST
        ),
        key=lambda pod: (pod.stateful_set, pod.ordinal),
    )


ORDER: Final[tuple[Rule, ...]] = (
    decommission.withdrawal,
    unstick,
    scale_up.begin,
    repair.begin,
    tasks.replacement,
    decommission.making_room,
    decommission.making_way,
    rollout.begin,
    decommission.begin,
)
"""Rules in their order.

A bookie that never served leaves first, for others may wait for its room; then what is broken is put right, so that new
bookies are not made like it; then come more bookies, since copies may have nowhere to go without; then what is lost;
then what only has no room, and the bookies that are in the way of those that never served. A rollout goes between two
other bookies of a decommission.
"""

_AT_ONCE: Final[Mapping[OperationType, frozenset[Rule]]] = {
    OperationType.ROLLOUT: frozenset(
        {
            decommission.withdrawal,
            repair.begin,
            tasks.replacement,
            decommission.making_room,
            decommission.making_way,
        }
    ),
    OperationType.REPLACE: frozenset({unstick}),
}
"""Rules to which an operation that waits gives way before it stalls."""
_LIVE: Final = frozenset({"Audit", "ReadOnly", "Drain", "Prove", "ProveAgain", "Scale", "Stop"})
"""Steps of a decommission whose bookie is still there, and can be given back."""


def needs(world: World, desired: Desired) -> Needs:
    """Return what shows whether the work that is given way to would begin."""
    operation = world.cluster.status.operation
    if operation is None:
        return Needs()
    earlier = _earlier(world, desired, operation, stalled=operation.stalled)
    found = repair.needs_to_begin(world, desired) if repair.begin in earlier else Needs()
    proofs = scale_up.needs_to_begin(world, desired).proofs if scale_up.begin in earlier else frozenset()
    leaving = Needs()
    if decommission.begin in earlier:
        leaving = decommission.needs_to_begin(world, desired)
    elif decommission.making_way in earlier:
        leaving = decommission.needs_to_make_way(world, desired)
    return replace(found, proofs=proofs, outlooks=found.outlooks | leaving.outlooks)


def instead(world: World, desired: Desired, operation: Operation, waiting: Wait) -> Decision | None:
    """Decide what to do rather than wait; None: it waits for something else."""
    if operation.type is OperationType.REPLACE:
        other = (
            _lost_again(world, desired, operation, waiting)
            or _back_already(world, desired, operation)
            or _needed(world, desired, operation, waiting)
        )
        if other is not None:
            return other
    for rule in _earlier(world, desired, operation, stalled=waiting.stalled):
        found = rule(world, desired)
        if isinstance(found, Record) and not _own(found.operation, operation):
            return _ended(world, desired, operation, f"something else goes first: {found.reason}")
    return None


def _earlier(world: World, desired: Desired, operation: Operation, *, stalled: bool) -> tuple[Rule, ...]:
    """Return the rules that the operation, as far as it is, gives way to."""
    own: Rule
    match operation.type:
        case OperationType.ROLLOUT if operation.step in rollout.STAGING and rollout.mend(world, desired) is not None:
            own = unstick
        case OperationType.ROLLOUT:
            own = rollout.begin
        case OperationType.REPLACE if repair.is_move(operation):
            own = decommission.begin
        case OperationType.REPLACE if repair.cancellable(operation):
            own = repair.begin
        case OperationType.DECOMMISSION if operation.step in _LIVE:
            own = decommission.begin
            if operation.saved.get(MAKES_ROOM):
                own = decommission.making_room
            elif decommission.is_in_the_way(world, desired, operation.bookie):
                own = decommission.making_way
        case OperationType.EXPAND if operation.step == "Grow" and stalled:
            return ORDER
        case _:
            return ()
    before, at_once = ORDER[: ORDER.index(own)], _AT_ONCE.get(operation.type, frozenset())
    return before if stalled else tuple(rule for rule in before if rule in at_once)


def _own(found: Operation, operation: Operation) -> bool:
    """Return whether the work that would begin is that of the operation that runs."""
    if operation.type is OperationType.DECOMMISSION or repair.is_move(operation):
        return found.bookie == operation.bookie
    return found.type is operation.type


def _ended(world: World, desired: Desired, operation: Operation, why: str) -> Decision:
    match operation.type:
        case OperationType.ROLLOUT:
            return rollout.given_back(world, desired, operation, why)
        case OperationType.REPLACE:
            return repair.given_back(world, desired, operation, why)
        case OperationType.EXPAND:
            return Finish(operation, "Failed", f"{operation.message}; {why}")
        case _:
            return decommission.given_back(world, desired, operation, why)


def _lost_again(world: World, desired: Desired, operation: Operation, waiting: Wait) -> Decision | None:
    """Its new disks are gone too: another replacement starts from the beginning."""
    if operation.step != "Start" or operation.bookie not in repair.lost_bookies(world, desired):
        return None
    message = f"{operation.bookie} lost its disks again: {waiting.message}"
    return Finish(operation, "Failed", message, event=Event("ReplacementFailed", message, EventType.WARNING))


def _back_already(world: World, desired: Desired, operation: Operation) -> Record | None:
    """It was lost before it had stamped its cookie, so nothing keeps the new one from starting: no cookie has to go."""
    if operation.step != "Cookie" or not gates.is_writable(world, desired, operation.bookie):
        return None
    return Record(operations.stepped(world, operation, "Start"), f"{operation.bookie} had no cookie, and started again")


def _needed(world: World, desired: Desired, operation: Operation, waiting: Wait) -> Record | None:
    """Give a bookie that is moved back while another one is lost: copies may have no other bookie to go to."""
    lost = [name for name in repair.lost_bookies(world, desired) if name != operation.bookie]
    if not (waiting.stalled and lost and repair.is_move(operation)):
        return None
    return repair.given_back(world, desired, operation, f"{lost[0]} is lost, and is replaced first")
