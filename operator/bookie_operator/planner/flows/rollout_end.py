"""What stands around a rollout: the recovery delay, raised and restored, and the new version of auto-recovery and
gateways.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from typing import Final

from bookie_operator.planner import gates, view
from bookie_operator.planner.actions import ApplyObjects, SetRecoveryDelay
from bookie_operator.planner.decision import Decision, Event
from bookie_operator.planner.flows import rollout_state as state
from bookie_operator.planner.flows.rollout_state import DELAY, RAISED, patience
from bookie_operator.planner.run import Run

MARGIN_S: Final = 300
"""A restart may take the deadline; after so much more a bookie counts as lost."""
WHY: Final = "why"
"""Key of `saved`: why it began."""


def raise_delay(run: Run) -> Decision:
    facts = run.world.facts
    if facts is None:
        if all(state.down(run.world, run.desired, pod) for pod in run.world.pods):
            return run.go("Stage", "every bookie is down, so nobody can set the recovery delay, and nobody needs it")
        missing = gates.told(run.world)
        assert missing is not None
        return run.blocked(missing, patience(run))
    if not run.saved(DELAY):
        now = facts.lost_bookie_recovery_delay
        saved = {DELAY: str(now), RAISED: str(max(now, int(patience(run)) + MARGIN_S))}
        return run.go("RaiseDelay", f"bookies may be away for {now} s; that is restored at the end", saved=saved)
    raised = int(run.saved(RAISED))
    if facts.lost_bookie_recovery_delay != raised:
        return run.act(SetRecoveryDelay(raised), f"while bookies are restarted they may be away for {raised} s")
    return run.go("Stage", f"bookies may be away for {raised} s")


def deployments(run: Run) -> Decision:
    wanted = run.desired.deployments
    older = tuple(key for key, digest in wanted.items() if view.to_apply(run.world, key, digest))
    if older:
        why = f"what runs beside the bookies is brought up to date after them: {', '.join(older)}"
        return run.act(ApplyObjects(older), why, then="RestoreDelay")
    return run.go("RestoreDelay", "auto-recovery and gateways are up to date")


def restore_delay(run: Run) -> Decision:
    missing = gates.told(run.world)
    if missing is not None:
        return run.blocked(missing, patience(run))
    assert run.world.facts is not None
    if run.saved(DELAY) and run.world.facts.lost_bookie_recovery_delay != int(run.saved(DELAY)):
        seconds = int(run.saved(DELAY))
        return run.act(SetRecoveryDelay(seconds), f"bookies may be away for {seconds} s again, as before")
    left = state.outdated(run.world, run.desired, state.read(run.saved(state.RESTART)))
    if left:
        who = ", ".join(pod.name for pod in left)
        return run.finish(f"{who} were not restarted: update.strategy is Manual now", outcome="Cancelled")
    why = run.saved(WHY)
    message = f"{state.restarted(run)} bookies were restarted{f': {why}' if why else ''}"
    return run.finish(message, event=Event("RolloutDone", message))
