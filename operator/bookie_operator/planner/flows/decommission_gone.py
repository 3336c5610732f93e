"""A decommission once the bookie is stopped, until nothing of it is left; and the way back.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from bookie_operator.crds.cluster_spec import WhenDeleted
from bookie_operator.planner import auditing, draining, gates, proving, view
from bookie_operator.planner.actions import (
    DeleteClaim,
    DeleteCookie,
    RetireClaim,
    ScaleStatefulSet,
    SetReadOnly,
    UndoDrain,
)
from bookie_operator.planner.decision import Decision, Event
from bookie_operator.planner.flows.decommission_state import (
    MODE,
    ORDINAL,
    SET,
    WAS_READ_ONLY,
    WHY_BACK,
    WITHDRAWN,
    back,
    patience,
    stays,
    stops_first,
    until_settled,
)
from bookie_operator.planner.proving import Claims, disproof, unproven
from bookie_operator.planner.remedies import stuck_on_node
from bookie_operator.planner.run import Run
from bookie_operator.world.facts import Proof


def leave(run: Run) -> Decision:
    found = view.stateful_set(run.world, run.saved(SET))
    if found is not None and found.replicas > int(run.saved(ORDINAL)):
        return stays(run, f"somebody scaled {found.name} to {found.replicas} replicas")
    if run.pod is not None:
        stuck = stuck_on_node(run.world, run.pod)
        return run.wait_at_most(patience(run), "StoppingBookie", f"waits until pod {run.bookie} is gone{stuck}")
    if gates.is_registered(run.world, run.desired, run.bookie):
        return run.wait_at_most(
            patience(run), "StoppingBookie", f"waits until the registration of {run.bookie} has expired"
        )
    if stops_first(run.saved(MODE)):
        return run.forget(*draining.KEYS).go("Drain", f"{run.bookie} is stopped")
    return run.go("ProveGone", f"{run.bookie} is stopped")


def prove_gone(run: Run) -> Decision:
    proof = proving.told(run, patience(run))
    if not isinstance(proof, Proof):
        return proof
    if (named := disproof(proof)) is not None:
        if stops_first(run.saved(MODE)):
            return run.forget(*draining.KEYS, *auditing.KEYS).go("Drain", f"{run.bookie} is drained again: {named}")
        return run.go("Return", f"{run.bookie} comes back: {named}")
    why = unproven(run, proof)
    if why is None:
        return run.forget(*auditing.KEYS).go("Cookie", f"nothing names {run.bookie}, and it is stopped")
    if gates.audited_after(run.world, run.saved_time(draining.SINCE)):
        return run.wait_at_most(patience(run), "WaitingForProof", why)
    # What never served is not missed, and other bookies may wait for the room that it took, or for more.
    crowded = gates.without_room(run.world, run.desired, run.bookie)
    others = view.away(run.world, run.desired) if run.saved(WITHDRAWN) else crowded
    audited = auditing.audit(run, frozenset({run.bookie, *others}), patience(run))
    return audited or run.wait_at_most(patience(run), "WaitingForProof", why)


def return_(run: Run) -> Decision:
    ordinal, found = int(run.saved(ORDINAL)), view.stateful_set(run.world, run.saved(SET))
    if found is None or not found.settled:
        return until_settled(run)
    if found.replicas > ordinal:
        return back(run, f"{run.bookie} is drained once more")
    action = ScaleStatefulSet(found.name, found.resource_version, found.replicas, ordinal + 1)
    return run.act(action, f"a client used {run.bookie} while it was stopped: it comes back and is drained once more")


def cookie(run: Run) -> Decision:
    assert run.world.facts is not None
    if run.bookie_id not in run.world.facts.cookies:
        return run.go("Claims", f"{run.bookie} has no cookie any more")
    proof = proving.standing(run, patience(run))
    if not isinstance(proof, Proof):
        return proof
    losses = draining.accepted_by(run.operation)
    return run.act(DeleteCookie(run.bookie_id, proof, losses), f"no ledger needs {run.bookie}", then="Claims")


def claims(run: Run) -> Decision:
    retain = run.world.cluster.spec.storage.retention.when_scaled is WhenDeleted.RETAIN
    left = [one for one in Claims.read(run.operation).left(run.world) if not (retain and one.retired)]
    if not left:
        kept = "its claims are kept, labelled as retired" if retain else "its claims are deleted"
        message = f"{run.bookie} was taken out: no ledger names it, its cookie is deleted, {kept}"
        return run.finish(message, event=Event("BookieDecommissioned", message))
    claim = next((one for one in left if not one.deleting), None)
    if claim is None:
        return run.wait_at_most(
            patience(run), "DeletingClaims", f"waits until {', '.join(one.name for one in left)} are gone"
        )
    proof = proving.standing(run, patience(run))
    if not isinstance(proof, Proof):
        return proof
    if retain:
        return run.act(RetireClaim(claim.name, claim.uid, proof), f"{run.bookie} was taken out, its data are kept")
    return run.act(DeleteClaim(claim.name, claim.uid, proof), f"{run.bookie} was taken out, and no ledger needs it")


# --- taken back -------------------------------------------------------------------------------------------------------


def undo(run: Run) -> Decision:
    facts = run.world.drains.get(run.bookie_id)
    if facts is None:
        return run.wait_at_most(patience(run), gates.METADATA_UNREACHABLE, f"nobody could tell who drains {run.bookie}")
    if facts.phase in draining.UNDER_WAY:
        return run.act(UndoDrain(run.bookie_id), f"{run.bookie} stays: its drain is taken back")
    ordinal, found = int(run.saved(ORDINAL)), view.stateful_set(run.world, run.saved(SET))
    if found is not None and found.replicas <= ordinal:
        action = ScaleStatefulSet(found.name, found.resource_version, found.replicas, ordinal + 1)
        return run.act(action, f"{run.bookie} stays: it is started again")
    assert run.world.facts is not None
    if run.bookie_id in run.world.facts.read_only and run.saved(WAS_READ_ONLY) != "true":
        return run.act(SetReadOnly(run.bookie, False), f"{run.bookie} stays: it takes new data again")
    registered = gates.is_registered(run.world, run.desired, run.bookie)
    if not registered and not gates.is_down(run.world, run.desired, run.bookie):
        return run.wait_at_most(patience(run), "StartingBookie", f"waits until {run.bookie} is registered again")
    message = f"{run.bookie} stays: {run.saved(WHY_BACK)}"
    return run.finish(message, outcome="Cancelled", event=Event("DecommissionCancelled", message))
