"""Who scales a StatefulSet by hand does not ask for bookies."""

from __future__ import annotations

from dataclasses import replace

from bookie_operator.crds.cluster_status import Operation, OperationType
from bookie_operator.planner.actions import RecordState, ScaleStatefulSet
from bookie_operator.planner.decision import Act, EventType, Wait
from bookie_operator.planner.flows import replicas
from bookie_operator.world.model import World
from tests.support.operator_sim import killed_everywhere, resting


def scaled(number: int, **status: object) -> World:
    sim = resting()
    changed = replace(sim.world().stateful_sets[0], replicas=number)
    view = replace(sim.view(), status=sim.status.model_copy(update=status))
    return replace(sim.world(), stateful_sets=(changed,), cluster=view)


def test_it_is_put_back_whoever_dies_and_no_volume_is_lost() -> None:
    start = resting()
    start.kubernetes.scale("c-bookie", 2)
    claims = {name: one.uid for name, one in start.kubernetes.claims.items()}
    killed_everywhere(
        start,
        lambda _: None,
        lambda s: ({name: one.uid for name, one in s.kubernetes.claims.items()} == claims, s.bookkeeper.writable),
    )


def test_it_is_put_back_in_one_patch_with_a_warning() -> None:
    found = replicas.begin(scaled(1))
    assert isinstance(found, Act)
    assert isinstance(found.action, ScaleStatefulSet)
    assert (found.action.before, found.action.after) == (1, 4)
    assert found.event is not None
    assert (found.event.reason, found.event.type) == ("ExternalScaleDown", EventType.WARNING)
    assert "spec.replicas" in found.event.message


def test_not_before_the_controller_has_caught_up() -> None:
    world = scaled(1)
    busy = replace(world.stateful_sets[0], generation=9, observed_generation=8)
    assert isinstance(replicas.begin(replace(world, stateful_sets=(busy,))), Wait)


def test_what_the_running_operation_planned_is_recorded() -> None:
    saved = {"replicas/c-bookie": "3"}
    operation = Operation(id="Decommission-1", type=OperationType.DECOMMISSION, step="scale", saved=saved)
    found = replicas.begin(scaled(3, operation=operation))
    assert isinstance(found, Act)
    assert found.action == RecordState(replicas={"c-bookie": 3})


def test_more_are_recorded_as_bookies() -> None:
    found = replicas.begin(scaled(6))
    assert isinstance(found, Act)
    assert found.action == RecordState(replicas={"c-bookie": 6})


def test_nothing_to_do_while_it_is_as_recorded() -> None:
    assert replicas.begin(scaled(4)) is None
