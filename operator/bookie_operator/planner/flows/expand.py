"""Grows volumes, whatever state the pods are in: a full disk may be why they are down. And has claims ask for another
VolumeAttributesClass.

 1. Gate: the storage class lets volumes grow. One that does not is told; nothing is touched, and other kinds go on.
 2. Record.
 3. `Request`: every claim that is too small asks for more, also where its pod is down; then each that is to have
    another class asks for it. One that cannot be asked is passed over, and tried again after the others. Where a claim
    does not keep the class that it was given, no other is asked, and that is told at the end.
 4. `Grow`: waits until each has its size. One whose file system grows with the next start only, for ten minutes: its
    bookie is restarted through the gates of a rollout, unless it is down already. A claim that fails is told with its
    name; the others go on. `spec` stays as it is. Nothing waits for classes: `volume_attributes` tells of them. What
    stalls here gives way (`giving_way`).
 5. `Orphan`: the claim templates of a StatefulSet cannot be changed, so it is deleted without its pods, by UID; how
    many replicas it has was recorded before. Only if it has the desired template: a rollout that waits stays held back.
 6. `Recreate`: made anew with the new templates and as many replicas.
 7. `Adopt`: every pod belongs to the new StatefulSet, and none was restarted. Back to 5 for the next one.

After a crash between 5 and 6 the StatefulSet is missing and its pods are there: it is made anew, never taken for new.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bookie_operator.crds.cluster_status import Operation, OperationType
from bookie_operator.planner import operations
from bookie_operator.planner.decision import Decision, Event, Needs, Record, Wait
from bookie_operator.planner.desired import Desired
from bookie_operator.planner.flows import expand_state as state
from bookie_operator.planner.flows import expand_steps as steps
from bookie_operator.planner.flows import volume_attributes
from bookie_operator.planner.run import Run, take
from bookie_operator.world.model import ClaimView, World

RETRY_S: Final = 300.0


def begin(world: World, desired: Desired) -> Decision | None:
    resting = _resting(world)
    if resting is not None:
        return resting
    small = state.too_small(world, desired)
    fixed = [claim for claim in small if not state.expandable(world, claim)]
    why = [*_growth(desired, small, fixed), *_classes(world, desired)]
    if why:
        return _record(world, "; ".join(why), "Request")
    if fixed:
        return state.fixed_class(world, desired, fixed)
    failed = state.failed(world, desired)
    if failed:
        return Wait("ExpandFailed", state.failure(failed), seconds=30.0, stalled=True)
    if state.growing(world, desired):
        return _record(world, "volumes are growing", "Grow")
    if state.to_remake(world, desired):
        return _record(world, "claims of new bookies are to be as spec says", "Orphan")
    return None


def _growth(desired: Desired, small: list[ClaimView], fixed: list[ClaimView]) -> Iterator[str]:
    kinds = sorted({claim.volume for claim in small if claim not in fixed})
    if kinds:
        yield f"volumes grow: {', '.join(f'{kind} to {state.wanted_size(desired, kind)}' for kind in kinds)}"


def _classes(world: World, desired: Desired) -> Iterator[str]:
    asking = volume_attributes.to_ask(world, desired)
    named = {(claim.volume, volume_attributes.wanted(desired, claim)) for claim in asking}
    if named:
        each = (f"{kind} {name or 'what they have'}" for kind, name in sorted(named))
        yield f"volumes are to have another VolumeAttributesClass: {', '.join(each)}"


def _resting(world: World) -> Wait | None:
    """One that failed is tried again after a while, so that others have their turn."""
    last = next((one for one in world.cluster.status.history if one.type is OperationType.EXPAND), None)
    if last is None or last.outcome != "Failed":
        return None
    if world.now - operations.read_time(last.finished_at) >= RETRY_S:
        return None
    return Wait("ExpandFailed", last.message, seconds=30.0, stalled=True)


def _record(world: World, why: str, step: str) -> Record:
    return Record(operations.new(world, OperationType.EXPAND, step), why, Event("ExpansionBegun", why))


def needs(operation: Operation, desired: Desired) -> Needs:
    bookie = operation.saved.get(state.RESTARTING, "")
    if operation.step != "Grow" or not bookie:
        return Needs()
    return Needs(safety=frozenset({frozenset({desired.bookie_id(bookie)})}))


def proceed(world: World, desired: Desired, operation: Operation) -> Decision:
    return take(_STEPS, Run(world, desired, operation))


_STEPS: Final = {
    "Request": steps.request,
    "Grow": steps.grow,
    "Orphan": steps.orphan,
    "Recreate": steps.recreate,
    "Adopt": steps.adopt,
}
