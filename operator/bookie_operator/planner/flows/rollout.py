"""Brings a new template to the bookies, or restarts them, one after the other, while clients write and read.

 1. Gates, before anything is recorded: enough bookies are writable for an ensemble, every bookie serves, and no ledger
    is under-replicated. The StatefulSets keep the old template until then: a pod that is lost meanwhile comes back as
    it was.
 2. Record.
 3. `RaiseDelay`: the recovery delay is saved, raised above the time that a restart may take, and read back. What is
    really lost still heals.
 4. `Stage`: the StatefulSets get the template; no pod changes by that.
 5. `Choose`: bookies that are down go first, all at once. Then the canaries, the highest ordinal first, one at a time;
    then zone by zone, up to `update.maxUnavailable` of one zone at a time.
 6. `Audit`, before each: an audit that began after the last restart, and 0 under-replicated ledgers
    (`update.requireFullyReplicated`).
 7. `Stop`: every other bookie is writable, and no ledger falls below its ack quorum. The pod is evicted, which honours
    the budget: a refused eviction is tried again. One that is down is deleted by UID.
 8. `Await`: a new pod of the new template is ready, registered as before, and has been for `update.soakSeconds`. After
    `update.progressDeadlineSeconds`: stalled, and no other bookie is touched.
 9. Back to 5, until none is left.
10. `Autorecovery`: its Deployment gets the new version last, and that of gateways with it.
11. `RestoreDelay`: the recovery delay as it was, read back.

Another template in `spec` meanwhile, the old one included, leads back to 4: pods that have it are left alone, those
that are down are replaced first. A StatefulSet never replaces a broken pod of an old template by itself.

What another release of the operator alone would change is no new template: see `planner.holding`. A task that restarts
all bookies brings it too.

With `update.strategy: Manual` only 2 and 4 are done; people delete the pods. The annotation
`podkeeper.dev/skip-replication-check: ID` lets one operation go on without 6 and without the ack quorum of 7.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from typing import Final

from bookie_operator.crds.cluster_spec import UpdateStrategy
from bookie_operator.crds.cluster_status import Operation, OperationType
from bookie_operator.planner import gates, operations, view
from bookie_operator.planner.decision import Decision, Event, Needs, Record, Wait
from bookie_operator.planner.desired import Desired
from bookie_operator.planner.flows import rollout_end as end
from bookie_operator.planner.flows import rollout_state as state
from bookie_operator.planner.flows import rollout_steps as steps
from bookie_operator.planner.run import Run, refused, take
from bookie_operator.world.model import World

MOST_AT_ONCE: Final = 100
"""Pods of one operation for a task: their names and UIDs stand in one saved value, which has a bound."""
_MOST_KEYS: Final = 5
_LONGEST_KEY: Final = 64
STAGING: Final = frozenset({"RaiseDelay", "Stage"})
"""Steps that come before the first bookie."""
_RESTAGED: Final = frozenset({"Choose", "Audit", "Stop", "Await", "Autorecovery", "RestoreDelay"})


def begin(world: World, desired: Desired) -> Decision | None:
    unstaged, outdated = state.unstaged(world, desired), state.outdated(world, desired)
    if not unstaged and not outdated:
        return None
    why = _why(world)
    if world.cluster.spec.update.strategy is UpdateStrategy.MANUAL:
        if unstaged:
            return _record(world, why, "Stage", {})
        return Wait(
            "ManualUpdate",
            f"update.strategy is Manual: delete {', '.join(pod.name for pod in outdated)}, one at a time, each when"
            " LedgersReplicated is True",
            seconds=30.0,
        )
    return _admitted(world, desired) or _record(world, why, "RaiseDelay", {})


def restart(world: World, desired: Desired, pods: tuple[str, ...], task: str, *, everyone: bool) -> Decision:
    """For a task: through the same gates. A pod that has another UID already is left alone. Of many pods some: the task
    asks again for those that are left.

    `everyone`: the task is about all bookies, though `pods` may be those that are left.
    """
    there = [(name, pod.uid) for name in pods if (pod := view.pod(world, name)) is not None]
    found = dict(there[:MOST_AT_ONCE])
    if not found:
        return Wait("BookieUnavailable", f"waits for pods {', '.join(pods)}")
    if world.cluster.spec.update.strategy is UpdateStrategy.MANUAL and state.outdated(world, desired):
        return Wait(
            "ManualUpdate", "update.strategy is Manual, and a new template waits: delete the pods instead", 30.0
        )
    saved = {state.RESTART: state.written(found), operations.TASK: task}
    if everyone:
        saved[state.NEWEST] = state.TRUE
    return _admitted(world, desired) or _record(world, f"task {task} asks for a restart", "RaiseDelay", saved)


def mend(world: World, desired: Desired) -> Decision | None:
    """Broken pods of a template that is not desired any more: they serve nobody, so nothing has to be asked for. Where
    none of them can be made anew, at least no new bookie is to have the template that may have broken them. Not while
    nothing can be staged."""
    unstaged = state.unstaged(world, desired)
    if world.cluster.spec.update.strategy is UpdateStrategy.MANUAL or not all(one.settled for one in unstaged):
        return None
    staged = {one.name: one.template_hash for one in unstaged}
    broken = [
        pod
        for pod in state.outdated(world, desired)
        if pod.fault and state.down(world, desired, pod) and not state.volume_gone(world, pod)
    ]
    broken = [
        pod
        for pod in broken
        if state.replaceable(world, desired, pod) or staged.get(pod.stateful_set) == pod.template_hash
    ]
    if not broken:
        return None
    who = ", ".join(pod.name for pod in broken)
    return _record(
        world, f"{who} cannot work with the template that they have, and spec has another one", "RaiseDelay", {}
    )


def _admitted(world: World, desired: Desired) -> Wait | None:
    """None: it may begin."""
    upcoming = f"{OperationType.ROLLOUT.value}-{world.cluster.status.operations_begun + 1}"
    obstacle = gates.first(
        gates.told(world), _available(world), gates.claims_stay(world, desired, tuple(view.expected_pods(world)))
    )
    if obstacle is not None:
        return refused(obstacle)
    skips = state.skips(world, upcoming)
    obstacle = gates.others_serve(world, desired, (), writable=False)
    if obstacle is None and state.checks_copies(world, upcoming):
        obstacle = gates.replicated(world)
    return None if obstacle is None or skips else refused(state.how_to_skip(obstacle, upcoming))


def _available(world: World) -> gates.Obstacle | None:
    size = world.cluster.spec.durability.ensemble_size
    writable = len(world.facts.writable) if world.facts is not None else 0
    if writable >= size:
        return None
    return gates.Obstacle("BelowEnsemble", f"{writable} bookies are writable, and an ensemble takes {size}")


def _why(world: World) -> str:
    version = world.cluster.status.version.current
    wanted = world.cluster.spec.version
    reasons = [f"version {version} becomes {wanted}"] if version and version != wanted else []
    if keys := [key[:_LONGEST_KEY] for key in world.config_changes]:
        more = f" and {len(keys) - _MOST_KEYS} more" if len(keys) > _MOST_KEYS else ""
        reasons.append(f"the configuration changed: {', '.join(keys[:_MOST_KEYS])}{more}")
    return "; ".join(reasons) or "the configuration or the template of the pods changed"


def _record(world: World, why: str, step: str, saved: dict[str, str]) -> Record:
    operation = operations.new(world, OperationType.ROLLOUT, step, saved={**saved, end.WHY: why})
    operation = operations.said(operation, why)
    return Record(operation, why, Event("RolloutBegun", why))


def needs(operation: Operation, desired: Desired) -> Needs:
    if operation.step != "Stop":
        return Needs()
    ids = [desired.bookie_id(name) for name in state.read(operation.saved.get(state.STOPPING, ""))]
    return Needs(safety=frozenset({frozenset(ids)}) if ids else frozenset())


def proceed(world: World, desired: Desired, operation: Operation) -> Decision:
    run = Run(world, desired, operation)
    if operation.step in _RESTAGED and state.unstaged(world, desired):
        return run.forget(state.AUDITED).go("Stage", "spec has another template now")
    return take(_STEPS, run)


_STEPS: Final = {
    "RaiseDelay": end.raise_delay,
    "Stage": steps.stage,
    "Choose": steps.choose,
    "Audit": steps.audit,
    "Stop": steps.stop,
    "Await": steps.await_,
    "Autorecovery": end.deployments,
    "RestoreDelay": end.restore_delay,
}
