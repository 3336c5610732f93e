"""Bookies that do not come up: replaced once `spec` was mended, else told with the remedy.

A StatefulSet never replaces a broken pod of an old template by itself, and a rollout does not begin while a bookie is
away. So:

1. Pods that are broken and have another template than `spec` has now are replaced by a rollout that begins at once,
   without its gates: they serve nobody. The bookies that work are restarted after them, through all gates.
2. Every other broken pod is told, with what to do about it. Lost volumes and directories are another flow's.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from bookie_operator.planner import view
from bookie_operator.planner.decision import Decision, Wait
from bookie_operator.planner.desired import Desired
from bookie_operator.planner.flows import rollout
from bookie_operator.planner.remedies import REASONS, remedy
from bookie_operator.world.model import PodFault, PodView, World

_LOST = frozenset({PodFault.VOLUME, PodFault.COOKIE})


def begin(world: World, desired: Desired) -> Decision | None:
    mended = rollout.mend(world, desired)
    if mended is not None:
        return mended
    broken = _broken(world)
    if not broken:
        return None
    others = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
    return Wait(REASONS[broken[0].fault], f"{broken[0].name}: {remedy(broken[0])}{others}", seconds=10.0, stalled=True)


def _broken(world: World) -> list[PodView]:
    expected = frozenset(view.expected_pods(world))
    return sorted(
        (
            pod
            for pod in world.pods
            if pod.name in expected and not pod.ready and not pod.deleting and pod.fault and pod.fault not in _LOST
        ),
        key=lambda pod: (pod.stateful_set, pod.ordinal),
    )
