"""What an earlier bookie of the same name left: claims and cookies, and whether they may go.

Invariants
- A claim goes only if it was retired with a proof, belongs to this cluster, and a proof of this pass holds again.
- A cookie goes only with such a proof too, and after the claims.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bookie_operator.planner import view
from bookie_operator.planner.actions import DeleteClaim, DeleteCookie
from bookie_operator.planner.decision import Act, Wait
from bookie_operator.planner.desired import Desired
from bookie_operator.world.facts import Proof
from bookie_operator.world.model import ClaimView, World

AUDIT_PENDING: Final = "AuditPending"


def dirty(world: World, desired: Desired, pods: Sequence[str]) -> list[str]:
    """Those of the pods of which a claim or a cookie is left, in their order."""
    cookies = world.facts.cookies if world.facts is not None else frozenset()
    return [pod for pod in pods if view.claims_of(world, pod) or desired.bookie_id(pod) in cookies]


def refused(world: World, desired: Desired, pods: Sequence[str]) -> Wait | None:
    """Why bookies of these names cannot be made (yet); None: what is left of them, if anything, can be cleared."""
    if world.facts is None:
        why = world.facts_error or "nobody reaches the metadata service"
        return Wait("MetadataUnreachable", f"cannot tell whether cookies of earlier bookies are left: {why}")
    for pod in dirty(world, desired, pods):
        found = _claims_refused(world, pod) or _proof_refused(world, desired, pod)
        if found is not None:
            return found
    return None


def _claims_refused(world: World, pod: str) -> Wait | None:
    for claim in view.claims_of(world, pod):
        if not claim.deleting and not _retired(world, claim):
            return Wait(
                "LeftoverClaims",
                f"claim {claim.name} of an earlier {pod} is not marked as retired with a proof, so it may hold the "
                "last copy of a ledger: delete it if nobody needs its data, or leave spec.replicas as it was",
                seconds=30.0,
                stalled=True,
            )
    return None


def _retired(world: World, claim: ClaimView) -> bool:
    own = world.cluster.status.instance_id
    return claim.retired and bool(claim.retired_proof) and bool(own) and claim.instance_id == own


def _proof_refused(world: World, desired: Desired, pod: str) -> Wait | None:
    bookie_id = desired.bookie_id(pod)
    proof = world.proofs.get(bookie_id)
    if proof is None:
        return Wait("ProofUnknown", f"cannot tell whether ledgers need what is left of {bookie_id}", seconds=10.0)
    if proof.auditor is None:
        return Wait(
            "NoAuditor",
            f"no auditor is elected, so nobody can prove that no ledger needs what is left of {bookie_id}: enable "
            "spec.autorecovery, and see that it runs",
            seconds=30.0,
            stalled=True,
        )
    if proof.registered:
        return Wait("StillRegistered", f"{bookie_id} is still registered", seconds=10.0)
    if proof.ledgers or proof.marks:
        return Wait(
            "LeftoverBookie",
            f"{proof.ledgers} ledgers still name {bookie_id}, an earlier bookie of this name ({proof.marks} of them "
            "are marked as under-replicated): auto-recovery has to copy them first; until then leave spec.replicas as "
            "it was",
            seconds=60.0,
            stalled=True,
        )
    return None


def clear(world: World, desired: Desired, pod: str, since: float) -> Act | Wait:
    """Delete the next thing that is left of it, if an audit newer than `since` agrees; who calls asked `refused`."""
    bookie_id = desired.bookie_id(pod)
    proof: Proof | None = world.proofs.get(bookie_id)
    if proof is None or not proof.holds(instance_id=world.cluster.status.instance_id, drained_since=since):
        return Wait(AUDIT_PENDING, f"waits for an audit, to prove that no ledger needs what is left of {bookie_id}")
    left = view.claims_of(world, pod)
    for claim in left:
        if not claim.deleting:
            return Act(
                DeleteClaim(claim.name, claim.uid, proof),
                f"claim {claim.name} was retired, and no ledger names {bookie_id}",
            )
    if left:
        return Wait("ClaimsTerminating", f"waits for claim {left[0].name} to be gone")
    return Act(DeleteCookie(bookie_id, proof), f"an earlier {bookie_id} left its cookie, and no ledger names it")
