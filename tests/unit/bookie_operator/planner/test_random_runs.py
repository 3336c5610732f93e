"""Random wishes and faults, with an operator that dies: nothing is lost, plans are allowed, and all ends at rest."""

from __future__ import annotations

from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from bookie_operator.planner.decision import Rest
from tests.support.operator_sim import Simulation, desired_of, resting
from tests.support.operator_sim.mishaps import (
    FAULTS,
    RELEASES,
    WISHES,
    Event,
    admins_away,
    configure,
    heal,
    lose_volume,
    move,
    scale,
    scale_by_hand,
    strip_claim,
    tell,
)

MOST_PASSES = 900
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""Without making a failure smaller: the lists are short, and a run that never rests takes its time."""

LABELS_GO_BEFORE_THE_CLAIM: list[Event] = [(lose_volume, 10, 14, ""), (strip_claim, 10, 12, "")]
"""It was recorded as the cluster's own, and is somebody else's when its turn to be deleted comes."""
RESTARTED_WHILE_IT_IS_DRAINED: list[Event] = [(move, 7, 3, "after"), (scale_by_hand, 11, 0, ""), (move, 5, 24, "")]
"""The pod that serves without a cookie is another one than that which was recorded."""
LOST_AFTER_IT_WAS_MOVED: list[Event] = [(move, 2, 19, ""), (configure, 2, 5, ""), (lose_volume, 2, 4, "before")]
"""The task was through with it, and had not been told so."""
RESTARTED_BY_A_ROLLOUT: list[Event] = [(configure, 2, 8, ""), (move, 9, 36, "between"), (lose_volume, 9, 21, "before")]
"""A bookie that is to be moved comes back from its restart: it was not lost."""
LOST_WHILE_ANOTHER_IS_MOVED: list[Event] = [(move, 0, 5, "before"), (lose_volume, 1, 11, "between")]
"""What the lost one stored has to go to the one that is moved, which takes no new data."""
UNKNOWN_WHILE_IT_CHOOSES: list[Event] = [(configure, 2, 6, ""), (admins_away, 0, 9, "between"), (scale, 3, 8, "")]
"""No pod answers while a rollout runs, and bookies serve."""
UNKNOWN_WHILE_IT_IS_DRAINED: list[Event] = [(move, 1, 9, ""), (admins_away, 0, 25, "after"), (scale, 0, 3, "")]

events = st.lists(
    st.tuples(
        st.sampled_from(WISHES + FAULTS),
        st.integers(0, 11),
        st.integers(0, 25),
        st.sampled_from(["", "", "before", "between", "after"]),
    ),
    min_size=1,
    max_size=6,
)


def run(sim: Simulation, happens: list[Event]) -> None:
    for each in happens:
        tell(sim, [each])
        heal(sim)
    sim.run_until_rest(most=MOST_PASSES)


@settings(max_examples=60, deadline=None, phases=PHASES)
@example(LABELS_GO_BEFORE_THE_CLAIM)
@example(RESTARTED_WHILE_IT_IS_DRAINED)
@example(LOST_AFTER_IT_WAS_MOVED)
@example(RESTARTED_BY_A_ROLLOUT)
@example(LOST_WHILE_ANOTHER_IS_MOVED)
@example(UNKNOWN_WHILE_IT_CHOOSES)
@example(UNKNOWN_WHILE_IT_IS_DRAINED)
@given(events)
def test_whatever_happens_it_ends_as_spec_says_and_nothing_is_lost(happens: list[Event]) -> None:
    sim = resting(repair={"autoReplaceAfterSeconds": 30})
    run(sim, happens)
    assert not sim.accidents
    assert sim.status.operation is None
    assert sorted(sim.kubernetes.pods) == [f"c-bookie-{n}" for n in range(sim.spec.replicas)]
    (wanted,) = sim.desired().stateful_sets
    assert {one.inputs_hash for one in sim.kubernetes.sets.values()} == {wanted.inputs_hash}
    (made,) = {one.template_hash for one in (*sim.kubernetes.pods.values(), *sim.kubernetes.sets.values())}
    assert made in {desired_of(sim.view(), release).stateful_sets[0].template_hash for release in RELEASES}
    assert {one.requested for one in sim.kubernetes.claims.values() if one.volume == "ledger"} == {
        wanted.volume_sizes["ledger"]
    }
    classes = {one.current_attributes for one in sim.kubernetes.claims.values() if one.volume == "ledger"}
    assert wanted.volume_attributes is not None
    assert classes == {wanted.volume_attributes.get("ledger", "")} or "ledger" not in wanted.volume_attributes
    assert sorted(sim.bookkeeper.cookies) == sorted(sim.bookkeeper.writable)
    assert sim.bookkeeper.recovery_delay == sim.spec.autorecovery.lost_bookie_recovery_delay_seconds
    assert not sim.bookkeeper.marks
    beside = {key for key in sim.kubernetes.objects if key.endswith("-gateway")}
    wanted = {*sim.desired().support, *sim.desired().deployments}
    assert beside == {key for key in wanted if key.endswith("-gateway")}
    assert bool(beside) is sim.spec.gateway.enabled


@settings(max_examples=15, deadline=None, phases=PHASES)
@given(events)
def test_at_rest_it_stays_at_rest(happens: list[Event]) -> None:
    sim = resting(repair={"autoReplaceAfterSeconds": 30})
    run(sim, happens)
    sim.bookkeeper.writes = True
    before = sim.status
    for _ in range(20):
        assert isinstance(sim.run_pass().plan.decision, Rest)
        sim.advance(30)
    assert sim.status == before
