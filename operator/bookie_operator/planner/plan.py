"""The policy of the operator: the next decision, from the most to the least urgent.

`plan` reads top-down: what stops everything; what has to be there before anything else; the operation that runs; then
the first change that is wanted and allowed. What is wanted and not allowed is noted, and the pass goes on.

Invariants
- A plan is a function of its snapshot: the same world gives the same plan, and the plan of a world at rest is `Rest`.
- At most one operation runs; what is done beside it changes neither bookies nor data.
- An action that was refused lately is waited for like one that is not allowed: it holds up only what needs it.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from bookie_operator.crds.cluster_status import Operation, OperationType
from bookie_operator.planner import gates, giving_way, holding, operations, view
from bookie_operator.planner.actions import ApplyTemplate, OrphanStatefulSet, RestoreTemplate, ScaleStatefulSet
from bookie_operator.planner.decision import Act, Decision, Needs, Plan, Rest, Wait
from bookie_operator.planner.desired import Desired
from bookie_operator.planner.flows import (
    Flow,
    backups,
    create,
    decommission,
    delete,
    disruption,
    expand,
    garbage,
    location,
    members,
    metadata_rollout,
    move,
    repair,
    replicas,
    rollout,
    scale_up,
    settings,
    support,
    tasks,
    volume_attributes,
)
from bookie_operator.planner.giving_way import Rule
from bookie_operator.planner.run import refused
from bookie_operator.world.model import World

T = TypeVar("T")
FLOWS: Final[Mapping[OperationType, Flow]] = {
    OperationType.SCALE_UP: scale_up,
    OperationType.DECOMMISSION: decommission,
    OperationType.ROLLOUT: rollout,
    OperationType.EXPAND: expand,
    OperationType.REPLACE: repair,
    OperationType.AUDIT: tasks,
    OperationType.METADATA: metadata_rollout,
    OperationType.DELETE: delete,
}
"""Flows that go on with an operation, and say what its passes have to read."""

FIRST: Final[tuple[Rule, ...]] = (
    support.new_names_taken,
    create.adopt,
    support.begin,
    create.adopted_claims,
    support.certificates,
    members.begin,
    create.metadata,
    create.stateful_sets,
    lambda world, _: replicas.begin(world),
    disruption.begin,
    location.begin,
    support.templates,
    holding.begin,
)
"""Before anything else, also while an operation runs; whichever answers ends the pass, also with `Wait`."""

CHANGES: Final[tuple[Rule, ...]] = (
    support.names_taken,
    support.unstable,
    members.replace,
    members.broken,
    disruption.blocked,
    move.begin,
    expand.begin,
    volume_attributes.waiting,
    metadata_rollout.begin,
    *giving_way.ORDER,
    tasks.begin,
    support.autorecovery,
    support.gateway,
    settings.begin,
    backups.begin,
    garbage.begin,
    create.unadopted,
    support.monitoring,
)
"""While no operation runs. Space comes before all that needs it; what changes bookies has its order in `giving_way`."""

SAFETY: Final[tuple[Rule, ...]] = (lambda world, _: replicas.begin(world), disruption.begin, location.begin)
"""Rules that protect data, whatever else is wrong: copies spread over zones too."""

BESIDE: Final[tuple[Rule, ...]] = (
    members.replace,
    lambda world, _: tasks.accept(world),
    rollout.mend_beside,
    support.down_deployments,
    expand.beside,
    backups.begin,
    support.monitoring,
)
"""While an operation waits."""


def plan(world: World, desired: Desired) -> Plan:
    """`desired`: as `holding.hold` returns it for this world."""
    decision, notes = _decide(world, desired)
    return Plan(_settled(world, decision), notes, disruption.allowed(world, desired))


def _decide(world: World, desired: Desired) -> tuple[Decision, tuple[Wait, ...]]:
    if world.cluster.deleting:
        return delete.begin(world, desired), ()
    if world.cluster.paused:
        words = (
            f"nothing is changed until `kubectl bookie resume {world.cluster.name}` removes the annotation "
            "podkeeper.dev/paused, and the disruption budget stays as it is: see that LedgersReplicated is True before "
            "you drain a node"
        )
        return Wait("Paused", words, 60.0), ()
    stopped = _another_instance(world) or create.foreign_claims(world)
    if stopped is not None:
        return stopped, ()
    if world.spec_errors:
        return _only_safety(world, desired), ()
    urgent = _first(world, desired, FIRST)
    if urgent is not None:
        return _urgent(world, desired, urgent)
    operation = world.cluster.status.operation
    if operation is not None:
        return _go_on(world, desired, operation)
    return _change(world, desired)


def _another_instance(world: World) -> Wait | None:
    """The metadata are not those of this cluster's volumes: nothing is right any more."""
    recorded = world.cluster.status.instance_id
    told = {world.metadata_instance_id} - {"", recorded}
    if world.facts is not None:
        told |= {world.facts.instance_id} - {"", recorded}
    if not recorded or not told:
        return None
    return Wait(
        "InstanceMismatch",
        f"the metadata service has a cluster with instance id {sorted(told)[0]}, and this one's is {recorded}: nothing "
        "is changed. Was the metadata service replaced or formatted? Bring the right one back",
        seconds=30.0,
        stalled=True,
    )


def _only_safety(world: World, desired: Desired) -> Decision:
    """A wrong `spec` changes nothing, and what protects data goes on."""
    protect = _first(world, desired, SAFETY)
    if protect is not None and not view.is_new(world):
        return protect
    return Wait("InvalidSpec", "; ".join(world.spec_errors), seconds=60.0, stalled=True)


def _urgent(world: World, desired: Desired, urgent: Decision) -> tuple[Decision, tuple[Wait, ...]]:
    """Decide for an urgent decision. If it was refused, the rules that protect data go on without it."""
    refused = _refused(world, urgent)
    if refused is None:
        return urgent, ()
    protect = None if view.is_new(world) else _first(world, desired, SAFETY)
    if protect is None or _refused(world, protect) is not None:
        return refused, ()
    return protect, (refused,)


def _refused(world: World, decision: Decision | None) -> Wait | None:
    """Return why it was refused; None: it was not, or it may be tried again."""
    if not isinstance(decision, Act):
        return None
    found = next((one for one in world.refused_actions if one.action == decision.action), None)
    if found is None:
        return None
    message, seconds = f"{decision.reason}: {found.message}", max(0.2, found.not_before - world.now)
    operation = world.cluster.status.operation
    if operation is not None and decision.operation is not None:
        return operations.wait(operation, "ActionFailed", message, seconds=seconds, stalled=True)
    return Wait("ActionFailed", message, seconds, stalled=True)


def _first(world: World, desired: Desired, rules: Iterable[Rule]) -> Decision | None:
    return next((found for rule in rules if (found := rule(world, desired)) is not None), None)


def _walk(world: World, desired: Desired, rules: Iterable[Rule]) -> tuple[Decision | None, tuple[Wait, ...]]:
    """The first thing to do, and what is waited for before it."""
    blocked: list[Wait] = []
    for rule in rules:
        found = rule(world, desired)
        found = _refused(world, found) or found
        if isinstance(found, Wait):
            blocked.append(found)
        elif found is not None:
            return found, tuple(blocked)
    return None, tuple(blocked)


def _go_on(world: World, desired: Desired, operation: Operation) -> tuple[Decision, tuple[Wait, ...]]:
    decision = FLOWS[operation.type].proceed(world, desired, operation)
    decision = _refused(world, decision) or decision
    if not isinstance(decision, Wait):
        return decision, ()
    other = giving_way.instead(world, desired, operation, decision)
    if other is not None and _refused(world, other) is None:
        return other, (decision,)
    if decision.operation is not None and decision.operation.stalled is not operation.stalled:
        return decision, ()
    beside, blocked = _walk(world, desired, BESIDE)
    if beside is not None:  # progress that the operation would record now is recorded by the next pass
        return beside, (decision, *blocked)
    return decision, blocked if decision.operation is None else ()


def _change(world: World, desired: Desired) -> tuple[Decision, tuple[Wait, ...]]:
    found, blocked = _walk(world, desired, (*CHANGES, unsteady))
    if found is not None:
        return found, blocked
    if not blocked:
        return Rest(), ()
    most = next((one for one in blocked if one.stalled), blocked[0])
    return most, tuple(one for one in blocked if one is not most)


def _settled(world: World, decision: Decision) -> Decision:
    """Let no StatefulSet be changed before its controller has seen its last change (I10)."""
    if not isinstance(decision, Act):
        return decision
    if isinstance(decision.action, ScaleStatefulSet | ApplyTemplate | RestoreTemplate | OrphanStatefulSet):
        found = view.stateful_set(world, decision.action.name)
        if found is None or not found.settled:
            return Wait("StatefulSetBusy", f"waits for the controller of StatefulSet {decision.action.name}", 1.0)
    return decision


_SHOWN: Final = 5
_FULL_PERCENT: Final = 80.0
"""Use in percent of a disk that may be full by the bookie's own measure."""


def unsteady(world: World, desired: Desired) -> Wait | None:
    """Return the first thing that is not as it should be; None: all is well.

    It is called when nothing is left to change: is all well, or does something still have to come about by itself?

    The first thing that is not as it should be; None: all is well.
    """
    return (
        _pods(world) or _members(world, desired) or _metadata(world, desired) or _replication(world) or _gateways(world)
    )


def _pods(world: World) -> Wait | None:
    busy = view.unsettled(world)
    if busy is not None:
        return Wait("StatefulSetBusy", f"waits for the controller of StatefulSet {busy.name}", seconds=1.0)
    waiting = [name for name in view.expected_pods(world) if not _ready(world, name)]
    if waiting:
        return Wait("BookiesNotReady", f"waits for {_listed(waiting)} to be ready", seconds=5.0)
    return None


def _ready(world: World, name: str) -> bool:
    found = view.pod(world, name)
    return found is not None and found.ready and not found.deleting


def _members(world: World, desired: Desired) -> Wait | None:
    away = members.away(world, desired.members) if desired.members is not None else []
    return Wait("MembersAway", f"waits for members of etcd to serve: {_listed(away)}", seconds=5.0) if away else None


def _metadata(world: World, desired: Desired) -> Wait | None:
    if world.facts is None:
        why = world.facts_error or "no pod told the state of the cluster"
        return Wait("MetadataUnreachable", f"cannot tell the state of the cluster: {why}", seconds=10.0)
    away = [name for name in view.expected_pods(world) if desired.bookie_id(name) not in world.facts.registered]
    if away:
        return Wait("BookiesNotRegistered", f"waits for {_listed(away)} to register", seconds=5.0)
    closed = [name for name in view.expected_pods(world) if desired.bookie_id(name) in world.facts.read_only]
    if closed:
        why = _why(world, desired, closed)
        return Wait("BookiesReadOnly", f"{_listed(closed)} take no writes: {why}", seconds=30.0)
    return None


def _why(world: World, desired: Desired, closed: list[str]) -> str:
    with_room = [
        name for name in closed if (told := world.bookies.get(name)) is not None and told.used_percent < _FULL_PERCENT
    ]
    if not with_room:
        return "are their disks full?"
    bookie_id = desired.bookie_id(with_room[0])
    return (
        f"{_listed(with_room)} with room on the disks, so they were made read-only by hand, or are being drained."
        f" Take that back with `bookie cluster decommission {bookie_id} --undo`, or"
        " with PUT /api/v1/bookie/state/readonly"
    )


def _replication(world: World) -> Wait | None:
    missing = world.autorecovery.replicas - world.autorecovery.ready
    if missing > 0:
        return Wait("AutorecoveryNotReady", f"waits for {missing} auto-recovery pods", seconds=10.0)
    replicated = view.fully_replicated(world)
    if replicated is False and world.facts is not None:
        return Wait("UnderReplicated", f"{world.facts.under_replicated} ledgers are under-replicated", seconds=10.0)
    if replicated is None:
        return Wait("AuditPending", "waits for the first complete audit", seconds=10.0)
    unlooked = gates.looked_at(world)
    return refused(unlooked) if unlooked is not None else None


def _gateways(world: World) -> Wait | None:
    missing = world.gateway.replicas - world.gateway.ready
    return Wait("GatewayNotReady", f"waits for {missing} gateway pods", seconds=10.0) if missing > 0 else None


def _listed(some: list[str]) -> str:
    more = f" and {len(some) - _SHOWN} more" if len(some) > _SHOWN else ""
    return ", ".join(some[:_SHOWN]) + more


def needs(world: World, desired: Desired) -> Needs:
    """Return what a pass has to read beside what it always reads: proofs, drains and safety answers are dear.

    `world`: as always read, with no proofs, drains or safety in it. Called twice in a pass: the snapshot is read
    without any, then what this answers for it is added.
    """
    if world.cluster.deleting or world.cluster.paused:
        return Needs()
    operation = world.cluster.status.operation
    if operation is not None:
        return together(FLOWS[operation.type].needs(operation, desired), giving_way.needs(world, desired))
    return together(
        scale_up.needs_to_begin(world, desired),
        repair.needs_to_begin(world, desired),
        decommission.needs_to_begin(world, desired),
        disruption.needs(world, desired),
        garbage.needs(world, desired),
    )


def together(*some: Needs) -> Needs:
    return Needs(
        proofs=_all(one.proofs for one in some),
        drains=_all(one.drains for one in some),
        outlooks=_all(one.outlooks for one in some),
        safety=frozenset().union(*(one.safety for one in some)),
        accepted_losses=tuple(sorted(_all(frozenset(one.accepted_losses) for one in some))),
    )


def _all(sets: Iterable[frozenset[T]]) -> frozenset[T]:
    return frozenset().union(*sets)
