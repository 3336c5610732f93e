"""More bookies are asked for than there is room for: whatever was asked for with them, it can be taken back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bookie_operator.planner.actions import SetReadOnly
from bookie_operator.planner.decision import Wait
from bookie_operator.world.model import PodFault
from tests.support.operator_sim import Simulation, resting
from tests.support.operator_sim.bookkeeper import SimLedger
from tests.support.operator_sim.flows import acted, at_step


def no_nodes(sim: Simulation) -> None:
    sim.kubernetes.room = 4


def no_quota(sim: Simulation) -> None:
    sim.kubernetes.quota = 4


def a_node_for_the_last(sim: Simulation) -> None:
    """Who serves has to leave before those in front of it, which never did."""
    sim.kubernetes.room = 5
    sim.kubernetes.faults["c-bookie-4"] = PodFault.UNSCHEDULABLE


def nothing(sim: Simulation) -> None:
    return


def template(sim: Simulation) -> None:
    sim.change(version="2.0")


def template_and_back(sim: Simulation) -> None:
    sim.change(version="2.0")
    passes(sim, 120)
    sim.change(version="1.0")


def passes(sim: Simulation, number: int) -> None:
    for _ in range(number):
        decision = sim.run_pass().plan.decision
        sim.advance(min(decision.seconds, 10.0) if isinstance(decision, Wait) else 1.0)


@pytest.mark.parametrize("lack", [no_nodes, no_quota, a_node_for_the_last])
@pytest.mark.parametrize("besides", [nothing, template, template_and_back])
@pytest.mark.parametrize("late", [3, 150])
def test_fewer_replicas_lead_out(
    lack: Callable[[Simulation], None], besides: Callable[[Simulation], None], late: int
) -> None:
    sim = resting()
    lack(sim)
    sim.change(replicas=6)
    besides(sim)
    passes(sim, late)
    sim.change(replicas=4)
    sim.run_until_rest(most=900)
    assert sorted(sim.kubernetes.pods) == [f"c-bookie-{number}" for number in range(4)]
    assert {claim.bookie for claim in sim.kubernetes.claims.values()} == set(sim.kubernetes.pods)
    assert len(sim.bookkeeper.writable) == 4
    assert not sim.accidents
    (wanted,) = sim.desired().stateful_sets
    assert {pod.template_hash for pod in sim.kubernetes.pods.values()} == {wanted.template_hash}


@pytest.mark.parametrize("faulty", ["c-bookie-a-2", "c-bookie-b-2", "c-bookie-b-3"])
@pytest.mark.parametrize("besides", [nothing, template])
def test_fewer_replicas_lead_out_of_a_zone_without_room(faulty: str, besides: Callable[[Simulation], None]) -> None:
    """Bookies of the other zone come first, or those of higher numbers in the same one."""
    zones = {"zones": [{"name": zone} for zone in "ab"]}
    sim = resting(replicas=4, placement=zones)
    before = set(sim.kubernetes.pods)
    sim.kubernetes.faults[faulty] = PodFault.UNSCHEDULABLE
    sim.change(replicas=8, placement=zones)
    passes(sim, 100)
    besides(sim)
    passes(sim, 100)
    sim.change(replicas=4, placement=zones)
    sim.run_until_rest(most=900)
    assert sim.kubernetes.pods.keys() == before
    assert len(sim.bookkeeper.writable) == 4
    assert not sim.accidents


def test_a_newcomer_that_took_the_quota_of_a_member_makes_room_again() -> None:
    sim = resting()
    sim.change(replicas=5)
    sim.run_until_rest()
    sim.kubernetes.quota = 4
    sim.kubernetes.stop_pod(sim.kubernetes.pods["c-bookie-1"])
    passes(sim, 30)
    assert "c-bookie-1" not in sim.kubernetes.pods
    sim.change(replicas=4)
    sim.run_until_rest(most=900)
    assert sorted(sim.kubernetes.pods) == [f"c-bookie-{number}" for number in range(4)]
    assert len(sim.bookkeeper.writable) == 4
    assert not sim.accidents


def test_one_that_the_quota_keeps_out_need_not_come_back_to_be_taken_out() -> None:
    sim = resting(replicas=5)
    sim.advance(60)
    sim.kubernetes.quota = 4
    sim.kubernetes.stop_pod(sim.kubernetes.pods["c-bookie-4"])
    passes(sim, 30)
    assert sim.bookkeeper.naming(sim.desired().bookie_id("c-bookie-4"))
    sim.change(replicas=4)
    sim.run_until_rest(most=900)
    assert not sim.kubernetes.claims_of("c-bookie-4")
    assert len(sim.bookkeeper.writable) == 4
    assert not sim.accidents


def crowded(**changes: object) -> Simulation:
    """A newcomer waited for a node, and took that of a bookie which was restarted."""
    sim = resting(**changes)
    sim.kubernetes.room = sim.spec.replicas
    sim.change(replicas=sim.spec.replicas + 1)
    passes(sim, 8)
    sim.kubernetes.stop_pod(sim.kubernetes.pods["c-bookie-1"])
    passes(sim, 30)
    newcomer = f"c-bookie-{sim.spec.replicas - 1}"
    assert sim.kubernetes.pods[newcomer].running
    assert sim.bookkeeper.naming(sim.desired().bookie_id(newcomer))
    assert sim.kubernetes.pods["c-bookie-1"].fault is PodFault.UNSCHEDULABLE
    return sim


@pytest.mark.parametrize("replicas", [3, 4])
@pytest.mark.parametrize("besides", [nothing, template])
def test_a_newcomer_on_the_node_of_a_member_makes_room_again(
    replicas: int, besides: Callable[[Simulation], None]
) -> None:
    sim = crowded(replicas=replicas)
    besides(sim)
    passes(sim, 100)
    sim.change(replicas=replicas)
    sim.run_until_rest(most=900)
    assert sorted(sim.kubernetes.pods) == [f"c-bookie-{number}" for number in range(replicas)]
    assert len(sim.bookkeeper.writable) == replicas
    assert not sim.accidents


def test_it_stays_where_ledgers_need_it() -> None:
    """Whose other copies are on the bookie that waits for its node."""
    sim = crowded()
    sim.bookkeeper.writes = False
    newcomer, waiting = (sim.desired().bookie_id(f"c-bookie-{number}") for number in (4, 1))
    left = sim.desired().bookie_id("c-bookie-0")
    disks = {sim.bookkeeper.running[left], sim.bookkeeper.running[newcomer], sim.bookkeeper.cookies[waiting]}
    sim.bookkeeper.ledgers = {1: SimLedger([left, waiting, newcomer], disks)}
    sim.bookkeeper.auditor_up = False
    sim.change(replicas=4)
    sim.run_until_stalled("BelowAckQuorum")
    assert sim.kubernetes.pods["c-bookie-4"].running
    sim.change(replicas=5)
    sim.kubernetes.room = 5
    sim.run_until_rest()
    assert not sim.accidents


def test_room_that_comes_by_itself_ends_it() -> None:
    sim = crowded()
    sim.change(replicas=4)
    at_step(sim, "Stop")
    sim.kubernetes.room = 5
    sim.advance(10)
    sim.run_until_rest()
    assert [one.outcome for one in sim.status.history[:2]] == ["Done", "Cancelled"]
    assert any(isinstance(one, SetReadOnly) for one in acted(sim))
    assert not sim.accidents


def test_one_that_ledgers_name_is_drained_though_it_has_no_cookie() -> None:
    """Somebody deleted the cookie, and so it does not come up any more, as if it never had."""
    sim = resting(replicas=5)
    gone, bookie_id = "c-bookie-4", sim.desired().bookie_id("c-bookie-4")
    sim.advance(60.0)
    assert sim.bookkeeper.naming(bookie_id)
    sim.bookkeeper.recovery_delay = 100_000
    del sim.bookkeeper.cookies[bookie_id]
    sim.kubernetes.kill_pod(gone)
    sim.change(replicas=4)
    sim.run_until_rest(most=900)
    assert sorted(sim.kubernetes.pods) == [f"c-bookie-{number}" for number in range(4)]
    assert not sim.bookkeeper.naming(bookie_id)
    assert not sim.kubernetes.claims_of(gone)
    assert not sim.accidents
