"""Drains a bookie that serves, so that `repair` can give it new volumes.

They may be on another disk, another node, or of another storage class.

A StatefulSet cannot give up a bookie in the middle, so its pod comes back whenever it is stopped. The drain therefore
ends with the deletion of the cookie, on the proof of its own coordinator (as `bookie cluster decommission` does): a
pod that comes back with the old volumes is refused, and registers no more. Until then the bookie can be given back.

1. `ReadOnly`: no new data goes to it.
2. `DrainServing`: its copies are made elsewhere while it serves them, until nothing names it and its cookie is gone.
3. `Stop`: its pod is deleted; waits until no process is registered under its id. From here on `repair` goes on with
   `Prove`, as for a bookie that was lost: claims go only on a proof about a bookie that is registered nowhere.

A bookie that is lost on the way to `Stop` is given back to `repair`, which copies from the others.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from typing import Final

from bookie_operator.planner import draining, gates, proving, view
from bookie_operator.planner.actions import DeletePod, SetReadOnly, UndoDrain
from bookie_operator.planner.decision import Decision
from bookie_operator.planner.desired import Desired
from bookie_operator.planner.run import Run
from bookie_operator.planner.view import stuck_on_node
from bookie_operator.world.facts import DrainFacts, DrainPhase
from bookie_operator.world.model import World

BLOCKED: Final = "MoveBlocked"
"""Reason: a person has to do something before a bookie that serves can be moved."""
SERVES: Final = "serves"
"""Key of `saved`: set if the bookie served when it was asked for."""
WAS_READ_ONLY: Final = "wasReadOnly"
POD_UID: Final = "podUid"
"""Key of `saved`: UID of the pod that has the old volumes."""
READ_ONLY: Final = "ReadOnly"
DRAIN: Final = "DrainServing"
STOP: Final = "Stop"
CANCELLABLE: Final = frozenset({READ_ONLY, DRAIN})
_LOOKED: Final = "lookedForCookie"
_TRUE: Final = "true"


def serves(world: World, desired: Desired, name: str) -> bool:
    """Return whether it is registered and its pod is ready. False if unknown."""
    found = view.pod(world, name)
    return found is not None and found.ready and not found.deleting and gates.is_registered(world, desired, name)


def why_not(world: World, desired: Desired, name: str) -> gates.Obstacle | None:
    """Return what keeps a bookie that serves from being moved."""
    obstacle = at_hand(world, desired, name) or gates.elsewhere(world, desired.bookie_id(name))
    if obstacle is None or not obstacle.needs_person:
        return obstacle
    return gates.Obstacle(BLOCKED, obstacle.message, needs_person=True, seconds=obstacle.seconds)


def at_hand(world: World, desired: Desired, name: str) -> gates.Obstacle | None:
    """Return what `why_not` returns, without what takes a listing of all ledgers."""
    found = view.stateful_set(world, view.set_of(name))
    if found is None:
        return gates.Obstacle("StatefulSetNotObserved", f"StatefulSet {view.set_of(name)} is not there")
    return gates.first(
        gates.told(world),
        gates.claims_own(world, name),
        gates.enough_without(world, desired, gates.Victim(found, view.ordinal_of(name))),
        gates.members_serve(world, desired, {name}),
        gates.replicated(world),
        gates.room_for(world, name),
    )


def saved(world: World, desired: Desired, name: str) -> dict[str, str]:
    """Return what is to be saved when the operation begins."""
    return {SERVES: _TRUE, **({WAS_READ_ONLY: _TRUE} if gates.is_read_only(world, desired, name) else {})}


def read_only(run: Run) -> Decision:
    if gates.is_writable(run.world, run.desired, run.bookie):
        nowhere = gates.elsewhere(run.world, run.bookie_id)
        if nowhere is None:
            return run.act(SetReadOnly(run.bookie, True), f"no new data may go to {run.bookie}")
        return run.blocked(nowhere, run.patience)
    if not gates.is_registered(run.world, run.desired, run.bookie):
        why = f"waits until {run.bookie} is registered, for it has to serve reads"
        return run.wait_at_most(run.patience, "BookieUnavailable", why)
    return run.forget(*draining.KEYS).go(DRAIN, f"{run.bookie} is read-only")


def drain(run: Run) -> Decision:
    if gates.is_writable(run.world, run.desired, run.bookie) and not has_left(run):
        return run.act(SetReadOnly(run.bookie, True), f"{run.bookie} became writable while it was drained")
    following = draining.drain(run, stopped=False, stall_s=run.patience, removes_cookie=True)
    if following is not None:
        return following
    if not has_left(run):
        return run.wait_at_most(run.patience, "Draining", f"waits until the cookie of {run.bookie} is gone")
    return run.go(STOP, f"nothing names {run.bookie}, and its cookie is gone")


def has_left(run: Run) -> bool:
    """Return whether its drain was begun and has deleted its cookie: no pod with the old volumes can start any more."""
    facts = run.world.facts
    return bool(run.saved(draining.SINCE)) and facts is not None and run.bookie_id not in facts.cookies


def stop(run: Run) -> Decision:
    """The pod that serves need not be the one that there was at first: others may have stopped that one meanwhile."""
    found, registered = run.pod, gates.is_registered(run.world, run.desired, run.bookie)
    if found is not None and (found.uid == run.saved(POD_UID) or (found.ready and registered and has_left(run))):
        if not found.deleting and not gates.is_writable(run.world, run.desired, run.bookie):
            return run.act(DeletePod(found.name, found.uid), f"{run.bookie} is drained: it lets go of its volumes")
        stuck = stuck_on_node(run.world, found)
        return run.wait_at_most(run.patience, "StoppingBookie", f"waits until the pod of {run.bookie} is gone{stuck}")
    if not proving.Claims.read(run.operation).left(run.world):
        return run.go("Start", f"{run.bookie} has none of its old volumes any more")  # the claims had been deleted
    if not has_left(run):
        why = f"a cookie of {run.bookie} was stored again, and it is drained once more"
        return run.forget(*draining.KEYS).go(READ_ONLY, why, saved=_same_pod(run))
    if registered:
        why = f"waits until the registration of {run.bookie} has expired"
        return run.wait_at_most(run.patience, "StoppingBookie", why)
    return run.forget(*proving.AUDIT_KEYS).go("Prove", f"{run.bookie} is stopped")


def _same_pod(run: Run) -> dict[str, str]:
    return {POD_UID: run.pod.uid} if run.pod is not None else {}


def taken_back(run: Run, facts: DrainFacts) -> Decision | None:
    """Return what is left to undo; None: nothing."""
    if facts.phase in draining.UNDER_WAY:
        return run.act(UndoDrain(run.bookie_id), f"{run.bookie} is not moved: its drain is taken back")
    if has_left(run):
        return run.go(STOP, f"the drain of {run.bookie} had ended already, and it cannot start again as it is")
    if facts.phase is DrainPhase.DRAINED and run.saved(draining.SINCE) and not run.saved(_LOOKED):
        # What is known of the cookie may be older than the end of the drain, which deletes it.
        return run.keep(**{_LOOKED: _TRUE}).go(run.operation.step, f"looks again for the cookie of {run.bookie}")
    assert run.world.facts is not None
    if run.bookie_id in run.world.facts.read_only and run.saved(WAS_READ_ONLY) != _TRUE:
        return run.act(SetReadOnly(run.bookie, False), f"{run.bookie} is not moved: it takes new data again")
    return None
