"""Nothing that an operation saves, or that the operator asks, grows with a cluster without a bound."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from functools import cache

import pytest

from bookie_operator.builders.build import build
from bookie_operator.builders.context import BuildContext
from bookie_operator.crds.cluster_status import BookieClusterStatus, FinishedOperation, Operation, OperationType
from bookie_operator.crds.task_spec import TaskType
from bookie_operator.planner import draining, operations, view
from bookie_operator.planner.actions import UpdateTask
from bookie_operator.planner.decision import Act
from bookie_operator.planner.desired import Desired
from bookie_operator.planner.flows import delete, tasks
from bookie_operator.planner.operations import written
from bookie_operator.planner.plan import needs, plan
from bookie_operator.status.reporting import body, status_after
from bookie_operator.world.facts import BookieFacts, ClusterFacts
from bookie_operator.world.model import ClaimView, PodFault, PodView, StatefulSetView, TaskView, World
from tests.support.operator_clusters import MINIMAL, cluster
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


# --- a thousand bookies -----------------------------------------------------------------------------------------------

MANY = 1000
LONG = "MountVolume.SetUp failed for volume pvc-0b7c1f0e: rpc error: code = Internal desc = " + "x" * 8000
CLUSTER_NAME, NAMESPACE = "n" * 40, "s" * 63
WORST = {
    "well": PodFault.NONE,
    "crashing": PodFault.CRASHING,
    "lost": PodFault.VOLUME,
    "without nodes": PodFault.UNSCHEDULABLE,
    "other directories": PodFault.COOKIE,
}


def uid(number: int) -> str:
    return f"0b7c1f0e-2222-4333-8444-{number:012}"


@cache
def thousand(fault: PodFault) -> tuple[World, Desired]:
    """Bookies with names as long as they can be, in one state, that are replaced by themselves."""
    storage = {"journal": {"size": "1Gi"}, "ledger": {"size": "10Gi", "volumes": 2}}
    asked = {**MINIMAL, "replicas": MANY, "storage": storage, "repair": {"autoReplaceAfterSeconds": 30}}
    status = BookieClusterStatus(
        instance_id=uid(0),
        recorded_replicas={f"{CLUSTER_NAME}-bookie": MANY},
        operations_begun=1,
        history=[
            FinishedOperation(id=f"Replace-{n}", type=OperationType.REPLACE, started_at=written(0), message=LONG)
            for n in range(10)
        ],
    )
    view_of = replace(cluster(asked, name=CLUSTER_NAME, uid=uid(0)), namespace=NAMESPACE, status=status)
    desired = build(view_of, BuildContext()).desired()
    (wanted,) = desired.stateful_sets
    names = [f"{wanted.name}-{ordinal}" for ordinal in range(MANY)]
    ids = frozenset(map(desired.bookie_id, names))
    well = fault is PodFault.NONE
    now = 1_800_000_000.0
    pods = tuple(
        replace(
            PodView(name, uid(ordinal), wanted.name, ordinal),
            ready=well,
            running=well,
            ready_since=0.0 if well else None,
            created_at=now - 10_000,
            node=f"node-{ordinal}.{'d' * 200}",
            template_hash=wanted.template_hash,
            fault=fault,
            fault_message="" if well else f"{ordinal}: {LONG}",
        )
        for ordinal, name in enumerate(names)
    )
    claims = tuple(
        ClaimView(f"{volume}-{index}-{name}", uid(7 * ordinal), name, ordinal, volume, "10Gi", "10Gi")
        for ordinal, name in enumerate(names)
        for volume, index in (("journal", 0), ("ledger", 0), ("ledger", 1))
    )
    facts = ClusterFacts(
        instance_id=uid(0),
        writable=ids if well else frozenset(),
        read_only=frozenset(),
        cookies=ids,
        under_replicated=0 if well else 10**9,
        auditor=f"{CLUSTER_NAME}-autorecovery-0",
        last_audit=now - 60,
        autorecovery_enabled=True,
        lost_bookie_recovery_delay=0,
    )
    live = StatefulSetView(
        name=wanted.name,
        zone="",
        uid=uid(1),
        resource_version="7",
        replicas=MANY,
        generation=1,
        observed_generation=1,
        template_hash=wanted.template_hash,
        volume_sizes=wanted.volume_sizes,
        inputs_hash=wanted.inputs_hash,
    )
    found = World(
        now=now,
        cluster=view_of,
        stateful_sets=(live,),
        pods=pods,
        claims=claims,
        object_hashes={**desired.support, **desired.deployments, **desired.monitoring},
        facts=facts,
        bookies=dict.fromkeys(names, BookieFacts(False, 10**12, 10**13, 50.0)),
        refused={f"StatefulSet/{wanted.name}": LONG},
    )
    return found, desired


def status_of(world: World, desired: Desired) -> BookieClusterStatus:
    decided = plan(world, desired)
    base = operations.after(world.cluster.status, decided.decision, world.now)
    return status_after(world, desired, decided, base, world.cluster.status.metadata_service_uri)


def size_of(status: BookieClusterStatus) -> int:
    told = body(status)
    BookieClusterStatus.model_validate(told)
    return len(json.dumps(told))


@pytest.mark.parametrize("fault", WORST.values(), ids=WORST)
@pytest.mark.parametrize("replaced", [False, True])
def test_the_status_of_a_thousand_bookies_fits_into_etcd(fault: PodFault, replaced: bool) -> None:
    """Which takes 1.5 MiB of an object; more than half a megabyte of that is left to `spec` and metadata."""
    operation = None
    if replaced:
        losses = draining.accepting(range(10**18, 10**18 + view.MOST_LOSSES))
        saved = {**losses, draining.SINCE: written(0), "podUid": uid(3)}
        operation = Operation(
            id="Replace-1",
            type=OperationType.REPLACE,
            step="Drain",
            bookie=f"{CLUSTER_NAME}-bookie-999",
            started_at=written(0),
            last_progress_at=written(0),
            saved=saved,
            message=LONG,
        )
    world, desired = thousand(fault)
    status = world.cluster.status.model_copy(update={"operation": operation})
    status = status_of(replace(world, cluster=replace(world.cluster, status=status)), desired)
    assert len(status.bookies) == MANY
    assert size_of(status) < 1_000_000


def test_messages_of_few_are_told_in_full() -> None:
    world, desired = thousand(PodFault.NONE)
    first = replace(world.pods[0], ready=False, fault=PodFault.VOLUME, fault_message="m" * 4000)
    status = status_of(replace(world, pods=(first, *world.pods[1:])), desired)
    assert status.bookies[0].message == "m" * 4000


def test_a_deletion_of_a_thousand_with_their_data_is_recorded() -> None:
    world, desired = thousand(PodFault.NONE)
    claims = tuple(
        replace(one, uid=uid(number), instance_id=uid(0), name=f"{one.name}-{number}")
        for number, one in enumerate(claim for claim in world.claims for _ in range(2))
    )
    saved = delete.recorded(replace(world, claims=claims))
    operation = Operation(id="Delete-1", type=OperationType.DELETE, step="DeleteClaims", saved=saved)
    status = status_of(world, desired).model_copy(update={"operation": operation})
    assert sum(text.count(uid(0)[:20]) for text in saved.values()) == 6 * MANY
    assert size_of(status) < 1_000_000


@pytest.mark.parametrize("fault", WORST.values(), ids=WORST)
def test_what_a_pass_asks_for_does_not_grow_with_the_bookies(fault: PodFault) -> None:
    """Each of these answers takes a listing of all ledgers."""
    world, desired = thousand(fault)
    asked = needs(world, desired)
    assert len(asked.proofs) + len(asked.drains) + len(asked.outlooks) + len(asked.safety) <= 8


def test_each_of_many_lost_ones_is_asked_about_in_its_turn() -> None:
    world, desired = thousand(PodFault.VOLUME)
    asked: set[str] = set()
    for minute in range(MANY // 4):
        asked |= needs(replace(world, now=world.now + 60 * minute), desired).outlooks
    assert len(asked) == MANY


@pytest.mark.parametrize("fault", WORST.values(), ids=WORST)
def test_a_plan_for_a_thousand_takes_no_time(fault: PodFault) -> None:
    """By the processor's time, on any machine: what grows with the square of the bookies takes many times as long."""
    world, desired = thousand(fault)
    status_of(world, desired)
    begun = time.process_time()
    status_of(replace(world), desired)
    assert time.process_time() - begun < 2.0
