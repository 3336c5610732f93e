"""Which claims are too small, still growing, or failed; and which StatefulSets have other claim templates than wanted.

Sizes are compared in bytes: `1Gi` and `1024Mi` are the same. A claim that is larger than `spec` says is left alone.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from bookie_operator.crds.quantity import bytes_of, known_bytes
from bookie_operator.planner import view
from bookie_operator.planner.decision import Wait
from bookie_operator.planner.desired import Desired, DesiredStatefulSet
from bookie_operator.world.model import ClaimView, ResizeState, StatefulSetView, World

RESTARTING: Final = "restarting"
"""The pod that may be restarted so that a file system grows."""
_SHOWN: Final = 5


def wanted_size(desired: Desired, volume: str) -> str:
    """Empty: there are no such volumes."""
    return next((one.volume_sizes[volume] for one in desired.stateful_sets if volume in one.volume_sizes), "")


def own(world: World) -> list[ClaimView]:
    """Claims of the bookies that there are; what was retired, or goes, or has no volume any more is left alone."""
    expected = frozenset(view.expected_pods(world)) | {pod.name for pod in world.pods}
    return [
        claim
        for claim in view.claims(world)
        if claim.bookie in expected and not claim.retired and not claim.deleting and not claim.lost
    ]


def too_small(world: World, desired: Desired) -> list[ClaimView]:
    """Claims that do not even ask for what they should have."""
    return [claim for claim in own(world) if _below(claim.requested, wanted_size(desired, claim.volume))]


def growing(world: World, desired: Desired) -> list[ClaimView]:
    """Claims that asked, and do not have it yet; failed ones too."""
    return [
        claim
        for claim in own(world)
        if claim.bound
        and claim.actual
        and wanted_size(desired, claim.volume)
        and (_below(claim.actual, claim.requested) or claim.resize is not ResizeState.NONE)
    ]


def failed(world: World, desired: Desired) -> list[ClaimView]:
    return [claim for claim in growing(world, desired) if claim.resize is ResizeState.FAILED]


def _below(size: str, wanted: str) -> bool:
    if not wanted:
        return False
    have = known_bytes(size)
    return have is not None and have < bytes_of(wanted)


def expandable(world: World, claim: ClaimView) -> bool:
    """True where nobody may look: the API server refuses it then."""
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
    """StatefulSets whose claim templates are smaller or name other VolumeAttributesClasses, and whose pod template is
    the newest: others would get that with it."""
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
    return want.volume_attributes is not None and one.volume_attributes != want.volume_attributes
