"""What happens to a cluster while its operator works: wishes of people, and faults. Each is bounded and heals."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from bookie_operator.crds import names
from bookie_operator.crds.task_spec import TaskType
from bookie_operator.planner.decision import Wait
from tests.support.operator_sim.kubernetes import BAD_IMAGE, BROKEN
from tests.support.operator_sim.simulation import Simulation

Mishap = Callable[[Simulation, int], None]
"""With a number that chooses among bookies, sizes and so on."""
Event = tuple[Mishap, int, int, str]
"""What happens, its number, how many passes until the next event, and how the operator dies in the first of them."""


RELEASES: Final = ("", "newer", "newest")
"""Of the operator."""


def _bookie(sim: Simulation, number: int) -> str | None:
    pods = sorted(sim.kubernetes.pods)
    return pods[number % len(pods)] if pods else None


def _whole(sim: Simulation) -> bool:
    keeper = sim.bookkeeper
    return all(
        keeper.running.get(one) in ledger.copies for ledger in keeper.ledgers.values() for one in ledger.ensemble
    )


def scale(sim: Simulation, number: int) -> None:
    sim.change(replicas=4 + number % 4)


def upgrade(sim: Simulation, number: int) -> None:
    sim.change(version=f"{1 + number % 3}.0", image="")


def configure(sim: Simulation, number: int) -> None:
    key = "gcWaitTime" if number % 2 else "journalMaxSizeMB"
    sim.change(config={key: str(1000 + number)})


def expand(sim: Simulation, number: int) -> None:
    size = int(sim.spec.storage.ledger.size.removesuffix("Gi"))
    sim.change(storage={"ledger": {"size": f"{size + 1 + number % 3}Gi"}})


def modify(sim: Simulation, number: int) -> None:
    name = (None, "gold", "silver")[number % 3]
    sim.change(storage={"ledger": {"volumeAttributesClassName": name}})


def gateways(sim: Simulation, number: int) -> None:
    """With so many, or none any more."""
    sim.change(gateway={"enabled": number % 3 > 0, "replicas": 1 + number % 4})


def kill_pod(sim: Simulation, number: int) -> None:
    name = _bookie(sim, number)
    if name is not None and sim.kubernetes.pods[name].running:
        sim.kubernetes.kill_pod(name)


def delete_pod(sim: Simulation, number: int) -> None:
    name = _bookie(sim, number)
    if name is not None:
        sim.kubernetes.stop_pod(sim.kubernetes.pods[name])


def power_cut(sim: Simulation, number: int) -> None:
    """Every pod is made anew, also of what runs beside the bookies: by the template that its controller has."""
    for pod in list(sim.kubernetes.pods.values()):
        sim.kubernetes.stop_pod(pod)
    for part in (sim.autorecovery, sim.gateway):
        part.restart(sim.now)


def metadata_away(sim: Simulation, number: int) -> None:
    sim.bookkeeper.up = False


def admins_away(sim: Simulation, number: int) -> None:
    """As with a token that somebody changed by hand: all goes on, and the operator can ask no pod."""
    sim.bookkeeper.silent = True


def interrupt_drains(sim: Simulation, number: int) -> None:
    sim.bookkeeper.interrupt_drains()


def scale_by_hand(sim: Simulation, number: int) -> None:
    for one in sim.kubernetes.sets.values():
        sim.kubernetes.scale(one.name, max(0, one.replicas - 1 - number % 3))


def remove_set(sim: Simulation, number: int) -> None:
    """With its pods left, which have no owner then."""
    sim.kubernetes.sets.clear()
    for pod in sim.kubernetes.pods.values():
        pod.owner_uid = ""


def lose_node(sim: Simulation, number: int) -> None:
    name = _bookie(sim, number)
    if name is not None and not sim.kubernetes.lost_nodes:
        sim.kubernetes.lose_node(sim.kubernetes.pods[name].node)


def lose_volume(sim: Simulation, number: int) -> None:
    """Only while every ledger has all its copies, and once: no operator brings back what has no copy."""
    name = _bookie(sim, number)
    if name is not None and _whole(sim) and not any(one.lost for one in sim.kubernetes.claims.values()):
        sim.kubernetes.lose_volume(name, ("journal", "ledger")[number % 2])


def pause(sim: Simulation, number: int) -> None:
    sim.annotations[names.PAUSED] = "true"


def restart(sim: Simulation, number: int) -> None:
    name = _bookie(sim, number)
    if name is not None:
        sim.ask(TaskType.RESTART, name)


def upgrade_operator(sim: Simulation, number: int) -> None:
    """To a release that makes pods in another way, or back."""
    sim.release = RELEASES[number % len(RELEASES)]


def two_operators(sim: Simulation, number: int) -> None:
    """Two releases keep the namespace, and take turns."""
    sim.rivals = (RELEASES[number % len(RELEASES)], RELEASES[(number + 1) % len(RELEASES)])


def move(sim: Simulation, number: int) -> None:
    """A bookie, most often one that serves, is to have other volumes."""
    name = _bookie(sim, number)
    if name is not None and not any(one.type is TaskType.REPLACE and one.phase in ("", "Running") for one in sim.tasks):
        sim.ask(TaskType.REPLACE, name)


def share_disks(sim: Simulation, number: int) -> None:
    """Or the other way round: all volumes are folders of one file system, as on a single node."""
    sim.kubernetes.shared_disks = number % 2 == 0


def scale_far(sim: Simulation, number: int) -> None:
    """Beyond the nodes that there are, or below what ledgers take."""
    sim.change(replicas=3 + number % 5)


def widen(sim: Simulation, number: int) -> None:
    """Clients write larger or smaller ensembles, and `spec` says so."""
    size = 3 + number % 2
    if size <= sim.spec.replicas:
        sim.change(durability={"ensembleSize": size})
        sim.bookkeeper.ensemble = size


def break_image(sim: Simulation, number: int) -> None:
    sim.change(image=BAD_IMAGE)


def break_template(sim: Simulation, number: int) -> None:
    """For all bookies, or for one of them."""
    kind = sorted(BROKEN)[number % len(BROKEN)]
    sim.change(image=kind if number % 2 else f"{kind}@{number // 2 % 4}")


def cordon(sim: Simulation, number: int) -> None:
    """One node, and its pod is drained; the one before is uncordoned."""
    name = _bookie(sim, number)
    sim.kubernetes.cordoned.clear()
    if name is not None:
        sim.kubernetes.cordoned.add(sim.kubernetes.pods[name].node)
        delete_pod(sim, number)


def uncordon(sim: Simulation, number: int) -> None:
    sim.kubernetes.cordoned.clear()


def fill_quota(sim: Simulation, number: int) -> None:
    sim.kubernetes.quota = len(sim.kubernetes.pods)


def delete_claim(sim: Simulation, number: int) -> None:
    """It is there as long as its pod. At any moment, whatever else is missing: people do not look."""
    claims = sorted(sim.kubernetes.claims.values(), key=lambda one: one.name)
    if claims:
        claims[number % len(claims)].deleting = True
        sim.forgiven = True


def strip_claim(sim: Simulation, number: int) -> None:
    """Somebody takes the labels from a claim of a bookie."""
    claims = sorted(sim.kubernetes.claims.values(), key=lambda one: one.name)
    if claims:
        claims[number % len(claims)].foreign = True


def adopt_claims(sim: Simulation, number: int) -> None:
    for one in sim.kubernetes.claims.values():
        one.adoption = one.foreign


def keep_claim(sim: Simulation, number: int) -> None:
    """A backup tool's finalizer; the one before is taken off."""
    claims = sorted(sim.kubernetes.claims.values(), key=lambda one: one.name)
    for n, one in enumerate(claims):
        one.kept_by = "backup.example/keep" if n == number % len(claims) else ""


def stop_first(sim: Simulation, number: int) -> None:
    sim.change(decommission={"mode": ("Drain", "StopFirst")[number % 2]})


def tell(sim: Simulation, happens: Iterable[Event]) -> None:
    """Let these things happen one after the other, with their passes between."""
    for mishap, number, passes, crash in happens:
        mishap(sim, number)
        for count in range(passes):
            decision = sim.run_pass(crash=crash if count == 0 else "").plan.decision
            sim.advance(min(decision.seconds, 5.0) if isinstance(decision, Wait) else 1.0)
            assert not sim.accidents, sim.accidents


def heal(sim: Simulation) -> None:
    """Whatever is away comes back; nodes that are lost are vouched for, and claims given to the cluster."""
    adopt_claims(sim, 0)
    for claim in sim.kubernetes.claims.values():
        claim.kept_by = ""
    sim.bookkeeper.up, sim.bookkeeper.silent = True, False
    if sim.rivals:
        sim.rivals, sim.release = (), sim.rivals[0]
    sim.annotations.pop(names.PAUSED, None)
    sim.kubernetes.out_of_service |= sim.kubernetes.lost_nodes
    for _ in range(5):
        sim.advance(1)
    sim.kubernetes.lost_nodes.clear()


WISHES: Final[tuple[Mishap, ...]] = (
    scale,
    upgrade,
    configure,
    expand,
    modify,
    gateways,
    restart,
    upgrade_operator,
    move,
)
FAULTS: Final[tuple[Mishap, ...]] = (
    kill_pod,
    delete_pod,
    power_cut,
    metadata_away,
    admins_away,
    interrupt_drains,
    scale_by_hand,
    remove_set,
    lose_node,
    lose_volume,
    pause,
    strip_claim,
    keep_claim,
    two_operators,
    share_disks,
)
UNHEALED: Final[tuple[Mishap, ...]] = (
    scale_far,
    scale_far,
    widen,
    break_image,
    break_template,
    break_template,
    upgrade,
    stop_first,
    cordon,
    uncordon,
    fill_quota,
    delete_pod,
    power_cut,
    kill_pod,
    delete_claim,
    strip_claim,
    adopt_claims,
    keep_claim,
    lose_volume,
    scale_by_hand,
    remove_set,
    restart,
    move,
    share_disks,
    interrupt_drains,
)
"""What stays as it is until somebody does something about it."""
