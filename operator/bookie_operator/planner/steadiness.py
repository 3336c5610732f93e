"""Nothing is left to change: is all well, or what has to come about by itself?

Threads: pure functions, any thread.
"""

from __future__ import annotations

from typing import Final

from bookie_operator.planner import view
from bookie_operator.planner.decision import Wait
from bookie_operator.planner.desired import Desired
from bookie_operator.world.model import World

_SHOWN: Final = 5
_FULL_PERCENT: Final = 80.0
"""Of a disk that may be full by the bookie's own measure."""


def unsteady(world: World, desired: Desired) -> Wait | None:
    """The first thing that is not as it should be; None: all is well."""
    return _pods(world) or _metadata(world, desired) or _replication(world) or _gateways(world)


def _pods(world: World) -> Wait | None:
    busy = view.unsettled(world)
    if busy is not None:
        return Wait("StatefulSetBusy", f"waits for the controller of StatefulSet {busy.name}", seconds=1.0)
    waiting = [name for name in view.expected_pods(world) if not _ready(world, name)]
    if waiting:
        return Wait("BookiesNotReady", f"waits for {_listed(waiting)} to be ready", seconds=5.0)
    return None


def _ready(world: World, name: str) -> bool:
    found = view.pod(world, name)
    return found is not None and found.ready and not found.deleting


def _metadata(world: World, desired: Desired) -> Wait | None:
    if world.facts is None:
        why = world.facts_error or "no pod told the state of the cluster"
        return Wait("MetadataUnreachable", f"cannot tell the state of the cluster: {why}", seconds=10.0)
    away = [name for name in view.expected_pods(world) if desired.bookie_id(name) not in world.facts.registered]
    if away:
        return Wait("BookiesNotRegistered", f"waits for {_listed(away)} to register", seconds=5.0)
    closed = [name for name in view.expected_pods(world) if desired.bookie_id(name) in world.facts.read_only]
    if closed:
        why = _why(world, desired, closed)
        return Wait("BookiesReadOnly", f"{_listed(closed)} take no writes: {why}", seconds=30.0)
    return None


def _why(world: World, desired: Desired, closed: list[str]) -> str:
    with_room = [
        name for name in closed if (told := world.bookies.get(name)) is not None and told.used_percent < _FULL_PERCENT
    ]
    if not with_room:
        return "are their disks full?"
    bookie_id = desired.bookie_id(with_room[0])
    return (
        f"{_listed(with_room)} with room on the disks, so somebody made them read-only, or drains them. Take that back"
        f" with `bookie cluster decommission {bookie_id} --undo`, or with PUT /api/v1/bookie/state/readonly"
    )


def _replication(world: World) -> Wait | None:
    missing = world.autorecovery.replicas - world.autorecovery.ready
    if missing > 0:
        return Wait("AutorecoveryNotReady", f"waits for {missing} auto-recovery pods", seconds=10.0)
    replicated = view.fully_replicated(world)
    if replicated is False and world.facts is not None:
        return Wait("UnderReplicated", f"{world.facts.under_replicated} ledgers are under-replicated", seconds=10.0)
    if replicated is None:
        return Wait("AuditPending", "waits for the first complete audit", seconds=10.0)
    return None


def _gateways(world: World) -> Wait | None:
    missing = world.gateway.replicas - world.gateway.ready
    return Wait("GatewayNotReady", f"waits for {missing} gateway pods", seconds=10.0) if missing > 0 else None


def _listed(some: list[str]) -> str:
    more = f" and {len(some) - _SHOWN} more" if len(some) > _SHOWN else ""
    return ", ".join(some[:_SHOWN]) + more
