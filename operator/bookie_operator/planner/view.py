"""Views of a snapshot in the words of the flows; and the remedies for a pod that does not become ready.

Invariants
- Names of pods and ordinals are compared as integers, never as text.
- "Could not tell" is never a yes: each answer here is false then, or None where the caller has to know.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from bookie_operator.crds.cluster_spec import BootstrapMode
from bookie_operator.crds.task_spec import TaskType
from bookie_operator.planner.desired import Desired
from bookie_operator.world.facts import ClusterFacts
from bookie_operator.world.model import ClaimView, PodFault, PodView, StatefulSetView, TaskView, World

ACCEPTED_SECONDS: Final = 86_400.0
MOST_LOSSES: Final = 16_384
"""Ledgers whose loss is accepted at once: their ids are in the status, and in requests."""
VOLUMES = frozenset({"journal", "ledger", "index"})


def stateful_set(world: World, name: str) -> StatefulSetView | None:
    return next((one for one in world.stateful_sets if one.name == name), None)


def pod(world: World, name: str) -> PodView | None:
    return world.pods_by_name.get(name)


def pod_name(stateful_set_name: str, ordinal: int) -> str:
    return f"{stateful_set_name}-{ordinal}"


def set_of(bookie: str) -> str:
    """Name of the StatefulSet that a pod of this name belongs to."""
    return bookie.rpartition("-")[0]


def ordinal_of(bookie: str) -> int:
    """Raises ValueError if it is no pod's name."""
    return int(bookie.rpartition("-")[2])


def expected_pods(world: World) -> Iterator[str]:
    """Names of the pods that the StatefulSets stand for."""
    for one in world.stateful_sets:
        yield from (pod_name(one.name, ordinal) for ordinal in range(one.replicas))


def claims(world: World) -> tuple[ClaimView, ...]:
    """The claims of bookies: others, such as the embedded metadata service's, are left alone."""
    return tuple(one for one in world.claims if one.volume in VOLUMES)


def live_claims(world: World) -> list[ClaimView]:
    """Claims of the bookies that there are; what is another owner's, was retired, goes or lost its volume is left
    alone."""
    expected = frozenset(expected_pods(world)) | {pod.name for pod in world.pods}
    return [
        claim
        for claim in claims(world)
        if claim.bookie in expected and not (claim.foreign or claim.retired or claim.deleting or claim.lost)
    ]


def claims_of(world: World, bookie: str) -> tuple[ClaimView, ...]:
    return tuple(one for one in world.claims_by_bookie.get(bookie, ()) if one.volume in VOLUMES)


def given_back(world: World) -> list[str]:
    """Names of claims whose bookies were taken over in place and belong to their former owner again.

    A takeover labels all claims before the operator goes on, and only its undo takes the labels off.
    """
    if world.cluster.spec.bootstrap.in_place is None:
        return []
    return sorted(one.name for one in claims(world) if one.foreign and one.mounted and not one.deleting)


def going_claim(world: World, bookie: str) -> ClaimView | None:
    """Return a claim of it that was deleted, and that Kubernetes keeps only as long as the bookie's pod is there."""
    found = pod(world, bookie)
    if found is None or found.deleting:
        return None
    return next((one for one in claims_of(world, bookie) if one.deleting), None)


def terminating(claims: Iterable[ClaimView]) -> str:
    """Name the claims that are being deleted, with the finalizers that keep them."""
    return ", ".join(
        f"{one.name} (kept by finalizer {', '.join(one.finalizers)})" if one.finalizers else one.name
        for one in sorted(claims, key=lambda one: one.name)
        if one.deleting
    )


def to_apply(world: World, key: str, digest: str) -> bool:
    """Return whether the object has another content, and may be given this one now."""
    if world.object_hashes.get(key) == digest or key in world.taken:
        return False
    return world.unstable.get(key) != digest


def unsettled(world: World) -> StatefulSetView | None:
    """A StatefulSet whose controller has not caught up (I10)."""
    return next((one for one in world.stateful_sets if not one.settled), None)


def away(world: World, desired: Desired) -> tuple[str, ...]:
    """Return bookies that should serve and do not, or whose state is unknown; a read-only one serves."""
    if world.facts is None:
        return tuple(expected_pods(world))
    registered = world.facts.registered
    return tuple(name for name in expected_pods(world) if not _serves(world, desired, name, registered))


def _serves(world: World, desired: Desired, name: str, registered: frozenset[str]) -> bool:
    found = pod(world, name)
    return found is not None and found.ready and not found.deleting and desired.bookie_id(name) in registered


def fully_replicated(world: World) -> bool | None:
    """Return whether every ledger has all its copies, as far as an audit shows; None: unknown.

    Without auto-recovery of the operator's own the marks alone count: no audit is needed then.
    """
    facts = world.facts
    if facts is None:
        return None
    if facts.under_replicated > 0:
        return False
    if world.cluster.spec.autorecovery.enabled and not audited(facts):
        return None
    return True


def audited(facts: ClusterFacts, since: float = 0.0) -> bool:
    """Return whether an auditor is there and began a complete audit after `since`."""
    return facts.auditor is not None and facts.last_audit is not None and facts.last_audit > since


def instance_id(world: World) -> str:
    """The instance id of this cluster: as recorded, else as a live process or the metadata job reported; empty:
    unknown."""
    if world.cluster.status.instance_id:
        return world.cluster.status.instance_id
    if world.facts is not None and world.facts.instance_id:
        return world.facts.instance_id
    return world.metadata_instance_id


def is_new(world: World) -> bool:
    """Return whether nothing of it was ever made: no StatefulSet is there or was recorded."""
    return not world.stateful_sets and not world.cluster.status.recorded_replicas


def adopts(world: World) -> bool:
    return world.cluster.spec.bootstrap.mode is BootstrapMode.ADOPT


def lapsed(world: World, task: TaskView) -> bool:
    """Losses are accepted for the operations that run or wait, not for those of another week."""
    return world.now - task.created_at >= ACCEPTED_SECONDS


def accepted_losses(world: World) -> tuple[int, ...]:
    """Return ledgers whose loss was accepted by a `BookieTask` that is not finished, in the last day, sorted. A task
    that would make them too many does not count."""
    found: set[int] = set()
    for task in world.tasks:
        if task.type is TaskType.ACCEPT_LOSS and not lapsed(world, task):
            more = found.union(task.ledgers)
            found = more if len(more) <= MOST_LOSSES else found
    return tuple(sorted(found))


REASONS: Final = {
    PodFault.IMAGE: "ImagePullFailed",
    PodFault.CONFIG: "PodCannotStart",
    PodFault.CRASHING: "BookieCrashing",
    PodFault.UNSCHEDULABLE: "Unschedulable",
    PodFault.VOLUME: "VolumeMissing",
    PodFault.COOKIE: "CookieMismatch",
}
"""Reasons of conditions."""

_REMEDIES: Final = {
    PodFault.IMAGE: "its image cannot be pulled ({}): see that spec.version or spec.image names one that exists, and"
    " that spec.imagePullSecrets may read it",
    PodFault.CONFIG: "it cannot be started ({}): create what is missing, or change spec so that it is not referred to",
    PodFault.CRASHING: "it ends again and again ({0}): see `kubectl logs {1} --previous`",
    PodFault.UNSCHEDULABLE: "no node takes it ({}): each bookie needs a node of its own that fits spec.pod, and its"
    " volumes may bind it to one. Uncordon that, or make room on it; or add a node, or lower spec.replicas",
    PodFault.VOLUME: "a volume of it is missing, or its node is gone ({0}): bring it back, or replace the bookie with a"
    " BookieTask of type Replace that names {1}",
    PodFault.COOKIE: "it refuses its directories, which are not those of its cookie ({0}): bring its volumes back, or"
    " replace the bookie with a BookieTask of type Replace that names {1}; never delete a cookie by hand",
}


def remedy(pod: PodView) -> str:
    """Return what is wrong with it, and what to do; empty: nothing shows."""
    text = _REMEDIES.get(pod.fault, "")
    return text.format(pod.fault_message or pod.fault.value, pod.name)


def stuck_on_node(world: World, pod: PodView | None) -> str:
    """Return what to say of a pod that is being stopped on a node that does not answer; empty: nothing."""
    node = (world.nodes or {}).get(pod.node) if pod is not None and pod.deleting else None
    if pod is None or node is None or node.ready or node.out_of_service:
        return ""
    return (
        f"; node {node.name} does not answer, so it is unknown whether {pod.name} still runs there: if the node is off"
        f" for good delete it, or run `kubectl taint node {node.name}"
        " node.kubernetes.io/out-of-service=nodeshutdown:NoExecute`"
    )
