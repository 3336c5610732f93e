"""The members of the etcd that the operator runs, in the status and as a condition.

The status records on which claim the data of a member are: by that a later pass tells a volume that is gone for good
from one that is empty for another reason (`planner.flows.members`).

Threads: pure functions, any thread.
"""

from __future__ import annotations

from typing import Final

from bookie_operator.crds.cluster_status import MemberState, MemberStatus
from bookie_operator.crds.model import shortened
from bookie_operator.planner.desired import Desired, DesiredMembers
from bookie_operator.planner.flows import members
from bookie_operator.status.steps import stepped
from bookie_operator.world.model import PodView, World

_LENGTH: Final = 500
FULL_PERCENT: Final = 80


def metadata_members(world: World, desired: Desired) -> list[MemberStatus]:
    """Every member; empty: the operator runs no etcd."""
    if desired.members is None:
        return []
    there = members.pods(world, desired.members)
    earlier = {each.name: each for each in world.cluster.status.metadata_members}
    return [
        _member(world, desired.members, name, there.get(name), earlier.get(name, MemberStatus(name=name)))
        for name in desired.members.peer_urls
    ]


def _member(world: World, wanted: DesiredMembers, name: str, pod: PodView | None, before: MemberStatus) -> MemberStatus:
    told = world.etcd.health.get(name) if world.etcd is not None else None
    claim = members.claim_of(world, name)
    uid = claim.uid if claim is not None and not claim.deleting else ""
    used = round(100 * told.database_bytes / wanted.quota) if told is not None and wanted.quota else None
    return MemberStatus(
        name=name,
        state=_state(world, pod, serves=told is not None and told.serves),
        leader=told is not None and told.leader == told.id,
        version=told.version if told is not None else before.version,
        space_used_percent=stepped(used, before.space_used_percent),
        # Its data are on this claim if it runs with it. One that does not run may have lost those of another.
        claim_uid=uid if uid and (told is not None or not before.claim_uid) else before.claim_uid,
        message=shortened(pod.fault_message, _LENGTH) if pod is not None and not pod.ready else "",
    )


def _state(world: World, pod: PodView | None, *, serves: bool) -> MemberState:
    if serves:
        return MemberState.SERVING
    if pod is not None and pod.awaits_start and world.cluster.status.instance_id:
        return MemberState.LOST
    return MemberState.AWAY if world.etcd is not None else MemberState.UNKNOWN


def health(world: World, wanted: DesiredMembers, told: list[MemberStatus]) -> tuple[bool | None, str, str]:
    """Return whether all members serve and have room (None: unknown), a reason and a message."""
    if world.etcd is None:
        return None, "MetadataUnknown", "no majority of the members of etcd tells how they are"
    if any(each.full for each in world.etcd.health.values()):
        words = (
            f"etcd has used up the {wanted.quota} bytes that it may have, and takes no writes: compact and defragment "
            "it, and disarm its alarm (docs/etcd.md)"
        )
        return False, "MetadataFull", words
    away = [each.name for each in told if each.state is not MemberState.SERVING]
    if away:
        return False, "MembersAway", f"{len(told) - len(away)} of {len(told)} members serve; not: {', '.join(away)}"
    filling = [each.name for each in told if (each.space_used_percent or 0) >= FULL_PERCENT]
    if filling:
        words = f"the database of {', '.join(filling)} has used {FULL_PERCENT} % of the {wanted.quota} bytes or more"
        return False, "MetadataFilling", words
    return True, "MembersServe", f"{len(told)} members serve"
