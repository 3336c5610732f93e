"""Nothing that an operation saves, or that the operator asks, grows with a cluster without a bound."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie_operator.crds.cluster_status import BookieClusterStatus, Operation, OperationType
from bookie_operator.crds.task_spec import TaskType
from bookie_operator.planner import draining, operations, view
from bookie_operator.planner.actions import UpdateTask
from bookie_operator.planner.decision import Act
from bookie_operator.planner.flows import tasks
from bookie_operator.status.reporting import body
from bookie_operator.world.model import TaskView, World
from tests.support.operator_sim import Simulation, resting

LOSSES = tuple(range(10**17, 10**17 + 1100))


def accepting(name: str, ledgers: tuple[int, ...], now: float) -> TaskView:
    return TaskView(name, f"uid-{name}", TaskType.ACCEPT_LOSS, (), "Running", now, ledgers)


@pytest.fixture(scope="module")
def sim() -> Simulation:
    return resting()


@pytest.fixture
def world(sim: Simulation) -> World:
    return sim.world()


@pytest.mark.parametrize("losses", [(), (7,), LOSSES, tuple(range(10**17, 10**17 + view.MOST_LOSSES))])
def test_accepted_losses_of_any_number_are_saved_and_read(losses: tuple[int, ...]) -> None:
    saved = draining.accepting(losses)
    operation = Operation(id="Replace-1", type=OperationType.REPLACE, step="Drain", saved=saved)
    assert draining.accepted_by(operation) == losses
    BookieClusterStatus.model_validate(body(BookieClusterStatus(operation=operation)))


def test_what_an_older_release_saved_is_read() -> None:
    operation = Operation(id="Replace-1", type=OperationType.REPLACE, step="Drain", saved={"acceptedLosses": "3,9"})
    assert draining.accepted_by(operation) == (3, 9)


def test_pieces_end_where_they_have_to() -> None:
    words = [f"{number:040}" for number in range(1000)]
    pieces = operations.in_pieces("key", words)
    assert max(map(len, pieces.values())) <= 12_000
    assert len(pieces) == 4
    operation = Operation(id="Expand-1", type=OperationType.EXPAND, step="Orphan", saved=pieces)
    assert operations.joined(operation, "key") == words
    assert operations.joined(operation, "other") == []


def test_tasks_that_would_accept_too_much_fail_and_the_others_count(sim: Simulation, world: World) -> None:
    now = world.now
    first = accepting("first", tuple(range(view.MOST_LOSSES - 10)), now)
    more = replace(accepting("more", tuple(range(10**6, 10**6 + 100)), now), phase="")
    few = accepting("few", (10**7,), now)
    world = replace(world, tasks=(first, more, few))
    assert set(view.accepted_losses(world)) == {*first.ledgers, *few.ledgers}
    found = tasks.begin(world, sim.desired())
    assert isinstance(found, Act)
    assert isinstance(found.action, UpdateTask)
    assert (found.action.name, found.action.phase) == ("more", "Failed")
    assert str(view.MOST_LOSSES) in found.action.message
