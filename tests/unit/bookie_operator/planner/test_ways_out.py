"""Random worlds that nobody heals: whatever state a cluster came to, some change of `spec` leads on.

There are as many nodes as the cluster had bookies at first, people ask for more than there is room for, claims go,
nodes are cordoned, images are broken, and the operator dies. Then the same wishes are taken back in each of a few ways,
as the messages advise: one of these has to bring the cluster to rest, and no way may lose data.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from bookie_operator.crds.task_spec import TaskType
from bookie_operator.planner.decision import Wait
from bookie_operator.planner.flows import repair_gates
from tests.support.operator_sim import NeverAtRest, Simulation, resting
from tests.support.operator_sim.bookkeeper import Refused
from tests.support.operator_sim.mishaps import UNHEALED, Mishap, delete_claim, scale_far, upgrade, widen

HEEDED_AFTER, MOST_PASSES = 100, 700
GIVES_WAY_FOR_EVER = (
    (upgrade, 2, 29, "before"),
    (widen, 7, 2, ""),
    (scale_far, 8, 33, ""),
    (upgrade, 0, 10, "before"),
    (upgrade, 10, 5, "between"),
    (delete_claim, 5, 1, ""),
)
"""Bookies that are broken, and one of them not asked for any more: a rollout gave way to it, and came first again."""
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)

Event = tuple[Mishap, int, int, str]

events = st.lists(
    st.tuples(
        st.sampled_from(UNHEALED),
        st.integers(0, 11),
        st.integers(0, 40),
        st.sampled_from(["", "", "before", "between"]),
    ),
    min_size=1,
    max_size=6,
)


def heed(sim: Simulation) -> None:
    """What messages ask for beside changes of `spec`: cordoned nodes come back; and a bookie whose claim somebody
    deleted is drained while it runs, stopped, and replaced; and claims of a bookie that is gone, which no ledger names,
    are deleted."""
    sim.kubernetes.cordoned.clear()
    for name in {one.bookie for one in sim.kubernetes.claims.values()} - sim.kubernetes.pods.keys():
        if not sim.bookkeeper.naming(sim.desired().bookie_id(name)):
            sim.kubernetes.delete_claims(name)
    for name in {one.bookie for one in sim.kubernetes.claims.values() if one.deleting and one.bookie in _running(sim)}:
        bookie_id = sim.desired().bookie_id(name)
        with contextlib.suppress(Refused):
            sim.bookkeeper.begin_drain(bookie_id, False, ())
            sim.advance(300)
            if not sim.bookkeeper.naming(bookie_id):
                sim.kubernetes.stop_pod(sim.kubernetes.pods[name])
                sim.ask(TaskType.REPLACE, name)


def _running(sim: Simulation) -> set[str]:
    return {pod.name for pod in sim.kubernetes.pods.values() if pod.running and pod.gone_at is None}


def back(sim: Simulation) -> None:
    heed(sim)
    sim.change(replicas=4, version="1.0", image="", durability={"ensembleSize": 3}, decommission={"mode": "Drain"})


def stop_first(sim: Simulation) -> None:
    back(sim)
    sim.change(decommission={"mode": "StopFirst"})


def replaced(sim: Simulation) -> None:
    back(sim)
    for name in repair_gates.lost_bookies(sim.world(), sim.desired()):
        sim.ask(TaskType.REPLACE, name)


def one_more(sim: Simulation) -> None:
    """With nodes for all: copies may have nowhere to go without. And with a quota that has room for them."""
    sim.kubernetes.room = max(sim.kubernetes.room, len(sim.kubernetes.pods)) + 1
    sim.kubernetes.quota = max(sim.kubernetes.quota + 1, 5)
    sim.change(replicas=5, version="1.0", image="", durability={"ensembleSize": 3}, decommission={"mode": "Drain"})
    for _ in range(60):
        sim.run_pass()
        sim.advance(2)
    heed(sim)


WAYS: tuple[Callable[[Simulation], None], ...] = (back, stop_first, replaced, one_more)


def story(happens: list[Event]) -> Simulation:
    sim = resting(repair={"autoReplaceAfterSeconds": 30})
    sim.kubernetes.room = len(sim.kubernetes.pods)
    for mishap, number, passes, crash in happens:
        mishap(sim, number)
        for count in range(passes):
            decision = sim.run_pass(crash=crash if count == 0 else "").plan.decision
            sim.advance(min(decision.seconds, 5.0) if isinstance(decision, Wait) else 1.0)
    return sim


def leads_on(before: bytes, way: Callable[[Simulation], None]) -> str:
    """Empty: it does; else how it ended."""
    sim: Simulation = pickle.loads(before)
    way(sim)
    try:
        sim.run_until_rest(most=HEEDED_AFTER)
    except NeverAtRest:
        heed(sim)  # what could not be done at once may be possible by now
        try:
            sim.run_until_rest(most=MOST_PASSES)
        except NeverAtRest as never:
            return f"{way.__name__}: {never}"
    assert not sim.accidents, (way.__name__, sim.accidents)
    return ""


def some_way_leads_on(happens: list[Event]) -> None:
    sim = story(happens)
    assert not sim.accidents
    before = pickle.dumps(replace(sim, passes=[]))
    ends: list[str] = []
    for way in WAYS:
        end = leads_on(before, way)
        if not end:
            return
        ends.append(end)
    raise AssertionError("\n".join(ends))


@pytest.mark.timeout(600)
@settings(max_examples=40, deadline=None, phases=PHASES, derandomize=True)
@given(events)
@example(list(GIVES_WAY_FOR_EVER))
def test_some_change_leads_on(happens: list[Event]) -> None:
    """The same worlds each time."""
    some_way_leads_on(happens)


@pytest.mark.timeout(7200)
@settings(max_examples=400, deadline=None, phases=PHASES, print_blob=True)
@given(events)
def test_some_change_leads_on_from_worlds_that_nobody_tried(happens: list[Event]) -> None:
    """Others each time. One that has no way out becomes a test of its own, such as in `test_giving_way`."""
    some_way_leads_on(happens)
