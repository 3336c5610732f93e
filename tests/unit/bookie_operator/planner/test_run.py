"""How the steps of an operation say what comes next."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie_operator.crds.cluster_status import Operation, OperationType
from bookie_operator.planner import operations, proving
from bookie_operator.planner.actions import TriggerAudit
from bookie_operator.planner.decision import Act, Event, EventType, Record, Wait
from bookie_operator.planner.gates import Obstacle
from bookie_operator.planner.run import Run, refused, take
from bookie_operator.world.model import World
from tests.support.operator_sim import Simulation, resting

DEADLINE = 300.0
"""For what changes bookies in place, in the simulation's `spec`."""


def run(sim: Simulation, age: float = 0.0, **changes: object) -> Run:
    """Of an operation that came nearer so long ago."""
    world = sim.world()
    made = operations.new(world, OperationType.ROLLOUT, "Step", bookie="c-bookie-1")
    made = made.model_copy(update={"last_progress_at": operations.written(world.now - age), **changes})
    return of(world_of(sim, made), sim, made)


def of(world: World, sim: Simulation, operation: Operation) -> Run:
    return Run(world, sim.desired(), operation)


def world_of(sim: Simulation, operation: Operation) -> World:
    status = sim.status.model_copy(update={"operation": operation})
    return replace(sim.world(), cluster=replace(sim.view(), status=status))


@pytest.fixture(scope="module")
def sim() -> Simulation:
    return resting()


def test_a_wait_is_written_when_something_of_it_changed(sim: Simulation) -> None:
    first = run(sim).wait("Reason", "words")
    assert first.operation is not None
    assert (first.operation.message, first.operation.stalled, first.event) == ("words", False, None)
    again = run(sim, message="words")
    assert again.wait("Reason", "words").operation is None
    kept = again.keep(key="value").wait("Reason", "words")
    assert kept.operation is not None
    assert kept.operation.saved == {"key": "value"}
    other = again.keep(key="value").wait("Reason", "other words")
    assert other.operation is not None
    assert (other.operation.saved, other.operation.message) == ({"key": "value"}, "other words")


def test_that_it_stalls_is_an_event_once(sim: Simulation) -> None:
    stalls = run(sim).wait("Reason", "words", stalled=True)
    assert stalls.event == Event("Reason", "words", EventType.WARNING)
    assert run(sim, stalled=True).wait("Reason", "other", stalled=True).event is None
    fresh = replace(run(sim), world=sim.world())
    assert fresh.wait("Reason", "words", stalled=True).event is not None, "it is not recorded yet"


@pytest.mark.parametrize(("age", "stalled"), [(9.9, False), (10.0, True)])
def test_a_deadline_stalls_it(sim: Simulation, age: float, stalled: bool) -> None:
    assert run(sim, age).wait_at_most(10.0, "Reason", "words").stalled is stalled
    blocked = run(sim, age).blocked(Obstacle("Reason", "words", seconds=7.0), 10.0)
    assert (blocked.stalled, blocked.seconds) == (stalled, 7.0)
    assert run(sim, age).blocked(Obstacle("Reason", "words", needs_person=True), 10.0).stalled
    assert refused(Obstacle("Reason", "words", True, 7.0)) == Wait("Reason", "words", 7.0, stalled=True)


def test_what_is_refused_again_and_again_has_its_time_and_once_more_if_nobody_could_be_asked(sim: Simulation) -> None:
    wanted = Act(TriggerAudit(), "why")
    assert run(sim, DEADLINE - 0.1).in_time(wanted, "again") is wanted
    anew = run(sim, DEADLINE).in_time(wanted, "again")
    assert isinstance(anew, Record)
    assert anew.operation.saved == operations.AGAIN
    assert operations.waited(run(sim).world, anew.operation) == 0.0
    assert run(sim, DEADLINE, attempts=1).in_time(wanted, "again") is None
    assert run(sim, DEADLINE, saved=operations.AGAIN).in_time(wanted, "again") is None


def test_an_act_leads_to_a_step_that_begins_then_or_stays_at_its_own(sim: Simulation) -> None:
    begun = run(sim, 50.0, attempts=2, message="words", saved={"a": "1"})
    stays = begun.act(TriggerAudit(), "why", saved={"b": "2"}).operation
    assert stays is not None
    assert (stays.step, stays.attempts, stays.saved, stays.message) == ("Step", 0, {"a": "1", "b": "2"}, "words")
    assert operations.waited(begun.world, stays) == 50.0
    goes = begun.act(TriggerAudit(), "why", then="Next", saved={"b": "2"}).operation
    assert goes is not None
    assert (goes.step, goes.attempts, goes.saved, goes.message) == ("Next", 0, {"a": "1", "b": "2"}, "")
    assert operations.waited(begun.world, goes) == 0.0
    assert begun.forget("a").go("Next", "why").operation.saved == {}


def test_steps_by_their_names(sim: Simulation) -> None:
    begun = run(sim)
    assert take({"Step": lambda one: one.go("Next", "why")}, begun) == begun.go("Next", "why")
    unknown = take({}, begun)
    assert isinstance(unknown, Wait)
    assert (unknown.reason, unknown.stalled) == ("UnknownStep", True)


@pytest.mark.parametrize(("since", "asks"), [(proving.REPEAT_S - 0.1, False), (proving.REPEAT_S, True)])
def test_an_audit_is_asked_for_again_after_a_while(sim: Simulation, since: float, asks: bool) -> None:
    begun = run(sim)
    asked = operations.written(begun.world.now - since)
    saved = {proving.ASKED: asked, proving.BEFORE: operations.written(0.0), proving.REPEATED: asked}
    assert begun.world.facts is not None
    late = replace(begun.world, facts=replace(begun.world.facts, last_audit=None))
    found = proving.audit(replace(begun, world=late).keep(**saved), frozenset(), DEADLINE)
    assert isinstance(found, Act) is asks
    if asks:
        assert found.operation.saved[proving.REPEATED] == operations.written(begun.world.now)


def test_an_audit_counts_if_it_began_after_the_question_and_after_the_last_one_before(sim: Simulation) -> None:
    begun = run(sim)
    now = begun.world.now
    assert begun.world.facts is not None
    for asked, before, last, counts in ((5, 0, 5, False), (5, 0, 6, True), (5, 7, 7, False), (5, 7, 8, True)):
        saved = {proving.ASKED: operations.written(asked), proving.BEFORE: operations.written(before)}
        saved[proving.REPEATED] = operations.written(now)
        told = replace(begun.world, facts=replace(begun.world.facts, last_audit=float(last)))
        found = proving.audit(replace(begun, world=told).keep(**saved), frozenset(), DEADLINE)
        assert (found is None) is counts
