"""The flows: what is done, step by step, for each kind of change.

Each flow that takes more than one side effect is a module with three functions, the shape of `Flow` below; those that
are done with one idempotent action have `begin` alone.

What a `BookieTask` asks for is begun by functions of the flows' own, for `tasks`, which notes the task in the
operation (`operations.for_task`); each answers as `begin` does:

    rollout.restart(world, desired, pods, task, ...)    pods one after the other, with the flow's gates
    repair.replace(world, desired, pod, task)           empty disks and a new cookie, after the proof

A task for a bookie that `spec.replicas` no longer asks for begins nothing: it ends when that is gone.
"""

from __future__ import annotations

from typing import Protocol

from bookie_operator.crds.cluster_status import Operation
from bookie_operator.planner.decision import Decision, Needs
from bookie_operator.planner.desired import Desired
from bookie_operator.world.model import World


class Flow(Protocol):
    """Module-level functions of a flow; pure."""

    def begin(self, world: World, desired: Desired) -> Decision | None:
        """Decide what to do while no operation runs.

        None: nothing; `Record`: an operation begins; `Wait`: it is wanted, and its gates do not allow it (the rest of
        the pass goes on).
        """

    def proceed(self, world: World, desired: Desired, operation: Operation) -> Decision:
        """Decide what to do next for an operation of this flow's type, after any crash: it looks at the world first."""

    def needs(self, operation: Operation, desired: Desired) -> Needs:
        """Return what the pass that calls `proceed` has to read beside what is always read."""
