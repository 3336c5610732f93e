"""Things of the operator's own making that nothing uses any more.

Invariants
- A ConfigMap stays while any pod or StatefulSet may use it: a pod that starts again does so with *its* configuration.
- A claim goes only if it is retired, its bookie is not asked for, and a proof of this pass holds.
- Secrets, claims that are not retired, and Services but that of gateways are never garbage.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from typing import Final

from bookie_operator.crds.cluster_spec import WhenDeleted
from bookie_operator.planner import view
from bookie_operator.planner.actions import DeleteClaim, DeleteObject, OrphanStatefulSet
from bookie_operator.planner.decision import Act, Needs
from bookie_operator.planner.desired import Desired
from bookie_operator.planner.flows import rollout_state
from bookie_operator.world.model import ClaimView, World

_KINDS: Final = frozenset(
    {"NetworkPolicy", "PodDisruptionBudget", "PodMonitor", "PrometheusRule", "Certificate", "Deployment"}
)
_CONFIG_MAP: Final = "ConfigMap"


def begin(world: World, desired: Desired) -> Act | None:
    return _object(world, desired) or _empty_set(world, desired) or _claim(world, desired)


def _object(world: World, desired: Desired) -> Act | None:
    """Return the next object that is not desired; only what bears a hash was made by the operator."""
    wanted = {*desired.support, *desired.monitoring, *desired.deployments, desired.budget, desired.metadata_job}
    wanted |= {desired.check_job, desired.backup}
    name = world.cluster.name
    once = {f"Service/{name}-gateway", f"Job/{name}-metadata-check", f"CronJob/{name}-backup"}
    in_use = _config_maps_in_use(world)
    for key, digest in sorted(world.object_hashes.items()):
        kind, _, name = key.partition("/")
        uid = world.object_uids.get(key)
        if not digest or uid is None or key in wanted:
            continue
        if kind == "Certificate" and _older_templates(world, desired):
            continue
        old_config = kind == _CONFIG_MAP and in_use is not None and name not in in_use
        if kind in _KINDS or old_config or key in once:
            return Act(DeleteObject(key, uid), f"nothing uses {key} any more")
    return None


def _older_templates(world: World, desired: Desired) -> bool:
    """Bookies may mount what a Certificate renews that nothing else names any more."""
    return bool(desired.held or rollout_state.unstaged(world, desired) or rollout_state.outdated(world, desired))


def _config_maps_in_use(world: World) -> frozenset[str] | None:
    """Return the ConfigMaps in use; None: of some pod, or of backups, they are unknown."""
    if world.backup is None:
        return None
    users = [*(one.config_maps for one in world.pods), *(one.config_maps for one in world.stateful_sets)]
    beside = world.autorecovery.config_maps | world.gateway.config_maps | world.backup.config_maps
    return beside.union(*users) if all(users) else None


def _empty_set(world: World, desired: Desired) -> Act | None:
    """Return the StatefulSet of a zone that was taken out of `spec`, once nothing is left of it."""
    wanted = {one.name for one in desired.stateful_sets}
    for one in world.stateful_sets:
        left = any(found.stateful_set == one.name for found in world.pods)
        if one.name not in wanted and one.replicas == 0 and one.settled and not left:
            return Act(OrphanStatefulSet(one.name, one.uid), f"zone {one.zone or one.name} has no bookies any more")
    return None


def needs(world: World, desired: Desired) -> Needs:
    """Return the proof for the next claim."""
    claim = _next_claim(world, desired)
    return Needs(proofs=frozenset({desired.bookie_id(claim.bookie)})) if claim is not None else Needs()


def _next_claim(world: World, desired: Desired) -> ClaimView | None:
    """A retired one that `spec` does not keep."""
    if world.cluster.spec.storage.retention.when_scaled is not WhenDeleted.DELETE:
        return None
    own = world.cluster.status.instance_id
    kept = {view.pod_name(one.name, n) for one in desired.stateful_sets for n in range(one.replicas)}
    kept |= {*view.expected_pods(world), *(one.name for one in world.pods)}
    for claim in view.claims(world):
        retired = claim.retired and bool(claim.retired_proof) and not claim.deleting
        if retired and claim.bookie not in kept and own and claim.instance_id == own:
            return claim
    return None


def _claim(world: World, desired: Desired) -> Act | None:
    claim = _next_claim(world, desired)
    if claim is None:
        return None
    proof = world.proofs.get(desired.bookie_id(claim.bookie))
    if proof is None or not proof.holds(instance_id=world.cluster.status.instance_id, drained_since=0.0):
        return None
    return Act(
        DeleteClaim(claim.name, claim.uid, proof),
        f"claim {claim.name} was retired, no ledger names its bookie, and spec keeps no retired volumes",
    )
