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
 6. `Copies`, after each: the auditor looks which entries that were written meanwhile the bookie lacks, and marks their
    ledgers. `Audit`, before each: an audit that began after the last restart, 0 under-replicated ledgers, and no bookie
    that waits for its look (`update.requireFullyReplicated`). If an auditor that had its time did not end a look, all
    of them are given up for the whole roll, with an event.
 7. `Stop`: every other bookie is writable, and no ledger falls below its ack quorum. The pod is evicted, which honours
    the budget: a refused eviction is tried again. One that is down is deleted by UID.
 8. `Await`: a new pod of the new template is ready, registered as before, and has been for `update.soakSeconds`. After
    `update.progressDeadlineSeconds`: stalled, and no other bookie is touched.
 9. Back to 5, until none is left.
10. `Autorecovery`: its Deployment gets the new version last, and that of gateways with it.
11. `RestoreDelay`: the recovery delay as it was, read back. If a bookie was not looked at by 6, a check of replicas is
    asked for.

Another template in `spec` meanwhile, the old one included, leads back to 4: pods that have it are left alone, those
that are down are replaced first. A StatefulSet never replaces a broken pod of an old template by itself.

Outside of `update.windows` no roll begins, and one that runs ends with 11; what is left is rolled in the next window.
Broken pods are replaced all the same, and a task is a person's own decision.

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
from bookie_operator.planner import gates, operations, proving, view, windows
from bookie_operator.planner.actions import (
    ApplyObjects,
    ApplyTemplate,
    CheckReplicas,
    DeletePod,
    EvictPod,
    LookAtReturned,
    SetRecoveryDelay,
)
from bookie_operator.planner.decision import Act, Decision, Event, EventType, Needs, Record, Wait
from bookie_operator.planner.desired import Desired
from bookie_operator.planner.flows import rollout_state as state
from bookie_operator.planner.flows.rollout_state import (
    AUDITED,
    BACK,
    BLIND,
    COPIES_ASKED,
    DELAY,
    RAISED,
    READ_ONLY,
    RESTART,
    RESTARTED,
    STOPPING,
    TRUE,
    UNCHECKED,
)
from bookie_operator.planner.run import Run, refused, take
from bookie_operator.planner.view import remedy, stuck_on_node
from bookie_operator.world.model import PodView, World

MOST_AT_ONCE: Final = 100
"""Number of pods whose names and UIDs are in one saved value, which has a bound."""
_MOST_KEYS: Final = 5
_LONGEST_KEY: Final = 64
_WAIT_FOR_OTHERS: Final = frozenset({OperationType.SCALE_UP, OperationType.DECOMMISSION, OperationType.REPLACE})
STAGING: Final = frozenset({"RaiseDelay", "Stage"})
"""Steps that come before the first bookie."""
_RESTAGED: Final = frozenset({"Choose", "Copies", "Audit", "Stop", "Await", "Autorecovery", "RestoreDelay"})


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
    if not windows.is_open(world.cluster.spec.update, world.now):
        return Wait("MaintenanceWindow", f"{why}; {windows.opens(world.cluster.spec.update, world.now)}", seconds=60.0)
    return _admitted(world, desired) or _record(world, why, "RaiseDelay", {})


def restart(world: World, desired: Desired, pods: tuple[str, ...], task: str, *, everyone: bool) -> Decision:
    """Restart pods for a task, through the same gates.

    A pod that has another UID already is left alone. Of many pods some are restarted: the task asks again for those
    that are left.

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
    saved = {state.RESTART: state.written(found)}
    if everyone:
        saved[state.NEWEST] = state.TRUE
    return _admitted(world, desired) or _record(world, f"task {task} asks for a restart", "RaiseDelay", saved)


def mend(world: World, desired: Desired) -> Decision | None:
    """Replace broken pods of a template that is not desired any more: they serve no client, so nothing has to be asked
    for. Where none of them can be made again, at least no new bookie is to have the template that may have broken them.
    Not while nothing can be staged."""
    broken = _mendable(world, desired)
    if not broken:
        return None
    who = ", ".join(pod.name for pod in broken)
    return _record(
        world, f"{who} cannot work with the template that they have, and spec has another one", "RaiseDelay", {}
    )


def mend_beside(world: World, desired: Desired) -> Act | None:
    """Do the next part of `mend` while another operation waits, for all pods but that of the operation's bookie. The
    operation may wait for these pods, and it may be impossible to take it back before they work. As in `RaiseDelay`,
    facts have to tell which bookies serve."""
    operation = world.cluster.status.operation
    if operation is None or operation.type not in _WAIT_FOR_OTHERS or state.known_down(world, desired) is not None:
        return None
    broken = [pod for pod in _mendable(world, desired) if pod.name != operation.bookie]
    why = f"cannot work with the template that it has, and {operation.id} waits"
    for pod in broken:
        staged = next((one for one in state.unstaged(world, desired) if one.name == pod.stateful_set), None)
        if staged is not None:
            return Act(ApplyTemplate(staged.name, staged.resource_version), f"{pod.name} {why}: it gets the new one")
        if state.replaceable(world, desired, pod):
            return Act(DeletePod(pod.name, pod.uid), f"{pod.name} {why}: it is replaced")
    return None


def _mendable(world: World, desired: Desired) -> list[PodView]:
    unstaged = state.unstaged(world, desired)
    if world.cluster.spec.update.strategy is UpdateStrategy.MANUAL or not all(one.settled for one in unstaged):
        return []
    staged = {one.name: one.template_hash for one in unstaged}
    return [
        pod
        for pod in state.outdated(world, desired)
        if pod.fault
        and not pod.kept_by_cordon
        and state.down(world, desired, pod)
        and not state.volume_gone(world, pod)
        and (state.replaceable(world, desired, pod) or staged.get(pod.stateful_set) == pod.template_hash)
    ]


def _admitted(world: World, desired: Desired) -> Wait | None:
    """Return why a rollout may not begin; None: it may."""
    upcoming = f"{OperationType.ROLLOUT.value}-{world.cluster.status.operations_begun + 1}"
    obstacle = gates.first(_available(world), gates.claims_stay(world, desired, tuple(view.expected_pods(world))))
    if obstacle is not None:
        return refused(obstacle)
    skips = state.skips(world, upcoming)
    obstacle = gates.others_serve(world, desired, (), writable=False)
    if obstacle is None and state.checks_copies(world, upcoming):
        obstacle = gates.copies_whole(world)
    return None if obstacle is None or skips else refused(state.how_to_skip(obstacle, upcoming))


def _available(world: World) -> gates.Obstacle | None:
    if world.facts is None:
        return gates.told(world)
    size, writable = world.cluster.spec.durability.ensemble_size, len(world.facts.writable)
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
    operation = operations.new(world, OperationType.ROLLOUT, step, saved={**saved, WHY: why})
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
    if _manual(run) and left:
        return run.go("RestoreDelay", "update.strategy is Manual now")
    broken = [pod for pod in left if state.replaceable(run.world, run.desired, pod)]
    if broken:
        return _chosen(run, broken[:MOST_AT_ONCE])
    if state.owes_looks(run.world):
        again = run.forget(COPIES_ASKED, operations.BEGUN_AGAIN)
        return again.go("Copies", "entries that were written meanwhile may be a copy short")
    if not left:
        return run.go("Autorecovery", "every bookie has the new template")
    if not run.saved(RESTART) and not windows.is_open(run.world.cluster.spec.update, run.world.now):
        later = windows.opens(run.world.cluster.spec.update, run.world.now)
        return run.go("RestoreDelay", "no window of update.windows is open any more", saved={LATER: later})
    if not run.saved(AUDITED) and state.checks_copies(run.world, run.operation.id):
        return run.forget(*proving.AUDIT_KEYS).go("Audit", "no bookie is stopped before an audit found every copy")
    if (missing := gates.told(run.world)) is not None:  # which of them were read-only is saved now
        return run.blocked(missing, run.progress_deadline)
    return _chosen(run, _batch(run, left))


def _batch(run: Run, left: list[PodView]) -> list[PodView]:
    update = run.world.cluster.spec.update
    if state.restarted(run) < update.canary:
        return [state.canary(left)]
    return [pod for pod in left if pod.zone == left[0].zone][: update.max_unavailable]


def _chosen(run: Run, pods: list[PodView]) -> Decision:
    """Stop these next. Those that are down are registered nowhere, so none of them counts as read-only."""
    names = [pod.name for pod in pods]
    saved = {
        STOPPING: state.written({pod.name: pod.uid for pod in pods}),
        READ_ONLY: ",".join(name for name in names if gates.is_read_only(run.world, run.desired, name)),
    }
    return run.go("Stop", f"next: {', '.join(names)}", saved=saved)


def copies(run: Run) -> Decision:
    """Bookies that are back are looked at before the next one goes: else two of three copies may be away at once. The
    time of a look begins when an auditor was asked for it."""
    outdated = state.outdated(run.world, run.desired, state.read(run.saved(RESTART)))
    if any(state.replaceable(run.world, run.desired, pod) for pod in outdated):
        return run.forget(COPIES_ASKED).go("Choose", "a bookie that is down goes first")
    if not state.checks_copies(run.world, run.operation.id):
        return run.go("Choose", "copies are not looked at")
    if (missing := gates.copies_can_be_made(run.world)) is not None:  # its time has not begun
        again = run.anew(COPIES_ASKED, operations.BEGUN_AGAIN)
        return again.blocked(state.how_to_skip(missing, run.operation.id), run.progress_deadline)
    assert run.world.facts is not None
    back, unchecked = state.back(run), run.world.facts.unchecked
    who = ", ".join(sorted(back))
    why = f"the auditor looks for entries that were written while {who} was away"
    asked_by = run.saved(COPIES_ASKED)
    if not asked_by or (asked_by == BLIND and unchecked is not None):
        asks = TRUE if unchecked is not None else BLIND
        asked = run.progressed(**{COPIES_ASKED: asks}).act(LookAtReturned(back), why)
        return run.in_time(asked, why) or _given_up(run, "the auditor could not be asked")
    if unchecked is None:
        deadline = gates.SILENT_S
        obstacle = gates.Obstacle("CopiesUnchecked", f"no auditor tells yet whether it looks at {who}")
    else:
        deadline = run.progress_deadline
        found = gates.returned_checked(run.world, unchecked - back)
        if found is None:
            return run.forget(BACK, COPIES_ASKED).go("Choose", "what the restarted bookies lack is marked")
        obstacle = found
    waiting = run.blocked(state.how_to_skip(obstacle, run.operation.id), deadline)
    return run.in_time(waiting, why, deadline) or _given_up(run, obstacle.message)


def _given_up(run: Run, why: str) -> Decision:
    message = f"the roll goes on, though copies may be short until the next check of replicas: {why}"
    event = Event("CopiesUnchecked", message, EventType.WARNING)
    return run.forget(COPIES_ASKED).go("Choose", message, saved={UNCHECKED: TRUE}, event=event)


def audit(run: Run) -> Decision:
    if any(state.replaceable(run.world, run.desired, pod) for pod in state.outdated(run.world, run.desired)):
        return run.forget(*proving.AUDIT_KEYS).go("Choose", "a bookie that is down goes first")
    if not state.checks_copies(run.world, run.operation.id):
        return run.go("Choose", "copies are not looked at", saved={AUDITED: TRUE})
    writable = not state.skips(run.world, run.operation.id)
    waiting = proving.audit(run, frozenset(), run.progress_deadline, writable=writable)
    if waiting is not None:
        return waiting
    obstacle = gates.copies_whole(run.world, state.not_waited_for(run.world, run.desired))
    if obstacle is not None:
        return run.blocked(state.how_to_skip(obstacle, run.operation.id), run.progress_deadline)
    return run.forget(*proving.AUDIT_KEYS).go("Choose", "every ledger has its copies", saved={AUDITED: TRUE})


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
        return run.blocked(kept, run.progress_deadline)
    if state.down(run.world, run.desired, pod):
        return run.act(
            DeletePod(pod.name, pod.uid),
            f"{pod.name} is down, and has another template than spec",
            event=Event("BookieRestarted", f"{pod.name} is down and is made again from the new template"),
        )
    down = any(state.replaceable(run.world, run.desired, one) for one in wanted)
    if down and len(left) == len(chosen) and _late(run):
        return run.forget(STOPPING, READ_ONLY).go("Choose", "it waits for a bookie that is down, which goes first")
    why = ""
    if state.owes_looks(run.world):  # it was down when it was chosen; the budget is closed until then
        why = f"{pod.name} serves, so those that were restarted before are looked at first"
    elif not run.saved(RESTART) and not windows.is_open(run.world.cluster.spec.update, run.world.now):
        why = f"no window of update.windows is open any more, and {pod.name} was not stopped yet"
    if why:
        stopped = {name: uid for name, uid in chosen.items() if name not in {one.name for one in left}}
        return run.go("Await" if stopped else "Choose", why, saved={STOPPING: state.written(stopped)})
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
    return run.blocked(obstacle, run.progress_deadline)


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
    copies = None
    if state.checks_copies(run.world, operation_id):
        copies = gates.copies_whole(run.world, state.not_waited_for(run.world, run.desired))
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
    saved = {RESTARTED: count, **state.owed(run)}
    return run.forget(STOPPING, READ_ONLY, AUDITED, *proving.AUDIT_KEYS).go("Choose", message, saved=saved)


def _not_back(run: Run, name: str, uid: str) -> Decision | None:
    """None: it works, and has for long enough."""
    pod = view.pod(run.world, name)
    if pod is None or pod.uid == uid:
        stuck = stuck_on_node(run.world, pod)
        return run.wait_at_most(run.progress_deadline, "RestartingBookie", f"waits for the new pod of {name}{stuck}")
    if pod in state.outdated(run.world, run.desired):
        message = f"{name} came back with another template than spec has now"
        return run.forget(STOPPING, AUDITED).go("Choose", message, saved=state.owed(run))
    if not pod.ready or pod.ready_since is None:
        return _failing(run, pod)
    missing = gates.told(run.world)
    if missing is not None:
        return run.blocked(missing, run.progress_deadline)
    read_only = name in run.saved(READ_ONLY).split(",")
    serves = gates.is_registered if read_only else gates.is_writable
    if not serves(run.world, run.desired, name):
        return run.wait_at_most(run.progress_deadline, _failure(run), f"waits until {name} takes new data; see its log")
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
    return run.wait_at_most(run.progress_deadline, _failure(run), message)


def _or_fewer(run: Run, pod: PodView) -> str:
    new = gates.never_served(run.world, run.desired, pod.name)
    return "; it never served, so lower spec.replicas to take it away" if new else ""


def _failure(run: Run) -> str:
    first = state.restarted(run) < max(1, run.world.cluster.spec.update.canary)
    return "CanaryFailed" if first and _late(run) else "UpdateFailed" if _late(run) else "RestartingBookie"


def _late(run: Run) -> bool:
    return operations.overdue(run.world, run.operation, run.progress_deadline)


MARGIN_S: Final = 300
"""A restart may take the deadline; after so much more a bookie counts as lost."""
CHECKED: Final = "checked"
"""Key of `saved`: set once a check of replicas was asked for."""
LATER: Final = "later"
"""Key of `saved`: why what is left is not restarted now."""
WHY: Final = "why"
"""Key of `saved`: why it began."""


def raise_delay(run: Run) -> Decision:
    facts = run.world.facts
    if facts is None:
        missing = state.known_down(run.world, run.desired)
        if missing is None:
            return run.go("Stage", "every bookie is down: the recovery delay cannot be set, and is not needed")
        return run.blocked(missing, run.progress_deadline)
    if not run.saved(DELAY):
        now = facts.lost_bookie_recovery_delay
        saved = {DELAY: str(now), RAISED: str(max(now, int(run.progress_deadline) + MARGIN_S))}
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
        return run.blocked(missing, run.progress_deadline)
    following = _delay_as_before(run) or _checked(run)
    if following is not None:
        return following
    left = state.outdated(run.world, run.desired, state.read(run.saved(state.RESTART)))
    if left:
        who = ", ".join(pod.name for pod in left)
        why = run.saved(LATER) or "update.strategy is Manual now"
        return run.finish(f"{who} were not restarted: {why}", outcome="Cancelled")
    why = run.saved(WHY)
    message = f"{state.restarted(run)} bookies were restarted{f': {why}' if why else ''}"
    return run.finish(message, event=Event("RolloutDone", message))


def given_back(world: World, desired: Desired, operation: Operation, why: str) -> Decision:
    """End it for what goes first. The auditor is asked once, if possible, for the looks that are still wanted."""
    run = Run(world, desired, operation)
    following = _delay_as_before(run)
    back = frozenset[str]() if run.saved(UNCHECKED) else state.back(run.keep(**state.owed(run)))
    asks = world.facts is not None and back and not run.saved(COPIES_ASKED) and not operation.attempts
    if following is None and asks:
        reason = f"the rollout gives way, and the auditor looks what {', '.join(sorted(back))} lacks: {why}"
        following = run.act(LookAtReturned(back), reason, saved={COPIES_ASKED: TRUE})
    return following or run.finish(f"{why}; what is left is rolled out afterwards", outcome="Cancelled")


def _delay_as_before(run: Run) -> Act | None:
    facts, before = run.world.facts, run.saved(DELAY)
    if not before or facts is None or facts.lost_bookie_recovery_delay == int(before):
        return None
    return run.act(SetRecoveryDelay(int(before)), f"bookies may be away for {before} s again, as before")


def _checked(run: Run) -> Decision | None:
    """Ask for a check of all replicas if some bookie was not looked at: no mark says which entries it lacks."""
    if not state.back(run) or run.saved(CHECKED) or gates.copies_can_be_made(run.world) is not None:
        return None
    why = "entries that were written while bookies restarted may be a copy short: the auditor looks for them now"
    return run.in_time(run.act(CheckReplicas(), why, saved={CHECKED: TRUE}), why)


_STEPS: Final = {
    "RaiseDelay": raise_delay,
    "Stage": stage,
    "Choose": choose,
    "Copies": copies,
    "Audit": audit,
    "Stop": stop,
    "Await": await_,
    "Autorecovery": deployments,
    "RestoreDelay": restore_delay,
}
