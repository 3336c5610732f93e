"""The budget follows the state of the data.

A whole zone is drained: its bookies go together where ledgers can do without them, and one at a time elsewhere.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie_operator.crds.cluster_status import Operation, OperationType
from bookie_operator.planner.actions import ApplyObjects
from bookie_operator.planner.decision import Act, Wait
from bookie_operator.planner.desired import Evictions
from bookie_operator.planner.flows import disruption, rollout_state
from bookie_operator.planner.plan import needs
from bookie_operator.world.facts import SafetyFacts
from bookie_operator.world.model import World
from tests.support.operator_sim import Simulation, resting
from tests.support.operator_sim.bookkeeper import SimLedger

BUDGET = "PodDisruptionBudget/c-bookie"


def facts(sim: Simulation, **changes: object) -> World:
    found = sim.bookkeeper.facts()
    assert found is not None
    return replace(sim.world(), facts=replace(found, **changes))  # type: ignore[arg-type]


def test_while_all_is_well_as_spec_says() -> None:
    sim = resting(disruption={"maxUnavailable": 2})
    assert disruption.allowed(sim.world(), sim.desired()) == Evictions(2)
    assert disruption.begin(sim.world(), sim.desired()) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"under_replicated": 1},
        {"auditor": None},
        {"last_audit": None},
        {"writable": frozenset()},
        {"unchecked": frozenset({"c-bookie-1.c-bookie.ns.svc:3181"})},
    ],
)
def test_nobody_is_evicted_while_a_copy_may_be_missing(changes: dict[str, object]) -> None:
    sim = resting()
    world = facts(sim, **changes)
    assert disruption.allowed(world, sim.desired()) == Evictions(0)
    begun = disruption.begin(world, sim.desired())
    assert isinstance(begun, Act)
    assert begun.action == ApplyObjects((BUDGET,))


@pytest.mark.parametrize(("seconds", "wanted"), [(None, 0), (0, 0), (59, 0), (60, 1)])
def test_a_new_auditor_closes_it_until_it_lists_whom_it_looks_at_and_one_that_never_does_for_a_minute(
    seconds: float | None, wanted: int
) -> None:
    sim = resting()
    seen = facts(sim, unchecked=None, silent_since=None if seconds is None else sim.now - seconds)
    assert disruption.allowed(seen, sim.desired()) == Evictions(wanted)


def test_not_knowing_closes_it() -> None:
    sim = resting()
    assert disruption.allowed(replace(sim.world(), facts=None), sim.desired()) == Evictions(0)


def test_a_read_only_bookie_serves() -> None:
    sim = resting()
    found = sim.bookkeeper.facts()
    assert found is not None
    world = facts(sim, writable=frozenset(), read_only=found.writable)
    assert disruption.allowed(world, sim.desired()) == Evictions(1)


def test_without_auto_recovery_of_its_own_no_auditor_is_waited_for() -> None:
    sim = resting(autorecovery={"enabled": False})
    assert disruption.allowed(facts(sim, auditor=None, last_audit=None), sim.desired()) == Evictions(1)


@pytest.mark.parametrize(
    ("kind", "pod_is_down", "chosen", "wanted"),
    [
        (None, False, 1, 1),
        (None, True, 0, 0),
        (OperationType.DECOMMISSION, False, 0, 0),
        (OperationType.REPLACE, False, 0, 0),
        (OperationType.ROLLOUT, False, 0, 1),
        (OperationType.ROLLOUT, True, 0, 1),
        (OperationType.ROLLOUT, True, 1, 0),
        (OperationType.EXPAND, True, 0, 0),
    ],
)
def test_what_runs_counts(kind: OperationType | None, pod_is_down: bool, chosen: int, wanted: int) -> None:
    """Pod 0 is down; a rollout stops the one that it has chosen."""
    sim = resting()
    saved = {rollout_state.STOPPING: f"c-bookie-{chosen}=uid"}
    operation = Operation(id="X-1", type=kind, step="x", saved=saved) if kind is not None else None
    world = replace(
        sim.world(), cluster=replace(sim.view(), status=sim.status.model_copy(update={"operation": operation}))
    )
    if pod_is_down:
        world = replace(world, pods=(replace(world.pods[0], ready=False), *world.pods[1:]))
    assert disruption.allowed(world, sim.desired()) == Evictions(wanted)


@pytest.mark.parametrize(
    ("unchecked", "saved", "wanted"),
    [
        ("c-bookie-1", {}, 0),
        ("c-bookie-1", {rollout_state.STOPPING: "c-bookie-2=uid"}, 0),
        ("c-bookie-1", {rollout_state.STOPPING: "c-bookie-1=uid"}, 1),
        ("c-bookie-1", {rollout_state.UNCHECKED: "true"}, 1),
        ("", {rollout_state.BACK: "c-bookie-1.c-bookie.ns.svc:3181"}, 0),
        ("", {rollout_state.BACK: "c-bookie-1.c-bookie.ns.svc:3181", rollout_state.UNCHECKED: "true"}, 1),
        ("", {}, 1),
    ],
)
def test_a_rollout_opens_it_only_to_what_it_has_chosen_or_given_up(
    unchecked: str, saved: dict[str, str], wanted: int
) -> None:
    """A bookie was away, and the auditor has not looked since what it lacks, or was not asked for it yet."""
    sim = resting()
    operation = Operation(id="Rollout-1", type=OperationType.ROLLOUT, step="Stop", saved=saved)
    seen = facts(sim, unchecked=frozenset({sim.desired().bookie_id(unchecked)} if unchecked else ()))
    status = sim.status.model_copy(update={"operation": operation})
    seen = replace(seen, cluster=replace(sim.view(), status=status))
    assert disruption.allowed(seen, sim.desired()) == Evictions(wanted)


def test_an_eviction_storm_takes_one_bookie_at_most() -> None:
    sim = resting()
    for _ in range(20):
        for pod in sim.kubernetes.pods.values():
            if pod.gone_at is None and sim.evictable(pod):
                sim.kubernetes.stop_pod(pod)
        assert sum(pod.ready_since is None for pod in sim.kubernetes.pods.values()) <= 1
        sim.run_pass()
        sim.advance(1)
    sim.run_until_rest()
    assert not sim.accidents


ZONES = "abc"
ALL_OF_B = frozenset(f"c-bookie-b-{number}.c-bookie.ns.svc:3181" for number in (0, 1))


def two_in_each_zone(*copies: str, **changes: object) -> Simulation:
    """`copies`: the bookies of one ledger, such as `a-0`; without, one copy in each zone."""
    placement = {"placement": {"zones": [{"name": zone} for zone in ZONES]}}
    sim = resting(replicas=6, **{**placement, **changes})
    sim.bookkeeper.writes = False
    ids = [f"c-bookie-{each}.c-bookie.ns.svc:3181" for each in copies or ("a-0", "b-0", "c-0")]
    sim.bookkeeper.ledgers = {1: SimLedger(ids, {sim.bookkeeper.running[each] for each in ids})}
    return sim


def drain(sim: Simulation, *pods: str) -> bool:
    """Whether all of them could be evicted within a while, as `kubectl drain` of their nodes tries."""
    nodes = {f"c-bookie-{each}": sim.kubernetes.pods[f"c-bookie-{each}"].node for each in pods}
    sim.kubernetes.cordoned.update(nodes.values())
    left = set(nodes)
    for _ in range(60):
        for name in sorted(left):
            if sim.kubernetes.pods[name].ready_since is not None and sim.evictable(sim.kubernetes.pods[name]):
                sim.kubernetes.stop_pod(sim.kubernetes.pods[name])
                left.discard(name)
        sim.run_pass()
        sim.advance(1)
    return not left


def world(sim: Simulation) -> World:
    return sim.world(needs(sim.world(), sim.desired()))


def half_drained(sim: Simulation) -> World:
    """One bookie of zone b is away, and the node of the other is cordoned."""
    sim.kubernetes.cordoned.update({"node-b0", "node-b1"})
    sim.kubernetes.stop_pod(sim.kubernetes.pods["c-bookie-b-1"])
    sim.advance(5)
    return world(sim)


def test_a_whole_zone_goes_and_comes_back() -> None:
    sim = two_in_each_zone()
    assert drain(sim, "b-0", "b-1")
    assert disruption.allowed(world(sim), sim.desired()) == Evictions(0)  # nobody is left to go, and nobody else may
    sim.kubernetes.cordoned.clear()
    sim.run_until_rest()
    assert disruption.allowed(world(sim), sim.desired()) == Evictions(1)
    assert not sim.accidents


def test_two_zones_at_once_go_one_after_the_other() -> None:
    sim = two_in_each_zone()
    assert not drain(sim, "a-0", "a-1", "b-0", "b-1")
    away = {name for name, pod in sim.kubernetes.pods.items() if pod.ready_since is None}
    assert away == {"c-bookie-a-0", "c-bookie-a-1"}


def test_a_ledger_that_would_fall_below_its_ack_quorum_holds_the_zone() -> None:
    sim = two_in_each_zone("a-0", "b-0", "b-1")
    assert not drain(sim, "b-0", "b-1")
    waiting = sim.passes[-1].plan.decision
    assert isinstance(waiting, Wait)
    assert waiting.reason == "ZoneDrainBlocked"
    assert "nodes of zone b are cordoned" in waiting.message
    assert "1 ledgers would have fewer copies than their ack quorum" in waiting.message


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"durability": {"ensembleSize": 5}},
            "without it 4 bookies would be writable, and durability.ensembleSize is 5",
        ),
        (
            {"placement": {"minZonesPerWriteQuorum": 3, "zones": [{"name": zone} for zone in ZONES]}},
            "without it bookies would be left in 2 zones, and placement.minZonesPerWriteQuorum is 3",
        ),
    ],
)
def test_what_clients_need_to_write_holds_the_zone(changes: dict[str, object], why: str) -> None:
    sim = two_in_each_zone(**changes)
    seen = half_drained(sim)
    assert disruption.allowed(seen, sim.desired()) == Evictions(0)
    told = disruption.blocked(seen, sim.desired())
    assert told is not None
    assert why in told.message


def test_who_wants_no_whole_zones_gets_none() -> None:
    sim = two_in_each_zone(disruption={"wholeZone": False})
    seen = half_drained(sim)
    assert disruption.allowed(seen, sim.desired()) == Evictions(0)
    assert disruption.blocked(seen, sim.desired()) is None


def test_a_cluster_without_zones_loses_one_bookie_at_a_time() -> None:
    sim = resting(replicas=6)
    sim.kubernetes.cordoned.update({"node-4", "node-5"})
    sim.kubernetes.stop_pod(sim.kubernetes.pods["c-bookie-5"])
    sim.advance(5)
    assert disruption.allowed(world(sim), sim.desired()) == Evictions(0)
    assert not needs(sim.world(), sim.desired()).safety


def test_ledgers_are_looked_at_only_while_somebody_is_left_to_go() -> None:
    sim = two_in_each_zone()
    assert not needs(sim.world(), sim.desired()).safety
    sim.kubernetes.cordoned.update({"node-b0", "node-b1"})
    assert not needs(sim.world(), sim.desired()).safety  # the first one goes as any other
    half_drained(sim)
    assert needs(sim.world(), sim.desired()).safety == {ALL_OF_B}
    sim.kubernetes.stop_pod(sim.kubernetes.pods["c-bookie-b-0"])
    sim.advance(5)
    assert not needs(sim.world(), sim.desired()).safety


def test_not_knowing_holds_the_zone() -> None:
    sim = two_in_each_zone()
    seen = half_drained(sim)
    assert disruption.open_zone(seen, sim.desired()) == "b"
    assert disruption.blocked(seen, sim.desired()) is None
    facts = seen.facts
    assert facts is not None
    safe = seen.safety[ALL_OF_B]
    assert safe is not None
    doubtful = (
        replace(seen, facts=None),
        replace(seen, safety={}),
        replace(seen, safety={ALL_OF_B: None}),
        replace(seen, safety={ALL_OF_B: replace(safe, unknown=1)}),
        replace(seen, safety={ALL_OF_B: replace(safe, without_copy=1)}),
        replace(seen, facts=replace(facts, auditor=None)),
        replace(seen, nodes=None),
    )
    for each in doubtful:
        assert disruption.allowed(each, sim.desired()) == Evictions(0)


def test_a_bookie_of_another_zone_whose_copies_nobody_looked_at_holds_the_zone() -> None:
    sim = two_in_each_zone()
    seen = half_drained(sim)
    assert seen.facts is not None
    for name, wanted in {"c-bookie-a-0": Evictions(0), "c-bookie-b-0": Evictions(0, "b")}.items():
        unchecked = replace(seen.facts, unchecked=frozenset({sim.desired().bookie_id(name)}))
        assert disruption.allowed(replace(seen, facts=unchecked), sim.desired()) == wanted, name


def test_with_a_write_quorum_of_one_only_one_bookie_goes() -> None:
    sim = two_in_each_zone("b-0", durability={"ensembleSize": 1, "writeQuorum": 1, "ackQuorum": 1})
    seen = half_drained(sim)
    safety = SafetyFacts(ALL_OF_B, below_ack_quorum=0, without_copy=1, unknown=0)
    seen = replace(seen, safety={ALL_OF_B: safety})
    assert disruption.allowed(seen, sim.desired()) == Evictions(0)
    told = disruption.blocked(seen, sim.desired())
    assert told is not None
    assert "1 ledgers could not be read without it" in told.message


def test_marks_of_the_bookies_that_went_do_not_hold_the_others() -> None:
    """The auditor marks what they store after a while: the safety check counts those copies out anyway."""
    sim = two_in_each_zone()
    seen = half_drained(sim)
    assert seen.facts is not None
    marked = replace(seen, facts=replace(seen.facts, under_replicated=1))
    assert disruption.allowed(marked, sim.desired()) == Evictions(0, "b")


@pytest.mark.parametrize("other", ["another zone", "an operation"])
def test_anything_else_that_is_under_way_closes_it(other: str) -> None:
    sim = two_in_each_zone()
    seen = half_drained(sim)
    if other == "another zone":
        pods = tuple(replace(pod, ready=False) if pod.name == "c-bookie-a-0" else pod for pod in seen.pods)
        seen = replace(seen, pods=pods)
    else:
        status = sim.status.model_copy(update={"operation": Operation(id="X-1", type=OperationType.EXPAND, step="x")})
        seen = replace(seen, cluster=replace(seen.cluster, status=status))
    assert disruption.allowed(seen, sim.desired()) == Evictions(0)
