"""The Job that looks for the metadata at another place."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie_operator.crds import names
from bookie_operator.planner.actions import ApplyObjects, DeleteObject, RecordState
from bookie_operator.planner.decision import Act, Wait
from bookie_operator.planner.desired import Desired
from bookie_operator.planner.flows import move
from bookie_operator.planner.flows.move import RETRY_SECONDS
from bookie_operator.world.model import World
from tests.support.operator_sim import Simulation, resting

JOB, NEW = "Job/c-metadata-check", "zk://new/ledgers"


@pytest.fixture
def sim() -> Simulation:
    return resting()


def moving(sim: Simulation) -> Desired:
    return replace(sim.desired(), check_job=JOB, check_job_hash="1", moves_to=NEW)


def looked(sim: Simulation, found: str = "", state: str = "Complete", **changes: object) -> World:
    """The Job ended as it was to end: it found this."""
    world = replace(
        sim.world(),
        object_uids={**sim.world().object_uids, JOB: "uid"},
        object_hashes={**sim.world().object_hashes, JOB: "1"},
        check_job=state,
        check_instance_id=found,
    )
    return replace(world, **changes)  # type: ignore[arg-type]


def test_a_job_of_somebody_else_holds_up_nothing(sim: Simulation) -> None:
    """That the name is taken is told, and what is wanted beside the move goes on."""
    found = move.begin(sim.world(), moving(sim))
    assert isinstance(found, Act)
    assert found.action == ApplyObjects((JOB,))
    assert move.begin(replace(sim.world(), taken={JOB: "of somebody"}), moving(sim)) is None
    assert move.begin(sim.world(), sim.desired()) is None, "nothing moves"


def test_one_that_looks_elsewhere_by_now_is_made_anew(sim: Simulation) -> None:
    found = move.begin(looked(sim), replace(moving(sim), check_job_hash="2"))
    assert isinstance(found, Act)
    assert found.action == DeleteObject(JOB, "uid")


@pytest.mark.parametrize(("problem", "words"), [("", f"at {NEW}"), ("no node", f"at {NEW}: no node")])
def test_it_is_waited_for(sim: Simulation, problem: str, words: str) -> None:
    found = move.begin(looked(sim, state="Running", check_job_message=problem), moving(sim))
    assert found == Wait("MetadataMoves", f"waits for {JOB} to look which cluster is {words}", seconds=2.0)


def test_what_was_found_a_while_ago_is_looked_for_again(sim: Simulation) -> None:
    """Another cluster may be there by now: an operation, or a pause, holds a move up for hours."""
    for seconds, expected in (
        (RETRY_SECONDS - 1, RecordState(metadata_service_uri=NEW)),
        (RETRY_SECONDS, DeleteObject(JOB, "uid")),
    ):
        found = move.begin(looked(sim, "instance-1 4 0", check_job_finished_at=sim.now - seconds), moving(sim))
        assert isinstance(found, Act)
        assert found.action == expected


@pytest.mark.parametrize("told", ["instance-1 4 0", "instance-1 0 1"])
def test_where_it_finds_the_cluster_bookies_look_from_now_on(sim: Simulation, told: str) -> None:
    found = move.begin(looked(sim, told), moving(sim))
    assert isinstance(found, Act)
    assert found.action == RecordState(metadata_service_uri=NEW)
    assert found.event is not None


@pytest.mark.parametrize(
    ("told", "state", "message", "why"),
    [
        ("", "Complete", "", "the cluster there has instance id unknown"),
        ("instance-2 4 0", "Complete", "", "the cluster there has instance id instance-2"),
        ("instance-1 0 0", "Complete", "", "no bookie is registered there, and 4 are where it is now"),
        ("instance-1", "Complete", "", "no bookie is registered there, and 4 are where it is now"),
        ("instance-1 4 0", "Failed", "refused", "it is unknown which cluster is there (refused)"),
        ("", "Failed", "", "it is unknown which cluster is there (see its log)"),
    ],
)
def test_what_is_not_the_cluster_is_told_and_looked_at_again_later(
    sim: Simulation, told: str, state: str, message: str, why: str
) -> None:
    world = looked(sim, told, state, check_job_message=message, check_job_finished_at=sim.now - RETRY_SECONDS + 1)
    found = move.begin(world, moving(sim))
    assert isinstance(found, Wait)
    assert (found.reason, found.stalled) == ("MetadataElsewhere", True)
    assert found.message.startswith(f"spec.metadataService leads to {NEW}, and {why}")
    assert isinstance(move.begin(replace(world, check_job_finished_at=None), moving(sim)), Wait)
    again = move.begin(replace(world, now=world.now + 1), moving(sim))
    assert isinstance(again, Act)
    assert again.action == DeleteObject(JOB, "uid")


def test_a_cluster_of_which_no_bookie_is_registered_moves(sim: Simulation) -> None:
    world = looked(sim, "instance-1 0 0")
    assert world.facts is not None
    found = move.begin(replace(world, facts=replace(world.facts, writable=frozenset())), moving(sim))
    assert isinstance(found, Act)
    assert isinstance(found.action, RecordState)


def test_while_nobody_can_tell_whether_bookies_are_registered_only_a_person_vouches_for_it(sim: Simulation) -> None:
    """It may be a copy, and the next pass may find every bookie where it was."""
    world = replace(looked(sim, "instance-1 0 0"), facts=None, facts_error="no answer")
    for other in ({}, {names.ACCEPT_METADATA: "true"}, {names.ACCEPT_METADATA: "zk://others/ledgers"}):
        found = move.begin(replace(world, cluster=replace(world.cluster, annotations=other)), moving(sim))
        assert isinstance(found, Wait)
        assert (found.reason, found.stalled) == ("MetadataElsewhere", True)
        assert f"{names.ACCEPT_METADATA}={NEW}" in found.message
    vouched = replace(world, cluster=replace(world.cluster, annotations={names.ACCEPT_METADATA: NEW}))
    found = move.begin(vouched, moving(sim))
    assert isinstance(found, Act)
    assert found.action == RecordState(metadata_service_uri=NEW)
    told = move.begin(replace(vouched, facts=sim.world().facts), moving(sim))
    assert isinstance(told, Wait), "who can be asked is believed"
    elsewhere = move.begin(replace(looked(sim, "instance-1 4 0"), facts=None), moving(sim))
    assert isinstance(elsewhere, Act), "bookies that are registered there show that it is the same service"
