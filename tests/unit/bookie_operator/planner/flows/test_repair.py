"""Lost disks and nodes: the order, every refusal, and the death of the operator anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from bookie_operator.crds.cluster_status import OperationType
from bookie_operator.crds.task_spec import TaskType
from bookie_operator.planner import draining, operations
from bookie_operator.planner.actions import (
    BeginDrain,
    DeleteClaim,
    DeleteCookie,
    DeletePod,
    SetReadOnly,
    TriggerAudit,
    UndoDrain,
)
from bookie_operator.planner.decision import Act, Finish, Wait
from bookie_operator.planner.flows import repair
from bookie_operator.world.facts import DrainPhase
from tests.support.operator_sim import Simulation, killed_everywhere
from tests.support.operator_sim.bookkeeper import Refused, SimDrain
from tests.support.operator_sim.flows import acted, at_step, every_step, steps_taken
from tests.support.operator_sim.going import (
    LOST,
    lose,
    lose_claims,
    lose_journal,
    may_lose,
    wipe_journal,
    wipe_ledger,
)

LOSSES = pytest.mark.parametrize(
    "loss",
    [lose, lose_journal, lose_claims, wipe_ledger, wipe_journal],
    ids=["volume", "journal", "claims", "wiped", "wiped journal"],
)


@pytest.fixture
def four() -> Simulation:
    return may_lose(repair={"autoReplaceAfterSeconds": 30})


def end(sim: Simulation) -> object:
    keeper = sim.bookkeeper
    healthy = all(one.copies & keeper.disks for one in keeper.ledgers.values())
    lost = [one.name for one in sim.kubernetes.claims.values() if one.lost]
    return keeper.writable, lost, sorted(keeper.cookies), healthy, sim.status.operation


# --- the order --------------------------------------------------------------------------------------------------------


@LOSSES
def test_what_it_held_is_copied_and_proven_before_it_starts_anew(
    four: Simulation, loss: Callable[[Simulation], None]
) -> None:
    old = {one.uid for one in four.kubernetes.claims_of(LOST)}
    loss(four)
    four.run_until_rest()
    assert steps_taken(four) == ["Check", "Drain", "Prove", "Claims", "Pod", "Cookie", "Start"]
    flow = [one for one in acted(four) if not type(one).__name__.startswith("Apply")]
    kinds = list(dict.fromkeys(type(one) for one in flow))
    assert kinds == [BeginDrain, TriggerAudit, DeleteClaim, DeletePod, DeleteCookie]
    assert [one.stopped for one in flow if isinstance(one, BeginDrain)] == [True]
    assert not old & {one.uid for one in four.kubernetes.claims_of(LOST)}
    assert end(four) == (sorted(four.desired().bookie_id(f"c-bookie-{one}") for one in range(4)), [], sorted(
        four.desired().bookie_id(f"c-bookie-{one}") for one in range(4)), True, None)  # fmt: skip
    assert not four.accidents
    assert [(one.type, one.outcome) for one in four.status.history] == [(OperationType.REPLACE, "Done")]


def test_a_bookie_with_empty_directories_has_its_cookie_until_its_old_pod_is_gone(four: Simulation) -> None:
    """Otherwise it would start, and take entries, on volumes that are about to go."""
    lose_claims(four)
    at_step(four, "Pod")
    assert four.desired().bookie_id(LOST) in four.bookkeeper.cookies
    at_step(four, "Cookie")
    assert four.status.operation is not None
    saved = four.status.operation.saved["podUid"]
    assert four.kubernetes.pods[LOST].uid != saved if LOST in four.kubernetes.pods else True


@LOSSES
def test_whenever_the_operator_dies_it_ends_alike(four: Simulation, loss: Callable[[Simulation], None]) -> None:
    four.bookkeeper.writes = False
    assert killed_everywhere(four, loss, end) > 15


def test_two_that_are_lost_are_replaced_one_after_the_other() -> None:
    sim = may_lose(replicas=6, repair={"autoReplaceAfterSeconds": 30})
    sim.kubernetes.lose_volume("c-bookie-1")
    sim.run_until_rest()
    sim.kubernetes.lose_volume("c-bookie-2")
    sim.run_until_rest()
    assert [one.bookie for one in reversed(sim.status.history)] == ["c-bookie-1", "c-bookie-2"]
    assert len(sim.bookkeeper.writable) == 6


def test_the_metadata_service_may_be_away_at_any_step(four: Simulation) -> None:
    for step, sim in every_step(four, lose):
        sim.bookkeeper.up = False
        for _ in range(8):
            sim.run_pass()
            sim.advance(5)
        assert sim.status.operation is not None
        sim.bookkeeper.up = True
        sim.run_until_rest()
        assert sim.status.history[0].outcome == "Done", step


# --- by itself, or not ------------------------------------------------------------------------------------------------


def last(sim: Simulation) -> Wait:
    decision = sim.passes[-1].plan.decision
    assert isinstance(decision, Wait)
    return decision


@pytest.mark.parametrize(
    ("loss", "why"),
    [
        (lose, "the volume of claim ledger-0-c-bookie-1 is gone"),
        (lose_journal, "the volume of claim journal-0-c-bookie-1 is gone"),
        (wipe_ledger, "its directories are not those of its cookie"),
        (wipe_journal, "its directories are not those of its cookie"),
    ],
)
def test_by_default_a_person_is_asked(loss: Callable[[Simulation], None], why: str) -> None:
    sim = may_lose()
    loss(sim)
    sim.run_until_stalled("BookieLost")
    assert f"c-bookie-1 is lost: {why}" in str(sim.passes[-1].plan)
    assert "replace it with a BookieTask of type Replace that names c-bookie-1" in str(sim.passes[-1].plan)
    assert sim.status.operation is None


def test_a_task_replaces_it() -> None:
    sim = may_lose()
    lose(sim)
    task = sim.ask(TaskType.REPLACE, LOST)
    sim.run_until_rest()
    assert sim.phase(task) == "Done"
    assert sim.status.history[0].task == task
    assert len(sim.bookkeeper.writable) == 4


def test_it_is_replaced_after_its_time_only(four: Simulation) -> None:
    lose(four)
    four.run(lambda sim, _: any(LOST in str(one) and "after 30 s" in str(one) for one in (sim.passes[-1].plan,)))
    lost_at = four.kubernetes.pods[LOST].created_at
    four.run(lambda sim, _: sim.status.operation is not None)
    assert four.now - lost_at >= 30


def test_many_that_are_lost_are_asked_about_in_turns() -> None:
    """Each answer takes a listing of all ledgers."""
    sim = may_lose(replicas=6, repair={"autoReplaceAfterSeconds": 30})
    names = [f"c-bookie-{number}" for number in range(6)]
    for name in names:
        sim.kubernetes.lose_volume(name)
    sim.advance(60)
    world, desired = sim.world(), sim.desired()
    assert repair.lost_bookies(world, desired) == names
    turns = [repair.needs_to_begin(replace(world, now=world.now + 60 * turn), desired) for turn in range(2)]
    assert [len(one.outlooks) for one in turns] == [4, 4]
    assert turns[0].outlooks | turns[1].outlooks == {desired.bookie_id(name) for name in names}
    assert turns[0].safety == {frozenset({one}) for one in turns[0].outlooks}


def test_one_that_comes_or_goes_is_left_alone(four: Simulation) -> None:
    """Its pod is not ready yet, and it is registered: it neither serves nor is it stopped."""
    world = four.world()
    pods = tuple(replace(one, ready=one.name != LOST) for one in world.pods)
    decision = repair.replace(replace(world, pods=pods), four.desired(), LOST, "task")
    assert isinstance(decision, Wait)
    assert (decision.reason, decision.stalled) == ("BookieUnavailable", False)


def test_without_a_spare_its_copies_have_nowhere_to_go() -> None:
    sim = may_lose(replicas=3, repair={"autoReplaceAfterSeconds": 30})
    lose(sim)
    sim.run_until_stalled("NoSpareBookie")
    assert sim.status.operation is None
    assert "Raise spec.replicas" in str(sim.passes[-1].plan)
    sim.change(replicas=4)
    sim.run_until_rest()
    assert [one.type for one in reversed(sim.status.history)] == [OperationType.SCALE_UP, OperationType.REPLACE]
    assert len(sim.bookkeeper.writable) == 4


# --- it is over -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["Check", "Drain", "Prove"])
def test_a_task_that_is_deleted_ends_it_before_anything_is_deleted(step: str) -> None:
    sim = may_lose()
    sim.bookkeeper.drain_seconds = 3.0
    lose(sim)
    sim.ask(TaskType.REPLACE, LOST)
    at_step(sim, step)
    sim.tasks.clear()
    sim.run(lambda one, _: one.status.operation is None)
    assert sim.status.history[0].outcome == "Cancelled"
    assert not any(isinstance(one, DeleteClaim | DeleteCookie) for one in acted(sim))
    assert not any(one.phase.value == "running" for one in sim.bookkeeper.drains.values())


def test_a_bookie_that_comes_back_ends_it(four: Simulation) -> None:
    disk = next(one.data_id for one in four.kubernetes.claims_of(LOST))
    lose(four)
    four.bookkeeper.drain_seconds = 100.0
    at_step(four, "Drain")
    four.run(lambda sim, _: bool(sim.bookkeeper.drains))
    for one in four.kubernetes.claims_of(LOST):
        one.lost, one.data_id = False, disk
    four.run(lambda sim, _: sim.status.operation is None)
    assert four.status.history[0].outcome == "Cancelled"
    assert sum(isinstance(one, UndoDrain) for one in acted(four)) == 1
    assert four.desired().bookie_id(LOST) in four.bookkeeper.writable
    assert not any(isinstance(one, DeleteClaim | DeleteCookie) for one in acted(four))


def test_a_drain_that_is_interrupted_goes_on(four: Simulation) -> None:
    lose(four)
    four.bookkeeper.drain_seconds = 3.0
    at_step(four, "Drain")
    four.run(lambda sim, _: bool(sim.bookkeeper.drains))
    four.bookkeeper.interrupt_drains()
    four.run_until_rest()
    assert sum(isinstance(one, BeginDrain) for one in acted(four)) == 2
    assert four.status.history[0].outcome == "Done"


@pytest.mark.parametrize(
    ("step", "changes", "words"),
    [
        ("Claims", {"ledgers": 3}, "3 ledgers name it, so nothing of c-bookie-1 is deleted"),
        ("Cookie", {"registered": True}, "c-bookie-1 is registered, though it was stopped"),
        ("Cookie", {"instance_id": "other"}, "the metadata service is of cluster other, not of instance-1"),
        ("Cookie", {"auditor": None}, "no auditor is elected"),
    ],
)
def test_nothing_is_deleted_without_a_proof_of_this_pass(
    four: Simulation, step: str, changes: dict[str, object], words: str
) -> None:
    lose(four)
    at_step(four, step)
    assert four.status.operation is not None
    world = four.world(repair.needs(four.status.operation, four.desired()))
    proofs = {key: replace(one, **changes) for key, one in world.proofs.items() if one is not None}  # type: ignore[arg-type]
    decision = repair.proceed(replace(world, proofs=proofs), four.desired(), four.status.operation)
    assert isinstance(decision, Wait)
    assert (decision.reason, decision.stalled) == ("WaitingForProof", True)
    assert words in decision.message
    unknown = repair.proceed(replace(world, proofs={}), four.desired(), four.status.operation)
    assert isinstance(unknown, Wait)
    assert unknown.message == "it is not known yet who needs c-bookie-1"


def test_a_pod_is_deleted_once_more_rather_than_waited_for(four: Simulation) -> None:
    """Kubernetes lets a container that ends again and again wait for minutes."""
    lose(four)
    at_step(four, "Start")
    decision = four.run_pass().plan.decision
    assert isinstance(decision, Act)
    assert isinstance(decision.action, DeletePod)
    assert decision.reason == "c-bookie-1 may start now: it need not wait to be restarted"


def test_an_undo_that_is_refused_ends_some_time(four: Simulation) -> None:
    lose(four)
    at_step(four, "Start")
    bookie_id = four.desired().bookie_id(LOST)

    def refused(bookie_id: str) -> None:
        raise Refused(f"{bookie_id} stays read-only")

    def is_drained(sim: Simulation) -> None:
        sim.bookkeeper.drains[bookie_id] = SimDrain(False, DrainPhase.RUNNING)
        if bookie_id in sim.bookkeeper.running:
            sim.bookkeeper.read_only.add(bookie_id)

    four.bookkeeper.undo_drain = refused  # type: ignore[method-assign]
    four.run(lambda sim, _: bool(sim.status.history), each=is_drained, most=900)
    assert any("stays read-only" in one.error for one in four.passes)
    assert four.status.history[0].outcome == "Failed"


def test_a_way_back_that_is_refused_ends_some_time(four: Simulation) -> None:
    """Nobody else's work waits for it for ever; whoever has to see to it is told, and what he is told helps."""
    disk = next(one.data_id for one in four.kubernetes.claims_of(LOST))
    lose(four)
    at_step(four, "Drain")
    four.run(lambda sim, _: bool(sim.bookkeeper.drains))
    for one in four.kubernetes.claims_of(LOST):
        one.lost, one.data_id = False, disk
    undo, bookie_id = four.bookkeeper.undo_drain, four.desired().bookie_id(LOST)

    def refused(bookie_id: str) -> None:
        raise Refused(f"{bookie_id} cannot be asked")

    def goes_on(sim: Simulation) -> None:
        sim.bookkeeper.drains[bookie_id] = SimDrain(True, DrainPhase.RUNNING)

    four.bookkeeper.undo_drain = refused  # type: ignore[method-assign]
    four.run(lambda sim, _: bool(sim.status.history), each=goes_on, most=900)
    ended = four.status.history[0]
    assert ended.outcome == "Failed"
    assert f"`bookie cluster decommission {bookie_id} --undo`" in ended.message
    undo(bookie_id)
    four.run_until_rest()
    assert bookie_id in four.bookkeeper.writable
    assert len(four.status.history) == 1


def test_what_was_made_read_only_for_a_drain_takes_new_data_again(four: Simulation) -> None:
    """Nobody wants it replaced any more, and its drain is done; one that was read-only before stays so."""
    lose(four)
    at_step(four, "Prove")
    assert four.status.operation is not None
    operation, desired = four.status.operation.model_copy(update={"step": "Undo"}), four.desired()
    world = four.world(repair.needs(operation, desired))
    assert world.facts is not None
    world = replace(world, facts=replace(world.facts, read_only=frozenset({desired.bookie_id(LOST)})))
    decision = repair.proceed(world, desired, operation)
    assert isinstance(decision, Act)
    assert decision.action == SetReadOnly(LOST, False)
    assert decision.operation is not None
    for after in (decision.operation, operations.forgotten(operation, draining.SINCE)):
        ended = repair.proceed(world, desired, after)
        assert isinstance(ended, Finish)
        assert ended.outcome == "Cancelled"


def test_a_new_bookie_that_is_read_only_is_helped(four: Simulation) -> None:
    lose(four)
    at_step(four, "Start")
    bookie_id = four.desired().bookie_id(LOST)

    def helped(sim: Simulation) -> list[SetReadOnly]:
        return [one for one in acted(sim) if isinstance(one, SetReadOnly)]

    def is_read_only(sim: Simulation) -> None:
        if bookie_id in sim.bookkeeper.running and not helped(sim):
            sim.bookkeeper.read_only.add(bookie_id)

    four.run(lambda sim, _: bool(sim.status.history), each=is_read_only)
    assert helped(four) == [SetReadOnly(LOST, False)]
    assert four.status.history[0].outcome == "Done"


def test_an_operator_that_was_away_for_long_helps_it_first(four: Simulation) -> None:
    """Or the metadata service did not answer for so long: its time is over before anybody could help."""
    lose(four)
    at_step(four, "Start")
    bookie_id = four.desired().bookie_id(LOST)
    four.advance(four.spec.update.progress_deadline_seconds + 1)
    four.bookkeeper.drains[bookie_id] = SimDrain(False, DrainPhase.INTERRUPTED)
    if bookie_id in four.bookkeeper.running:
        four.bookkeeper.read_only.add(bookie_id)
    four.run_until_rest()
    assert four.status.history[0].outcome == "Done"
    assert bookie_id in four.bookkeeper.writable
    assert any(isinstance(one, UndoDrain) for one in acted(four))
