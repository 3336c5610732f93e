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
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from bookie_operator.crds.task_spec import TaskType
from bookie_operator.planner.decision import Rest, Wait
from bookie_operator.planner.flows import repair
from tests.support.operator_sim import NeverAtRest, Simulation, resting
from tests.support.operator_sim.bookkeeper import Refused
from tests.support.operator_sim.mishaps import (
    UNHEALED,
    Event,
    delete_claim,
    lose_volume,
    scale_far,
    tell,
    upgrade,
    widen,
)

HEEDED_AFTER, MOST_PASSES, SETTLING, MOST_BEGUN = 100, 700, 70, 3
PATIENCE = 60
"""Seconds after which whatever waits in vain stalls."""
GIVES_WAY_FOR_EVER = (
    (upgrade, 2, 29, "before"),
    (widen, 7, 2, ""),
    (scale_far, 8, 33, ""),
    (upgrade, 0, 10, "before"),
    (upgrade, 10, 5, "between"),
    (delete_claim, 5, 1, ""),
)
"""Bookies that are broken, and one of them not asked for any more: a rollout gave way to it, and came first again."""
NOWHERE_TO_GO = (
    (widen, 11, 33, "between"),
    (upgrade, 10, 22, "before"),
    (scale_far, 8, 5, ""),
    (lose_volume, 3, 11, "between"),
)
"""A bookie is lost in a rollout, and its copies have nowhere to go: more bookies waited for the rollout's end."""
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)

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
    """What messages ask for beside changes of `spec`: cordoned nodes come back; claims without the cluster's labels are
    given to it, and finalizers that keep claims are taken off; a bookie whose claim somebody deleted
    is drained while it runs, stopped, and replaced; claims of a bookie that is gone, which no ledger names, are
    deleted; and what has no copy any more is given up, then deleted."""
    sim.kubernetes.cordoned.clear()
    for claim in sim.kubernetes.claims.values():
        claim.adoption, claim.kept_by = claim.foreign, ""
    lost = tuple(sorted(sim.bookkeeper.lost)) if sim.forgiven else ()
    if lost and any(one.type is TaskType.ACCEPT_LOSS for one in sim.tasks):
        sim.bookkeeper.ledgers = {key: one for key, one in sim.bookkeeper.ledgers.items() if key not in lost}
        sim.bookkeeper.marks.difference_update(lost)
    elif lost:
        sim.ask(TaskType.ACCEPT_LOSS, ledgers=lost)
    for name in {one.bookie for one in sim.kubernetes.claims.values()} - sim.kubernetes.pods.keys():
        if not sim.bookkeeper.naming(sim.desired().bookie_id(name)):
            sim.kubernetes.delete_claims(name)
    for name in sorted({one.bookie for one in sim.kubernetes.claims.values() if one.deleting}):
        bookie_id = sim.desired().bookie_id(name)
        if name in _running(sim):
            with contextlib.suppress(Refused):
                sim.bookkeeper.begin_drain(bookie_id, False, ())
                sim.advance(300)
            if sim.bookkeeper.naming(bookie_id):
                continue
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
    for name in repair.lost_bookies(sim.world(), sim.desired()):
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
    sim = resting(
        repair={"autoReplaceAfterSeconds": 30},
        update={"progressDeadlineSeconds": PATIENCE},
        decommission={"stallSeconds": PATIENCE},
    )
    sim.kubernetes.room = len(sim.kubernetes.pods)
    tell(sim, happens)
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


def settled(sim: Simulation) -> None:
    """Left alone, it rests or waits, and does not begin one thing after the other."""
    for _ in range(SETTLING):
        decision = sim.run_pass().plan.decision
        if isinstance(decision, Rest):
            return
        sim.advance(min(decision.seconds, 5.0) if isinstance(decision, Wait) else 1.0)
    begun = sim.status.operations_begun
    for _ in range(SETTLING):
        decision = sim.run_pass().plan.decision
        sim.advance(min(decision.seconds, 5.0) if isinstance(decision, Wait) else 1.0)
    more = sim.status.operations_begun - begun
    told = [(one.type.value, one.bookie, one.outcome, one.message[:80]) for one in sim.status.history[:6]]
    assert more <= MOST_BEGUN, f"{more} operations, one after the other: {told}"


def some_way_leads_on(happens: list[Event]) -> None:
    sim = story(happens)
    assert not sim.accidents, sim.accidents
    before = pickle.dumps(replace(sim, passes=[]))
    settled(pickle.loads(before))
    ends: list[str] = []
    for way in WAYS:
        end = leads_on(before, way)
        if not end:
            return
        ends.append(end)
    raise AssertionError("\n".join(ends))


@pytest.mark.parametrize("happened", [GIVES_WAY_FOR_EVER, NOWHERE_TO_GO], ids=["gives way for ever", "nowhere to go"])
def test_some_change_leads_on_from_worlds_that_had_no_way_out(happened: tuple[Event, ...]) -> None:
    some_way_leads_on(list(happened))


@pytest.mark.timeout(600)
@settings(max_examples=40, deadline=None, phases=PHASES, derandomize=True)
@given(events)
def test_some_change_leads_on(happens: list[Event]) -> None:
    """The same worlds each time."""
    some_way_leads_on(happens)


@pytest.mark.timeout(7200)
@settings(max_examples=400, deadline=None, phases=PHASES, print_blob=True)
@given(events)
def test_some_change_leads_on_from_worlds_that_nobody_tried(happens: list[Event]) -> None:
    """Others each time. One that has no way out becomes a test of its own, such as in `test_giving_way`."""
    some_way_leads_on(happens)
