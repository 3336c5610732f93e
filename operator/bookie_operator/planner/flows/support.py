"""Objects without which nothing works, or that only look on: applied when they are not as desired, one pass for all.

Invariants
- What is applied has the content whose hash it bears: an object is never applied twice without a change.
- Nothing that would start pods begins before the certificates that they mount are there.
- Auto-recovery begins when clients can write, so that it does not copy while bookies come up for the first time; and so
  do gateways, which serve clients.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Mapping

from bookie_operator.planner import view
from bookie_operator.planner.actions import ApplyObjects
from bookie_operator.planner.decision import Act, Wait
from bookie_operator.planner.desired import Desired, DesiredDeployment
from bookie_operator.world.model import World


def begin(world: World, desired: Desired) -> Act | None:
    """Services, accounts, configuration, policies, certificates, the identity: also while an operation runs."""
    return _apply(world, desired.support, "what bookies need is not as desired")


def names_taken(world: World, desired: Desired) -> Wait | None:
    """Before anything of a new cluster is made; of one that there is everything else goes on."""
    strangers = [f"{key} ({whose})" for key, whose in world.taken.items() if key not in world.outlived]
    if not strangers:
        return None
    each = "; ".join(strangers[:5])
    return Wait(
        "NameTaken",
        f"names that the cluster needs are somebody else's, whose objects are left alone: {each}. Give these another "
        "name, or the BookieCluster; or delete them if nobody needs them",
        seconds=15.0,
        stalled=True,
    )


def new_names_taken(world: World, desired: Desired) -> Wait | None:
    if not view.is_new(world):
        return None
    return names_taken(world, desired) or _earlier_cluster(world)


def _earlier_cluster(world: World) -> Wait | None:
    """Until Kubernetes has taken away what the last cluster of this name owned."""
    if not world.outlived:
        return None
    shown = ", ".join(sorted(world.outlived)[:5])
    return Wait("Creating", f"waits until what an earlier {world.cluster.name} owned is gone: {shown}", seconds=1.0)


def certificates(world: World, desired: Desired) -> Wait | None:
    """The first that cert-manager has not made yet. Bookies that keep an older template mount what that names."""
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


def autorecovery(world: World, desired: Desired) -> Act | None:
    return _deployment(world, desired.autorecovery, "auto-recovery is not as desired")


def gateway(world: World, desired: Desired) -> Act | None:
    return _deployment(world, desired.gateway, "gateways are not as desired")


def missing_deployments(world: World, desired: Desired) -> Act | None:
    """While an operation runs they are only made again when they are gone: proofs want an auditor, clients gateways."""
    for one, rule in ((desired.autorecovery, autorecovery), (desired.gateway, gateway)):
        if one.key not in world.object_hashes and (found := rule(world, desired)) is not None:
            return found
    return None


def monitoring(world: World, desired: Desired) -> Act | None:
    return _apply(world, desired.monitoring, "monitoring is not as desired")


def _deployment(world: World, wanted: DesiredDeployment, why: str) -> Act | None:
    """Once enough bookies take writes for an ensemble; a new version comes when the bookies have it."""
    if not wanted.key or (wanted.key not in world.object_hashes and not _was_writable(world)):
        return None
    return _apply(world, {wanted.key: wanted.object_hash}, why)


def _was_writable(world: World) -> bool:
    if world.cluster.status.ledgers.auditor:
        return True
    return world.facts is not None and len(world.facts.writable) >= world.cluster.spec.durability.ensemble_size


def _apply(world: World, wanted: Mapping[str, str], why: str) -> Act | None:
    differing = tuple(
        key for key, digest in wanted.items() if world.object_hashes.get(key) != digest and key not in world.taken
    )
    if not differing:
        return None
    shown = ", ".join(differing[:5]) + (f" and {len(differing) - 5} more" if len(differing) > 5 else "")
    return Act(ApplyObjects(differing), f"{why}: {shown}")
