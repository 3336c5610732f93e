"""The PodDisruptionBudget follows the state of the data: no bookie may be evicted while a copy is missing.

The exception is a whole zone that is drained: all its bookies may go at once where ledgers can do without them. One
that was evicted cannot come back while the nodes of its zone are cordoned, so a budget that waits for it would hold the
drain up for ever. Where copies are spread over zones that is not needed: without the zone each ledger may have as many
copies as its ack quorum, which is what is asked here, of all its bookies together.

Invariants
- Not knowing counts as a missing copy.
- While an operation takes a bookie out or rebuilds one, no other may be evicted, and no zone: it counts on bookies of
  its own.
- The first bookie of a zone goes as any other: while all is well, as `spec.disruption.maxUnavailable` says. So no
  question is asked before a real eviction.
- Bookies of one zone at a time are away or may go; a bookie of another zone that is away closes the budget.
- A bookie that is back closes the budget, to a zone too, until the auditor has looked what it lacks of what was written
  meanwhile; so does a new auditor until it lists the bookies that it looks at, for a minute at most. What a rollout has
  given up to wait for does not close it.
- No zone goes without the safety check of this very pass; it is asked for only while there is a bookie left to be
  evicted, because it reads every ledger's metadata.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from typing import Final

from bookie_operator.crds.cluster_status import OperationType
from bookie_operator.planner import gates, view
from bookie_operator.planner.actions import ApplyObjects
from bookie_operator.planner.decision import Act, Event, EventType, Needs, Wait
from bookie_operator.planner.desired import Desired, Evictions
from bookie_operator.planner.flows import rollout_state
from bookie_operator.planner.flows.support import DRIFT
from bookie_operator.world.model import World

_EXCLUSIVE: Final = frozenset({OperationType.DECOMMISSION, OperationType.REPLACE})


def allowed(world: World, desired: Desired) -> Evictions:
    """Bookies that may be evicted now: some of any zone, or those of one that is drained. None while the pod of one is
    all that keeps a volume of it."""
    if any(view.going_claim(world, name) is not None for name in view.expected_pods(world)):
        return Evictions(0)
    drained = open_zone(world, desired)
    return Evictions(0, drained) if drained else Evictions(_of_any_zone(world, desired))


def _of_any_zone(world: World, desired: Desired) -> int:
    """Return how many.

    A rollout that people let stop bookies in spite of missing copies opens the budget for just that. During any other
    one the bookies that it has chosen do not close it: the budget counts them by itself, and a closed one would refuse
    the rollout's own evictions.
    """
    if rollout_state.stops_in_spite_of_copies(world):
        return world.cluster.spec.disruption.max_unavailable
    operation = world.cluster.status.operation
    if view.fully_replicated(world) is not True or (operation is not None and operation.type in _EXCLUSIVE):
        return 0
    but = rollout_state.not_waited_for(world, desired)
    away = any(desired.bookie_id(name) not in but for name in view.away(world, desired))
    if away or rollout_state.owes_looks(world) or gates.looked_at(world, but) is not None:
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
    if world.facts is not None and (waiting := gates.looked_at(world)):
        said += f"; {waiting.message}"
    if evictions.zone:
        said = f"zone {evictions.zone} is drained, and ledgers can do without it: any bookie of it may be evicted"
    return Act(ApplyObjects((desired.budget,)), said)


def open_zone(world: World, desired: Desired) -> str:
    """The zone whose bookies may all be evicted; empty: none."""
    zone = _drained(world, desired)
    return zone if zone and _obstacle(world, desired, zone) is None else ""


def needs(world: World, desired: Desired) -> Needs:
    zone = _drained(world, desired)
    return Needs(safety=frozenset({_bookie_ids(world, desired, zone)}) if zone else frozenset())


def blocked(world: World, desired: Desired) -> Wait | None:
    """Return why the others of the zone have to stay; None: they need not."""
    zone = _drained(world, desired)
    obstacle = _obstacle(world, desired, zone) if zone else None
    if obstacle is None:
        return None
    return Wait(
        "ZoneDrainBlocked",
        f"nodes of zone {zone} are cordoned, and its other bookies cannot go before those that went are back: "
        f"{obstacle.message}",
        seconds=15.0,
        stalled=obstacle.needs_person,
    )


def _drained(world: World, desired: Desired) -> str:
    """The zone of which bookies are away, and others are on nodes that are cordoned; empty: there is none."""
    if world.cluster.status.operation is not None or world.facts is None or not world.nodes:
        return ""
    away = {_zone_of(world, name) for name in view.away(world, desired)}
    if len(away) != 1:
        return ""
    (zone,) = away
    if Evictions(0, zone) not in desired.budget_hashes or not zone:
        return ""
    cordoned = {node.name for node in world.nodes.values() if node.unschedulable}
    left = any(pod.node in cordoned and not pod.deleting for pod in world.pods if pod.zone == zone)
    return zone if left else ""


def _obstacle(world: World, desired: Desired, zone: str) -> gates.Obstacle | None:
    going = _bookie_ids(world, desired, zone)
    return gates.first(
        _audit(world),
        gates.looked_at(world, going),
        _ensemble(world, going, zone),
        gates.stoppable(world, going),
        _copy(world, going),
    )


def _audit(world: World) -> gates.Obstacle | None:
    """Return an obstacle unless marks of missing copies can be relied on: the safety check counts no marked copy."""
    if view.fully_replicated(world) is not None:
        return None
    return gates.Obstacle("AuditPending", "there is no complete audit that tells which copies are missing")


def _ensemble(world: World, going: frozenset[str], zone: str) -> gates.Obstacle | None:
    """Return an obstacle unless clients can write without the zone, and spread their copies as `spec` says."""
    assert world.facts is not None
    spec = world.cluster.spec
    left = len(world.facts.writable - going)
    if left < spec.durability.ensemble_size:
        return gates.Obstacle(
            "BelowEnsemble",
            f"without it {left} bookies would be writable, and durability.ensembleSize is"
            f" {spec.durability.ensemble_size}",
            needs_person=True,
        )
    zones = sum(one.replicas > 0 for one in world.stateful_sets if one.zone != zone)
    if zones < spec.placement.min_zones_per_write_quorum:
        return gates.Obstacle(
            "BelowEnsemble",
            f"without it bookies would be left in {zones} zones, and placement.minZonesPerWriteQuorum is"
            f" {spec.placement.min_zones_per_write_quorum}",
            needs_person=True,
        )
    return None


def _copy(world: World, going: frozenset[str]) -> gates.Obstacle | None:
    """Return the obstacle of ledgers without another copy, also with a write quorum of one.

    A whole zone is more than the one bookie that such ledgers put up with.
    """
    safety = world.safety.get(going)
    if safety is None or safety.safe:
        return None
    return gates.Obstacle("LastCopy", f"{safety.without_copy} ledgers could not be read without it", True)


def _zone_of(world: World, name: str) -> str:
    found = view.stateful_set(world, view.set_of(name))
    return found.zone if found is not None else ""


def _bookie_ids(world: World, desired: Desired, zone: str) -> frozenset[str]:
    """Return the ids of every bookie that the zone should have, also of those that are away."""
    return frozenset(desired.bookie_id(name) for name in view.expected_pods(world) if _zone_of(world, name) == zone)
