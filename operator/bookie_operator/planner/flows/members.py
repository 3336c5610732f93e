"""Members of the etcd that the operator runs: how the first ones start, and how one that lost its volume is replaced.

Each pass finds the next step in what is there: etcd's list of members, and what pods tell of their volumes. So nothing
has to be recorded, and a replacement goes on while another operation waits.

    1. the pod tells that its volume is empty, and etcd's list has the member as one that was started: it is removed
    2. the list has no member with the pod's address: one is added
    3. the list has one that was never started: the pod starts as that one

Invariants
- A member is removed only if its volume is gone for good: its pod has found an empty volume, and mounts another claim
  than the member had. An empty volume of the same claim may be a disk that is not mounted.
- A member is removed or added only while the others serve in such a number that they are a majority afterwards, and no
  other member that was added has yet to start.
- A pod starts with an empty volume only at the operator's word, once: as a first member only if no metadata were
  ever made.
- What etcd's members do not tell is unknown, and nothing is done on it.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from bookie_operator.crds import names
from bookie_operator.planner import view
from bookie_operator.planner.actions import AddMember, DeletePod, RemoveMember, TellPod
from bookie_operator.planner.decision import Act, Decision, Event, EventType, Wait
from bookie_operator.planner.desired import Desired, DesiredMembers
from bookie_operator.world.facts import EtcdFacts, Member
from bookie_operator.world.model import ClaimView, PodFault, PodView, World

VOLUME: Final = "metadata"
NEW: Final = "new"
EXISTING: Final = "existing"


@dataclass(frozen=True)
class Lost:
    """A pod whose volume is empty, in a cluster whose etcd has started before."""

    pod: PodView
    member: Member | None
    """Its entry in etcd's list; None: it has none."""


def pods(world: World, members: DesiredMembers) -> dict[str, PodView]:
    """Return the pods of members by name."""
    return {pod.name: pod for pod in world.members if pod.name in members.peer_urls}


def begin(world: World, desired: Desired) -> Act | None:
    """Let the first members start, and replace pods that cannot start as they are: before the metadata are made."""
    if desired.members is None:
        return None
    return _mend(world, desired.members) or _found(world, desired.members) or _taken_back(world, desired.members)


def _mend(world: World, members: DesiredMembers) -> Act | None:
    """Replace a pod of an earlier template that does not run: a StatefulSet leaves it as it is."""
    for pod in pods(world, members).values():
        stuck = pod.fault is not PodFault.NONE and not (pod.ready or pod.bookie_runs or pod.deleting)
        if stuck and pod.template_hash != members.template_hash:
            why = f"{pod.name} does not start ({pod.fault_message or pod.fault.value}), and its template has changed"
            return Act(DeletePod(pod.name, pod.uid), why)
    return None


def _found(world: World, members: DesiredMembers) -> Act | None:
    """Tell pods to start as the first members, one in each pass."""
    if world.cluster.status.instance_id:
        return None
    there = pods(world, members)
    for name, url in members.peer_urls.items():
        pod = there.get(name)
        if pod is None or not pod.awaits_start or pod.deleting:
            continue
        if world.etcd is None:
            # A member with data may be one of an earlier etcd: two new ones must not outvote it.
            first = all((one := there.get(each)) and (one.awaits_start or one.told_start) for each in members.peer_urls)
        else:
            first = any(url in each.peer_urls and not each.name for each in world.etcd.members)
        told = TellPod(pod.name, pod.uid, names.ETCD_START, NEW)
        if first and not _is_refused(world, told):
            return Act(told, f"the metadata were never made: {pod.name} is one of the first members of etcd")
    return None


def _taken_back(world: World, members: DesiredMembers) -> Act | None:
    """Take the word back from a pod that has started: its sandbox may be made again, without its disk."""
    health = world.etcd.health if world.etcd is not None else {}
    for pod in pods(world, members).values():
        told = TellPod(pod.name, pod.uid, names.ETCD_START, None)
        if pod.told_start and not pod.deleting and pod.name in health and not _is_refused(world, told):
            return Act(told, f"{pod.name} has started, and has data from now on")
    return None


def replace(world: World, desired: Desired) -> Decision | None:
    """Take the next step of the replacement of a lost member; `Wait`: it is lost, and may not be replaced now."""
    if desired.members is None:
        return None
    blocked: Wait | None = None
    for lost in _lost(world, desired.members):
        found = _step(world, desired.members, lost)
        if isinstance(found, Act):
            return found
        blocked = blocked or found
    return blocked


def broken(world: World, desired: Desired) -> Wait | None:
    """Report a member that does not start for a reason that a person has to mend."""
    if desired.members is None:
        return None
    for pod in pods(world, desired.members).values():
        if pod.fault is PodFault.NONE or pod.ready or pod.deleting or pod.awaits_start:
            continue
        told = pod.fault_message or pod.fault.value
        remedy = "see its events, its log and spec.metadataService.etcd"
        return _stalled(view.REASONS[pod.fault], f"member {pod.name} of etcd does not start ({told}): {remedy}")
    return None


def _lost(world: World, members: DesiredMembers) -> Iterator[Lost]:
    there = pods(world, members)
    for name, url in members.peer_urls.items():
        pod = there.get(name)
        if pod is None or not pod.awaits_start or pod.deleting:
            continue
        listed = world.etcd.members if world.etcd is not None else ()
        member = next((each for each in listed if url in each.peer_urls), None)
        if world.cluster.status.instance_id or (member is not None and member.name):
            yield Lost(pod, member)


def _step(world: World, members: DesiredMembers, lost: Lost) -> Act | Wait | None:
    pod, member = lost.pod, lost.member
    if world.etcd is None:
        return _stalled(
            "MetadataUnknown",
            f"the volume of {pod.name} is empty, and no majority of etcd's members tells the others. It starts "
            "once most of them serve again; if most of the volumes are lost, so are the metadata",
        )
    action: TellPod | RemoveMember | AddMember
    if member is None:
        action, reason = (
            AddMember(pod.name, members.peer_urls[pod.name]),
            f"{pod.name} is added to etcd as a new member",
        )
    elif not member.name:
        action = TellPod(pod.name, pod.uid, names.ETCD_START, EXISTING)
        reason = f"{pod.name} starts as the member that was added to etcd"
    elif (why := _may_come_back(world, pod)) is not None:
        return why
    else:
        action, reason = (
            RemoveMember(pod.name, member.id),
            f"{pod.name} lost its volume: the member is taken out of etcd",
        )
    if not isinstance(action, TellPod) and (refused := _endangers(world.etcd, lost)):
        return Wait("MemberLost", f"{pod.name} lost its volume, and is not replaced yet: {refused}", seconds=5.0)
    if _is_refused(world, action):
        return None
    return Act(action, reason, event=Event(f"{type(action).__name__}", reason, EventType.WARNING))


def _may_come_back(world: World, pod: PodView) -> Wait | None:
    """Return what to do if its volume may not be lost; None: it is gone for good."""
    found = claim_of(world, pod.name)
    known = next((each.claim_uid for each in world.cluster.status.metadata_members if each.name == pod.name), "")
    if found is not None and found.bound and not found.deleting and known and found.uid != known:
        return None
    claim = found.name if found is not None else "unknown"
    return _stalled(
        "MemberVolumeEmpty",
        f"{pod.name} finds an empty volume, and claim {claim} is the one that its data were on, as far as is known: is "
        f"the disk mounted? Bring it back, or delete claim {claim} and pod {pod.name}: then the member is replaced",
    )


def claim_of(world: World, pod: str) -> ClaimView | None:
    """The claim that the pod mounts for its data; None: there is none."""
    return next((one for one in world.claims if one.bookie == pod and one.volume == VOLUME), None)


def _endangers(etcd: EtcdFacts, lost: Lost) -> str:
    """Return why the list of members may not be changed now; empty: it may."""
    others = [each for each in etcd.members if lost.member is None or each.id != lost.member.id]
    if starting := [each for each in others if not each.name]:
        return f"member {starting[0].id:x} was added, and has not started yet"
    serving = serving_ids(etcd)
    count = sum(each.id in serving for each in others)
    most = max(len(etcd.members), len(others) + (lost.member is None))
    if count < most // 2 + 1:
        return f"{count} other members serve, and it takes {most // 2 + 1} of {most}"
    return ""


def serving_ids(etcd: EtcdFacts) -> frozenset[int]:
    return frozenset(each.id for each in etcd.health.values() if each.serves)


def away(world: World, members: DesiredMembers) -> list[str]:
    """Names of the members that do not serve, or of which that is unknown."""
    there, health = pods(world, members), world.etcd.health if world.etcd is not None else {}
    return [
        name
        for name in members.peer_urls
        if (pod := there.get(name)) is None
        or not pod.ready
        or pod.deleting
        or (told := health.get(name)) is None
        or not told.serves
    ]


def _is_refused(world: World, action: object) -> bool:
    return any(one.action == action for one in world.refused_actions)


def _stalled(reason: str, message: str) -> Wait:
    return Wait(reason, message, seconds=10.0, stalled=True)
