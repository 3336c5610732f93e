"""What a pass has to read beside what it always reads: proofs, drains and safety answers are dear.

Called twice in a pass: the snapshot is read without any, then what this answers for it is added.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from bookie_operator.planner import giving_way
from bookie_operator.planner.decision import Needs
from bookie_operator.planner.desired import Desired
from bookie_operator.planner.flows import decommission, garbage, registry, repair, scale_up, zone_drain
from bookie_operator.world.model import World

T = TypeVar("T")


def needs(world: World, desired: Desired) -> Needs:
    """`world`: as always read, with no proofs, drains or safety in it."""
    if world.cluster.deleting or world.cluster.paused:
        return Needs()
    operation = world.cluster.status.operation
    if operation is not None:
        return together(registry.FLOWS[operation.type].needs(operation, desired), giving_way.needs(world, desired))
    return together(
        scale_up.needs_to_begin(world, desired),
        repair.needs_to_begin(world, desired),
        decommission.needs_to_begin(world, desired),
        zone_drain.needs(world, desired),
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
