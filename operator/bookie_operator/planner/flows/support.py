"""Objects around the bookies, which are applied when they are not as desired, one pass for all.

Invariants
- What is applied has the content whose hash it bears: an object is applied again only when its content is to be another
  one, or when it was changed by others; and with ever longer pauses where that happens again and again.
- Nothing that would start pods begins before the certificates that they mount are there.
- Auto-recovery begins when clients can write, so that it does not copy while bookies come up for the first time; and so
  do gateways, which serve clients.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bookie_operator.crds import names
from bookie_operator.crds.cluster_status import OperationType
from bookie_operator.planner import view
from bookie_operator.planner.actions import ApplyObjects, RestoreTemplate
from bookie_operator.planner.decision import Act, Event, EventType, Wait
from bookie_operator.planner.desired import Desired, DesiredDeployment
from bookie_operator.planner.flows import rollout_state
from bookie_operator.world.model import World

DRIFT: Final = "ChangedByHand"
"""Reason of the event that tells what was put back."""


def begin(world: World, desired: Desired) -> Act | None:
    """Services, accounts, configuration, policies, certificates, the identity: also while an operation runs."""
    return _apply(world, desired.support, "what bookies need is not as desired")


def names_taken(world: World, desired: Desired) -> Wait | None:
    """Report names that are taken, before anything of a new cluster is made; else the rest of the pass goes on."""
    strangers = [f"{key} ({whose})" for key, whose in world.taken.items() if key not in world.outlived]
    if not strangers:
        return None
    each = "; ".join(strangers[:5])
    if world.cluster.spec.bootstrap.in_place is not None:
        return Wait(
            "NameTaken",
            f"what is to be taken over in place still has another owner: {each}. Run `kubectl bookie migrate run "
            f"{world.cluster.name} --in-place`",
            seconds=15.0,
            stalled=True,
        )
    return Wait(
        "NameTaken",
        f"names that the cluster needs belong to objects of others, which are left alone: {each}. Give these another "
        "name, or the BookieCluster; or delete them if they are not needed",
        seconds=15.0,
        stalled=True,
    )


def new_names_taken(world: World, desired: Desired) -> Wait | None:
    if not view.is_new(world):
        return None
    return names_taken(world, desired) or _earlier_cluster(world)


def _earlier_cluster(world: World) -> Wait | None:
    """Wait until Kubernetes has taken away what the last cluster of this name owned."""
    if not world.outlived:
        return None
    shown = ", ".join(sorted(world.outlived)[:5])
    return Wait("Creating", f"waits until what an earlier {world.cluster.name} owned is gone: {shown}", seconds=1.0)


def certificates(world: World, desired: Desired) -> Wait | None:
    """Wait for the first certificate that cert-manager has not made yet.

    Bookies that keep an older template mount what that names.
    """
    if desired.stateful_sets and all(one.name in desired.held for one in desired.stateful_sets):
        return None
    if any(f"Secret/{each}" in world.taken for each in desired.issued):
        return names_taken(world, desired)
    name = next((each for each in desired.issued if f"Secret/{each}" not in world.object_uids), None)
    if name is None:
        return None
    if f"Certificate/{name}" not in desired.support:
        why = f"there is no cert-manager here that could make Secret {name}: install it, or change spec.tls"
        return Wait("CertificatePending", why, seconds=30.0, stalled=True)
    why = f"waits for cert-manager to make Secret {name}: `kubectl describe certificate {name}` tells why it does not"
    return Wait("CertificatePending", why, seconds=5.0)


def templates(world: World, desired: Desired) -> Act | None:
    """Give StatefulSets whose template was changed by others their own back.

    That restarts no pod: pods that were made meanwhile are a rollout's.
    """
    for wanted in desired.stateful_sets:
        one, key = view.stateful_set(world, wanted.name), f"StatefulSet/{wanted.name}"
        if one is None or key not in world.drift or wanted.name in desired.held:
            continue
        if one.template_hash == wanted.template_hash != world.unstable.get(key) and one.settled:
            reason = f"{key} is given back what it had: {world.drift[key]}"
            action = RestoreTemplate(one.name, one.resource_version, one.template_hash)
            return Act(action, reason, event=Event(DRIFT, reason, EventType.WARNING))
    return None


def unstable(world: World, desired: Desired) -> Wait | None:
    """Report objects that do not stay as they were applied. Everything else goes on."""
    waits = [
        f"{key} ({world.drift.get(key) or 'the annotation that tells its content is gone'})"
        for key, digest in sorted(world.unstable.items())
        if (world.drift.get(key) or not world.object_hashes.get(key)) and digest
    ]
    kept = [
        f"StatefulSet/{name} ({world.drift[f'StatefulSet/{name}']})"
        for name in sorted(desired.held)
        if f"StatefulSet/{name}" in world.drift
    ]
    if kept:
        remedy = "change it back, or restart all bookies by a BookieTask, which gives it the newest template"
        return Wait("ChangedByHand", f"{'; '.join(kept)}: {remedy}", seconds=30.0, stalled=True)
    if not waits:
        return None
    remedy = "find the admission webhook or the controller that changes it, and exclude what has the label"
    return Wait(
        "DoesNotStay",
        f"what was applied does not stay so: {'; '.join(waits[:5])}; {remedy} {names.MANAGED_BY}=podkeeper-operator",
        seconds=30.0,
        stalled=True,
    )


def autorecovery(world: World, desired: Desired) -> Act | None:
    return _deployment(world, desired.autorecovery, "auto-recovery is not as desired")


def gateway(world: World, desired: Desired) -> Act | None:
    return _deployment(world, desired.gateway, "gateways are not as desired")


def down_deployments(world: World, desired: Desired) -> Act | None:
    """Apply, while an operation runs, only those Deployments that are gone or have no working pod: proofs need an
    auditor, and clients need gateways. During a rollout only those that are gone, because what they would get may not
    work; but one that waits for an auditor gets auto-recovery once a bookie works with its template."""
    operation = world.cluster.status.operation
    rolls = operation is not None and operation.type is OperationType.ROLLOUT
    unaudited = world.facts is not None and world.facts.auditor is None and rollout_state.brings_up(world, desired)
    beside = (
        (desired.autorecovery, world.autorecovery, autorecovery, not rolls or unaudited),
        (desired.gateway, world.gateway, gateway, not rolls),
    )
    for wanted, live, rule, mends in beside:
        gone = wanted.key not in world.object_hashes
        if (gone or (mends and not live.ready)) and (found := rule(world, desired)) is not None:
            return found
    return None


def monitoring(world: World, desired: Desired) -> Act | None:
    return _apply(world, desired.monitoring, "monitoring is not as desired")


def _deployment(world: World, wanted: DesiredDeployment, why: str) -> Act | None:
    """Apply it once enough bookies take writes for an ensemble; a new version comes when the bookies have it."""
    if not wanted.key or (wanted.key not in world.object_hashes and not _was_writable(world)):
        return None
    return _apply(world, {wanted.key: wanted.object_hash}, why)


def _was_writable(world: World) -> bool:
    if world.cluster.status.ledgers.auditor:
        return True
    if world.facts is None and view.adopts(world):  # of bookies that were taken over in place none can tell
        return sum(pod.ready for pod in world.pods) >= world.cluster.spec.durability.ensemble_size
    return world.facts is not None and len(world.facts.writable) >= world.cluster.spec.durability.ensemble_size


def _apply(world: World, wanted: Mapping[str, str], why: str) -> Act | None:
    differing = tuple(key for key, digest in wanted.items() if view.to_apply(world, key, digest))
    if not differing:
        return None
    each = [f"{key} ({world.drift[key]})" if key in world.drift else key for key in differing[:5]]
    shown = ", ".join(each) + (f" and {len(differing) - 5} more" if len(differing) > 5 else "")
    reason = f"{why}: {shown}"
    changed = any(key in world.drift for key in differing)
    return Act(ApplyObjects(differing), reason, event=Event(DRIFT, reason, EventType.WARNING) if changed else None)
