"""Which bookies a rollout has to restart, in which order, and what its steps save.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from bookie_operator.crds import names
from bookie_operator.crds.cluster_status import OperationType
from bookie_operator.planner import gates, view
from bookie_operator.planner.desired import Desired, DesiredStatefulSet
from bookie_operator.planner.run import Run
from bookie_operator.world.model import PodFault, PodView, StatefulSetView, World

RESTART: Final = "restart"
"""Pods that a task wants to be restarted, with the UIDs that they had."""
STOPPING: Final = "stopping"
"""Pods that are restarted now, with the UIDs that they had."""
RESTARTED: Final = "restarted"
"""How many were restarted and worked."""
AUDITED: Final = "audited"
"""Set while nothing was restarted since the last audit."""
READ_ONLY: Final = "readOnly"
"""Pods among `stopping` that took no new data before."""
DELAY: Final = "recoveryDelay"
"""Seconds, as they were before the rollout."""
RAISED: Final = "raisedDelay"
NEWEST: Final = "newestTemplate"
"""Set if a task restarts all bookies: they get what this release of the operator makes, see `holding`."""

TRUE: Final = "true"

_BROKEN: Final = frozenset(set(PodFault) - {PodFault.NONE})


def written(uids: Mapping[str, str]) -> str:
    return ",".join(f"{name}={uid}" for name, uid in uids.items())


def read(text: str) -> dict[str, str]:
    """In the order in which they were written."""
    pairs = (pair.partition("=") for pair in text.split(",") if pair)
    return {name: uid for name, _, uid in pairs}


def wanted_set(desired: Desired, name: str) -> DesiredStatefulSet | None:
    return next((one for one in desired.stateful_sets if one.name == name), None)


def unstaged(world: World, desired: Desired) -> list[StatefulSetView]:
    """StatefulSets that have another template than is desired."""
    return [
        one
        for one in world.stateful_sets
        if (wanted := wanted_set(desired, one.name)) is not None and one.template_hash != wanted.template_hash
    ]


def outdated(world: World, desired: Desired, restart: Mapping[str, str] | None = None) -> list[PodView]:
    """Pods of another template than is desired, and those that are to be restarted, but for bookies that are withdrawn;
    in the order of `ordered`."""
    expected, asked = frozenset(view.expected_pods(world)), restart or {}
    found = []
    for pod in world.pods:
        wanted = wanted_set(desired, pod.stateful_set)
        if wanted is None or pod.name not in expected or gates.withdrawn(world, desired, pod.name):
            continue
        if pod.template_hash != wanted.template_hash or asked.get(pod.name) == pod.uid:
            found.append(pod)
    return ordered(world, desired, found)


def ordered(world: World, desired: Desired, pods: Iterable[PodView]) -> list[PodView]:
    """Those that are down; then zone by zone, in each the highest ordinal first."""
    return sorted(pods, key=lambda one: (not down(world, desired, one), one.zone, -one.ordinal, one.name))


def canary(pods: Iterable[PodView]) -> PodView:
    """The highest ordinal of all."""
    return min(pods, key=lambda one: (-one.ordinal, one.zone, one.name))


def down(world: World, desired: Desired, pod: PodView) -> bool:
    """It serves nobody, for sure: to delete it takes nothing away."""
    if pod.ready:
        return False
    if world.facts is None:
        return pod.fault in _BROKEN
    return not gates.is_registered(world, desired, pod.name)


def replaceable(world: World, desired: Desired, pod: PodView) -> bool:
    """It is down, and a new pod of it may be what it needs: its volumes are there, and stay when this one goes."""
    stays = not pod.deleting and view.going_claim(world, pod.name) is None
    return stays and down(world, desired, pod) and not volume_gone(world, pod)


def alike(world: World, desired: Desired, stateful_set: str, template_hash: str) -> list[PodView]:
    """Pods of this template of the StatefulSet's, or of the like of it in another zone."""
    made = _made_of(desired, stateful_set, template_hash)
    return [pod for pod in world.pods if _made_of(desired, pod.stateful_set, pod.template_hash) == made]


def works(world: World, desired: Desired, pod: PodView) -> bool:
    return pod.ready and not pod.deleting and gates.is_registered(world, desired, pod.name)


def _made_of(desired: Desired, stateful_set: str, template_hash: str) -> str | None:
    """None: what this release makes of `spec`, which is the like in every zone. Any other template is only like itself:
    one that is held, or is to be another one, may be an earlier release's, or of other wishes."""
    wanted = wanted_set(desired, stateful_set)
    newest = wanted is not None and wanted.name not in desired.held and wanted.template_hash == template_hash
    return None if newest else template_hash


def volume_gone(world: World, pod: PodView) -> bool:
    """For sure: whatever else keeps a bookie from its volumes or directories may come from its template."""
    return any(claim.lost for claim in view.claims_of(world, pod.name))


def skips(world: World, operation_id: str) -> bool:
    """A person vouches for this one operation that missing copies do not matter."""
    return world.cluster.annotations.get(names.SKIP_REPLICATION_CHECK) == operation_id


def checks_copies(world: World, operation_id: str) -> bool:
    return world.cluster.spec.update.require_fully_replicated and not skips(world, operation_id)


def stops_in_spite_of_copies(world: World) -> bool:
    """A rollout is about to stop a bookie, and people want it to do so also while copies are missing."""
    operation = world.cluster.status.operation
    if operation is None or operation.type is not OperationType.ROLLOUT or operation.step != "Stop":
        return False
    return not checks_copies(world, operation.id)


def how_to_skip(obstacle: gates.Obstacle, operation_id: str) -> gates.Obstacle:
    """With the words that let it go on all the same."""
    hint = f"; to go on all the same annotate the BookieCluster with {names.SKIP_REPLICATION_CHECK}={operation_id}"
    return gates.Obstacle(obstacle.reason, f"{obstacle.message}{hint}", obstacle.needs_person)


def takes_newest(world: World) -> bool:
    """A rollout runs that brings the newest template, though nobody changed `spec`."""
    operation = world.cluster.status.operation
    return operation is not None and operation.saved.get(NEWEST) == TRUE


def stopping(run: Run) -> dict[str, str]:
    return read(run.saved(STOPPING))


def restarted(run: Run) -> int:
    return int(run.saved(RESTARTED) or "0")


def patience(run: Run) -> float:
    return run.world.cluster.spec.update.progress_deadline_seconds
