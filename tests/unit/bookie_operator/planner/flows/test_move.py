"""The Job that looks for the metadata at another place."""

from __future__ import annotations

from dataclasses import replace

from bookie_operator.planner.decision import Act
from bookie_operator.planner.flows import move
from tests.support.operator_sim import resting

JOB = "Job/c-metadata-check"


def test_a_job_of_somebody_else_holds_up_nothing() -> None:
    """That the name is taken is told, and what is wanted beside the move goes on."""
    sim = resting()
    desired = replace(sim.desired(), check_job=JOB, check_job_hash="1", moves_to="zk://new/ledgers")
    assert isinstance(move.begin(sim.world(), desired), Act)
    assert move.begin(replace(sim.world(), taken={JOB: "of somebody"}), desired) is None
