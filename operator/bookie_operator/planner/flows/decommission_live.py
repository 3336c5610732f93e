"""A decommission while the bookie is up: from the first audit until its pod is taken away.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from bookie_operator.crds.cluster_spec import DecommissionMode
from bookie_operator.planner import auditing, draining, gates, operations, proving, view
from bookie_operator.planner.actions import ScaleStatefulSet, SetReadOnly
from bookie_operator.planner.decision import Decision
from bookie_operator.planner.flows.decommission_state import (
    MAKES_ROOM,
    MODE,
    ORDINAL,
    SET,
    WITHDRAWN,
    back,
    patience,
    stays,
    stops_first,
    until_settled,
)
from bookie_operator.planner.proving import disproof, unproven
from bookie_operator.planner.run import Run
from bookie_operator.world.facts import Proof


def audit(run: Run) -> Decision:
    first = auditing.audit(run, frozenset({run.bookie}), patience(run))
    if first is not None:
        return first
    obstacle = gates.replicated(run.world)
    if obstacle is not None:
        return run.blocked(obstacle, patience(run))
    following = "Stop" if stops_first(run.saved(MODE)) else "ReadOnly"
    return run.forget(*auditing.KEYS).go(following, "no ledger is under-replicated")


def withdraw(run: Run) -> Decision:
    """No audit and no drain: nothing names it, which is proved now, and once more when it is gone."""
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
        return run.blocked(renamed, patience(run))
    proof = proving.told(run, patience(run))
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
        return stays(run, nowhere.message) if nowhere.needs_person else run.blocked(nowhere, patience(run))
    if not gates.is_registered(run.world, run.desired, run.bookie):
        return _down(run)
    return run.forget(*draining.KEYS).go("Drain", f"{run.bookie} is read-only")


def _down(run: Run) -> Decision:
    """It has to serve reads while it is drained, unless people say that it does not any more."""
    if stops_first(run.world.cluster.spec.decommission.mode.value):
        return run.go("Stop", f"{run.bookie} is stopped first", saved={MODE: DecommissionMode.STOP_FIRST.value})
    why = run.pod.fault_message if run.pod is not None else "it has no pod"
    return run.wait_at_most(
        patience(run),
        "BookieUnavailable",
        f"waits until {run.bookie} is registered, for it has to serve reads{f': {why}' if why else ''}; if it is"
        " lost set spec.decommission.mode to StopFirst, or raise spec.replicas to keep it",
    )


def drain(run: Run) -> Decision:
    stopped = stops_first(run.saved(MODE))
    if not stopped and gates.is_writable(run.world, run.desired, run.bookie):
        return run.act(SetReadOnly(run.bookie, True), f"{run.bookie} became writable while it was drained")
    following = draining.drain(run, stopped=stopped, stall_s=patience(run))
    if following is not None:
        return following
    return run.go("ProveGone" if stopped else "Prove", f"{run.bookie} is drained")


def prove(run: Run) -> Decision:
    return _proven(run) or run.forget(*auditing.KEYS).go("ProveAgain", f"nothing names {run.bookie}, by a first proof")


def prove_again(run: Run) -> Decision:
    planned = operations.planned_replicas(run.saved(SET), int(run.saved(ORDINAL)))
    return _proven(run) or run.forget(*auditing.KEYS).go(
        "Scale", f"nothing names {run.bookie}, by a second proof after another audit", saved=planned
    )


def _proven(run: Run) -> Decision | None:
    """None: an audit after the drain, and a listing of this pass, found nothing."""
    if gates.is_writable(run.world, run.desired, run.bookie):
        return back(run, f"{run.bookie} became writable after it was drained")
    audited = auditing.audit(run, frozenset({run.bookie}), patience(run))
    if audited is not None:
        return audited
    proof = proving.told(run, patience(run))
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
        return stays(run, f"somebody scaled {found.name} to {found.replicas} replicas")
    if gates.is_writable(run.world, run.desired, run.bookie):
        return back(run, f"{run.bookie} became writable after it was drained")
    proof = proving.told(run, patience(run))
    if not isinstance(proof, Proof):
        return proof
    if (named := disproof(proof)) is not None:
        return back(run, f"{run.bookie} is drained again: {named}")
    if (why := unproven(run, proof, registered=True)) is not None:
        return run.wait_at_most(patience(run), "WaitingForProof", why)
    obstacle = gates.first(
        gates.enough_without(run.world, run.desired, gates.Victim(found, ordinal)),
        gates.members_serve(run.world, run.desired, {run.bookie}),
        gates.replicated(run.world),
    )
    if obstacle is not None:
        return run.blocked(obstacle, patience(run))
    return run.act(
        ScaleStatefulSet(found.name, found.resource_version, found.replicas, ordinal),
        f"no ledger needs {run.bookie}: it is stopped",
        then="Leave",
    )


def stop(run: Run) -> Decision:
    """As `Scale`, of a bookie that is not drained yet: nothing may need it at this moment."""
    ordinal, found = int(run.saved(ORDINAL)), view.stateful_set(run.world, run.saved(SET))
    planned = operations.planned_replicas(run.saved(SET), ordinal)
    if found is None or not found.settled:
        return until_settled(run)
    if found.replicas == ordinal:
        return run.go("Leave", f"{found.name} has {ordinal} replicas")
    if found.replicas != ordinal + 1:
        return stays(run, f"somebody scaled {found.name} to {found.replicas} replicas")
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
        gates.stoppable(run.world, frozenset({run.bookie_id}), last_copies=not crowded),
    )
    if obstacle is not None:
        return run.forget(*planned).blocked(obstacle, patience(run))
    if not planned.items() <= run.operation.saved.items():
        return run.go("Stop", f"{run.bookie} may be stopped", saved=planned)
    action = ScaleStatefulSet(found.name, found.resource_version, found.replicas, ordinal)
    return run.act(action, f"{run.bookie} is stopped before it is drained", then="Leave")


def _serves_again(run: Run) -> bool:
    """It was to be stopped first only because it was down: nobody asked for that."""
    if run.saved(MAKES_ROOM) or stops_first(run.world.cluster.spec.decommission.mode.value):
        return False
    return gates.is_registered(run.world, run.desired, run.bookie)
