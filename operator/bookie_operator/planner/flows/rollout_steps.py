"""The steps of a rollout that come again for each bookie.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from typing import Final

from bookie_operator.crds.cluster_spec import UpdateStrategy
from bookie_operator.planner import auditing, gates, operations, view
from bookie_operator.planner.actions import ApplyTemplate, DeletePod, EvictPod
from bookie_operator.planner.decision import Decision, Event
from bookie_operator.planner.flows import rollout_state as state
from bookie_operator.planner.flows.rollout_state import AUDITED, READ_ONLY, RESTART, RESTARTED, STOPPING, TRUE, patience
from bookie_operator.planner.remedies import remedy, stuck_on_node
from bookie_operator.planner.run import Run
from bookie_operator.world.model import PodView

_NOT_OF_SOME: Final = frozenset({"SafetyUnknown", "BookieUnavailable", "ClaimBeingDeleted"})
"""Obstacles that fewer bookies at a time do not help against."""


def stage(run: Run) -> Decision:
    for one in state.unstaged(run.world, run.desired):
        if not one.settled:
            return run.wait("StatefulSetBusy", f"waits for the controller of StatefulSet {one.name}", seconds=1.0)
        return run.act(
            ApplyTemplate(one.name, one.resource_version),
            f"{one.name} gets the new template; its pods stay as they are",
        )
    if _manual(run):
        message = "the new template is staged; update.strategy is Manual: delete the pods one at a time"
        if not run.saved(state.DELAY):
            return run.finish(message, event=Event("TemplateStaged", message))
        return run.go("RestoreDelay", message)
    following = "Await" if state.stopping(run) else "Choose"
    return run.go(following, "every StatefulSet has the new template")


def _manual(run: Run) -> bool:
    return run.world.cluster.spec.update.strategy is UpdateStrategy.MANUAL and not run.saved(RESTART)


def choose(run: Run) -> Decision:
    left = state.outdated(run.world, run.desired, state.read(run.saved(RESTART)))
    if not left:
        return run.go("Autorecovery", "every bookie has the new template")
    if _manual(run):
        return run.go("RestoreDelay", "update.strategy is Manual now")
    broken = [pod for pod in left if state.replaceable(run.world, run.desired, pod)]
    if broken:
        return _chosen(run, broken)
    if not run.saved(AUDITED) and state.checks_copies(run.world, run.operation.id):
        return run.forget(*auditing.KEYS).go("Audit", "no bookie is stopped before an audit found every copy")
    return _chosen(run, _batch(run, left))


def _batch(run: Run, left: list[PodView]) -> list[PodView]:
    update = run.world.cluster.spec.update
    if state.restarted(run) < update.canary:
        return [state.canary(left)]
    return [pod for pod in left if pod.zone == left[0].zone][: update.max_unavailable]


def _chosen(run: Run, pods: list[PodView]) -> Decision:
    read_only = run.world.facts.read_only if run.world.facts is not None else frozenset()
    names = [pod.name for pod in pods]
    saved = {
        STOPPING: state.written({pod.name: pod.uid for pod in pods}),
        READ_ONLY: ",".join(name for name in names if run.desired.bookie_id(name) in read_only),
    }
    return run.go("Stop", f"next: {', '.join(names)}", saved=saved)


def audit(run: Run) -> Decision:
    if any(state.replaceable(run.world, run.desired, pod) for pod in state.outdated(run.world, run.desired)):
        return run.forget(*auditing.KEYS).go("Choose", "a bookie that is down goes first")
    if not state.checks_copies(run.world, run.operation.id):
        return run.go("Choose", "copies are not looked at", saved={AUDITED: TRUE})
    writable = not state.skips(run.world, run.operation.id)
    waiting = auditing.audit(run, frozenset(), patience(run), writable=writable)
    if waiting is not None:
        return waiting
    obstacle = gates.replicated(run.world)
    if obstacle is not None:
        return run.blocked(state.how_to_skip(obstacle, run.operation.id), patience(run))
    return run.forget(*auditing.KEYS).go("Choose", "every ledger has its copies", saved={AUDITED: TRUE})


def stop(run: Run) -> Decision:
    """One pod in each pass; each is looked at again before it goes."""
    chosen = state.stopping(run)
    left = [
        pod
        for name, uid in chosen.items()
        if (pod := view.pod(run.world, name)) is not None and pod.uid == uid and not pod.deleting
    ]
    if not left:
        return run.go("Await", f"stopped: {', '.join(chosen)}")
    pod = next((one for one in left if view.going_claim(run.world, one.name) is None), left[0])
    wanted = state.outdated(run.world, run.desired, state.read(run.saved(RESTART)))
    if pod not in wanted:
        others = {name: uid for name, uid in chosen.items() if name != pod.name}
        message = f"{pod.name} need not be stopped any more"
        if not others:
            return run.forget(STOPPING).go("Choose", message)
        return run.go("Stop", message, saved={STOPPING: state.written(others)})
    if (kept := gates.claims_stay(run.world, run.desired, {pod.name})) is not None:
        return run.blocked(kept, patience(run))
    if state.down(run.world, run.desired, pod):
        return run.act(
            DeletePod(pod.name, pod.uid),
            f"{pod.name} is down, and has another template than spec",
            event=Event("BookieRestarted", f"{pod.name} is down and is made anew from the new template"),
        )
    down = any(state.replaceable(run.world, run.desired, one) for one in wanted)
    if down and len(left) == len(chosen) and _late(run):
        return run.forget(STOPPING, READ_ONLY).go("Choose", "it waits for a bookie that is down, which goes first")
    # The budget is closed as long as any bookie's claim is going, so no other one can be evicted either.
    kept = gates.claims_stay(run.world, run.desired, tuple(view.expected_pods(run.world)))
    obstacle = kept or _not_now(run, frozenset(chosen))
    if obstacle is None:
        return run.act(
            EvictPod(pod.name, pod.uid),
            f"{pod.name} is restarted: {len(wanted)} bookies are left",
            event=Event("BookieRestarted", f"{pod.name} is restarted"),
        )
    if len(chosen) > 1 and len(left) == len(chosen) and obstacle.reason not in _NOT_OF_SOME:
        fewer = state.written(dict(list(chosen.items())[:1]))
        return run.go("Stop", f"not all of {', '.join(chosen)} at once: {obstacle.message}", saved={STOPPING: fewer})
    return run.blocked(obstacle, patience(run))


def _not_now(run: Run, chosen: frozenset[str]) -> gates.Obstacle | None:
    operation_id = run.operation.id
    skips = state.skips(run.world, operation_id)
    unavailable = gates.others_serve(run.world, run.desired, chosen, writable=not skips)
    if (
        unavailable is not None
        and not skips
        and gates.others_serve(run.world, run.desired, chosen, writable=False) is None
    ):
        return state.how_to_skip(unavailable, operation_id)
    if unavailable is not None or skips:
        return unavailable
    copies = gates.replicated(run.world) if state.checks_copies(run.world, operation_id) else None
    stoppable = gates.stoppable(run.world, frozenset(run.desired.bookie_id(name) for name in chosen))
    obstacle = gates.first(copies, stoppable)
    return None if obstacle is None else state.how_to_skip(obstacle, operation_id)


def await_(run: Run) -> Decision:
    chosen = state.stopping(run)
    pods = {name: view.pod(run.world, name) for name in chosen}
    if any(pod is not None and pod.uid == chosen[name] and not pod.deleting for name, pod in pods.items()):
        return run.go("Stop", "a pod that should be stopped is still there")
    for name, uid in chosen.items():
        waiting = _not_back(run, name, uid)
        if waiting is not None:
            return waiting
    count = str(state.restarted(run) + len(chosen))
    message = f"ready, with the new template: {', '.join(chosen)}"
    return run.forget(STOPPING, READ_ONLY, AUDITED, *auditing.KEYS).go("Choose", message, saved={RESTARTED: count})


def _not_back(run: Run, name: str, uid: str) -> Decision | None:
    """None: it works, and has for long enough."""
    pod = view.pod(run.world, name)
    if pod is None or pod.uid == uid:
        stuck = stuck_on_node(run.world, pod)
        return run.wait_at_most(patience(run), "RestartingBookie", f"waits for the new pod of {name}{stuck}")
    if pod in state.outdated(run.world, run.desired):
        return run.forget(STOPPING, AUDITED).go("Choose", f"{name} came back with another template than spec has now")
    if not pod.ready or pod.ready_since is None:
        return _failing(run, pod)
    missing = gates.told(run.world)
    if missing is not None:
        return run.blocked(missing, patience(run))
    read_only = name in run.saved(READ_ONLY).split(",")
    serves = gates.is_registered if read_only else gates.is_writable
    if not serves(run.world, run.desired, name):
        return run.wait_at_most(patience(run), _failure(run), f"waits until {name} takes new data; see its log")
    soaked = run.world.now - pod.ready_since
    soak = run.world.cluster.spec.update.soak_seconds
    if soaked < soak:
        message = f"{name} works; the next bookie waits {soak} s"
        return run.wait("Soaking", message, seconds=max(1.0, min(soak - soaked, 30.0)))
    return None


def _failing(run: Run, pod: PodView) -> Decision:
    waiting = f"waits until {pod.name} is ready"
    told = f"{waiting}: {remedy(pod)}" if pod.fault else waiting
    message = (
        f"{told}. No other bookie is touched; change spec, or put it back, and the pod is replaced{_or_fewer(run, pod)}"
        if pod.fault
        else told
    )
    return run.wait_at_most(patience(run), _failure(run), message)


def _or_fewer(run: Run, pod: PodView) -> str:
    new = gates.never_served(run.world, run.desired, pod.name)
    return "; it never served, so lower spec.replicas to take it away" if new else ""


def _failure(run: Run) -> str:
    first = state.restarted(run) < max(1, run.world.cluster.spec.update.canary)
    return "CanaryFailed" if first and _late(run) else "UpdateFailed" if _late(run) else "RestartingBookie"


def _late(run: Run) -> bool:
    return operations.overdue(run.world, run.operation, patience(run))
