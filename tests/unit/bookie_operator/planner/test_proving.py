"""Who is about to name a bookie counts as much as who names it."""

from __future__ import annotations

from dataclasses import replace

from bookie_operator.planner import proving
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
        " that nobody ends is closed by `bookie ledger recover`"
    )
