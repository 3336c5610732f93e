"""The list of etcd's members: what changes it, and what keeps it from being changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie_operator.crds import names
from bookie_operator.crds.cluster_status import MemberStatus
from bookie_operator.planner import invariants
from bookie_operator.planner.actions import AddMember, RemoveMember, TellPod
from bookie_operator.planner.decision import Act, Plan, Wait
from bookie_operator.planner.desired import Desired, DesiredMembers
from bookie_operator.planner.flows import members
from bookie_operator.world.facts import EtcdFacts, Member, MemberHealth
from bookie_operator.world.model import ClaimView, PodView, World
from tests.support.operator_sim import resting

PODS = [f"c-metadata-{ordinal}" for ordinal in range(3)]
URLS = {pod: f"https://{pod}:2380" for pod in PODS}
LOST = PODS[2]
SERVES = {pod: MemberHealth(number + 1, 1) for number, pod in enumerate(PODS)}


def listed(*named: str) -> tuple[Member, ...]:
    return tuple(Member(number + 1, pod, (URLS[pod],)) for number, pod in enumerate(PODS) if pod in named)


def claim(uid: str, *, bound: bool = True, deleting: bool = False) -> ClaimView:
    return ClaimView(
        name=f"data-{LOST}",
        uid=uid,
        bookie=LOST,
        ordinal=2,
        volume="metadata",
        requested="2Gi",
        actual="2Gi",
        bound=bound,
        lost=False,
        deleting=deleting,
        instance_id="",
    )


def world_and_desired(
    *,
    etcd: EtcdFacts | None = None,
    known: str = "old",
    now: ClaimView | None = None,
    told: bool = False,
) -> tuple[World, Desired]:
    """`known`: UID of the claim that the lost member's data were on."""
    sim = resting()
    world = sim.world()
    pods = [
        PodView(pod, f"uid-{pod}", "c-metadata", n, ready=pod != LOST, bookie_runs=pod != LOST)
        for n, pod in enumerate(PODS)
    ]
    pods[2] = replace(pods[2], awaits_start=not told, told_start=told)
    status = world.cluster.status.model_copy(
        update={"metadata_members": [MemberStatus(name=LOST, claim_uid=known)] if known else []}
    )
    desired = replace(sim.desired(), members=DesiredMembers("c-metadata", "", URLS, 1000))
    found = replace(
        world,
        cluster=replace(world.cluster, status=status),
        members=tuple(pods),
        claims=(*world.claims, now or claim("new")),
        etcd=etcd,
    )
    return found, desired


def rest(*serving: str) -> dict[str, MemberHealth]:
    return {pod: SERVES[pod] for pod in serving}


def test_a_member_is_removed_then_added_then_started() -> None:
    others = rest(*PODS[:2])
    found = [
        members.replace(*world_and_desired(etcd=EtcdFacts(each, others)))
        for each in (listed(*PODS), listed(*PODS[:2]), (*listed(*PODS[:2]), Member(9, "", (URLS[LOST],))))
    ]
    assert [each.action for each in found if isinstance(each, Act)] == [
        RemoveMember(LOST, 3),
        AddMember(LOST, URLS[LOST]),
        TellPod(LOST, f"uid-{LOST}", names.ETCD_START, "existing"),
    ]


@pytest.mark.parametrize(
    ("known", "now"),
    [
        ("old", claim("old")),
        ("", claim("new")),
        ("old", claim("new", bound=False)),
        ("old", claim("new", deleting=True)),
    ],
)
def test_what_is_not_known_to_be_gone_for_good_is_not_removed(known: str, now: ClaimView) -> None:
    world, desired = world_and_desired(etcd=EtcdFacts(listed(*PODS), rest(*PODS[:2])), known=known, now=now)
    found = members.replace(world, desired)
    assert isinstance(found, Wait)
    assert (found.reason, found.stalled) == ("MemberVolumeEmpty", True)


@pytest.mark.parametrize(
    "etcd",
    [
        None,
        EtcdFacts(listed(*PODS), rest(PODS[0])),
        EtcdFacts(listed(*PODS), {**rest(PODS[0]), PODS[1]: MemberHealth(2, 0)}),
        EtcdFacts(listed(*PODS), {**rest(PODS[0]), PODS[1]: MemberHealth(2, 1, errors=("alarm:CORRUPT",))}),
        EtcdFacts((*listed(*PODS[:2]), Member(7, "", ("https://other:2380",))), rest(*PODS[:2])),
        EtcdFacts(listed(PODS[0], LOST), rest(PODS[0])),
    ],
)
def test_the_list_is_not_changed_without_a_majority_or_while_another_member_starts(etcd: EtcdFacts | None) -> None:
    world, desired = world_and_desired(etcd=etcd)
    assert isinstance(members.replace(world, desired), Wait)


@pytest.mark.parametrize("action", [RemoveMember(LOST, 3), AddMember(LOST, URLS[LOST])])
def test_i13_no_plan_changes_the_list_so(action: RemoveMember | AddMember) -> None:
    plan = Plan(Act(action, "why"))
    those = listed(*PODS) if isinstance(action, RemoveMember) else listed(*PODS[:2])
    whole = EtcdFacts(those, rest(*PODS[:2]))
    assert invariants.check(*world_and_desired(etcd=whole), plan) == []
    broken = [
        world_and_desired(etcd=None),
        world_and_desired(etcd=EtcdFacts(those, rest(PODS[0]))),
        world_and_desired(etcd=whole, told=True),
    ]
    for world, desired in broken:
        assert [each[:3] for each in invariants.check(world, desired, plan)] == ["I13"]


def test_the_word_to_start_is_taken_back_once_the_member_runs() -> None:
    world, desired = world_and_desired(etcd=EtcdFacts(listed(*PODS), rest(*PODS)), told=True)
    found = members.begin(world, desired)
    assert found is not None
    assert found.action == TellPod(LOST, f"uid-{LOST}", names.ETCD_START, None)
    silent, _ = world_and_desired(etcd=EtcdFacts(listed(*PODS), rest(*PODS[:2])), told=True)
    assert members.begin(silent, desired) is None


def test_first_members_wait_for_each_other_and_for_no_metadata() -> None:
    """One that has data already may be of an earlier etcd."""
    world, desired = world_and_desired()
    assert members.begin(world, desired) is None
    fresh = world.cluster.status.model_copy(update={"instance_id": ""})
    world = replace(world, cluster=replace(world.cluster, status=fresh))
    assert members.begin(world, desired) is None
    waiting = tuple(replace(pod, ready=False, bookie_runs=False, awaits_start=True) for pod in world.members)
    found = members.begin(replace(world, members=waiting), desired)
    assert found is not None
    assert found.action == TellPod(PODS[0], f"uid-{PODS[0]}", names.ETCD_START, "new")
