"""Replicas of StatefulSets belong to the operator: who changes them by hand does not ask for bookies.

Invariants
- Fewer than recorded are put back at once, before anything else happens (I11): whatever was stopped was not drained.
- More than recorded are recorded: from then on they are bookies like all others, and taken out by a drain only. So is
  what the running operation planned, where the status that should have recorded it was lost.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from bookie_operator.planner import operations
from bookie_operator.planner.actions import RecordState, ScaleStatefulSet
from bookie_operator.planner.decision import Act, Decision, Event, EventType, Wait
from bookie_operator.world.model import World


def begin(world: World) -> Decision | None:
    for one in world.stateful_sets:
        least = operations.least_replicas(world.cluster.status, one.name)
        if one.deleting or one.replicas >= least:
            continue
        if not one.settled:
            return Wait("StatefulSetBusy", f"waits for the controller of StatefulSet {one.name}", seconds=1.0)
        message = (
            f"StatefulSet {one.name} was scaled to {one.replicas} from outside; it is put back to {least}. "
            "Change spec.replicas of the BookieCluster: bookies are drained first"
        )
        return Act(
            ScaleStatefulSet(one.name, one.resource_version, one.replicas, least),
            message,
            event=Event("ExternalScaleDown", message, EventType.WARNING),
        )
    return _unrecorded(world)


def _unrecorded(world: World) -> Act | None:
    recorded = world.cluster.status.recorded_replicas
    found = {
        one.name: one.replicas
        for one in world.stateful_sets
        if not one.deleting and (one.replicas != recorded.get(one.name))
    }
    if not found:
        return None
    return Act(RecordState(replicas=found), f"bookies that were not recorded are kept: {_shown(found)}")


def _shown(found: dict[str, int]) -> str:
    return ", ".join(f"{name} has {number}" for name, number in sorted(found.items()))
