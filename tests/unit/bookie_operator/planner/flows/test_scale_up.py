"""More bookies, with or without something that earlier ones left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie_operator.crds.cluster_status import OperationType
from bookie_operator.planner.actions import DeleteClaim, DeleteCookie, ScaleStatefulSet, SetReadOnly, UndoDrain
from bookie_operator.planner.decision import Act, Finish, Wait
from bookie_operator.planner.flows import scale_up
from bookie_operator.world.facts import DrainFacts, DrainPhase, Proof
from tests.support.operator_sim import Simulation, killed_everywhere, resting
from tests.support.operator_sim.bookkeeper import Refused, SimDrain, SimLedger
from tests.support.operator_sim.flows import acted, at_step
from tests.support.operator_sim.kubernetes import BAD_IMAGE, SimClaim

NEW = "c-bookie-4"


def end(sim: Simulation) -> object:
    return sorted(sim.kubernetes.pods), sim.bookkeeper.writable, sorted(sim.bookkeeper.cookies), sim.status.operation


def grow(sim: Simulation) -> None:
    sim.change(replicas=6)


def leave_behind(sim: Simulation, *, proof: str = "0 ledgers", instance_id: str = "instance-1") -> None:
    """Claims and cookie of an earlier bookie of the new name."""
    for volume in ("journal", "ledger"):
        name = f"{volume}-0-{NEW}"
        sim.kubernetes.claims[name] = SimClaim(
            name, sim.kubernetes.uid(), NEW, volume, "1Gi", "1Gi", instance_id, "old", retired_proof=proof
        )
    sim.bookkeeper.cookies[sim.desired().bookie_id(NEW)] = "old"


def test_one_patch_makes_all_of_them_whoever_dies() -> None:
    assert killed_everywhere(resting(), grow, end) > 5
    sim = resting()
    grow(sim)
    sim.run_until_rest()
    scalings = [one.plan.decision.action for one in sim.passes if isinstance(one.plan.decision, Act)]
    assert [(one.before, one.after) for one in scalings if isinstance(one, ScaleStatefulSet)] == [(4, 6)]
    assert sim.status.recorded_replicas == {"c-bookie": 6}
    assert [one.outcome for one in sim.status.history] == ["Done"]


def test_retired_volumes_and_the_cookie_go_first_with_a_proof_whoever_dies() -> None:
    sim = resting()
    leave_behind(sim)
    assert killed_everywhere(sim, grow, end) > 10
    grow(sim)
    sim.run_until_rest()
    actions = [one.plan.decision.action for one in sim.passes if isinstance(one.plan.decision, Act)]
    deletions = [one for one in actions if isinstance(one, DeleteClaim | DeleteCookie)]
    assert [type(one) for one in deletions] == [DeleteClaim, DeleteClaim, DeleteCookie]
    scaling = next(number for number, one in enumerate(actions) if isinstance(one, ScaleStatefulSet))
    assert all(actions.index(one) < scaling for one in deletions)
    asked = next(one.world.now for one in sim.passes if one.plan.decision.__class__ is Act and "audit" in str(one.plan))
    assert all(one.proof is not None and (one.proof.last_audit or 0.0) > asked for one in deletions)


@pytest.mark.parametrize(("proof", "instance_id"), [("", "instance-1"), ("0 ledgers", "instance-0"), ("0 ledgers", "")])
def test_volumes_that_nobody_proved_are_left_alone(proof: str, instance_id: str) -> None:
    sim = resting()
    leave_behind(sim, proof=proof, instance_id=instance_id)
    grow(sim)
    sim.run_until_stalled("LeftoverClaims")
    assert len(sim.kubernetes.claims_of(NEW)) == 2
    assert sim.status.operation is None
    assert len(sim.kubernetes.pods) == 4


def test_a_cookie_whose_bookie_is_still_named_stops_it() -> None:
    sim = resting()
    bookie_id = sim.desired().bookie_id(NEW)
    sim.bookkeeper.cookies[bookie_id] = "old"
    others = list(sim.bookkeeper.running.items())[:2]
    named = [bookie_id, *(one for one, _ in others)]
    sim.bookkeeper.ledgers[999] = SimLedger(named, {data for _, data in others})
    grow(sim)
    sim.run_until_stalled("LeftoverBookie")
    assert bookie_id in sim.bookkeeper.cookies
    assert sim.status.operation is None


def test_it_waits_for_the_metadata_service_before_it_begins() -> None:
    sim = resting()
    sim.bookkeeper.up = False
    grow(sim)
    begun = scale_up.begin(sim.world(), sim.desired())
    assert isinstance(begun, Wait)
    assert begun.reason == "MetadataUnreachable"
    for _ in range(5):
        sim.run_pass()
        sim.advance(5)
    assert len(sim.kubernetes.pods) == 4
    sim.bookkeeper.up = True
    sim.run_until_rest()
    assert len(sim.bookkeeper.writable) == 6


def test_bookies_that_never_come_up_end_it_in_time() -> None:
    sim = resting()
    sim.kubernetes.sets["c-bookie"].image = BAD_IMAGE
    grow(sim)
    sim.run(lambda s, decision: isinstance(decision, Finish))
    done = sim.status.history[0]
    assert (done.type, done.outcome) == (OperationType.SCALE_UP, "Failed")
    assert "kubectl describe pod" in done.message


def test_fewer_again_before_it_grew_cancels_it() -> None:
    sim = resting()
    grow(sim)
    sim.run(lambda s, _: s.status.operation is not None)
    sim.change(replicas=4)
    sim.run_until_rest()
    assert sim.status.history[0].outcome == "Cancelled"
    assert len(sim.kubernetes.pods) == 4


PROOF = Proof("b", 0, 0, False, "auditor", 100.0, "instance-1")


@pytest.mark.parametrize(
    ("proof", "reason", "stalled"),
    [
        (None, "ProofUnknown", False),
        (replace(PROOF, auditor=None), "NoAuditor", True),
        (replace(PROOF, registered=True), "StillRegistered", False),
        (replace(PROOF, ledgers=1), "LeftoverBookie", True),
        (replace(PROOF, marks=1), "LeftoverBookie", True),
        (PROOF, None, False),
    ],
)
def test_what_a_proof_says_of_a_leftover(proof: Proof | None, reason: str | None, stalled: bool) -> None:
    sim = resting()
    sim.bookkeeper.cookies[sim.desired().bookie_id(NEW)] = "old"
    world = replace(sim.world(), proofs={sim.desired().bookie_id(NEW): proof})
    found = scale_up.why_not_cleared(world, sim.desired(), [NEW])
    assert (found.reason if found else None) == reason
    assert (found.stalled if found else False) == stalled


def test_only_what_is_left_takes_proofs() -> None:
    sim = resting()
    grow(sim)
    assert not scale_up.needs_to_begin(sim.world(), sim.desired()).proofs
    leave_behind(sim)
    assert scale_up.needs_to_begin(sim.world(), sim.desired()).proofs == {sim.desired().bookie_id(NEW)}


# --- a name that was drained before ----------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [DrainPhase.DRAINED, DrainPhase.INTERRUPTED])
def test_a_new_bookie_of_a_name_that_was_drained_takes_writes(phase: DrainPhase) -> None:
    sim = resting()
    bookie_id = sim.desired().bookie_id("c-bookie-4")
    sim.bookkeeper.drains[bookie_id] = SimDrain(True, phase)
    grow(sim)
    sim.run(lambda one, _: bookie_id in one.bookkeeper.running)
    sim.bookkeeper.read_only.add(bookie_id)
    sim.run_until_rest()
    assert bookie_id in sim.bookkeeper.writable


@pytest.mark.parametrize("lowered", [True, False])
def test_an_undo_that_is_refused_ends_some_time(lowered: bool) -> None:
    sim = resting()
    bookie_id = sim.desired().bookie_id("c-bookie-4")
    sim.bookkeeper.drains[bookie_id] = SimDrain(True, DrainPhase.DRAINED)

    def refused(bookie_id: str) -> None:
        raise Refused(f"{bookie_id} stays read-only")

    def starts_read_only(one: Simulation) -> None:
        if bookie_id in one.bookkeeper.running:
            one.bookkeeper.read_only.add(bookie_id)

    sim.bookkeeper.undo_drain = refused  # type: ignore[method-assign]
    grow(sim)
    sim.run(lambda one, _: "stays read-only" in one.passes[-1].error, each=starts_read_only)
    if lowered:
        sim.change(replicas=4)
    sim.run(lambda one, _: bool(one.status.history), each=starts_read_only, most=900)
    (ended,) = sim.status.history
    assert (ended.type, ended.outcome) == (OperationType.SCALE_UP, "Cancelled" if lowered else "Failed")


def test_an_operator_that_was_away_for_long_still_undoes_it() -> None:
    sim = resting()
    bookie_id = sim.desired().bookie_id(NEW)
    sim.bookkeeper.drains[bookie_id] = SimDrain(True, DrainPhase.DRAINED)
    sim.change(replicas=5)
    at_step(sim, scale_up.SETTLE)
    sim.advance(sim.spec.update.progress_deadline_seconds + 1)
    sim.bookkeeper.read_only.add(bookie_id)
    sim.run_until_rest()
    assert bookie_id in sim.bookkeeper.writable
    assert sim.status.history[0].outcome == "Done"


def test_while_nobody_reaches_the_metadata_service_the_new_ones_have_not_failed() -> None:
    sim = resting()
    sim.change(replicas=5)
    at_step(sim, scale_up.SETTLE)
    sim.bookkeeper.up = False
    sim.advance(sim.spec.update.progress_deadline_seconds + 1)
    for _ in range(3):
        sim.run_pass()
    assert sim.status.operation is not None
    assert sim.status.operation.step == scale_up.SETTLE
    sim.bookkeeper.up = True
    sim.run_until_rest()
    assert sim.status.history[0].outcome == "Done"


def test_one_that_is_read_only_for_another_reason_can_be_taken_back() -> None:
    """Its disk is full: what an earlier drain may have done is undone once, and not in each pass."""
    sim = resting()
    bookie_id = sim.desired().bookie_id("c-bookie-4")
    sim.bookkeeper.drains[bookie_id] = SimDrain(True, DrainPhase.DRAINED)

    def full(one: Simulation) -> None:
        if bookie_id in one.bookkeeper.running:
            one.bookkeeper.read_only.add(bookie_id)

    grow(sim)
    sim.run(lambda one, _: sum(isinstance(each, SetReadOnly) for each in acted(one)) == 1, each=full)
    for _ in range(20):
        full(sim)
        sim.run_pass()
        sim.advance(5)
    undone = [each for each in acted(sim) if isinstance(each, UndoDrain | SetReadOnly)]
    assert undone == [UndoDrain(bookie_id), SetReadOnly("c-bookie-4", False)]
    sim.change(replicas=4)
    sim.run(lambda one, _: len(one.kubernetes.pods) == 4, each=full, most=900)
    assert not sim.accidents


def test_it_does_not_grow_while_nobody_reaches_the_metadata_service() -> None:
    sim = resting()
    grow(sim)
    at_step(sim, "Grow")
    operation = sim.status.operation
    assert operation is not None
    world, desired = sim.world(), sim.desired()
    found = scale_up.proceed(world, desired, operation)
    assert isinstance(found, Act)
    assert isinstance(found.action, ScaleStatefulSet)
    for error, words in (("", "no pod reaches the metadata"), ("refused", "refused")):
        waiting = scale_up.proceed(replace(world, facts=None, facts_error=error), desired, operation)
        assert isinstance(waiting, Wait)
        assert waiting.message == words


@pytest.mark.parametrize("phase", [None, DrainPhase.ABSENT, DrainPhase.REFUSED])
def test_a_new_bookie_that_no_drain_holds_read_only_is_left_alone(phase: DrainPhase | None) -> None:
    sim = resting()
    grow(sim)
    at_step(sim, "Settle")
    operation, bookie_id = sim.status.operation, sim.desired().bookie_id(NEW)
    assert operation is not None
    world = sim.world()
    assert world.facts is not None
    closed = replace(world, facts=replace(world.facts, read_only=frozenset({bookie_id})))
    known = replace(closed, drains={bookie_id: DrainFacts(bookie_id, DrainPhase.DRAINED)})
    undone = scale_up.proceed(known, sim.desired(), operation)
    assert isinstance(undone, Act)
    assert undone.action == UndoDrain(bookie_id)
    told = None if phase is None else DrainFacts(bookie_id, phase)
    assert isinstance(scale_up.proceed(replace(closed, drains={bookie_id: told}), sim.desired(), operation), Wait)
    assert isinstance(scale_up.proceed(replace(known, facts=world.facts), sim.desired(), operation), Wait)
