"""A new template reaches the members of the etcd that the operator runs, one after the other.

Invariants
- A member is restarted only while every member serves, and is evicted, so the disruption budget counts too.
- The leader comes last: it has to hand over its work once then, and not with every restart.
- It holds up nothing else: an operation whose members do not come back ends, and begins again once they serve.

Step: `Restart`.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from typing import Final

from bookie_operator.crds.cluster_spec import UpdateStrategy
from bookie_operator.crds.cluster_status import Operation, OperationType
from bookie_operator.planner import operations, windows
from bookie_operator.planner.actions import EvictPod
from bookie_operator.planner.decision import Act, Decision, Event, EventType, Needs, Record, Wait
from bookie_operator.planner.desired import Desired, DesiredMembers
from bookie_operator.planner.flows import members
from bookie_operator.planner.run import Run, take
from bookie_operator.world.model import PodView, World

RESTART: Final = "Restart"


def begin(world: World, desired: Desired) -> Decision | None:
    update = world.cluster.spec.update
    if desired.members is None or update.strategy is UpdateStrategy.MANUAL:
        return None
    outdated = _outdated(world, desired.members)
    if not outdated:
        return None
    why = f"members of etcd have an earlier template: {', '.join(pod.name for pod in outdated)}"
    if not windows.is_open(update, world.now):
        return Wait("MaintenanceWindow", f"{why}; {windows.opens(update, world.now)}", seconds=60.0)
    if refused := _refused(world, desired.members):
        return Wait("MembersAway", f"{why}; {refused}")
    return Record(operations.new(world, OperationType.METADATA, RESTART), why)


def proceed(world: World, desired: Desired, operation: Operation) -> Decision:
    return take(_STEPS, Run(world, desired, operation))


def needs(operation: Operation, desired: Desired) -> Needs:
    return Needs()


def _restart(run: Run) -> Decision:
    wanted = run.desired.members
    if wanted is None:
        return run.finish("the operator runs no etcd any more", outcome="Cancelled")
    if refused := _refused(run.world, wanted):
        if operations.overdue(run.world, run.operation, run.progress_deadline):
            # Other work may be what helps; the rest is restarted by another operation once every member serves.
            event = Event("MembersAway", f"restarts of members of etcd end: {refused}", EventType.WARNING)
            return run.finish(refused, outcome="Failed", event=event)
        return run.wait("MembersAway", refused)
    outdated = _outdated(run.world, wanted)
    if not outdated:
        return run.finish("every member of etcd has the template of spec")
    update = run.world.cluster.spec.update
    if not windows.is_open(update, run.world.now):
        return run.finish(f"no window of update.windows is open any more; {windows.opens(update, run.world.now)}")
    pod = min(outdated, key=lambda one: (_leads(run.world, one), -one.ordinal))
    progressed = run.progressed(f"{pod.name} restarts").operation
    return Act(EvictPod(pod.name, pod.uid), f"{pod.name} gets its new template", operation=progressed)


def _outdated(world: World, wanted: DesiredMembers) -> list[PodView]:
    return [pod for pod in members.pods(world, wanted).values() if pod.template_hash != wanted.template_hash]


def _refused(world: World, wanted: DesiredMembers) -> str:
    """Return why no member may be restarted now; empty: one may."""
    if world.facts is None:
        return f"the state of the cluster is unknown: {world.facts_error or 'no pod reached the metadata service'}"
    away = members.away(world, wanted)
    return f"waits for {', '.join(away)} to serve" if away else ""


def _leads(world: World, pod: PodView) -> bool:
    told = world.etcd.health.get(pod.name) if world.etcd is not None else None
    return told is not None and told.leader == told.id


_STEPS: Final = {RESTART: _restart}
