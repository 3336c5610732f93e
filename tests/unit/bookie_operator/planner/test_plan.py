"""Whole runs of the simulated cluster, until nothing is left to do."""

from __future__ import annotations

from tests.support.operator_sim import Simulation, spec


def created(**changes: object) -> Simulation:
    sim = Simulation(spec(**changes))
    sim.run_until_rest()
    return sim


def test_a_cluster_is_created_in_order() -> None:
    sim = created()
    assert sorted(sim.kubernetes.pods) == [f"c-bookie-{n}" for n in range(4)]
    assert len(sim.bookkeeper.writable) == 4
    assert sim.status.instance_id == "instance-1"
    assert not sim.accidents
