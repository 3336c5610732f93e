"""Who is about to name a bookie counts as much as who names it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie_operator.planner import proving
from bookie_operator.planner.actions import ScaleStatefulSet
from bookie_operator.planner.decision import Act, Record, Wait
from bookie_operator.planner.flows import decommission
from bookie_operator.planner.run import Run
from tests.support.operator_sim import Simulation
from tests.support.operator_sim.flows import at_step
from tests.support.operator_sim.going import GOING, fewer, settled


def proof(sim: Simulation, **changes: object) -> str | None:
    operation = sim.status.operation
    assert operation is not None
    found = sim.bookkeeper.proof(sim.desired().bookie_id(GOING))
    assert found is not None
    run = Run(sim.world(), sim.desired(), operation)
    return proving.unproven(run, replace(found, **changes), registered=True)  # type: ignore[arg-type]


def test_claims_are_waited_for() -> None:
    sim = settled(replicas=5)
    fewer(sim)
    at_step(sim, "Scale")
    assert proof(sim) is None
    assert proof(sim, claims=2) == (
        "2 ledgers are being re-replicated or recovered, and may come to name c-bookie-4: waits until that is done; one"
        " that does not end is closed by `bookie ledger recover`"
    )


@pytest.mark.parametrize(
    "changes", [{"claims": 2}, {"auditor": None}, {"last_audit": None}, {"instance_id": "another"}, {"ledgers": 1}]
)
def test_a_bookie_that_is_not_proven_to_be_needed_by_nobody_is_not_stopped(changes: dict[str, object]) -> None:
    sim = settled(replicas=5)
    fewer(sim)
    at_step(sim, "Scale")
    operation, desired = sim.status.operation, sim.desired()
    assert operation is not None
    bookie_id = desired.bookie_id(GOING)
    found = sim.bookkeeper.proof(bookie_id)
    assert found is not None
    world = replace(sim.world(decommission.needs(operation, desired)), proofs={bookie_id: found})
    stops = decommission.proceed(world, desired, operation)
    assert isinstance(stops, Act)
    assert isinstance(stops.action, ScaleStatefulSet)
    doubted = replace(world, proofs={bookie_id: replace(found, **changes)})  # type: ignore[arg-type]
    waits = decommission.proceed(doubted, desired, operation)
    assert isinstance(waits, Record if "ledgers" in changes else Wait)
