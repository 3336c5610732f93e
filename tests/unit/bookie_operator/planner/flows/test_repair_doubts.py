"""What keeps a lost bookie from being replaced: ledgers without another copy, and nodes that only do not answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie_operator.crds import names
from bookie_operator.crds.cluster_status import OperationType
from bookie_operator.crds.task_spec import TaskType
from bookie_operator.planner.actions import DeleteClaim, DeleteCookie, DeletePod, EvictPod, ScaleStatefulSet
from bookie_operator.planner.decision import Decision, Needs, Record, Wait
from bookie_operator.planner.flows import repair
from bookie_operator.planner.flows.repair import loss_hash
from bookie_operator.world.facts import SafetyFacts
from bookie_operator.world.model import NodeView, PodFault, World
from tests.support.operator_sim import Simulation
from tests.support.operator_sim.bookkeeper import SimLedger
from tests.support.operator_sim.flows import acted, at_step
from tests.support.operator_sim.going import GOING, LOST, lose, may_lose, settled

MISMATCH = "CookieMismatch"


@pytest.fixture
def four() -> Simulation:
    return may_lose(repair={"autoReplaceAfterSeconds": 30})


# --- losses -----------------------------------------------------------------------------------------------------------


def with_loss(world: World, bookie_id: str, *ledgers: int, known: bool = True) -> World:
    only = frozenset({bookie_id})
    safety = SafetyFacts(
        only,
        0,
        len(ledgers),
        0,
        tuple(f"{one}: no copy" for one in ledgers),
        loss_hash(ledgers) if known else "",
        ledgers if known else (),
    )
    return replace(world, safety={only: safety})


def lost_world(sim: Simulation) -> World:
    """Seen by somebody who may replace it now."""
    lose(sim)
    sim.advance(60)
    return sim.world(Needs(outlooks=frozenset({sim.desired().bookie_id(LOST)})))


def begin(sim: Simulation, world: World) -> Decision | None:
    return repair.begin(world, sim.desired())


def test_ledgers_without_another_copy_wait_for_a_word(four: Simulation) -> None:
    world = lost_world(four)
    bookie_id = four.desired().bookie_id(LOST)
    decision = begin(four, with_loss(world, bookie_id, 7, 12))
    assert isinstance(decision, Wait)
    assert (decision.reason, decision.stalled) == ("LedgersUnrecoverable", True)
    assert decision.message == (
        f"2 ledgers have entries whose only copy is on {bookie_id} (7: no copy; 12: no copy): bring it or its volumes"
        f" back; to give these entries up annotate the BookieCluster with {names.ACCEPT_LEDGER_LOSS}="
        f"{loss_hash((7, 12))}, or create a BookieTask of type AcceptLoss with the ids of these ledgers"
    )


@pytest.mark.parametrize(
    ("annotation", "ledgers", "accepted"),
    [
        (loss_hash((7, 12)), (), True),
        (loss_hash((7,)), (), False),
        ("true", (), False),
        ("", (12, 7), True),
        ("", (12, 7, 99), True),
        ("", (7,), False),
    ],
)
def test_the_word_has_to_name_just_these_ledgers(
    four: Simulation, annotation: str, ledgers: tuple[int, ...], accepted: bool
) -> None:
    if annotation:
        four.annotations[names.ACCEPT_LEDGER_LOSS] = annotation
    if ledgers:
        four.ask(TaskType.ACCEPT_LOSS, ledgers=ledgers)
    world = with_loss(lost_world(four), four.desired().bookie_id(LOST), 7, 12)
    assert isinstance(begin(four, world), Record) is accepted


def test_ids_that_are_not_all_known_are_accepted_by_nobody_but_their_hash(four: Simulation) -> None:
    four.annotations[names.ACCEPT_LEDGER_LOSS] = loss_hash((7, 12))
    decision = begin(four, with_loss(lost_world(four), four.desired().bookie_id(LOST), 7, 12, known=False))
    assert isinstance(decision, Wait)
    assert decision.message.endswith("too many to be given up by name: delete those of them that nobody needs")


@pytest.mark.parametrize("safety", [None, SafetyFacts(frozenset(), 0, 0, 3)])
def test_who_cannot_tell_does_not_replace(four: Simulation, safety: SafetyFacts | None) -> None:
    only = frozenset({four.desired().bookie_id(LOST)})
    decision = begin(four, replace(lost_world(four), safety={only: safety}))
    assert isinstance(decision, Wait)
    assert decision.reason == "SafetyUnknown"


def test_what_is_given_up_does_not_count_any_more(four: Simulation) -> None:
    """One ledger had its only copy there."""
    ids = [four.desired().bookie_id(f"c-bookie-{one}") for one in (1, 2, 3)]
    four.bookkeeper.ledgers[900] = SimLedger(ids, {four.bookkeeper.running[ids[0]]})
    four.bookkeeper.writes = False
    lose(four)
    four.run_until_stalled("LedgersUnrecoverable")
    assert four.status.operation is None
    four.ask(TaskType.ACCEPT_LOSS, ledgers=(900,))
    four.run(lambda sim, _: bool(sim.status.history))
    assert [one.outcome for one in four.status.history] == ["Done"]
    assert [one.accepted_losses for one in acted(four) if isinstance(one, DeleteCookie)] == [(900,)]


# --- nodes ------------------------------------------------------------------------------------------------------------


def test_a_node_that_does_not_answer_waits_for_a_person_and_nothing_is_forced(four: Simulation) -> None:
    four.kubernetes.lose_node("node-1")
    four.run_until_stalled("NodeLost")
    told = str(four.passes[-1].plan)
    assert "it is unknown whether c-bookie-1 still runs there" in told
    assert "run `kubectl taint node node-1 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute`" in told
    for _ in range(30):
        four.run_pass()
        four.advance(30)
    assert four.status.operation is None
    assert not any(isinstance(one, DeletePod | EvictPod | DeleteClaim) for one in acted(four))
    asked = repair.replace(four.world(), four.desired(), LOST, "task")
    assert isinstance(asked, Wait)
    assert (asked.reason, asked.stalled) == ("NodeLost", True), "nor for a task"


def test_a_node_that_is_gone_for_good_takes_its_volumes_along(four: Simulation) -> None:
    four.kubernetes.lose_node("node-1")
    four.run_until_stalled("NodeLost")
    four.kubernetes.out_of_service.add("node-1")
    for one in four.kubernetes.claims_of(LOST):
        one.lost, one.data_id = True, None
    four.advance(5)
    four.kubernetes.lost_nodes.clear()
    four.run_until_rest()
    assert four.status.history[0].type is OperationType.REPLACE
    assert len(four.bookkeeper.writable) == 4


def unreachable_volume(sim: Simulation) -> World:
    world = lost_world(sim)
    only = frozenset({sim.desired().bookie_id(LOST)})
    claims = tuple(replace(one, lost=False) for one in world.claims)
    pods = tuple(
        replace(one, fault=PodFault.VOLUME, fault_message="volume node affinity conflict") if one.name == LOST else one
        for one in world.pods
    )
    safe = SafetyFacts(only, 0, 0, 0)
    return replace(world, claims=claims, pods=pods, safety={only: safe})


def test_a_volume_may_be_on_a_node_that_only_is_silent(four: Simulation) -> None:
    world = unreachable_volume(four)
    silent = {"node-9": NodeView("node-9", False)}
    decision = begin(four, replace(world, nodes=silent))
    assert isinstance(decision, Wait)
    assert (decision.reason, decision.stalled) == ("NodeLost", True)
    assert decision.message.startswith("node-9 do not answer, and the volumes of c-bookie-1 may be there")
    assert isinstance(begin(four, replace(world, nodes={"node-9": NodeView("node-9", False, True)})), Record)
    assert isinstance(begin(four, replace(world, nodes={"node-0": NodeView("node-0", True)})), Record)


def test_who_may_not_look_at_nodes_asks_for_a_task(four: Simulation) -> None:
    world = replace(unreachable_volume(four), nodes=None)
    decision = begin(four, world)
    assert isinstance(decision, Wait)
    assert "the operator may not read nodes" in decision.message
    assert isinstance(repair.replace(world, four.desired(), LOST, "task"), Record)


# --- another id -------------------------------------------------------------------------------------------------------


def rename(sim: Simulation, old: str, new: str) -> None:
    """As `bookie cluster rename-bookie` does, of a bookie that is stopped for a moment."""
    keeper = sim.bookkeeper
    keeper.stop(old)
    keeper.cookies[new] = keeper.cookies.pop(old)
    for ledger in keeper.ledgers.values():
        ledger.ensemble = [new if one == old else one for one in ledger.ensemble]


@pytest.mark.parametrize("kind", ["by itself", "task", "Drain", "StopFirst"])
def test_nothing_of_a_bookie_that_was_renamed_goes(kind: str) -> None:
    """Its volumes have what ledgers need of the other id."""
    sim = settled(replicas=5, repair={"autoReplaceAfterSeconds": 30 if kind == "by itself" else 0})
    bookie_id, other = sim.desired().bookie_id(GOING), "10.0.0.7:3181"
    sim.bookkeeper.writes = False
    sim.bookkeeper.ledgers[1000] = SimLedger([bookie_id], {sim.bookkeeper.running[bookie_id]})
    rename(sim, bookie_id, other)
    sim.kubernetes.kill_pod(GOING)
    if kind == "task":
        sim.ask(TaskType.REPLACE, GOING)
    elif kind != "by itself":
        sim.change(replicas=4, decommission={"mode": kind})
    sim.run_until_stalled("CookieMismatch")
    wait = next(one for one in (sim.passes[-1].plan.decision, *sim.passes[-1].plan.notes) if one.reason == MISMATCH)
    assert f"`bookie cluster rename-bookie {other} {bookie_id}`" in wait.message
    for _ in range(50):
        sim.run_pass()
        sim.advance(10)
    assert not any(isinstance(one, DeleteClaim | DeletePod | EvictPod | ScaleStatefulSet) for one in acted(sim))
    rename(sim, other, bookie_id)
    sim.change(decommission={"mode": "Drain"})
    sim.kubernetes.stop_pod(sim.kubernetes.pods[GOING])
    sim.run_until_rest(most=900)
    assert len(sim.bookkeeper.writable) == sim.spec.replicas
    assert not sim.accidents


def test_a_new_bookie_leaves_while_one_of_somebody_elses_is_away() -> None:
    """It has no volumes yet."""
    sim = settled()
    sim.bookkeeper.cookies["10.0.0.7:3181"] = "elsewhere"
    sim.kubernetes.quota = 4
    sim.change(replicas=5)
    at_step(sim, "Settle")
    sim.change(replicas=4)
    sim.run_until_rest(most=900)
    assert sim.status.history[0].outcome == "Done"
