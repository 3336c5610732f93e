"""Grows volumes, whatever state the pods are in, and has claims ask for another VolumeAttributesClass.

A full disk may be why the pods are down.

 1. Gate: the storage class lets volumes grow. One that does not is reported; nothing is touched, and other kinds go on.
 2. Record.
 3. `Request`: every claim that is too small asks for more, also where its pod is down; then each that is to have
    another class asks for it. One that cannot be asked is passed over, and tried again after the others. Where a claim
    does not keep the class that it was given, no other is asked, and that is reported at the end.
 4. `Grow`: waits until each has its size. One whose file system grows with the next start only, for ten minutes: its
    bookie is restarted through the gates of a rollout, unless it is down already. A claim that fails is reported with
    its name; the others go on. `spec` stays as it is. Nothing waits for classes: `volume_attributes` reports them. What
    stalls here gives way (`giving_way`).
 5. `Orphan`: the claim templates of a StatefulSet cannot be changed, so it is deleted without its pods, by UID; how
    many replicas it has was recorded before. Only if it has the desired template: a rollout that waits stays held back.
 6. `Recreate`: made again with the new templates and as many replicas.
 7. `Adopt`: every pod belongs to the new StatefulSet, and none was restarted. Back to 5 for the next one.

After a crash between 5 and 6 the StatefulSet is missing and its pods are there: it is made again, never taken for new.

Another storage class concerns new claims alone: those of more bookies, and of bookies that are moved or replaced.

Sizes are compared in bytes: `1Gi` and `1024Mi` are the same. A claim that is larger than `spec` says is left alone.

Threads: pure functions, any thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Final

from bookie_operator.crds.cluster_status import Operation, OperationType
from bookie_operator.crds.quantity import bytes_of, known_bytes
from bookie_operator.planner import gates, operations, view, windows
from bookie_operator.planner.actions import (
    CreateStatefulSet,
    EvictPod,
    ExpandClaim,
    ModifyClaim,
    OrphanStatefulSet,
    SetRecoveryDelay,
)
from bookie_operator.planner.decision import Act, Decision, Event, EventType, Needs, Record, Wait
from bookie_operator.planner.desired import Desired, DesiredStatefulSet
from bookie_operator.planner.flows import volume_attributes
from bookie_operator.planner.flows.rollout import MARGIN_S
from bookie_operator.planner.run import Run, take
from bookie_operator.world.model import ClaimView, PodView, ResizeState, StatefulSetView, World

RETRY_S: Final = 300.0


def begin(world: World, desired: Desired) -> Decision | None:
    resting = _resting(world)
    if resting is not None:
        return resting
    small = too_small(world, desired)
    fixed = [claim for claim in small if not expandable(world, claim)]
    why = [*_growth(desired, small, fixed), *_classes(world, desired)]
    if why:
        return _record(world, "; ".join(why), "Request")
    if fixed:
        return fixed_class(world, desired, fixed)
    failed = failed_claims(world, desired)
    if failed:
        return Wait("ExpandFailed", failure(failed), seconds=30.0, stalled=True)
    if growing_claims(world, desired):
        return _record(world, "volumes are growing", "Grow")
    if to_remake(world, desired):
        return _record(world, "claims of new bookies are to be as spec says", "Orphan")
    return _later(world, desired)


def beside(world: World, desired: Desired) -> Act | None:
    """Ask for more space while another operation waits: a full disk may be why it does. The rest follows it."""
    operation = world.cluster.status.operation
    if operation is None or operation.type is OperationType.EXPAND or _resting(world) is not None:
        return None
    for claim in too_small(world, desired):
        if expandable(world, claim):
            size = wanted_size(desired, claim.volume)
            action = ExpandClaim(claim.name, claim.uid, size)
            return Act(action, f"claim {claim.name} grows to {size} while {operation.id} waits")
    return None


def _growth(desired: Desired, small: list[ClaimView], fixed: list[ClaimView]) -> Iterator[str]:
    kinds = sorted({claim.volume for claim in small if claim not in fixed})
    if kinds:
        yield f"volumes grow: {', '.join(f'{kind} to {wanted_size(desired, kind)}' for kind in kinds)}"


def _classes(world: World, desired: Desired) -> Iterator[str]:
    asking = volume_attributes.to_ask(world, desired)
    named = {(claim.volume, volume_attributes.wanted(desired, claim)) for claim in asking}
    if named:
        each = (f"{kind} {name or 'what they have'}" for kind, name in sorted(named))
        yield f"volumes are to have another VolumeAttributesClass: {', '.join(each)}"


def _resting(world: World) -> Wait | None:
    """One that failed is tried again after a while, so that others have their turn."""
    last = next((one for one in world.cluster.status.history if one.type is OperationType.EXPAND), None)
    if last is None or last.outcome != "Failed":
        return None
    if world.now - operations.read_time(last.finished_at) >= RETRY_S:
        return None
    return Wait("ExpandFailed", last.message, seconds=30.0, stalled=True)


def _later(world: World, desired: Desired) -> Wait | None:
    """Return which volumes wait for a window, in which bookies may be restarted; None: there are none."""
    growing = growing_claims(world, desired)
    waiting = sorted({one.bookie for one in _unfinished(world, desired) if one not in growing})
    if not waiting:
        return None
    opens = windows.opens(world.cluster.spec.update, world.now)
    words = f"{waiting[0]} has to be restarted, so that its file system grows"
    more = f" (and {len(waiting) - 1} more)" if len(waiting) > 1 else ""
    return Wait("MaintenanceWindow", f"{words}{more}; {opens}", seconds=60.0)


def _record(world: World, why: str, step: str) -> Record:
    return Record(operations.new(world, OperationType.EXPAND, step), why, Event("ExpansionBegun", why))


def needs(operation: Operation, desired: Desired) -> Needs:
    bookie = operation.saved.get(RESTARTING, "")
    if operation.step != "Grow" or not bookie:
        return Needs()
    return Needs(safety=frozenset({frozenset({desired.bookie_id(bookie)})}))


def proceed(world: World, desired: Desired, operation: Operation) -> Decision:
    return take(_STEPS, Run(world, desired, operation))


FILE_SYSTEM_PATIENCE_S: Final = 600.0
"""Drivers that grow file systems in use pass through this state too."""
_SET: Final = "statefulSet"
_UID: Final = "statefulSetUid"
_REPLICAS: Final = "setReplicas"
_PODS: Final = "pods"
_GROWING: Final = "growing"
_ASKED: Final = "askedClass"
"""Claim and VolumeAttributesClass that it was asked for last: one that does not ask for it then was not heard."""
_DROPPED: Final = "droppedClass"
"""Key for the report on classes that claims do not keep; no further claim is asked."""
_MADE: Final = "madeFor"
"""The StatefulSet that was deleted last, and for which claim templates."""
ATTEMPTS: Final = 3
"""Tries for each claim, before those that cannot be asked are given up for now."""


def request(run: Run) -> Decision:
    changes = _changes(run)
    if not changes:
        return run.go("Grow", "every claim asks for what it should have")
    attempts = run.operation.attempts
    action, reason = changes[attempts % len(changes)]  # after a failure another one has its turn
    if attempts >= ATTEMPTS * len(changes):
        names = ", ".join(one.name for one, _ in changes[:5])
        return _failed(run, f"claims {names} could not be changed: {run.operation.message or 'see the events'}")
    if isinstance(action, ExpandClaim):
        return run.act(action, reason)
    asked = f"{action.name}={action.attributes_class}"
    if run.saved(_ASKED) == asked:
        return run.go("Request", f"{action.name} does not keep it", saved={_DROPPED: _dropped(action)})
    return run.act(action, reason, saved={_ASKED: asked})


def _changes(run: Run) -> list[tuple[ExpandClaim | ModifyClaim, str]]:
    """Return what claims have to be asked for; sizes first, because a disk may be full."""
    found: list[tuple[ExpandClaim | ModifyClaim, str]] = []
    for claim in too_small(run.world, run.desired):
        if expandable(run.world, claim):
            size = wanted_size(run.desired, claim.volume)
            words = f"{claim.name} grows from {claim.requested} to {size}"
            found.append((ExpandClaim(claim.name, claim.uid, size), words))
    for claim in volume_attributes.to_ask(run.world, run.desired) if not run.saved(_DROPPED) else ():
        name = volume_attributes.wanted(run.desired, claim)
        found.append((ModifyClaim(claim.name, claim.uid, name), volume_attributes.described(claim, name)))
    return found


def _dropped(action: ModifyClaim) -> str:
    return (
        f"claim {action.name} does not keep the VolumeAttributesClass ({action.attributes_class or 'none'}) that it was"
        " given: enable the feature VolumeAttributesClass of Kubernetes, see which admission webhook changes claims, or"
        " take volumeAttributesClassName out of spec.storage"
    )


def _failed(run: Run, message: str) -> Decision:
    return run.finish(message, outcome="Failed", event=Event("ExpandFailed", message, EventType.WARNING))


def grow(run: Run) -> Decision:
    if _changes(run):
        return run.go("Request", "spec asks for something else")
    growing = growing_claims(run.world, run.desired)
    if not growing:
        return run.forget(RESTARTING).go("Orphan", "every volume has its size")
    failed = [claim for claim in growing if claim.resize is ResizeState.FAILED]
    if len(failed) == len(growing):
        return _failed(run, failure(failed))
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
        return run.wait("ExpandFailed", f"{failure(failed)}; {message}", stalled=True)
    return run.wait_at_most(run.progress_deadline, "Expanding", message)


def _restart(run: Run, growing: list[ClaimView]) -> Decision | None:
    """The bookie whose file system waits for its next start; None: there is none, or it is down already."""
    pod = next((found for claim in growing if (found := _waits_for_start(run.world, claim)) is not None), None)
    if pod is None:
        return None
    if run.saved(RESTARTING) != pod.name:
        return run.go(
            "Grow", f"{pod.name} has to be restarted, so that its file system grows", saved={RESTARTING: pod.name}
        )
    obstacle = gates.first(
        gates.others_serve(run.world, run.desired, {pod.name}),
        gates.copies_whole(run.world, {run.desired.bookie_id(pod.name)}),
        gates.claims_stay(run.world, run.desired, tuple(view.expected_pods(run.world))),
        gates.stoppable(run.world, frozenset({run.desired.bookie_id(pod.name)})),
    )
    if obstacle is not None:
        return run.blocked(obstacle, run.progress_deadline)
    away = int(run.progress_deadline) + MARGIN_S
    assert run.world.facts is not None
    if run.world.cluster.spec.autorecovery.enabled and run.world.facts.lost_bookie_recovery_delay < away:
        # At rest it is as spec says again (`settings`).
        return run.act(SetRecoveryDelay(away), f"while {pod.name} is restarted it may be away for {away} s")
    return run.act(
        EvictPod(pod.name, pod.uid),
        f"{pod.name} is restarted, so that its file system grows",
        event=Event("BookieRestarted", f"{pod.name} is restarted, so that its file system grows"),
    )


def _waits_for_start(world: World, claim: ClaimView) -> PodView | None:
    """Return the pod whose start the claim waits for, unless it was started since the file system began to wait."""
    pod = view.pod(world, claim.bookie)
    if claim.resize is not ResizeState.FILE_SYSTEM_PENDING or claim.resize_since is None:
        return None
    if world.now - claim.resize_since < FILE_SYSTEM_PATIENCE_S:
        return None
    if pod is None or pod.deleting or not pod.ready or pod.created_at > claim.resize_since:
        return None
    return pod


# --- the StatefulSet --------------------------------------------------------------------------------------------------


def orphan(run: Run) -> Decision:
    if run.saved(_SET) and view.stateful_set(run.world, run.saved(_SET)) is None:
        return run.go("Recreate", f"{run.saved(_SET)} is deleted, and its pods go on")
    remake = to_remake(run.world, run.desired)
    if not remake:
        return _end(run)
    one = remake[0]
    if run.saved(_MADE) == _made_for(run, one.name):
        return _failed(
            run,
            f"StatefulSet {one.name} was made again, and does not have the claim templates that it was given: see which"
            " admission webhook changes StatefulSets",
        )
    if not one.settled:
        return run.wait("StatefulSetBusy", f"waits for the controller of StatefulSet {one.name}", seconds=1.0)
    pods = [pod for pod in run.world.pods if pod.stateful_set == one.name and not pod.deleting]
    live = max((pod.ordinal + 1 for pod in pods), default=0)
    saved = {
        _SET: one.name,
        _UID: one.uid,
        _REPLICAS: str(max(one.replicas, live)),
        _PODS: _told_apart(pods),
    }
    if any(run.saved(key) != value for key, value in saved.items()):
        return run.go("Orphan", f"{one.name} is to be made again with other claim templates", saved=saved)
    return run.act(
        OrphanStatefulSet(one.name, one.uid),
        f"the claim templates of {one.name} cannot be changed: it is deleted without its pods, and made again",
        then="Recreate",
        saved={_MADE: _made_for(run, one.name)},
    )


def _told_apart(pods: Iterable[PodView]) -> str:
    """The same while the pods are."""
    return hashlib.sha256(",".join(sorted(f"{pod.name}={pod.uid}" for pod in pods)).encode()).hexdigest()[:16]


def _end(run: Run) -> Decision:
    if run.saved(_DROPPED):
        return _failed(run, run.saved(_DROPPED))
    message = "claims ask for what spec says, and volumes have its size"
    return run.finish(message, event=Event("VolumesExpanded", message))


def _made_for(run: Run, name: str) -> str:
    return next(
        (
            f"{name}: {dict(one.volume_sizes)} {dict(one.volume_attributes or {})} {dict(one.volume_classes)}"
            for one in run.desired.stateful_sets
            if one.name == name
        ),
        "",
    )


def recreate(run: Run) -> Decision:
    found = view.stateful_set(run.world, run.saved(_SET))
    if found is None:
        replicas = int(run.saved(_REPLICAS))
        return run.act(
            CreateStatefulSet(run.saved(_SET), replicas),
            f"{run.saved(_SET)} is made again with {replicas} replicas; its pods go on",
            then="Adopt",
        )
    if found.uid != run.saved(_UID):
        return run.go("Adopt", f"{found.name} is there again")
    if found.deleting:
        return run.wait_at_most(
            run.progress_deadline, "RecreatingStatefulSet", f"waits until the old {found.name} is gone"
        )
    return run.forget(_MADE).go("Orphan", f"{found.name} was not deleted")


def adopt(run: Run) -> Decision:
    found = view.stateful_set(run.world, run.saved(_SET))
    if found is None:
        return run.go("Recreate", f"{run.saved(_SET)} is missing again")
    pods = [pod for pod in run.world.pods if pod.stateful_set == found.name and not pod.deleting]
    strangers = [pod.name for pod in pods if pod.owner_uid != found.uid]
    if strangers or not found.settled:
        waiting = (
            f"waits until {found.name} has taken over {', '.join(strangers)}"
            if strangers
            else f"waits for the controller of StatefulSet {found.name}"
        )
        return run.wait_at_most(run.progress_deadline, "RecreatingStatefulSet", waiting)
    same = run.saved(_PODS) == _told_apart(pods)
    told = "; no pod was restarted" if same else ", though pods were started anew, or came or went, meanwhile"
    event = Event("StatefulSetRecreated", f"{found.name} has its new claim templates{told}")
    return run.forget(_SET, _UID, _REPLICAS, _PODS).go("Orphan", f"{found.name} is made again{told}", event=event)


_STEPS: Final = {
    "Request": request,
    "Grow": grow,
    "Orphan": orphan,
    "Recreate": recreate,
    "Adopt": adopt,
}


RESTARTING: Final = "restarting"
"""The pod that may be restarted so that a file system grows."""
_SHOWN: Final = 5


def wanted_size(desired: Desired, volume: str) -> str:
    """Empty: there are no such volumes."""
    return next((one.volume_sizes[volume] for one in desired.stateful_sets if volume in one.volume_sizes), "")


def too_small(world: World, desired: Desired) -> list[ClaimView]:
    """Claims that do not even ask for what they should have."""
    return [claim for claim in view.live_claims(world) if _below(claim.requested, wanted_size(desired, claim.volume))]


def growing_claims(world: World, desired: Desired) -> list[ClaimView]:
    """Claims that asked, and do not have it yet; failed ones too. Not those whose bookies may not be restarted now."""
    is_open = windows.is_open(world.cluster.spec.update, world.now)
    return [one for one in _unfinished(world, desired) if is_open or _waits_for_start(world, one) is None]


def _unfinished(world: World, desired: Desired) -> list[ClaimView]:
    return [
        claim
        for claim in view.live_claims(world)
        if claim.bound
        and claim.actual
        and wanted_size(desired, claim.volume)
        and (_below(claim.actual, claim.requested) or claim.resize is not ResizeState.NONE)
    ]


def failed_claims(world: World, desired: Desired) -> list[ClaimView]:
    return [claim for claim in growing_claims(world, desired) if claim.resize is ResizeState.FAILED]


def _below(size: str, wanted: str) -> bool:
    if not wanted:
        return False
    have = known_bytes(size)
    return have is not None and have < bytes_of(wanted)


def expandable(world: World, claim: ClaimView) -> bool:
    """True where the operator may not look: the API server refuses it then."""
    return world.expandable is None or not claim.storage_class or world.expandable.get(claim.storage_class, True)


def fixed_class(world: World, desired: Desired, claims: list[ClaimView]) -> Wait:
    claim = claims[0]
    return Wait(
        "StorageClassNotExpandable",
        f"spec.storage.{claim.volume}.size is {wanted_size(desired, claim.volume)}, and {len(claims)} claims such as"
        f" {claim.name} have {claim.requested} of storage class {claim.storage_class}, whose volumes cannot grow: set"
        f" allowVolumeExpansion: true on StorageClass {claim.storage_class} if its driver can, or put the size back",
        seconds=30.0,
        stalled=True,
    )


def failure(claims: Iterable[ClaimView]) -> str:
    found = list(claims)
    each = "; ".join(f"{claim.name} ({claim.message or 'no reason is told'})" for claim in found[:_SHOWN])
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return (
        f"volumes of these claims could not be grown: {each}{more}. See quota and storage system; what is tried again"
        " by the driver goes on by itself"
    )


def to_remake(world: World, desired: Desired) -> list[StatefulSetView]:
    """Return the StatefulSets whose claim templates are smaller or name other classes, and whose pod template is the
    newest: others would get that with it."""
    wanted = {one.name: one for one in desired.stateful_sets}
    return [
        one
        for one in world.stateful_sets
        if (want := wanted.get(one.name)) is not None
        and not one.deleting
        and one.template_hash == want.template_hash
        and one.name not in desired.held
        and (_has_smaller(one, want) or _has_other_classes(one, want))
    ]


def _has_smaller(one: StatefulSetView, want: DesiredStatefulSet) -> bool:
    return any(_below(one.volume_sizes.get(kind, ""), size) for kind, size in want.volume_sizes.items())


def _has_other_classes(one: StatefulSetView, want: DesiredStatefulSet) -> bool:
    other_attributes = want.volume_attributes is not None and one.volume_attributes != want.volume_attributes
    return other_attributes or one.volume_classes != want.volume_classes
