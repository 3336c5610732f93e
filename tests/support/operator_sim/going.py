"""Clusters that a bookie leaves: because `spec` asks for fewer, or because its disk is lost.

five = settled(replicas=5)
fewer(five)                             # `GOING` is taken out: steps `SERVING`, then `STOPPED`
four = may_lose(repair={"autoReplaceAfterSeconds": 30})
lose(four)                              # `LOST` is replaced
"""

from __future__ import annotations

from typing import Final

from tests.support.operator_sim.crashes import resting
from tests.support.operator_sim.simulation import Simulation

GOING: Final = "c-bookie-4"
"""The pod that goes when `settled(replicas=5)` becomes one of four."""
SERVING: Final = ["Audit", "ReadOnly", "Drain", "Prove", "ProveAgain", "Scale"]
"""Steps of a decommission while the bookie serves."""
STOPPED: Final = ["Leave", "ProveGone", "Cookie", "Claims"]
"""And those after."""
LOST: Final = "c-bookie-1"
"""The pod of the bookie that loses its disk."""


def settled(**changes: object) -> Simulation:
    """At rest, a minute after all its bookies became ready."""
    sim = resting(**changes)
    sim.advance(60)
    return sim


def fewer(sim: Simulation) -> None:
    """Ask for one bookie less than five."""
    sim.change(replicas=4)


def what_is_left(sim: Simulation) -> object:
    """What has to be the same however a decommission came to its end."""
    kube, keeper = sim.kubernetes, sim.bookkeeper
    claims = sorted((one.name, bool(one.retired_proof)) for one in kube.claims.values())
    return sorted(kube.pods), claims, keeper.writable, sorted(keeper.cookies), sim.status.operation


def may_lose(**changes: object) -> Simulation:
    """As `settled`, where a lost disk is no accident of the plan's."""
    sim = settled(**changes)
    sim.forgiven = True
    return sim


def lose(sim: Simulation) -> None:
    """The ledger volume goes, and its claim stays."""
    sim.kubernetes.lose_volume(LOST)


def lose_journal(sim: Simulation) -> None:
    """The journal's volume goes, and the ledger volume stays as it was."""
    sim.kubernetes.lose_volume(LOST, "journal")


def lose_claims(sim: Simulation) -> None:
    """Claims and volumes go."""
    sim.kubernetes.delete_claims(LOST)


def wipe_ledger(sim: Simulation) -> None:
    """Somebody empties the ledger volume: claims and volumes are there, and the cookie on it is not."""
    _wipe(sim, "ledger")


def wipe_journal(sim: Simulation) -> None:
    """The same with the journal: what was not flushed yet was only there."""
    _wipe(sim, "journal")


def _wipe(sim: Simulation, volume: str) -> None:
    for claim in sim.kubernetes.claims_of(LOST):
        if claim.volume == volume:
            claim.data_id = None
    sim.kubernetes.kill_pod(LOST)
