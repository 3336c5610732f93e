"""Which bookies a rollout has to restart, in which order, and what its steps save.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Final

from bookie_operator.crds import names
from bookie_operator.crds.cluster_status import OperationType
from bookie_operator.planner import gates, view
from bookie_operator.planner.desired import Desired, DesiredStatefulSet
from bookie_operator.planner.run import Run
from bookie_operator.world.model import PodView, StatefulSetView, World

RESTART: Final = "restart"
"""Pods that a task wants to be restarted, with the UIDs that they had."""
STOPPING: Final = "stopping"
"""Pods that are restarted now, with the UIDs that they had."""
RESTARTED: Final = "restarted"
"""Key for the number of pods that were restarted and worked."""
AUDITED: Final = "audited"
"""Set while nothing was restarted since the last audit."""
BACK: Final = "back"
"""Bookies that were stopped, and whose copies were not looked at since; those in `stopping` come to it. See `in_runs`:
the names of 1,000 pods are longer than a saved value may be. Earlier releases wrote the ids of the bookies."""
COPIES_ASKED: Final = "copiesAsked"
"""Set once the auditor was asked to look at the copies of these."""
BLIND: Final = "blind"
"""Value of `copiesAsked` if the facts did not list then which bookies wait. A pod of an earlier release drops such a
request, so it is repeated as soon as they do."""
UNCHECKED: Final = "unchecked"
"""Set once a look at copies did not end although the auditor had its time: the operation waits for no other one."""
READ_ONLY: Final = "readOnly"
"""Pods among `stopping` that took no new data before."""
DELAY: Final = "recoveryDelay"
"""Seconds, as they were before the rollout."""
RAISED: Final = "raisedDelay"
NEWEST: Final = "newestTemplate"
"""Set if a task restarts all bookies: they get what this release of the operator makes, see `holding`."""

TRUE: Final = "true"


def written(uids: Mapping[str, str]) -> str:
    return ",".join(f"{name}={uid}" for name, uid in uids.items())


def read(text: str) -> dict[str, str]:
    """Return the pairs in the order in which they were written."""
    pairs = (pair.partition("=") for pair in text.split(",") if pair)
    return {name: uid for name, _, uid in pairs}


def in_runs(pods: Iterable[str]) -> str:
    """Return names of pods by their StatefulSets, as `SET=0-4.7,OTHER=2`."""
    ordinals: dict[str, list[int]] = {}
    for name in set(pods):
        ordinals.setdefault(view.set_of(name), []).append(view.ordinal_of(name))
    return ",".join(f"{one}={'.'.join(_runs(sorted(found)))}" for one, found in sorted(ordinals.items()))


def _runs(ordinals: list[int]) -> Iterator[str]:
    for _, group in groupby(enumerate(ordinals), lambda pair: pair[1] - pair[0]):
        run = [ordinal for _, ordinal in group]
        yield f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}"


def _of_runs(text: str) -> Iterator[str]:
    for stateful_set, runs in read(text).items():
        for run in runs.split("."):
            first, _, last = run.partition("-")
            yield from (view.pod_name(stateful_set, one) for one in range(int(first), int(last or first) + 1))


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
    """Return those that are down; then zone by zone, in each the highest ordinal first."""
    return sorted(pods, key=lambda one: (not down(world, desired, one), one.zone, -one.ordinal, one.name))


def canary(pods: Iterable[PodView]) -> PodView:
    """Return the highest ordinal of all."""
    return min(pods, key=lambda one: (-one.ordinal, one.zone, one.name))


def down(world: World, desired: Desired, pod: PodView) -> bool:
    """Return whether it certainly does not serve: to delete it takes nothing away. Without facts about registrations a
    fault of another container is not enough."""
    if pod.ready:
        return False
    if world.facts is None:
        return bool(pod.fault) and not pod.bookie_runs
    return not gates.is_registered(world, desired, pod.name)


def known_down(world: World, desired: Desired) -> gates.Obstacle | None:
    """Return None if facts tell which bookies serve, or if certainly none does. Otherwise two that seem to be down may
    be all that serve."""
    if all(down(world, desired, pod) for pod in world.pods):
        return None
    return gates.told(world)


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


def brings_up(world: World, desired: Desired) -> bool:
    """Return whether a bookie works with the template that `spec` asks for."""
    wanted = {one.name: one.template_hash for one in desired.stateful_sets}
    return any(wanted.get(pod.stateful_set) == pod.template_hash and works(world, desired, pod) for pod in world.pods)


def _made_of(desired: Desired, stateful_set: str, template_hash: str) -> str | None:
    """None: what this release makes of `spec`, which is the like in every zone. Any other template is only like itself:
    one that is held, or is to be another one, may be an earlier release's, or of other wishes."""
    wanted = wanted_set(desired, stateful_set)
    newest = wanted is not None and wanted.name not in desired.held and wanted.template_hash == template_hash
    return None if newest else template_hash


def volume_gone(world: World, pod: PodView) -> bool:
    """Return whether a volume is surely gone: whatever else keeps a bookie from its volumes or directories may come
    from its template."""
    return any(claim.lost for claim in view.claims_of(world, pod.name))


def skips(world: World, operation_id: str) -> bool:
    """Return whether a person vouches for this one operation that missing copies do not matter."""
    return world.cluster.annotations.get(names.SKIP_REPLICATION_CHECK) == operation_id


def checks_copies(world: World, operation_id: str) -> bool:
    return world.cluster.spec.update.require_fully_replicated and not skips(world, operation_id)


def back(run: Run) -> frozenset[str]:
    """Return the ids of the bookies whose copies are still to be looked at."""
    pods, ids = _back(run)
    return ids.union(map(run.desired.bookie_id, pods))


def owed(run: Run) -> dict[str, str]:
    """Return values to save, so that those that are stopped now are still looked at once `stopping` is forgotten."""
    if run.saved(UNCHECKED):
        return {}
    pods, ids = _back(run)
    return {BACK: ",".join(filter(None, (in_runs(pods.union(stopping(run))), *sorted(ids))))}


def _back(run: Run) -> tuple[frozenset[str], frozenset[str]]:
    """Return names of pods, and the ids that an earlier release wrote."""
    parts = [part for part in run.saved(BACK).split(",") if part]
    runs = ",".join(part for part in parts if "=" in part)
    return frozenset(_of_runs(runs)), frozenset(part for part in parts if "=" not in part)


def not_waited_for(world: World, desired: Desired) -> frozenset[str]:
    """Return the bookie ids whose copies a rollout that runs does not wait for: those that it stops now; once it has
    given up a look, every one that waits for its look."""
    operation = world.cluster.status.operation
    if operation is None or operation.type is not OperationType.ROLLOUT:
        return frozenset()
    chosen = frozenset(map(desired.bookie_id, read(operation.saved.get(STOPPING, ""))))
    if world.facts is None or world.facts.unchecked is None or UNCHECKED not in operation.saved:
        return chosen
    return chosen | world.facts.unchecked


def owes_looks(world: World) -> bool:
    """Return whether a rollout runs that has not yet had every bookie looked at that it restarted, and waits for it."""
    operation = world.cluster.status.operation
    if operation is None or operation.type is not OperationType.ROLLOUT or UNCHECKED in operation.saved:
        return False
    return bool(operation.saved.get(BACK)) and checks_copies(world, operation.id)


def stops_in_spite_of_copies(world: World) -> bool:
    """A rollout is about to stop a bookie, and people want it to do so also while copies are missing."""
    operation = world.cluster.status.operation
    if operation is None or operation.type is not OperationType.ROLLOUT or operation.step != "Stop":
        return False
    return not checks_copies(world, operation.id)


def how_to_skip(obstacle: gates.Obstacle, operation_id: str) -> gates.Obstacle:
    """Return the obstacle with the words that let the operation go on all the same."""
    hint = f"; to go on all the same annotate the BookieCluster with {names.SKIP_REPLICATION_CHECK}={operation_id}"
    return gates.Obstacle(obstacle.reason, f"{obstacle.message}{hint}", obstacle.needs_person)


def takes_newest(world: World) -> bool:
    """Return whether a rollout runs that brings the newest template, though `spec` was not changed."""
    operation = world.cluster.status.operation
    return operation is not None and operation.saved.get(NEWEST) == TRUE


def stopping(run: Run) -> dict[str, str]:
    return read(run.saved(STOPPING))


def restarted(run: Run) -> int:
    return int(run.saved(RESTARTED) or "0")


def patience(run: Run) -> float:
    return run.world.cluster.spec.update.progress_deadline_seconds
