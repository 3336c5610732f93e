"""The steps that grow volumes.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from typing import Final

from bookie_operator.planner import gates, view
from bookie_operator.planner.actions import CreateStatefulSet, EvictPod, ExpandClaim, OrphanStatefulSet
from bookie_operator.planner.decision import Decision, Event, EventType
from bookie_operator.planner.flows import expand_state as state
from bookie_operator.planner.flows.expand_state import RESTARTING
from bookie_operator.planner.run import Run
from bookie_operator.world.model import ClaimView, PodView, ResizeState

FILE_SYSTEM_PATIENCE_S: Final = 600.0
"""Drivers that grow file systems in use pass through this state too."""
_SET: Final = "statefulSet"
_UID: Final = "statefulSetUid"
_REPLICAS: Final = "setReplicas"
_PODS: Final = "pods"
_GROWING: Final = "growing"
ATTEMPTS: Final = 3
"""Of each claim, before those that cannot be asked are given up for now."""


def _patience(run: Run) -> float:
    return run.world.cluster.spec.update.progress_deadline_seconds


def request(run: Run) -> Decision:
    small = [claim for claim in state.too_small(run.world, run.desired) if state.expandable(run.world, claim)]
    if not small:
        return run.go("Grow", "every claim asks for its size")
    attempts = run.operation.attempts
    claim = small[attempts % len(small)]  # after a failure another one has its turn
    if attempts >= ATTEMPTS * len(small):
        names = ", ".join(one.name for one in small[:5])
        return _failed(run, f"claims {names} could not be asked to grow: {run.operation.message or 'see the events'}")
    size = state.wanted_size(run.desired, claim.volume)
    return run.act(ExpandClaim(claim.name, claim.uid, size), f"{claim.name} grows from {claim.requested} to {size}")


def _failed(run: Run, message: str) -> Decision:
    return run.finish(message, outcome="Failed", event=Event("ExpandFailed", message, EventType.WARNING))


def grow(run: Run) -> Decision:
    if any(state.expandable(run.world, claim) for claim in state.too_small(run.world, run.desired)):
        return run.go("Request", "spec asks for more")
    growing = state.growing(run.world, run.desired)
    if not growing:
        return run.forget(RESTARTING).go("Orphan", "every volume has its size")
    failed = [claim for claim in growing if claim.resize is ResizeState.FAILED]
    if len(failed) == len(growing):
        return _failed(run, state.failure(failed))
    restarted = _restart(run, growing)
    if restarted is not None:
        return restarted
    waiting = [claim.name for claim in growing if claim not in failed]
    shown = ", ".join(waiting[:5]) + (f" and {len(waiting) - 5} more" if len(waiting) > 5 else "")
    message = f"waits until {shown} have grown"
    count = {_GROWING: str(len(growing))}
    if run.saved(_GROWING) != count[_GROWING]:
        run = run.progressed(message, **count) if run.saved(_GROWING) else run.keep(**count)
    if failed:
        return run.wait("ExpandFailed", f"{state.failure(failed)}; {message}", stalled=True)
    return run.wait_at_most(_patience(run), "Expanding", message)


def _restart(run: Run, growing: list[ClaimView]) -> Decision | None:
    """The bookie whose file system waits for its next start; None: there is none, or it is down already."""
    pod = next((found for claim in growing if (found := _waits_for_start(run, claim)) is not None), None)
    if pod is None:
        return None
    if run.saved(RESTARTING) != pod.name:
        return run.go(
            "Grow", f"{pod.name} has to be restarted, so that its file system grows", saved={RESTARTING: pod.name}
        )
    obstacle = gates.first(
        gates.others_serve(run.world, run.desired, {pod.name}),
        gates.replicated(run.world),
        gates.stoppable(run.world, frozenset({run.desired.bookie_id(pod.name)})),
    )
    if obstacle is not None:
        return run.blocked(obstacle, _patience(run))
    return run.act(
        EvictPod(pod.name, pod.uid),
        f"{pod.name} is restarted, so that its file system grows",
        event=Event("BookieRestarted", f"{pod.name} is restarted, so that its file system grows"),
    )


def _waits_for_start(run: Run, claim: ClaimView) -> PodView | None:
    """Not one that was started since the file system began to wait."""
    pod = view.pod(run.world, claim.bookie)
    if claim.resize is not ResizeState.FILE_SYSTEM_PENDING or claim.resize_since is None:
        return None
    if run.world.now - claim.resize_since < FILE_SYSTEM_PATIENCE_S:
        return None
    if pod is None or pod.deleting or not pod.ready or pod.created_at > claim.resize_since:
        return None
    return pod


# --- the StatefulSet --------------------------------------------------------------------------------------------------


def orphan(run: Run) -> Decision:
    if run.saved(_SET) and view.stateful_set(run.world, run.saved(_SET)) is None:
        return run.go("Recreate", f"{run.saved(_SET)} is deleted, and its pods go on")
    remake = state.to_remake(run.world, run.desired)
    if not remake:
        message = "volumes have the size that spec asks for"
        return run.finish(message, event=Event("VolumesExpanded", message))
    one = remake[0]
    if not one.settled:
        return run.wait("StatefulSetBusy", f"waits for the controller of StatefulSet {one.name}", seconds=1.0)
    pods = [pod for pod in run.world.pods if pod.stateful_set == one.name and not pod.deleting]
    live = max((pod.ordinal + 1 for pod in pods), default=0)
    saved = {
        _SET: one.name,
        _UID: one.uid,
        _REPLICAS: str(max(one.replicas, live)),
        _PODS: ",".join(f"{pod.name}={pod.uid}" for pod in pods),
    }
    if any(run.saved(key) != value for key, value in saved.items()):
        return run.go("Orphan", f"{one.name} is to be made anew with larger claim templates", saved=saved)
    return run.act(
        OrphanStatefulSet(one.name, one.uid),
        f"the claim templates of {one.name} cannot be changed: it is deleted without its pods, and made anew",
        then="Recreate",
    )


def recreate(run: Run) -> Decision:
    found = view.stateful_set(run.world, run.saved(_SET))
    if found is None:
        replicas = int(run.saved(_REPLICAS))
        return run.act(
            CreateStatefulSet(run.saved(_SET), replicas),
            f"{run.saved(_SET)} is made anew with {replicas} replicas; its pods go on",
            then="Adopt",
        )
    if found.uid != run.saved(_UID):
        return run.go("Adopt", f"{found.name} is there again")
    if found.deleting:
        return run.wait_at_most(_patience(run), "RecreatingStatefulSet", f"waits until the old {found.name} is gone")
    return run.go("Orphan", f"{found.name} was not deleted")


def adopt(run: Run) -> Decision:
    found = view.stateful_set(run.world, run.saved(_SET))
    if found is None:
        return run.go("Recreate", f"{run.saved(_SET)} is missing again")
    pods = [pod for pod in run.world.pods if pod.stateful_set == found.name and not pod.deleting]
    strangers = [pod.name for pod in pods if pod.owner_uid != found.uid]
    if strangers or not found.settled:
        waiting = ", ".join(strangers) or "its controller"
        return run.wait_at_most(
            _patience(run), "RecreatingStatefulSet", f"waits until {found.name} has taken over {waiting}"
        )
    before = dict(pair.split("=", 1) for pair in run.saved(_PODS).split(",") if pair)
    changed = sorted(pod.name for pod in pods if before.get(pod.name, pod.uid) != pod.uid)
    told = f", though {', '.join(changed)} were started anew meanwhile" if changed else "; no pod was restarted"
    event = Event("StatefulSetRecreated", f"{found.name} has larger claim templates{told}")
    return run.forget(_SET, _UID, _REPLICAS, _PODS).go("Orphan", f"{found.name} is made anew{told}", event=event)
