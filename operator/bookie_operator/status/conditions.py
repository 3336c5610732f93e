"""The conditions of a cluster, as Kubernetes' own tools read them.

`Ready` is True when the whole spec of this generation is realised and well; `Reconciling` and `Stalled` are True when
work is under way, and when a person is needed. A tool that waits (kstatus: Flux, Argo CD, `kubectl wait`) needs no more
than these and `observedGeneration`.

Invariants
- `lastTransitionTime` moves only when `status` of the condition does.
- An unknown state is Unknown, never False.
- A task that is wrong says so itself: no cluster is judged by it.
- One condition says why something waits: `Stalled` if a person is needed, else `Reconciling`. The message of `Ready` is
  a short form of it.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from bookie_operator.crds.cluster_status import Condition, Operation, OperationType
from bookie_operator.crds.model import shortened
from bookie_operator.crds.quantity import known_bytes
from bookie_operator.planner import gates, view
from bookie_operator.planner.actions import UpdateTask
from bookie_operator.planner.decision import Act, Finish, Plan, Record, Rest, Wait
from bookie_operator.planner.desired import Desired
from bookie_operator.planner.flows import tasks
from bookie_operator.status import backups, metadata_members
from bookie_operator.world.model import World

TRUE: Final = "True"
FALSE: Final = "False"
UNKNOWN: Final = "Unknown"

_VERB: Final = {
    OperationType.SCALE_UP: "Scaling",
    OperationType.DECOMMISSION: "Scaling",
    OperationType.ROLLOUT: "Upgrading",
    OperationType.EXPAND: "Expanding",
    OperationType.REPLACE: "Repairing",
    OperationType.AUDIT: "Auditing",
    OperationType.DELETE: "Deleting",
    OperationType.METADATA: "UpdatingMetadata",
}
_SUMMARY: Final = 240
"""Characters of the message of `Ready`, a column of `kubectl get -o wide`."""
_NOTHING_RESERVED: Final = (
    "spec.pod.resources asks for no memory: the kubelet of a node that runs short of it ends such pods first, several "
    "at once, whatever the disruption budget says; give requests of memory where data count"
)


@dataclass(frozen=True)
class Finding:
    """A condition without its times."""

    type: str
    status: str
    reason: str
    message: str = ""


def findings(world: World, desired: Desired, plan: Plan, operation: Operation | None) -> list[Finding]:
    """`operation`: as it is after this pass."""
    plan = _without_vain_tasks(plan)
    stalled = _refused(world, _stalled(world, plan, operation))
    found = [
        summary(_ready(world, desired, plan, operation, stalled)),
        _available(world),
        _reconciling(plan, operation, stalled),
        stalled,
        _replicated(world),
        _spec_valid(world, desired),
        _upgrading(desired, operation),
        _scaling_down(world, desired, plan, operation),
        _active(operation, "VolumesExpanding", OperationType.EXPAND),
        _active(operation, "Repairing", OperationType.REPLACE),
        _paused(world),
        _deletion_blocked(world, plan),
        _spare(world),
        *_metadata(world, desired),
    ]
    only_a_task = isinstance(plan.decision, Act) and isinstance(plan.decision.action, UpdateTask)
    return [_as_it_was(world, each) for each in found] if only_a_task else found


def dated(found: Iterable[Finding], before: Sequence[Condition], generation: int, now: str) -> list[Condition]:
    """`now`: RFC 3339."""
    earlier = {each.type: each for each in before}
    return [_dated(each, earlier.get(each.type), generation, now) for each in found]


def _dated(found: Finding, before: Condition | None, generation: int, now: str) -> Condition:
    same = before is not None and before.status == found.status and before.last_transition_time
    return Condition(
        type=found.type,
        status=found.status,
        reason=found.reason or "Unknown",
        message=found.message,
        observed_generation=generation,
        last_transition_time=before.last_transition_time if before is not None and same else now,
    )


# --- tasks ------------------------------------------------------------------------------------------------------------


def _without_vain_tasks(plan: Plan) -> Plan:
    """Return the plan without what a task waits for in vain: the rest of the pass says what the cluster is like."""
    notes = tuple(each for each in plan.notes if not _vain(each))
    if isinstance(plan.decision, Wait) and _vain(plan.decision):
        return replace(plan, decision=notes[0] if notes else Rest(), notes=notes[1:])
    return replace(plan, notes=notes)


def _vain(wait: Wait) -> bool:
    return wait.reason in tasks.IMPOSSIBLE and not wait.stalled


def _as_it_was(world: World, found: Finding) -> Finding:
    """Return the earlier finding: a pass that only writes down how a task is does nothing to the cluster, and learns no
    more of it."""
    if found.type in ("Ready", "Reconciling"):
        for before in world.cluster.status.conditions:
            if before.type == found.type and before.observed_generation == world.cluster.generation:
                return Finding(before.type, before.status, before.reason, before.message)
    return found


# --- one by one -------------------------------------------------------------------------------------------------------


def _blockers(plan: Plan) -> list[Wait]:
    """Return what waits for a person."""
    waits = [plan.decision] if isinstance(plan.decision, Wait) else []
    return [wait for wait in (*waits, *plan.notes) if wait.stalled]


def _stalled(world: World, plan: Plan, operation: Operation | None) -> Finding:
    if world.spec_errors:
        return Finding("Stalled", TRUE, "InvalidSpec", "; ".join(world.spec_errors))
    blockers = _blockers(plan)
    if blockers:
        return Finding("Stalled", TRUE, blockers[0].reason, "; ".join(dict.fromkeys(each.message for each in blockers)))
    if operation is not None and operation.stalled:
        return Finding("Stalled", TRUE, f"{operation.type.value}Stalled", operation.message)
    return Finding("Stalled", FALSE, "NothingStalls")


def _refused(world: World, stalled: Finding) -> Finding:
    """Return a finding about pods that Kubernetes may not make: they are waited for in vain."""
    if not world.refused or world.cluster.deleting:
        return stalled
    each = [f"{key}: {words}" for key, words in sorted(world.refused.items())]
    said = f"Kubernetes is not let make pods of {'; '.join(each)}"
    if stalled.status == TRUE:
        return replace(stalled, message=f"{stalled.message}; {said}")
    return Finding("Stalled", TRUE, "PodsRefused", f"{said}. Raise the quota, or mend what refuses them")


def summary(ready: Finding) -> Finding:
    """Return it with a message that fits into a column: another condition has the whole one."""
    return replace(ready, message=shortened(ready.message, _SUMMARY))


def _ready(world: World, desired: Desired, plan: Plan, operation: Operation | None, stalled: Finding) -> Finding:
    cluster = world.cluster
    if cluster.deleting:
        return Finding("Ready", FALSE, "Deleting", _words(plan))
    if cluster.paused:
        return Finding("Ready", FALSE, "Paused", "nothing is changed while the cluster is paused")
    if stalled.status == TRUE:
        return Finding("Ready", FALSE, "Blocked", stalled.message)
    if operation is not None:
        return Finding("Ready", FALSE, _VERB[operation.type], operation.message or f"{operation.id}: {operation.step}")
    if world.facts is None and any(pod.ready for pod in world.pods):
        return Finding("Ready", FALSE, "MetadataUnreachable", world.facts_error)
    if isinstance(plan.decision, Rest) and not plan.notes:
        return Finding("Ready", TRUE, "AllBookiesReady", f"{len(world.pods)} bookies serve")
    if isinstance(plan.decision, Rest):
        return Finding("Ready", FALSE, plan.notes[0].reason, plan.notes[0].message)
    creating = len(world.pods) < sum(each.replicas for each in desired.stateful_sets)
    waiting = plan.decision.reason if isinstance(plan.decision, Wait) else "Applying"
    return Finding("Ready", FALSE, "Creating" if creating else waiting, _words(plan))


def _available(world: World) -> Finding:
    wanted = world.cluster.spec.durability.ensemble_size
    if world.facts is None:
        if not world.stateful_sets and not world.pods:
            return Finding("Available", FALSE, "BelowEnsemble", "there are no bookies yet")
        return Finding("Available", UNKNOWN, "MetadataUnreachable", world.facts_error)
    writable = len(world.facts.writable)
    if writable >= wanted:
        return Finding("Available", TRUE, "Writable", "clients can write")
    return Finding("Available", FALSE, "BelowEnsemble", f"{writable} bookies are writable, an ensemble takes {wanted}")


def _reconciling(plan: Plan, operation: Operation | None, stalled: Finding) -> Finding:
    decision = plan.decision
    if stalled.status == TRUE and not isinstance(decision, Act | Record | Finish):
        return Finding("Reconciling", FALSE, "Stalled")
    if operation is not None:
        return Finding("Reconciling", TRUE, operation.step, operation.message)
    if isinstance(decision, Rest):
        return Finding("Reconciling", FALSE, "Done")
    reason = decision.reason if isinstance(decision, Wait) else "Applying"
    return Finding("Reconciling", TRUE, reason, _words(plan))


def _words(plan: Plan) -> str:
    match plan.decision:
        case Act(reason=words) | Record(reason=words) | Finish(message=words) | Wait(message=words):
            return words
        case Rest():
            return ""


def _replicated(world: World) -> Finding:
    answer = view.fully_replicated(world)
    if world.facts is None:
        return Finding("LedgersReplicated", UNKNOWN, "MetadataUnreachable", "the condition Available says why")
    if answer is None:
        words = "nobody is auditor" if world.facts.auditor is None else "no complete audit yet"
        return Finding("LedgersReplicated", UNKNOWN, "NotAudited", words)
    if answer:
        if (unlooked := gates.looked_at(world)) is not None:
            return Finding("LedgersReplicated", UNKNOWN, unlooked.reason, unlooked.message)
        return Finding("LedgersReplicated", TRUE, "AllReplicated")
    count = world.facts.under_replicated
    return Finding("LedgersReplicated", FALSE, "UnderReplicated", f"{count} ledgers have too few copies")


def _spec_valid(world: World, desired: Desired) -> Finding:
    if world.spec_errors:
        return Finding("SpecValid", FALSE, "InvalidSpec", "; ".join(world.spec_errors))
    # What this Kubernetes does not offer is left out, and nothing else waits for it.
    if left_out := (*desired.missing, *_smaller(world)):
        return Finding("SpecValid", TRUE, "PartlyApplied", "; ".join(left_out))
    given = world.cluster.spec.pod.resources.values()
    if not any(isinstance(part, Mapping) and part.get("memory") for part in given):
        return Finding("SpecValid", TRUE, "NothingReserved", _NOTHING_RESERVED)
    return Finding("SpecValid", TRUE, "Valid")


def _smaller(world: World) -> Iterator[str]:
    """Name the sizes that have no effect because claims request more."""
    storage = world.cluster.spec.storage
    sizes = {"journal": storage.journal.size, "ledger": storage.ledger.size}
    sizes |= {"index": storage.index.size} if storage.index is not None else {}
    told: set[str] = set()
    for claim in view.live_claims(world):
        wanted, asked = known_bytes(sizes.get(claim.volume, "")), known_bytes(claim.requested)
        if wanted is not None and asked is not None and asked > wanted and claim.volume not in told:
            told.add(claim.volume)
            path = f"spec.storage.{claim.volume}.size"
            yield f"{path}: volumes never shrink, and {claim.name} keeps its {claim.requested}"


def _active(operation: Operation | None, name: str, kind: OperationType) -> Finding:
    """Tell the step. Stalled or Reconciling says what the step waits for."""
    if operation is not None and operation.type is kind:
        return Finding(name, TRUE, operation.step)
    return Finding(name, FALSE, "NotUnderWay")


def _upgrading(desired: Desired, operation: Operation | None) -> Finding:
    found = _active(operation, "Upgrading", OperationType.ROLLOUT)
    if found.status == TRUE or not desired.held:
        return found
    waiting = ", ".join(sorted(desired.held))
    return Finding(
        found.type,
        found.status,
        "NewerTemplateWaits",
        f"this release of the operator makes the pods of {waiting} in another way, and that alone restarts no bookie:"
        " they change with the next change of spec that restarts them, or with a BookieTask of type Restart for all",
    )


def _scaling_down(world: World, desired: Desired, plan: Plan, operation: Operation | None) -> Finding:
    if operation is not None and operation.type is OperationType.DECOMMISSION:
        return _active(operation, "ScalingDown", OperationType.DECOMMISSION)
    wanted = {each.name: each.replicas for each in desired.stateful_sets}
    surplus = sum(max(0, each.replicas - wanted.get(each.name, 0)) for each in world.stateful_sets)
    if surplus and not world.cluster.deleting:
        blocked = _blockers(plan)
        return Finding(
            "ScalingDown", TRUE, "Blocked" if blocked else "Waiting", f"{surplus} bookies are to be taken out"
        )
    return Finding("ScalingDown", FALSE, "NotUnderWay")


def _paused(world: World) -> Finding:
    if world.cluster.paused:
        return Finding(
            "Paused",
            TRUE,
            "Annotation",
            "the annotation podkeeper.dev/paused holds all, the budget too",
        )
    return Finding("Paused", FALSE, "NotPaused")


def _deletion_blocked(world: World, plan: Plan) -> Finding:
    if world.cluster.deleting and (_blockers(plan) or world.cluster.paused):
        reason = "Paused" if world.cluster.paused else _blockers(plan)[0].reason
        return Finding("DeletionBlocked", TRUE, reason, _words(plan))
    return Finding("DeletionBlocked", FALSE, "NotBlocked" if world.cluster.deleting else "NotDeleted")


def _metadata(world: World, desired: Desired) -> Iterator[Finding]:
    """Yield the condition of backups, if they are asked for, and that of etcd, where the operator runs one."""
    if world.cluster.deleting:
        return
    if (backup := backups.backup_status(world)) is not None:
        well, reason, message = backups.health(world, backup)
        yield Finding("MetadataBackedUp", UNKNOWN if well is None else TRUE if well else FALSE, reason, message)
    if desired.members is not None:
        told = metadata_members.metadata_members(world, desired)
        healthy, reason, message = metadata_members.health(world, desired.members, told)
        yield Finding("MetadataHealthy", UNKNOWN if healthy is None else TRUE if healthy else FALSE, reason, message)


def _spare(world: World) -> Finding:
    spec = world.cluster.spec
    if spec.replicas > spec.durability.ensemble_size:
        return Finding("SpareCapacity", TRUE, "Spare", "an ensemble finds another bookie when one is away")
    return Finding(
        "SpareCapacity",
        FALSE,
        "NoSpareBookie",
        f"{spec.replicas} bookies are as many as an ensemble takes: while one is away no copy can be replaced",
    )
