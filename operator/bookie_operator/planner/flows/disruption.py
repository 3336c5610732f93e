"""The PodDisruptionBudget follows the state of the data: nobody may evict a bookie while a copy is missing.

The exception is a zone whose nodes are drained: see `zone_drain`.

Invariants
- Not knowing counts as a missing copy.
- While an operation takes a bookie out or rebuilds one, no other may be evicted.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from typing import Final

from bookie_operator.crds.cluster_status import OperationType
from bookie_operator.planner import view
from bookie_operator.planner.actions import ApplyObjects
from bookie_operator.planner.decision import Act, Event, EventType
from bookie_operator.planner.desired import Desired, Evictions
from bookie_operator.planner.flows import rollout_state, zone_drain
from bookie_operator.planner.flows.support import DRIFT
from bookie_operator.world.model import World

_EXCLUSIVE: Final = frozenset({OperationType.DECOMMISSION, OperationType.REPLACE})


def allowed(world: World, desired: Desired) -> Evictions:
    """Bookies that may be evicted now: some of any zone, or those of one that is drained. None while the pod of one is
    all that keeps a volume of it."""
    if any(view.going_claim(world, name) is not None for name in view.expected_pods(world)):
        return Evictions(0)
    drained = zone_drain.open_zone(world, desired)
    return Evictions(0, drained) if drained else Evictions(_of_any_zone(world, desired))


def _of_any_zone(world: World, desired: Desired) -> int:
    """How many.

    A rollout that people let stop bookies in spite of missing copies opens the budget for just that. During any other
    one the bookie that is restarted does not close it: the budget counts it by itself, and a closed one would refuse
    the rollout's own evictions.
    """
    if rollout_state.stops_in_spite_of_copies(world):
        return world.cluster.spec.disruption.max_unavailable
    if view.fully_replicated(world) is not True:
        return 0
    operation = world.cluster.status.operation
    if operation is not None and operation.type in _EXCLUSIVE:
        return 0
    rolls = operation is not None and operation.type is OperationType.ROLLOUT
    if not rolls and view.away(world, desired):
        return 0
    return world.cluster.spec.disruption.max_unavailable


def begin(world: World, desired: Desired) -> Act | None:
    if not desired.budget:
        return None
    evictions = allowed(world, desired)
    if not view.to_apply(world, desired.budget, desired.budget_hashes.get(evictions, "")):
        return None
    if desired.budget in world.drift:
        reason = f"{desired.budget} is not as it was applied ({world.drift[desired.budget]})"
        return Act(ApplyObjects((desired.budget,)), reason, event=Event(DRIFT, reason, EventType.WARNING))
    said = f"the disruption budget allows {evictions.count} evictions from now on"
    if evictions.zone:
        said = f"zone {evictions.zone} is drained, and ledgers can do without it: any bookie of it may be evicted"
    return Act(ApplyObjects((desired.budget,)), said)
