"""What goes wrong while a bookie is taken out, and what is told then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from bookie_operator.crds.cluster_status import Operation
from bookie_operator.crds.task_spec import TaskType
from bookie_operator.planner import operations
from bookie_operator.planner.actions import BeginDrain, DeleteCookie, ScaleStatefulSet, SetReadOnly, TriggerAudit
from bookie_operator.planner.decision import Act, Record, Rest, Wait
from bookie_operator.planner.flows import decommission
from bookie_operator.world.facts import DrainFacts, DrainPhase, Outlook
from bookie_operator.world.model import World
from tests.support.operator_sim import Simulation
from tests.support.operator_sim.bookkeeper import SimLedger
from tests.support.operator_sim.flows import acted, at_step, every_step, steps_taken
from tests.support.operator_sim.going import GOING, LOST, fewer, settled

# --- while it runs ----------------------------------------------------------------------------------------------------


def test_somebody_has_to_look_when_it_does_not_move(five: Simulation) -> None:
    """Four bookies, and an ensemble on all of them: there is nowhere to go."""
    fewer(five)
    at_step(five, "Drain")
    five.run(lambda sim, _: bool(sim.bookkeeper.drains))
    ids = [five.desired().bookie_id(f"c-bookie-{one}") for one in range(5)]
    five.bookkeeper.ledgers[900] = SimLedger(ids, set(five.bookkeeper.running.values()))
    five.run_until_stalled("DecommissionBlocked")
    wait = five.passes[-1].plan.decision
    assert isinstance(wait, Wait)
    assert wait.message.startswith("no progress for more than 600 s: c-bookie-4 is drained: 1 ledgers left")
    assert "ledger 900: no spare" in wait.message
    assert wait.event is not None
    del five.bookkeeper.ledgers[900]
    five.run_until_rest()
    assert five.status.history[0].outcome == "Done"


def test_a_stalled_drain_is_written_once(five: Simulation) -> None:
    fewer(five)
    at_step(five, "Drain")
    five.run(lambda sim, _: bool(sim.bookkeeper.drains))
    ids = [five.desired().bookie_id(f"c-bookie-{one}") for one in range(5)]
    five.bookkeeper.ledgers[900] = SimLedger(ids, set(five.bookkeeper.running.values()))
    five.bookkeeper.writes = False
    five.run_until_stalled("DecommissionBlocked")
    for _ in range(3):
        five.advance(10)
        decision = five.run_pass().plan.decision
        assert isinstance(decision, Wait)
        assert (decision.operation, decision.event, decision.stalled) == (None, None, True)


def test_losses_that_people_accept_are_handed_on(five: Simulation) -> None:
    fewer(five)
    five.bookkeeper.writes = False
    at_step(five, "Drain")
    five.run(lambda sim, _: bool(sim.bookkeeper.drains))
    ids = [five.desired().bookie_id(f"c-bookie-{one}") for one in range(5)]
    five.bookkeeper.ledgers[900] = SimLedger(ids, set(five.bookkeeper.running.values()))
    five.run_until_stalled("DecommissionBlocked")
    five.ask(TaskType.ACCEPT_LOSS, ledgers=(900,))
    five.run_until_rest()
    begun = [one.accepted_losses for one in acted(five) if isinstance(one, BeginDrain)]
    assert begun[-1] == (900,)
    assert [one.accepted_losses for one in acted(five) if isinstance(one, DeleteCookie)] == [(900,)]
    assert five.status.history[0].outcome == "Done"


@pytest.mark.parametrize("step", ["Drain", "Prove"])
def test_whoever_drains_it_may_die_or_the_bookie_itself(five: Simulation, step: str) -> None:
    fewer(five)
    at_step(five, step)
    five.kubernetes.kill_pod(GOING)
    five.bookkeeper.interrupt_drains()
    five.run_until_rest()
    assert five.status.history[0].outcome == "Done"
    assert not five.accidents


def test_a_bookie_that_became_writable_after_its_drain_is_drained_again(five: Simulation) -> None:
    fewer(five)
    at_step(five, "ProveAgain")
    five.bookkeeper.read_only.clear()
    five.run_until_rest()
    assert steps_taken(five).count("Drain") == 2
    assert not five.accidents


def test_a_client_that_used_it_while_it_stopped_brings_it_back(five: Simulation) -> None:
    fewer(five)
    at_step(five, "ProveGone")
    victim, *others = (five.desired().bookie_id(f"c-bookie-{one}") for one in (4, 0, 1))
    copies = {five.bookkeeper.running[one] for one in others}
    five.bookkeeper.ledgers[900] = SimLedger([victim, *others], copies)
    five.run_until_rest()
    taken = steps_taken(five)
    assert taken.count("Return") == 1
    assert taken.index("Return") < len(taken) - 1 - taken[::-1].index("ReadOnly")
    scaled = [(one.before, one.after) for one in acted(five) if isinstance(one, ScaleStatefulSet)]
    assert scaled == [(5, 4), (4, 5), (5, 4)]
    assert not five.accidents
    assert five.status.history[0].outcome == "Done"


def test_another_bookie_that_fails_meanwhile_holds_it_up(five: Simulation) -> None:
    fewer(five)
    five.bookkeeper.writes = False
    at_step(five, "Scale")
    five.kubernetes.kill_pod("c-bookie-0")
    five.advance(1)
    decision = five.run_pass().plan.decision
    assert isinstance(decision, Wait)
    assert "every other bookie serves: c-bookie-0 is not ready" in decision.message
    five.run_until_rest()
    assert not five.accidents


def test_the_metadata_service_may_be_away_for_a_while(five: Simulation) -> None:
    for step, sim in every_step(five, fewer):
        sim.bookkeeper.up = False
        sim.run_pass()  # the budget closes
        for _ in range(6):
            sim.advance(5)
            decision = sim.run_pass().plan.decision
            assert isinstance(decision, Wait), (step, decision)
            assert decision.reason == "MetadataUnreachable"
        sim.bookkeeper.up = True
        sim.run_until_rest()
        assert sim.status.history[0].outcome == "Done"
        assert not sim.accidents


# --- steps that look at a world of their own --------------------------------------------------------------------------


def decided(sim: Simulation, step: str, change: Callable[[World], World]) -> object:
    """What `step` says to a changed world; the operation stands right before it."""
    at_step(sim, step)
    assert sim.status.operation is not None
    wanted = decommission.needs(sim.status.operation, sim.desired())
    return decommission.proceed(change(sim.world(wanted)), sim.desired(), sim.status.operation)


def words(decision: object) -> tuple[str, str]:
    assert isinstance(decision, Wait), decision
    return decision.reason, decision.message


def proof(world: World, **changes: object) -> World:
    return replace(
        world,
        proofs={key: replace(one, **changes) for key, one in world.proofs.items() if one is not None},  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("step", "changes", "told"),
    [
        (
            "Cookie",
            {"registered": True},
            "c-bookie-4 is registered, though it was stopped: find what runs under its id",
        ),
        ("Cookie", {"auditor": None}, "no auditor is elected, so nothing looks for missing copies"),
        ("Cookie", {"instance_id": "other"}, "the metadata service is of cluster other, not of instance-1"),
        ("Cookie", {"ledgers": 2}, "2 ledgers name it, so nothing of c-bookie-4 is deleted"),
        ("Claims", {"marks": 1}, "1 under-replicated ledgers name it, so nothing of c-bookie-4 is deleted"),
        ("Claims", {"last_audit": 1.0}, "waits for an audit that is newer than the drain of c-bookie-4"),
    ],
)
def test_nothing_is_deleted_without_a_proof_of_this_pass(
    five: Simulation, step: str, changes: dict[str, object], told: str
) -> None:
    fewer(five)
    decision = decided(five, step, lambda world: proof(world, **changes))
    reason, message = words(decision)
    assert reason == "WaitingForProof"
    assert told in message


@pytest.mark.parametrize("step", ["ProveGone", "Cookie", "Claims"])
def test_a_proof_that_nobody_gave_is_waited_for(five: Simulation, step: str) -> None:
    fewer(five)
    reason, message = words(decided(five, step, lambda world: replace(world, proofs={})))
    assert (reason, message) == ("WaitingForProof", "it is not known yet who needs c-bookie-4")


def test_a_pod_that_hangs_on_a_dead_node_waits_for_a_person(five: Simulation) -> None:
    fewer(five)
    at_step(five, "Leave")
    five.kubernetes.lose_node("node-4")
    five.run_until_stalled("StoppingBookie")
    wait = five.passes[-1].plan.decision
    assert isinstance(wait, Wait)
    assert "node node-4 does not answer" in wait.message
    assert "node.kubernetes.io/out-of-service" in wait.message
    five.kubernetes.out_of_service.add("node-4")
    five.run_until_rest()
    assert five.status.history[0].outcome == "Done"


def test_claims_of_another_uid_are_never_deleted(five: Simulation) -> None:
    fewer(five)
    at_step(five, "Claims")
    ours = five.kubernetes.claims["journal-0-c-bookie-4"]
    ours.uid = "somebody-else"
    five.run(lambda sim, _: sim.status.operation is None)
    assert "journal-0-c-bookie-4" in five.kubernetes.claims
    assert "ledger-0-c-bookie-4" not in five.kubernetes.claims


def test_a_step_of_another_release_is_left_alone(five: Simulation) -> None:
    fewer(five)
    at_step(five, "Drain")
    assert five.status.operation is not None
    strange = five.status.operation.model_copy(update={"step": "Levitate"})
    reason, message = words(decommission.proceed(five.world(), five.desired(), strange))
    assert reason == "UnknownStep"
    assert message.startswith("this operator does not know step Levitate of Decommission-1")


def test_an_audit_that_does_not_come_is_asked_for_again(five: Simulation) -> None:
    fewer(five)
    at_step(five, "Audit")
    five.run(lambda sim, _: any(isinstance(one, TriggerAudit) for one in acted(sim)))
    five.bookkeeper.audit_ends = five.now + 3600
    five.advance(61)
    decision = five.run_pass().plan.decision
    assert isinstance(decision, Act)
    assert decision.action == TriggerAudit()


def test_an_auditor_whose_clock_is_behind_is_asked_until_it_has_caught_up(five: Simulation) -> None:
    fewer(five)
    at_step(five, "Audit")
    assert five.status.operation is not None
    behind = operations.written(five.now + 30)
    saved = {**five.status.operation.saved, "auditAsked": behind, "auditRepeated": operations.written(five.now)}
    operation = five.status.operation.model_copy(update={"saved": saved})
    five.status = five.status.model_copy(update={"operation": operation})
    five.run_until_rest()
    assert five.status.history[0].outcome == "Done"


@pytest.mark.parametrize("phase", [DrainPhase.REFUSED])
def test_a_drain_that_is_refused_is_told_and_tried_again(five: Simulation, phase: DrainPhase) -> None:
    fewer(five)
    at_step(five, "Drain")
    five.run(lambda sim, _: bool(sim.bookkeeper.drains))
    five.bookkeeper.drains[five.desired().bookie_id(GOING)].phase = phase
    five.run_until_stalled("DecommissionBlocked")
    assert "was refused" in five.passes[-1].plan.decision.message  # type: ignore[union-attr]
    five.run_until_rest()
    assert sum(isinstance(one, BeginDrain) for one in acted(five)) == 2


def test_at_rest_nothing_is_done(five: Simulation) -> None:
    five.run_until_rest()
    assert isinstance(five.run_pass().plan.decision, Rest)


def test_one_that_was_down_and_serves_again_is_drained_before_it_is_stopped() -> None:
    """`spec` does not say that it may be stopped first: it was to be, because nothing else could be done."""
    sim = settled(replicas=5)
    sim.bookkeeper.writes = False
    pod = sim.kubernetes.pods[GOING]
    sim.kubernetes.cordoned.add(pod.node)
    sim.kubernetes.kill_pod(GOING)
    sim.advance(30)
    fewer(sim)
    at_step(sim, "Stop")
    sim.kubernetes.cordoned.clear()
    while sim.desired().bookie_id(GOING) not in sim.bookkeeper.running:
        sim.advance(1)
    sim.run_until_rest()
    assert not [one for one in acted(sim) if isinstance(one, BeginDrain) and one.stopped]
    assert sim.kubernetes.pods.keys() == {f"c-bookie-{number}" for number in range(4)}
    assert not sim.accidents


def test_one_that_waits_to_be_stopped_gives_way_to_a_replacement() -> None:
    """It may not be stopped while another one is lost, and that one may be replaced only when it is given back."""
    sim = settled(replicas=5, decommission={"mode": "StopFirst"})
    sim.bookkeeper.writes = False
    sim.forgiven = True
    fewer(sim)
    at_step(sim, "Stop")
    sim.kubernetes.lose_volume(LOST)
    sim.ask(TaskType.REPLACE, LOST)
    sim.run_until_rest(most=900)
    assert [(one.type.value, one.outcome) for one in reversed(sim.status.history)] == [
        ("Decommission", "Cancelled"),
        ("Replace", "Done"),
        ("Decommission", "Done"),
    ]
    assert sim.kubernetes.pods.keys() == {f"c-bookie-{number}" for number in range(4)}


def test_what_only_people_change_is_not_listed_again_and_again(five: Simulation) -> None:
    """To see that copies have nowhere to go takes a listing of every ledger."""
    ids = [five.desired().bookie_id(f"c-bookie-{one}") for one in range(5)]
    five.bookkeeper.ledgers[900] = SimLedger(ids, set(five.bookkeeper.running.values()))
    fewer(five)
    five.run_until_stalled("NoSpareBookie")
    wait = five.passes[-1].plan.decision
    assert isinstance(wait, Wait)
    assert wait.seconds >= 60.0


def at_drain(five: Simulation) -> tuple[World, str]:
    """It is drained, and is read-only."""
    fewer(five)
    at_step(five, "Drain")
    five.run(lambda sim, _: bool(sim.bookkeeper.drains))
    return five.world(decommission.needs(of(five), five.desired())), five.desired().bookie_id(GOING)


def of(sim: Simulation) -> Operation:
    assert sim.status.operation is not None
    return sim.status.operation


def test_one_that_becomes_writable_while_it_is_drained_is_read_only_again(five: Simulation) -> None:
    world, bookie_id = at_drain(five)
    assert world.facts is not None
    writable = replace(world.facts, writable=world.facts.writable | {bookie_id}, read_only=frozenset())
    found = decommission.proceed(replace(world, facts=writable), five.desired(), of(five))
    assert isinstance(found, Act)
    assert found.action == SetReadOnly(GOING, True)


@pytest.mark.parametrize(
    ("ledgers", "nbytes", "words"),
    [
        (None, None, "c-bookie-4 is drained"),
        (3, None, "c-bookie-4 is drained: 3 ledgers left"),
        (3, 2048, "c-bookie-4 is drained: 3 ledgers left, 2.0 KiB"),
    ],
)
def test_how_far_a_drain_is_told(five: Simulation, ledgers: int | None, nbytes: int | None, words: str) -> None:
    world, bookie_id = at_drain(five)
    told = DrainFacts(bookie_id, DrainPhase.RUNNING, ledgers, nbytes)
    found = decommission.proceed(replace(world, drains={bookie_id: told}), five.desired(), of(five))
    assert isinstance(found, Wait)
    assert (found.reason, found.message) == ("Draining", words)
    saved = operations.forgotten(of(five), "ledgersLeft", "bytesLeft")
    for left, nearer in ((2, True), (3, False), (4, False)):
        known = saved.model_copy(update={"saved": {**saved.saved, "ledgersLeft": "3", "bytesLeft": "0"}})
        now = replace(world, drains={bookie_id: replace(told, ledgers_left=left, bytes_left=0)}, now=world.now + 7)
        found = decommission.proceed(now, five.desired(), known)
        assert isinstance(found, Wait)
        assert ((found.operation or known).last_progress_at != known.last_progress_at) is nearer


def test_a_drain_that_nobody_could_tell_of_is_waited_for(five: Simulation) -> None:
    world, bookie_id = at_drain(five)
    found = decommission.proceed(replace(world, drains={bookie_id: None}), five.desired(), of(five))
    assert isinstance(found, Wait)
    assert "drain of c-bookie-4 is unknown" in found.message


def test_one_that_nobody_has_heard_of_is_not_drained_and_one_that_nobody_could_tell_of_is_asked_about(
    five: Simulation,
) -> None:
    fewer(five)
    at_step(five, "Drain")
    world, desired, bookie_id = five.world(), five.desired(), five.desired().bookie_id(GOING)
    assert world.facts is not None
    gone = replace(
        world.facts,
        cookies=world.facts.cookies - {bookie_id},
        writable=world.facts.writable - {bookie_id},
        read_only=frozenset(),
    )
    unheard = replace(world, facts=gone, outlooks={bookie_id: Outlook(bookie_id, 0)})
    found = decommission.proceed(unheard, desired, of(five))
    assert isinstance(found, Record)
    assert found.operation.step == "Prove"
    for one in (
        replace(unheard, outlooks={bookie_id: Outlook(bookie_id, 1)}),
        replace(unheard, facts=world.facts),
    ):
        begun = decommission.proceed(one, desired, of(five))
        assert isinstance(begun, Act)
        assert isinstance(begun.action, BeginDrain)
    unknown = decommission.proceed(replace(unheard, outlooks={}), desired, of(five))
    assert isinstance(unknown, Act)
    assert isinstance(unknown.action, BeginDrain)
