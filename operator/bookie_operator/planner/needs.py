"""What a pass has to read beside what it always reads: proofs, drains and safety answers are dear. The flow that an
operation belongs to tells it (`FLOWS`).

Called twice in a pass: the snapshot is read without any, then what this answers for it is added.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from bookie_operator.crds.cluster_status import OperationType
from bookie_operator.planner import giving_way
from bookie_operator.planner.decision import Needs
from bookie_operator.planner.desired import Desired
from bookie_operator.planner.flows import (
    Flow,
    decommission,
    delete,
    disruption,
    expand,
    garbage,
    repair,
    rollout,
    scale_up,
    tasks,
)
from bookie_operator.world.model import World

FLOWS: Final[Mapping[OperationType, Flow]] = {
    OperationType.SCALE_UP: scale_up,
    OperationType.DECOMMISSION: decommission,
    OperationType.ROLLOUT: rollout,
    OperationType.EXPAND: expand,
    OperationType.REPLACE: repair,
    OperationType.AUDIT: tasks,
    OperationType.DELETE: delete,
}


T = TypeVar("T")


def needs(world: World, desired: Desired) -> Needs:
    """`world`: as always read, with no proofs, drains or safety in it."""
    if world.cluster.deleting or world.cluster.paused:
        return Needs()
    operation = world.cluster.status.operation
    if operation is not None:
        return together(FLOWS[operation.type].needs(operation, desired), giving_way.needs(world, desired))
    return together(
        scale_up.needs_to_begin(world, desired),
        repair.needs_to_begin(world, desired),
        decommission.needs_to_begin(world, desired),
        disruption.needs(world, desired),
        garbage.needs(world, desired),
    )


def together(*some: Needs) -> Needs:
    return Needs(
        proofs=_all(one.proofs for one in some),
        drains=_all(one.drains for one in some),
        outlooks=_all(one.outlooks for one in some),
        safety=frozenset().union(*(one.safety for one in some)),
        accepted_losses=tuple(sorted(_all(frozenset(one.accepted_losses) for one in some))),
    )


def _all(sets: Iterable[frozenset[T]]) -> frozenset[T]:
    return frozenset().union(*sets)
