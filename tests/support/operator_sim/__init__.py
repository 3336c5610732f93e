"""A simulated Kubernetes and BookKeeper for plans: values only, a virtual clock, no I/O.

    sim = Simulation(spec())                # or spec(replicas=5, version="2"), see `specs`
    sim.run_until_rest()                    # passes of the planner, carried out, until `Rest`
    sim.change(replicas=4)                  # `spec` changes
    sim.run_until_rest(crash_at=7)          # the operator dies in the eighth pass: effect done, status lost
    sim.accidents                           # deletions that truth did not allow, ledgers without copy: must stay empty

`Simulation.kubernetes` and `Simulation.bookkeeper` have the faults: `kill_pod`, `lose_volume`, `lose_node`...
"""

from __future__ import annotations

from tests.support.operator_sim.bookkeeper import SimBookKeeper
from tests.support.operator_sim.crashes import at_rest_after, killed_everywhere, resting
from tests.support.operator_sim.kubernetes import Conflict, SimKubernetes
from tests.support.operator_sim.simulation import NeverAtRest, Pass, Simulation
from tests.support.operator_sim.specs import NAME, NAMESPACE, desired_of, spec

__all__ = [
    "NAME",
    "NAMESPACE",
    "Conflict",
    "NeverAtRest",
    "Pass",
    "SimBookKeeper",
    "SimKubernetes",
    "Simulation",
    "at_rest_after",
    "desired_of",
    "killed_everywhere",
    "resting",
    "spec",
]
