"""VolumeAttributesClasses of volumes: which claims have to ask for another one, and what has become of it.

`expand` asks and makes the StatefulSet again; the driver changes volumes in use, in its own time, and no operation
waits for it: what is not done yet is reported beside everything else.

 - A name in `spec` is asked for by every claim, also by those that an earlier template made.
 - Without a name claims keep what their volumes have: Kubernetes takes no class away. A change that has not begun, or
   that failed, is taken back, so that a name that was wrong can be taken out again.
 - A claim without a volume cannot ask for another class: Kubernetes wants it to be bound.

Threads: pure functions, any thread.

Source: Kubernetes documentation, "Volume Attributes Classes"; PersistentVolumeClaim.status.modifyVolumeStatus.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from bookie_operator.crds.cluster_status import OperationType
from bookie_operator.planner import operations, view
from bookie_operator.planner.decision import Wait
from bookie_operator.planner.desired import Desired
from bookie_operator.world.model import ClaimView, ModifyState, World

PATIENCE_S: Final = 600.0
"""Seconds after which the driver should have begun to change a volume."""
BINDING_S: Final = 120.0
"""Seconds that a claim may be without a volume after its pod was made."""
_SHOWN: Final = 5


def wanted(desired: Desired, claim: ClaimView) -> str:
    """The class that it should ask for; empty: none."""
    classes = _classes(desired)
    has = claim.attributes
    if classes is None:
        return has.requested
    if claim.volume in classes:
        return classes[claim.volume]
    return has.requested if has.state is ModifyState.IN_PROGRESS else has.current


def _classes(desired: Desired) -> dict[str, str] | None:
    """Return the classes by kind of volume: all StatefulSets have the same. None: Kubernetes knows no such classes."""
    found = next((one.volume_attributes for one in desired.stateful_sets), None)
    return dict(found) if found is not None else None


def to_ask(world: World, desired: Desired) -> list[ClaimView]:
    """Claims that ask for another class than they should, and may ask."""
    return [
        claim
        for claim in view.live_claims(world)
        if claim.bound and claim.attributes.requested != wanted(desired, claim)
    ]


def described(claim: ClaimView, attributes_class: str) -> str:
    if attributes_class:
        return f"{claim.name} asks for VolumeAttributesClass {attributes_class}"
    return f"{claim.name} asks for VolumeAttributesClass {claim.attributes.requested} no more"


# --- what is reported
# -----------------------------------------------------------------------------------------------------


def waiting(world: World, desired: Desired) -> Wait | None:
    """Return what the volumes do not have yet, the worst first; None: they have all that was asked for."""
    return _without_volume(world, desired) or _with_volume(world, desired)


def _with_volume(world: World, desired: Desired) -> Wait | None:
    named = _classes(desired) or {}
    open_ = [
        claim
        for claim in view.live_claims(world)
        if claim.bound and claim.attributes.current != claim.attributes.requested == named.get(claim.volume)
    ]
    by_state = {state: [claim for claim in open_ if claim.attributes.state is state] for state in ModifyState}
    if failed := by_state[ModifyState.FAILED]:
        return _told(
            "VolumeAttributesRefused",
            f"the volumes of {_claims(failed)} could not be given {_class(failed)}: let {_fields(failed)} name a class"
            " that their driver accepts, or take it out, and they keep what they have. Errors that pass are tried again"
            " by the driver",
        )
    if pending := by_state[ModifyState.PENDING]:
        return _told(
            "VolumeAttributesClassMissing",
            f"the volumes of {_claims(pending)} wait for {_class(pending)}: create it, if there is none of this name,"
            f" or let {_fields(pending)} name another one",
        )
    if (ignored := by_state[ModifyState.NONE]) and _asked_long_ago(world):
        return _told(
            "VolumeAttributesIgnored",
            f"no driver has begun to give {_class(ignored)} to the volumes of {_claims(ignored)}: their driver has to"
            " be able to change volumes (CSI ModifyVolume, by a csi-resizer that runs beside it). Install one that is,"
            f" or take {_fields(ignored)} out",
        )
    if not open_:
        return None
    return Wait("ModifyingVolumes", f"waits until the volumes of {_claims(open_)} have {_class(open_)}", 10.0)


def _without_volume(world: World, desired: Desired) -> Wait | None:
    """Claims that name a class and get no volume. They cannot be given another name."""
    classes = _classes(desired) or {}
    late = [
        claim
        for claim in view.live_claims(world)
        if not claim.bound and claim.attributes.requested and _unbound_for_long(world, claim)
    ]
    other = [
        claim
        for claim in late
        if claim.attributes.requested not in (classes.get(claim.volume, ""), _of_template(world, claim))
    ]
    if other:
        return _told(
            "VolumeAttributesClassMissing",
            f"no volume is made for {_claims(other)} with {_class(other)}, which spec does not name any more."
            " Kubernetes lets only claims that have a volume ask for another class: delete these, which hold no data,"
            " and they are made again",
        )
    if not late:
        return None
    return _told(
        "VolumeAttributesClassMissing",
        f"no volume is made for {_claims(late)} with {_class(late)}: `kubectl describe pvc {late[0].name}` tells"
        " whether there is no such class, or the driver refuses it. Create it, or let"
        f" {_fields(late)} name another one",
    )


def _unbound_for_long(world: World, claim: ClaimView) -> bool:
    pod = view.pod(world, claim.bookie)
    return pod is not None and world.now - pod.created_at >= BINDING_S


def _of_template(world: World, claim: ClaimView) -> str:
    """Return the class with which the claim would be made now."""
    found = view.stateful_set(world, view.set_of(claim.bookie))
    return found.volume_attributes.get(claim.volume, "") if found is not None else claim.attributes.requested


def _asked_long_ago(world: World) -> bool:
    """Return whether the last claim was asked long ago: at the latest, that was when the last expansion ended."""
    last = next((one for one in world.cluster.status.history if one.type is OperationType.EXPAND), None)
    return last is None or world.now - operations.read_time(last.finished_at) >= PATIENCE_S


def _told(reason: str, message: str) -> Wait:
    return Wait(reason, message, seconds=30.0, stalled=True)


def _class(claims: Iterable[ClaimView]) -> str:
    return f"VolumeAttributesClass {', '.join(sorted({one.attributes.requested for one in claims}))}"


def _fields(claims: Iterable[ClaimView]) -> str:
    return ", ".join(sorted({f"spec.storage.{one.volume}.volumeAttributesClassName" for one in claims}))


def _claims(claims: list[ClaimView]) -> str:
    each = (f"{one.name} ({one.attributes.message})" if one.attributes.message else one.name for one in claims[:_SHOWN])
    more = f" and {len(claims) - _SHOWN} more" if len(claims) > _SHOWN else ""
    return f"{'claim' if len(claims) == 1 else 'claims'} {', '.join(each)}{more}"
