"""The steps of a decommission, and the ways back.

While the bookie is up, they go from the first audit until its pod is taken away; once it is stopped, until nothing of
it is left. `decommission` says their order.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from typing import Final

from bookie_operator.crds.cluster_spec import DecommissionMode, WhenDeleted
from bookie_operator.planner import draining, gates, operations, proving, view
from bookie_operator.planner.actions import (
    DeleteClaim,
    DeleteCookie,
    RetireClaim,
    ScaleStatefulSet,
    SetReadOnly,
    UndoDrain,
)
from bookie_operator.planner.decision import Decision, Event, EventType, Record
from bookie_operator.planner.proving import Claims, disproof, unproven
from bookie_operator.planner.run import Run
from bookie_operator.planner.view import stuck_on_node
from bookie_operator.world.facts import DrainFacts, Proof

MAKES_ROOM: Final = "makesRoom"
"""Set if it is stopped for another bookie that no node takes."""
MODE: Final = "mode"
ORDINAL: Final = "ordinal"
SET: Final = "statefulSet"
WAS_READ_ONLY: Final = "wasReadOnly"
WHY_BACK: Final = "whyBack"
WITHDRAWN: Final = "withdrawn"
"""Set if it never served."""


def stops_first(mode: str) -> bool:
    return mode == DecommissionMode.STOP_FIRST.value


def back(run: Run, why: str) -> Decision:
    """Drain it once more: it may have got data."""
    scaling = operations.planned_replicas(run.saved(SET), 0)
    return run.forget(*proving.AUDIT_KEYS, *draining.KEYS, *scaling).go("ReadOnly", why)


def stays(run: Run, why: str) -> Record:
    """Give the bookie back: all that was done to it is undone."""
    return run.go("Undo", why, saved={WHY_BACK: why})


def until_settled(run: Run) -> Decision:
    return run.wait_at_most(
        run.patience,
        "StatefulSetNotObserved",
        f"waits until {run.saved(SET)} is there and its controller has seen it",
    )


def audit(run: Run) -> Decision:
    first = proving.audit(run, frozenset({run.bookie}), run.patience)
    if first is not None:
        return first
    obstacle = gates.replicated(run.world)
    if obstacle is not None:
        return run.blocked(obstacle, run.patience)
    following = "Stop" if stops_first(run.saved(MODE)) else "ReadOnly"
    return run.forget(*proving.AUDIT_KEYS).go(following, "no ledger is under-replicated")


def withdraw(run: Run) -> Decision:
    """Withdraw the bookie without audit and drain: nothing names it, which is proved now, and once more when it is
    gone."""
    ordinal, found = int(run.saved(ORDINAL)), view.stateful_set(run.world, run.saved(SET))
    if found is None or not found.settled:
        return until_settled(run)
    if found.replicas == ordinal:
        return run.go("Leave", f"{found.name} has {ordinal} replicas")
    wanted = any(one.name == found.name and one.replicas > ordinal for one in run.desired.stateful_sets)
    if wanted or found.replicas != ordinal + 1:
        return run.finish(f"{run.bookie} is asked for again", outcome="Cancelled")
    if not gates.never_served(run.world, run.desired, run.bookie):
        return run.finish(f"{run.bookie} has come up, and is drained before it goes", outcome="Cancelled")
    if (renamed := gates.renamed(run.world, run.desired, run.bookie)) is not None:
        return run.blocked(renamed, run.patience)
    proof = proving.told(run, run.patience)
    if not isinstance(proof, Proof):
        return proof
    if (named := disproof(proof)) is not None:
        planned = operations.planned_replicas(found.name, ordinal)
        why = f"{run.bookie} served once, and does not now: {named}"
        return run.forget(WITHDRAWN, *planned).go("Audit", why, saved={MODE: DecommissionMode.STOP_FIRST.value})
    action = ScaleStatefulSet(found.name, found.resource_version, found.replicas, ordinal)
    return run.act(action, f"{run.bookie} never served: it is taken away", then="Leave")


def read_only(run: Run) -> Decision:
    if gates.is_writable(run.world, run.desired, run.bookie):
        nowhere = gates.elsewhere(run.world, run.bookie_id)
        if nowhere is None:
            return run.act(SetReadOnly(run.bookie, True), f"no new data may go to {run.bookie}")
        return stays(run, nowhere.message) if nowhere.needs_person else run.blocked(nowhere, run.patience)
    if not gates.is_registered(run.world, run.desired, run.bookie):
        return _down(run)
    return run.forget(*draining.KEYS).go("Drain", f"{run.bookie} is read-only")


def _down(run: Run) -> Decision:
    """It has to serve reads while it is drained, unless people say that it does not any more."""
    if stops_first(run.world.cluster.spec.decommission.mode.value):
        return run.go("Stop", f"{run.bookie} is stopped first", saved={MODE: DecommissionMode.STOP_FIRST.value})
    why = run.pod.fault_message if run.pod is not None else "it has no pod"
    return run.wait_at_most(
        run.patience,
        "BookieUnavailable",
        f"waits until {run.bookie} is registered, for it has to serve reads{f': {why}' if why else ''}; if it is"
        " lost set spec.decommission.mode to StopFirst, or raise spec.replicas to keep it",
    )


def drain(run: Run) -> Decision:
    stopped = stops_first(run.saved(MODE))
    if not stopped and gates.is_writable(run.world, run.desired, run.bookie):
        return run.act(SetReadOnly(run.bookie, True), f"{run.bookie} became writable while it was drained")
    following = draining.drain(run, stopped=stopped, stall_s=run.patience)
    if following is not None:
        return following
    return run.go("ProveGone" if stopped else "Prove", f"{run.bookie} is drained")


def prove(run: Run) -> Decision:
    return _proven(run) or run.forget(*proving.AUDIT_KEYS).go(
        "ProveAgain", f"nothing names {run.bookie}, by a first proof"
    )


def prove_again(run: Run) -> Decision:
    planned = operations.planned_replicas(run.saved(SET), int(run.saved(ORDINAL)))
    return _proven(run) or run.forget(*proving.AUDIT_KEYS).go(
        "Scale", f"nothing names {run.bookie}, by a second proof after another audit", saved=planned
    )


def _proven(run: Run) -> Decision | None:
    """None: an audit after the drain, and a listing of this pass, found nothing."""
    if gates.is_writable(run.world, run.desired, run.bookie):
        return back(run, f"{run.bookie} became writable after it was drained")
    audited = proving.audit(run, frozenset({run.bookie}), run.patience)
    if audited is not None:
        return audited
    proof = proving.told(run, run.patience)
    if not isinstance(proof, Proof):
        return proof
    if (named := disproof(proof)) is not None:
        return back(run, f"{run.bookie} is drained again: {named}")
    return None


def scale(run: Run) -> Decision:
    ordinal, found = int(run.saved(ORDINAL)), view.stateful_set(run.world, run.saved(SET))
    if found is None or not found.settled:
        return until_settled(run)
    if found.replicas == ordinal:
        return run.go("Leave", f"{found.name} has {ordinal} replicas")
    if found.replicas != ordinal + 1:
        return stays(run, f"{found.name} was scaled to {found.replicas} replicas meanwhile")
    if gates.is_writable(run.world, run.desired, run.bookie):
        return back(run, f"{run.bookie} became writable after it was drained")
    proof = proving.told(run, run.patience)
    if not isinstance(proof, Proof):
        return proof
    if (named := disproof(proof)) is not None:
        return back(run, f"{run.bookie} is drained again: {named}")
    if (why := unproven(run, proof, registered=True)) is not None:
        return run.wait_at_most(run.patience, "WaitingForProof", why)
    obstacle = gates.first(
        gates.enough_without(run.world, run.desired, gates.Victim(found, ordinal)),
        gates.members_serve(run.world, run.desired, {run.bookie}),
        gates.replicated(run.world),
    )
    if obstacle is not None:
        return run.blocked(obstacle, run.patience)
    return run.act(
        ScaleStatefulSet(found.name, found.resource_version, found.replicas, ordinal),
        f"no ledger needs {run.bookie}: it is stopped",
        then="Leave",
    )


def stop(run: Run) -> Decision:
    """Stop a bookie that is not drained yet, as `Scale` does: nothing may need it at this moment."""
    ordinal, found = int(run.saved(ORDINAL)), view.stateful_set(run.world, run.saved(SET))
    planned = operations.planned_replicas(run.saved(SET), ordinal)
    if found is None or not found.settled:
        return until_settled(run)
    if found.replicas == ordinal:
        return run.go("Leave", f"{found.name} has {ordinal} replicas")
    if found.replicas != ordinal + 1:
        return stays(run, f"{found.name} was scaled to {found.replicas} replicas meanwhile")
    if _serves_again(run):
        why = f"{run.bookie} serves again, and is drained before it is stopped"
        return run.forget(*planned).go("ReadOnly", why, saved={MODE: DecommissionMode.DRAIN.value})
    crowded = gates.without_room(run.world, run.desired, run.bookie) if run.saved(MAKES_ROOM) else []
    if run.saved(MAKES_ROOM) and not crowded:
        return stays(run, "every other bookie has room by now")
    obstacle = gates.first(
        gates.enough_without(run.world, run.desired, gates.Victim(found, ordinal)),
        gates.claims_stay(run.world, run.desired, {run.bookie}),
        gates.renamed(run.world, run.desired, run.bookie),
        gates.members_serve(run.world, run.desired, {run.bookie, *crowded}),
        None if crowded else gates.looked_at(run.world, {run.bookie_id}),
        gates.stoppable(run.world, frozenset({run.bookie_id}), last_copies=not crowded),
    )
    if obstacle is not None:
        return run.forget(*planned).blocked(obstacle, run.patience)
    if not planned.items() <= run.operation.saved.items():
        return run.go("Stop", f"{run.bookie} may be stopped", saved=planned)
    action = ScaleStatefulSet(found.name, found.resource_version, found.replicas, ordinal)
    return run.act(action, f"{run.bookie} is stopped before it is drained", then="Leave")


def _serves_again(run: Run) -> bool:
    """Return whether it serves again: it was to be stopped first only because it was down, not on request."""
    if run.saved(MAKES_ROOM) or stops_first(run.world.cluster.spec.decommission.mode.value):
        return False
    return gates.is_registered(run.world, run.desired, run.bookie)


def leave(run: Run) -> Decision:
    found = view.stateful_set(run.world, run.saved(SET))
    if found is not None and found.replicas > int(run.saved(ORDINAL)):
        return stays(run, f"{found.name} was scaled to {found.replicas} replicas meanwhile")
    if run.pod is not None:
        stuck = stuck_on_node(run.world, run.pod)
        return run.wait_at_most(run.patience, "StoppingBookie", f"waits until pod {run.bookie} is gone{stuck}")
    if gates.is_registered(run.world, run.desired, run.bookie):
        return run.wait_at_most(
            run.patience, "StoppingBookie", f"waits until the registration of {run.bookie} has expired"
        )
    if stops_first(run.saved(MODE)):
        return run.forget(*draining.KEYS).go("Drain", f"{run.bookie} is stopped")
    return run.go("ProveGone", f"{run.bookie} is stopped")


def prove_gone(run: Run) -> Decision:
    proof = proving.told(run, run.patience)
    if not isinstance(proof, Proof):
        return proof
    if (named := disproof(proof)) is not None:
        if stops_first(run.saved(MODE)):
            return run.forget(*draining.KEYS, *proving.AUDIT_KEYS).go(
                "Drain", f"{run.bookie} is drained again: {named}"
            )
        return run.go("Return", f"{run.bookie} comes back: {named}")
    why = unproven(run, proof)
    if why is None:
        return run.forget(*proving.AUDIT_KEYS).go("Cookie", f"nothing names {run.bookie}, and it is stopped")
    if gates.audited_after(run.world, run.saved_time(draining.SINCE)):
        return run.wait_at_most(run.patience, "WaitingForProof", why)
    # What never served is not missed, and other bookies may wait for the room that it took, or for more.
    crowded = gates.without_room(run.world, run.desired, run.bookie)
    others = view.away(run.world, run.desired) if run.saved(WITHDRAWN) else crowded
    audited = proving.audit(run, frozenset({run.bookie, *others}), run.patience)
    return audited or run.wait_at_most(run.patience, "WaitingForProof", why)


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
    proof = proving.standing(run, run.patience)
    if not isinstance(proof, Proof):
        return proof
    losses = draining.accepted_by(run.operation)
    return run.act(DeleteCookie(run.bookie_id, proof, losses), f"no ledger needs {run.bookie}", then="Claims")


def claims(run: Run) -> Decision:
    retain = run.world.cluster.spec.storage.retention.when_scaled is WhenDeleted.RETAIN
    left = [
        one for one in Claims.read(run.operation).left(run.world) if not one.foreign and not (retain and one.retired)
    ]
    claim = next((one for one in left if not one.deleting), None)
    if claim is None:
        # Whatever still keeps a claim holds up only the next bookie of its name (`scale_up.why_not_cleared`).
        kept = "its claims are kept, labelled as retired" if retain else "its claims are deleted"
        message = f"{run.bookie} was taken out: no ledger names it, its cookie is deleted, {kept}"
        return run.finish(message, event=Event("BookieDecommissioned", message))
    proof = proving.standing(run, run.patience)
    if not isinstance(proof, Proof):
        return proof
    if retain:
        return run.act(RetireClaim(claim.name, claim.uid, proof), f"{run.bookie} was taken out, its data are kept")
    return run.act(DeleteClaim(claim.name, claim.uid, proof), f"{run.bookie} was taken out, and no ledger needs it")


# --- taken back -------------------------------------------------------------------------------------------------------


def undo(run: Run) -> Decision:
    facts = run.world.drains.get(run.bookie_id)
    if facts is None:
        return run.wait_at_most(run.patience, gates.METADATA_UNREACHABLE, f"the drain of {run.bookie} is unknown")
    message = f"{run.bookie} stays: {run.saved(WHY_BACK)}"
    wanted = _taken_back(run, facts)
    if wanted is not None:
        following = run.in_time(wanted, message)
        if following is not None:
            return following
        message = f"{message}. {draining.stays_drained(run)}"
        return run.finish(message, outcome="Failed", event=Event("DecommissionFailed", message, EventType.WARNING))
    registered = gates.is_registered(run.world, run.desired, run.bookie)
    if not registered and not gates.is_down(run.world, run.desired, run.bookie):
        return run.wait_at_most(run.patience, "StartingBookie", f"waits until {run.bookie} is registered again")
    return run.finish(message, outcome="Cancelled", event=Event("DecommissionCancelled", message))


def _taken_back(run: Run, facts: DrainFacts) -> Decision | None:
    """None: nothing is left of the decommission."""
    if facts.phase in draining.UNDER_WAY:
        return run.act(UndoDrain(run.bookie_id), f"{run.bookie} stays: its drain is taken back")
    ordinal, found = int(run.saved(ORDINAL)), view.stateful_set(run.world, run.saved(SET))
    if found is not None and found.replicas <= ordinal:
        action = ScaleStatefulSet(found.name, found.resource_version, found.replicas, ordinal + 1)
        return run.act(action, f"{run.bookie} stays: it is started again")
    assert run.world.facts is not None
    if run.bookie_id in run.world.facts.read_only and run.saved(WAS_READ_ONLY) != "true":
        return run.act(SetReadOnly(run.bookie, False), f"{run.bookie} stays: it takes new data again")
    return None
