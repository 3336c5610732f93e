"""What other operators of such clusters were reported to lose, or to hang in: asked of this one."""

from __future__ import annotations

import pytest

from bookie_operator.planner.flows import repair
from tests.support.operator_sim import Simulation
from tests.support.operator_sim.going import LOST, may_lose, settled


def copies(sim: Simulation) -> int:
    """Of the ledger that has the fewest on bookies that run."""
    running = set(sim.bookkeeper.running.values())
    return min((len(one.copies & running) for one in sim.bookkeeper.ledgers.values()), default=3)


@pytest.mark.parametrize("mode", ["Drain", "StopFirst"])
def test_bookies_that_go_one_after_the_other_take_no_copy_along(mode: str) -> None:
    """Ledgers that are written all the while, on all bookies: two of them go."""
    sim = settled(replicas=6, decommission={"mode": mode})
    fewest: list[int] = []
    sim.change(replicas=4)
    sim.run(
        lambda one, _: one.status.operation is None and len(one.kubernetes.pods) == 4,
        most=900,
        each=lambda one: fewest.append(copies(one)),
    )
    sim.run_until_rest()
    assert min(fewest) == (3 if mode == "Drain" else 2)
    assert copies(sim) == 3
    assert not sim.accidents


def test_a_cluster_is_not_scaled_below_what_an_entry_takes() -> None:
    sim = settled(replicas=4, durability={"ensembleSize": 4, "writeQuorum": 4, "ackQuorum": 3})
    sim.spec = sim.spec.model_copy(update={"replicas": 2})  # as stored before a rule was
    sim.generation += 1
    sim.run_until_stalled("DecommissionBlocked")
    assert len(sim.bookkeeper.writable) == 4
    assert sim.status.operations_begun == 0


@pytest.mark.parametrize("volume", ["journal", "ledger"])
def test_a_pod_that_never_starts_without_its_volume_is_told_and_replaced_where_that_is_asked_for(volume: str) -> None:
    sim = may_lose()
    sim.kubernetes.lose_volume(LOST, volume)
    sim.run_until_stalled("BookieLost")
    assert repair.lost_bookies(sim.world(), sim.desired()) == [LOST]
    sim.change(repair={"autoReplaceAfterSeconds": 10})
    sim.run_until_rest()
    assert len(sim.bookkeeper.writable) == 4
    assert not sim.bookkeeper.marks


def test_more_bookies_and_another_template_in_one_patch() -> None:
    sim = settled()
    sim.change(replicas=6, version="2.0")
    sim.run_until_rest(most=900)
    (wanted,) = sim.desired().stateful_sets
    assert {pod.template_hash for pod in sim.kubernetes.pods.values()} == {wanted.template_hash}
    assert len(sim.bookkeeper.writable) == 6
    assert not sim.accidents
