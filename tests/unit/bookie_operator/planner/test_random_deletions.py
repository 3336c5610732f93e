"""Random worlds in which the owner of a shared root is deleted: what others may need stays, and a way leads on.

The other one joins at a random moment, as late as while bookies stop. Admins and metadata go away, the metadata come
back empty or as those of another cluster, and the operator dies. In the end the cluster is deleted, or it is told who
holds up the deletion, and each of the ways out that the message names works.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from bookie_operator.planner.decision import Decision, Wait
from bookie_operator.planner.desired import Desired
from bookie_operator.planner.flows import delete
from bookie_operator.world.model import World
from tests.support.operator_sim import Simulation, resting, sharing
from tests.support.operator_sim.mishaps import Event, Mishap, tell

PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
MOST_PASSES = 900


def events(most: int) -> st.SearchStrategy[list[Event]]:
    return st.lists(event(st.sampled_from(sharing.HAPPENINGS)), max_size=most)


def event(what: st.SearchStrategy[Mishap]) -> st.SearchStrategy[Event]:
    crash = st.sampled_from(["", "", "before", "between", "after"])
    return st.tuples(what, st.integers(0, 11), st.integers(0, 25), crash)


def is_over(sim: Simulation, decision: Decision) -> bool:
    return not sim.finalizer


def is_over_or_blocked(sim: Simulation, decision: Decision) -> bool:
    """A person is needed only while others use the metadata, or while these are not what they were."""
    needed = bool(sim.bookkeeper.joined) or sim.bookkeeper.facts() is None or sim.bookkeeper.backup is not None
    return is_over(sim, decision) or (needed and is_blocked(decision))


def is_blocked(decision: Decision) -> bool:
    return isinstance(decision, Wait) and decision.reason == "DeletionBlocked" and decision.stalled


def deleted(before: list[Event], deletion: Event, after: list[Event], *, heals: bool, way: Mishap) -> None:
    sim = resting(repair={"autoReplaceAfterSeconds": 30})
    tell(sim, [*before, deletion, *after])
    (sharing.heal if heals else sharing.mend_nodes)(sim, 0)
    sim.run(is_over_or_blocked, most=MOST_PASSES)
    assert not sim.accidents, sim.accidents
    if sim.finalizer:
        told = sim.passes[-1].plan.decision
        assert isinstance(told, Wait)
        assert "whenDeleted to Retain" in told.message
        joined = sim.bookkeeper.joined
        if heals and joined and sim.world().facts is not None:  # else the Job refuses, and its log has the names
            assert any(one in told.message for one in joined), told.message
    way(sim, 0)
    there = {one.uid for one in sim.kubernetes.claims.values() if not one.deleting}
    sim.run(is_over, most=MOST_PASSES)
    assert not sim.accidents, sim.accidents
    left = {one.uid for one in sim.kubernetes.claims.values()}
    assert left == there or (not left and not sim.bookkeeper.joined and way is sharing.leave)


@settings(max_examples=80, deadline=None, phases=PHASES)
@given(
    events(3),
    event(st.just(sharing.delete)),
    events(4),
    st.sampled_from([(True, sharing.retain), (False, sharing.retain), (True, sharing.leave)]),
)
def test_what_another_cluster_may_need_stays_and_a_way_leads_on(
    before: list[Event], deletion: Event, after: list[Event], ends: tuple[bool, Mishap]
) -> None:
    heals, way = ends
    deleted(before, deletion, after, heals=heals, way=way)


def unready_is_none(patch: pytest.MonkeyPatch) -> None:
    """Only pods that are ready are taken for ones that may tell."""
    patch.setattr(delete, "_who_may_tell", lambda world: [pod.name for pod in world.pods if pod.ready])


def any_instance_is_ours(patch: pytest.MonkeyPatch) -> None:
    """What the metadata service says counts, whichever cluster it has."""
    shared = delete.shared

    def believing(world: World, desired: Desired) -> str:
        facts = world.facts and replace(world.facts, instance_id=world.cluster.status.instance_id)
        return shared(replace(world, facts=facts), desired)

    patch.setattr(delete, "shared", believing)


JOINED: Event = (sharing.join, 1, 3, "")


@pytest.mark.parametrize(
    ("plant", "trouble"),
    [
        (unready_is_none, (sharing.hang, 0, 25, "")),
        (unready_is_none, (sharing.unready, 0, 25, "")),
        (any_instance_is_ours, (sharing.come_back_empty, 0, 25, "")),
        (any_instance_is_ours, (sharing.come_back_as_another, 0, 25, "")),
    ],
)
def test_bugs_of_old_are_seen(
    plant: Callable[[pytest.MonkeyPatch], None], trouble: Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them in a story of the random ones, which ends well without."""
    deletion: Event = (sharing.delete, 1, 5, "")
    deleted([JOINED], deletion, [trouble], heals=False, way=sharing.retain)
    plant(monkeypatch)
    with pytest.raises(AssertionError, match="metadata"):
        deleted([JOINED], deletion, [trouble], heals=False, way=sharing.retain)
