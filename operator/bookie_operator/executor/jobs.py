"""Carries out what was planned about a BookieJob.

Invariants
- Objects are applied before the run that needs them is made.
- Whatever is deleted or stopped is named by its UID; what is gone already, or is another one, is left alone.

Threads: one event loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from bookie_operator.api.errors import Absent, Conflict
from bookie_operator.api.kinds import resource_of_kind
from bookie_operator.api.kubernetes import Kubernetes
from bookie_operator.builders.jobs.build import JobObjects
from bookie_operator.planner.jobs.desired import JobPlan


async def carry_out_job(
    kubernetes: Kubernetes, namespace: str, plan: JobPlan, objects: JobObjects | None, may_act: Callable[[], None]
) -> None:
    """`may_act` is called before each side effect, and raises if this process may not act any more.

    Raises KubernetesError.
    """
    if objects is not None:
        for key in plan.apply:
            may_act()
            await kubernetes.apply(objects.manifest(key))
    if plan.suspension is not None:
        kind, _, name = plan.suspension.key.partition("/")
        may_act()
        with contextlib.suppress(Absent, Conflict):
            await kubernetes.merge_exactly(
                resource_of_kind(kind),
                namespace,
                name,
                plan.suspension.uid,
                {"spec": {"suspend": plan.suspension.suspended}},
            )
    for removal in plan.removals:
        kind, _, name = removal.key.partition("/")
        may_act()
        with contextlib.suppress(Absent, Conflict):
            await kubernetes.delete(resource_of_kind(kind), namespace, name, uid=removal.uid)
