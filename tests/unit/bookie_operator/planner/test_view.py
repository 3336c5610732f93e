"""What a snapshot says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie_operator.crds.cluster_status import BookieClusterStatus
from bookie_operator.crds.task_spec import TaskType
from bookie_operator.planner import view
from bookie_operator.planner.desired import Desired
from bookie_operator.world.facts import ClusterFacts
from bookie_operator.world.model import ClaimView, NodeView, PodView, StatefulSetView, TaskView
from tests.unit.bookie_operator.planner.worlds import SPEC
from tests.unit.bookie_operator.planner.worlds import world as bare

FACTS = ClusterFacts("told", frozenset({"b-0.s"}), frozenset({"b-1.s"}), frozenset(), 0, "auditor", 7.0, True, 60)
DESIRED = Desired((), {}, "", "", "", bookie_id_suffix=".s")
SET = StatefulSetView("b", "", "u", "1", 2, 1, 1, "t", {})


def claim(name: str = "c", **changes: object) -> ClaimView:
    return replace(ClaimView(name, "u", "b-0", 0, "journal", "1Gi", "1Gi"), **changes)  # type: ignore[arg-type]


def pod(name: str, **changes: object) -> PodView:
    made = PodView(name, "u", name.rpartition("-")[0], int(name.rpartition("-")[2]), ready=True)
    return replace(made, **changes)  # type: ignore[arg-type]


def test_the_instance_id_is_the_recorded_one_else_what_was_told() -> None:
    recorded = replace(bare(0.0, BookieClusterStatus(instance_id="recorded")), facts=FACTS, metadata_instance_id="job")
    told = replace(recorded, cluster=bare(0.0).cluster)
    unknown = replace(told, facts=replace(FACTS, instance_id=""))
    worlds = (recorded, told, unknown, replace(told, facts=None), replace(unknown, metadata_instance_id=""))
    assert [view.instance_id(one) for one in worlds] == ["recorded", "told", "job", "job", ""]


@pytest.mark.parametrize(
    ("facts", "own", "known"),
    [
        (None, True, None),
        (FACTS, True, True),
        (replace(FACTS, under_replicated=1), True, False),
        (replace(FACTS, under_replicated=1, last_audit=None), True, False),
        (replace(FACTS, last_audit=None), True, None),
        (replace(FACTS, auditor=None), True, None),
        (replace(FACTS, auditor=None), False, True),
    ],
)
def test_copies_are_complete_as_far_as_an_audit_tells(
    facts: ClusterFacts | None, own: bool, known: bool | None
) -> None:
    spec = SPEC.model_copy(update={"autorecovery": SPEC.autorecovery.model_copy(update={"enabled": own})})
    world = bare(0.0)
    assert view.fully_replicated(replace(world, facts=facts, cluster=replace(world.cluster, spec=spec))) is known


def test_claims_of_bookies_that_are_left_alone() -> None:
    good = [claim("a"), claim("b", volume="ledger", bookie="b-1"), claim("c", volume="index", bookie="b-5")]
    others = [
        claim("retired", retired=True),
        claim("goes", deleting=True),
        claim("lost", lost=True),
        claim("metadata", volume="metadata"),
        claim("nobody's", bookie="b-2"),
    ]
    world = replace(bare(0.0), claims=(*good, *others), stateful_sets=(SET,), pods=(pod("b-5"),))
    assert view.live_claims(world) == good
    assert {one.name for one in view.claims_of(world, "b-0")} == {"a", "retired", "goes", "lost"}
    going = view.going_claim(replace(world, pods=(pod("b-0"),)), "b-0")
    assert going is not None
    assert going.name == "goes"
    assert view.going_claim(replace(world, pods=(pod("b-0", deleting=True),)), "b-0") is None
    assert view.going_claim(world, "b-0") is None


@pytest.mark.parametrize(
    ("changes", "applies"),
    [
        ({}, True),
        ({"object_hashes": {"k": "old"}}, True),
        ({"object_hashes": {"k": "new"}}, False),
        ({"taken": {"k": "somebody's"}}, False),
        ({"unstable": {"k": "new"}}, False),
        ({"unstable": {"k": "old"}}, True),
    ],
)
def test_what_is_applied(changes: dict[str, object], applies: bool) -> None:
    assert view.to_apply(replace(bare(0.0), **changes), "k", "new") is applies  # type: ignore[arg-type]


SERVING = (pod("b-0"), pod("b-1"))


@pytest.mark.parametrize(
    ("changes", "away"),
    [
        ({}, ()),
        ({"facts": None}, ("b-0", "b-1")),
        ({"facts": replace(FACTS, read_only=frozenset())}, ("b-1",)),
        ({"pods": (SERVING[0],)}, ("b-1",)),
        ({"pods": (replace(SERVING[0], ready=False), SERVING[1])}, ("b-0",)),
        ({"pods": (replace(SERVING[0], deleting=True), SERVING[1])}, ("b-0",)),
    ],
)
def test_who_is_away(changes: dict[str, object], away: tuple[str, ...]) -> None:
    world = replace(bare(0.0), stateful_sets=(SET,), pods=SERVING, facts=FACTS)
    assert view.away(replace(world, **changes), DESIRED) == away  # type: ignore[arg-type]


def task(number: int, ledgers: tuple[int, ...], age: float = 0.0, kind: TaskType = TaskType.ACCEPT_LOSS) -> TaskView:
    return TaskView(f"t{number}", "u", kind, (), "", 100_000.0 - age, ledgers)


def test_losses_are_accepted_for_a_day_and_not_too_many_at_once() -> None:
    day = view.ACCEPTED_SECONDS
    most = tuple(range(view.MOST_LOSSES))
    tasks = [task(1, (9, 7)), task(2, (3,), day), task(3, (5,), day - 0.1), task(4, (1,), 0.0, TaskType.RESTART)]
    world = replace(bare(100_000.0), tasks=tuple(tasks))
    assert view.accepted_losses(world) == (5, 7, 9)
    assert view.accepted_losses(replace(world, tasks=(task(1, most), task(2, (view.MOST_LOSSES,))))) == most
    assert view.accepted_losses(replace(world, tasks=(task(1, (9,)), task(2, most)))) == most
    assert view.accepted_losses(replace(world, tasks=(task(1, (view.MOST_LOSSES,)), task(2, most)))) == (
        view.MOST_LOSSES,
    )


@pytest.mark.parametrize(
    ("node", "told"),
    [
        (None, False),
        (NodeView("n", ready=True), False),
        (NodeView("n", ready=False), True),
        (NodeView("n", ready=False, out_of_service=True), False),
    ],
)
def test_a_pod_is_stuck_on_a_node_that_does_not_answer(node: NodeView | None, told: bool) -> None:
    world = replace(bare(0.0), nodes={"n": node} if node is not None else None)
    stopping = pod("b-0", node="n", deleting=True)
    assert ("`kubectl taint node n " in view.stuck_on_node(world, stopping)) is told
    assert view.stuck_on_node(world, replace(stopping, deleting=False)) == ""
    assert view.stuck_on_node(world, replace(stopping, node="other")) == ""
    assert view.stuck_on_node(world, None) == ""
