"""What cannot be known is never taken for "there is none": what is done then in each flow."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import bookie_operator.planner
from bookie_operator.crds import names
from bookie_operator.planner import gates
from bookie_operator.planner.actions import CreateStatefulSet, UndoDrain
from bookie_operator.planner.decision import Act, Finish, Record, Wait
from bookie_operator.planner.flows import create, delete, garbage, rollout, scale_up
from bookie_operator.world.model import World
from tests.support.operator_sim import NAME, resting
from tests.support.operator_sim.flows import at_step

UNKNOWN = ("facts", "backup", "unchecked")
"""Attributes whose None means that nobody could tell."""


def _taken_for_none(path: Path) -> Iterator[str]:
    """Expressions `x if SOMETHING is not None else NONE`, and `SOMETHING or NONE`, of something that may be unknown."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.IfExp(
                test=ast.Compare(left=ast.Attribute(attr=name) | ast.Name(id=name), ops=[ast.Is() | ast.IsNot()])
            ):
                sides = [node.body, node.orelse]
            case ast.BoolOp(op=ast.Or(), values=[ast.Attribute(attr=name) | ast.Name(id=name), *sides]):
                pass
            case _:
                continue
        if name in UNKNOWN and any(_empty(each) for each in sides):
            yield f"{path.name}:{node.lineno}: {ast.unparse(node)}"


def _empty(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=value):
            return not value and value is not None
        case ast.Tuple(elts=[]) | ast.List(elts=[]) | ast.Dict(keys=[]):
            return True
        case ast.Call(func=ast.Name(id="frozenset" | "set"), args=[]):
            return True
    return False


def test_nothing_unknown_is_taken_for_nothing_at_all() -> None:
    planner = Path(bookie_operator.planner.__path__[0])
    found = [one for path in sorted(planner.rglob("*.py")) for one in _taken_for_none(path)]
    assert not found, "decide what is done while it is unknown"


def blind(world: World) -> World:
    return replace(world, facts=None, facts_error="no answer")


def test_backups_that_may_run_are_waited_for() -> None:
    sim = resting()
    sim.change(storage={"retention": {"whenDeleted": "Delete"}})
    sim.annotations[names.CONFIRM_DELETE] = NAME
    sim.delete()
    at_step(sim, delete.STOP_BACKUPS)
    world = replace(sim.world(), backup=None)
    assert isinstance(delete.begin(world, sim.desired()), Wait)
    assert isinstance(delete.begin(sim.world(), sim.desired()), Record)
    assert isinstance(delete.begin(replace(world, now=world.now + 121), sim.desired()), Record), "not for ever"


def test_a_configuration_that_backups_may_use_stays() -> None:
    sim = resting()
    sim.kubernetes.objects["ConfigMap/c-config-old"] = ("hash", "uid-old")
    assert isinstance(garbage.begin(sim.world(), sim.desired()), Act)
    assert garbage.begin(replace(sim.world(), backup=None), sim.desired()) is None


def test_a_zone_begins_empty_while_its_cookies_are_unknown() -> None:
    """What is left of earlier bookies is cleared away when it grows."""
    sim = resting()
    sim.kubernetes.sets.clear()
    sim.kubernetes.pods.clear()
    sim.kubernetes.claims.clear()
    world = sim.world()
    new = replace(
        world, cluster=replace(world.cluster, status=world.cluster.status.model_copy(update={"recorded_replicas": {}}))
    )
    made = create.stateful_sets(blind(new), sim.desired())
    assert isinstance(made, Act)
    assert made.action == CreateStatefulSet("c-bookie", 4), "no pod is there that could tell"
    other = replace(resting().world().pods[0], name="c-bookie-z-0", stateful_set="c-bookie-z")
    made = create.stateful_sets(replace(blind(new), pods=(other,)), sim.desired())
    assert isinstance(made, Act)
    assert made.action == CreateStatefulSet("c-bookie", 0)


def test_no_bookie_is_chosen_before_it_is_known_whether_it_takes_writes() -> None:
    """Else one that took none before its restart would be waited for until it does."""
    sim = resting()
    sim.change(version="1.1")
    for step in ("Stage", "Choose"):
        at_step(sim, step)
        operation = sim.status.operation
        assert operation is not None
    audited = operation.model_copy(update={"saved": {**operation.saved, "audited": "true"}})
    chosen = rollout.proceed(sim.world(), sim.desired(), audited)
    assert isinstance(chosen, Record)
    assert chosen.operation.step == "Stop"
    waiting = rollout.proceed(blind(sim.world()), sim.desired(), audited)
    assert isinstance(waiting, Wait)
    assert waiting.reason == gates.METADATA_UNREACHABLE


def test_nothing_is_said_to_be_cleared_away_before_its_cookie_is_known() -> None:
    sim = resting()
    sim.bookkeeper.cookies["c-bookie-4.c-bookie.ns.svc:3181"] = "an earlier one"
    sim.change(replicas=5)
    at_step(sim, scale_up.CLEAN)
    operation = sim.status.operation
    assert operation is not None
    assert isinstance(scale_up.proceed(blind(sim.world()), sim.desired(), operation), Wait)


@pytest.mark.parametrize("ready", [True, False])
def test_whether_volumes_are_of_another_bookie_is_asked_of_somebody(ready: bool) -> None:
    sim = resting()
    world = blind(sim.world())
    pods = tuple(replace(pod, ready=ready) for pod in world.pods)
    found = gates.renamed(replace(world, pods=pods), sim.desired(), "c-bookie-1")
    assert found is not None
    assert found.reason == gates.METADATA_UNREACHABLE


def test_a_bookie_that_was_drained_is_given_back_before_the_cluster_goes_if_that_can_be_asked_in_time() -> None:
    sim = resting(replicas=5)
    sim.advance(60)
    sim.change(replicas=4)
    at_step(sim, "Drain")
    sim.change(replicas=5)
    sim.delete()
    at_step(sim, delete.CANCEL)
    waiting = delete.begin(blind(sim.world()), sim.desired())
    assert isinstance(waiting, Wait)
    asked = delete.begin(sim.world(), sim.desired())
    assert isinstance(asked, Act)
    assert isinstance(asked.action, UndoDrain)
    late = replace(blind(sim.world()), now=sim.now + 61)
    assert isinstance(delete.begin(late, sim.desired()), Finish)
