"""Another cluster joins the root of the metadata, whose owner is deleted: what may happen then, and ways out.

What the other one stores is known to `SimBookKeeper.joined` as long as it is there, whatever the metadata service says.
"""

from __future__ import annotations

from typing import Final

from bookie_operator.crds import names
from bookie_operator.world.model import PodFault
from tests.support.operator_sim import mishaps
from tests.support.operator_sim.simulation import Simulation
from tests.support.operator_sim.specs import NAME

_MOST_PODS: Final = 12


def join(sim: Simulation, number: int) -> None:
    """One to three bookies of another cluster, if the metadata are there to be joined."""
    keeper = sim.bookkeeper
    is_there = keeper.up and keeper.backup is None and sim.finalizer and sim.cleanup != "Complete"
    if not is_there or keeper.joined:
        return
    keeper.joined = {f"other-bookie-{n}.other-bookie.ns.svc:3181": f"their-disk-{n}" for n in range(1 + number % 3)}
    keeper.cookies |= keeper.joined
    keeper.running |= keeper.joined
    keeper.disks |= set(keeper.joined.values())


def leave(sim: Simulation, number: int) -> None:
    """They were taken out, and ledgers that they stored are not needed any more."""
    keeper = sim.bookkeeper
    if not keeper.up or keeper.backup is not None:
        return
    keeper.ledgers = {key: one for key, one in keeper.ledgers.items() if keeper.joined.keys().isdisjoint(one.ensemble)}
    keeper.marks &= keeper.ledgers.keys()
    for bookie_id in keeper.joined:
        del keeper.cookies[bookie_id], keeper.running[bookie_id]
    keeper.joined = {}


def delete(sim: Simulation, number: int) -> None:
    """With data, most often."""
    (lose_data if number % 3 else retain)(sim, number)
    sim.delete()


def lose_data(sim: Simulation, number: int) -> None:
    sim.change(storage={"retention": {"whenDeleted": "Delete"}})
    sim.annotations[names.CONFIRM_DELETE] = NAME


def retain(sim: Simulation, number: int) -> None:
    sim.change(storage={"retention": {"whenDeleted": "Retain"}})


def hang(sim: Simulation, number: int) -> None:
    """The metadata service hangs, and pods say that they are not ready."""
    sim.bookkeeper.up, sim.kubernetes.unready = False, True


def unready(sim: Simulation, number: int) -> None:
    """No pod is ready, as with a broken sidecar, and none answers the operator; bookies serve."""
    sim.bookkeeper.silent = sim.kubernetes.unready = True


def come_back_empty(sim: Simulation, number: int) -> None:
    """The metadata service lost its disk, and a backup is not restored yet. Bookies end there, or did not notice."""
    _become(sim, "", number)


def come_back_as_another(sim: Simulation, number: int) -> None:
    """Somebody made another cluster there meanwhile."""
    _become(sim, "instance-2", number)


def _become(sim: Simulation, instance_id: str, number: int) -> None:
    keeper = sim.bookkeeper
    if keeper.backup is not None or not keeper.instance_id or sim.cleanup == "Complete":
        return
    keeper.backup = (keeper.instance_id, dict(keeper.cookies))
    keeper.instance_id, sim.job_ends_at = instance_id, None
    keeper.cookies.clear()
    for bookie_id in keeper.joined:
        keeper.running.pop(bookie_id, None)
    if number % 2:
        sim.kubernetes.faults = {f"{NAME}-bookie-{n}": PodFault.CRASHING for n in range(_MOST_PODS)}
        for pod in list(sim.kubernetes.pods):
            sim.kubernetes.kill_pod(pod)


def heal(sim: Simulation, number: int) -> None:
    """All that is away comes back, and the backup is restored."""
    keeper, kubernetes = sim.bookkeeper, sim.kubernetes
    if keeper.backup is not None:
        keeper.instance_id, cookies = keeper.backup
        keeper.cookies |= cookies
        keeper.running |= keeper.joined
        keeper.backup, kubernetes.faults = None, {}
        for pod in kubernetes.pods.values():
            pod.fault = PodFault.NONE
    kubernetes.unready = False
    mishaps.heal(sim)


def mend_nodes(sim: Simulation, number: int) -> None:
    """What is away stays away, but for nodes; nobody pauses the cluster any more."""
    sim.annotations.pop(names.PAUSED, None)
    sim.kubernetes.out_of_service |= sim.kubernetes.lost_nodes


HAPPENINGS: Final[tuple[mishaps.Mishap, ...]] = (
    join,
    join,
    leave,
    lose_data,
    retain,
    hang,
    unready,
    come_back_empty,
    come_back_as_another,
    heal,
    heal,
    mishaps.admins_away,
    mishaps.metadata_away,
    mishaps.kill_pod,
    mishaps.delete_pod,
    mishaps.power_cut,
    mishaps.remove_set,
    mishaps.scale_by_hand,
    mishaps.pause,
    mishaps.lose_node,
    mishaps.scale,
    mishaps.configure,
    mishaps.move,
    mishaps.expand,
    mishaps.interrupt_drains,
)
"""Beside `delete`, which happens once."""
