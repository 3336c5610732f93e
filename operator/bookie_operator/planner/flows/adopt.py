"""A cluster that was deleted with its volumes retained is taken over: by its name, its instance id and its claims.

Invariants
- The metadata are never made: what the bookies find there must have the instance id of the volumes, or all stops.
- Nothing starts while more bookies' volumes are missing than a ledger can bear.
- It starts with the bookies that there were; `spec.replicas` counts afterwards.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from bookie_operator.planner import view
from bookie_operator.planner.actions import RecordState
from bookie_operator.planner.decision import Act, Decision, Event, Wait
from bookie_operator.planner.desired import Desired
from bookie_operator.world.model import ClaimView, World


def begin(world: World, desired: Desired) -> Decision | None:
    """Until the instance id is recorded; from then on the StatefulSets are made as if they had vanished."""
    if not view.adopts(world) or world.cluster.status.instance_id:
        return None
    wanted, refused = _instance_id(world)
    refused = refused or _claims_refused(world, desired, wanted)
    if refused is not None:
        return refused
    return Act(
        RecordState(instance_id=wanted),
        f"the cluster with instance id {wanted} is taken over",
        event=Event("Adopted", f"volumes and metadata of the cluster with instance id {wanted} are taken over"),
    )


def _instance_id(world: World) -> tuple[str, Wait | None]:
    asked = world.cluster.spec.bootstrap.instance_id
    kept = (world.identity or {}).get("instanceId", "")
    if asked and kept and asked != kept:
        return "", _stalled(
            "AdoptMismatch",
            f"bootstrap.instanceId is {asked}, the identity Secret of this name says {kept}: apply the right one",
        )
    if not asked and not kept:
        return "", _stalled(
            "AdoptUnknown",
            "there is no identity Secret of this name: tell bootstrap.instanceId, as the metadata service has it",
        )
    return asked or kept, None


def _claims_refused(world: World, desired: Desired, wanted: str) -> Wait | None:
    live = [one for one in view.claims(world) if not one.retired and not one.deleting]
    foreign = [one for one in live if one.instance_id and one.instance_id != wanted]
    if foreign:
        return _stalled(
            "AdoptMismatch",
            f"claim {foreign[0].name} is of the cluster with instance id {foreign[0].instance_id}, not {wanted}: "
            "tell the right bootstrap.instanceId, or delete the claims that do not belong to it",
        )
    whole = _whole_bookies(live)
    known = (world.identity or {}).get("replicas", "")
    before = int(known) if known.isdigit() else world.cluster.spec.replicas
    least = before - (world.cluster.spec.durability.write_quorum - 1)
    if len(whole) < max(1, least):
        return _stalled(
            "AdoptIncomplete",
            f"volumes of {len(whole)} of {before} bookies are there, and at least {max(1, least)} have to be: restore "
            f"the claims of {_named(desired, whole)}",
        )
    return None


def _whole_bookies(live: list[ClaimView]) -> set[str]:
    """Bookies of which journal and ledger volumes are there."""
    kinds: dict[str, set[str]] = {}
    for one in live:
        if not one.lost:
            kinds.setdefault(one.bookie, set()).add(one.volume)
    return {bookie for bookie, volumes in kinds.items() if {"journal", "ledger"} <= volumes}


def _named(desired: Desired, whole: set[str]) -> str:
    pods = [view.pod_name(one.name, n) for one in desired.stateful_sets for n in range(one.replicas)]
    missing = [pod for pod in pods if pod not in whole]
    return ", ".join(missing[:5]) or "the others"


def _stalled(reason: str, message: str) -> Wait:
    return Wait(reason, message, seconds=30.0, stalled=True)
