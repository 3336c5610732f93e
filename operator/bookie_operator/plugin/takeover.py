"""The way by which an earlier StatefulSet, and what belongs to it, becomes a cluster's, in place, and back.

It says what is there, and the next thing to do. What speaks against it is in `refusals`.

There, the StatefulSet is deleted without its pods, which get the cluster's labels; the operator then makes its own of
the same name, and rolls the pods as it rolls any new template: one after the other, each behind its gates. Back, it is
the same with the StatefulSet that was kept in the record.

Invariants
- The next thing follows from what is there: if a run dies between two of them, any other run can go on.
- The operator is paused before anything is changed, and has said so.
- No pod and no claim is made or deleted here but the pods on the way back, one at a time, each by its UID. As a pod has
  the same name and claims either way, Kubernetes never runs two of them.
- What is overwritten or deleted was kept before in the record, a ConfigMap.

Threads: values and pure functions, any thread; `Step.act` on the event loop.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from bookie_operator.api.admin import Admin, AdminError
from bookie_operator.api.kinds import (
    CLUSTER,
    CONFIG_MAP,
    STATEFUL_SET,
    KubernetesObject,
    key_of,
    resource_of,
)
from bookie_operator.builders import in_place, naming
from bookie_operator.builders.common import controller_of, is_own, labels
from bookie_operator.crds import names
from bookie_operator.observe.times import condition, seconds
from bookie_operator.planner import gates
from bookie_operator.plugin.clusters import pods_of
from bookie_operator.plugin.connection import Api
from bookie_operator.plugin.faults import Fault
from bookie_operator.plugin.forwarding import opener, read_token, session_to, trust_of
from bookie_operator.plugin.planning import Seen

_KEPT_KINDS: Final = frozenset({"Service", "ServiceAccount"})
"""Pods depend on them: they are handed over."""
_MADE_ANEW: Final = frozenset({"PodDisruptionBudget", "NetworkPolicy", "PodMonitor"})
"""Kinds that may be away for a while without a loss: the operator makes its own."""
_SERVER_SIDE: Final = ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "ownerReferences")
_ASK_S: Final = 30.0
_OWN_LABELS: Final = (names.NAME, names.INSTANCE, names.COMPONENT, names.PART_OF, names.MANAGED_BY)


class Phase(StrEnum):
    NONE = ""
    TAKING_OVER = "TakingOver"
    TAKEN_OVER = "TakenOver"
    GIVING_BACK = "GivingBack"
    GIVEN_BACK = "GivenBack"


def record_name(cluster: str) -> str:
    return f"{cluster}-in-place"


@dataclass(frozen=True)
class Sight:
    """All that counts, at one moment."""

    seen: Seen
    resource: KubernetesObject
    """The BookieCluster."""
    record: KubernetesObject | None
    stateful_set: KubernetesObject | None
    """StatefulSet of the cluster's name, whichever owner made it."""
    named: Mapping[str, KubernetesObject]
    """Objects by `Kind/name` that have the name of something that the cluster needs, and may be handed over."""
    pods: Mapping[str, KubernetesObject]
    """Pods by name, those of the StatefulSet's name."""
    others: tuple[KubernetesObject, ...]
    """The other pods of the namespace."""
    claims: dict[str, KubernetesObject]
    """Claims by name, those of these pods."""

    @property
    def phase(self) -> Phase:
        """A record of bookies that had these names before, in metadata of their own, tells nothing."""
        if self.record is None:
            return Phase.NONE
        own = self.seen.cluster.spec.bootstrap.instance_id
        data = self.record["data"]
        return Phase(data["phase"]) if data.get("instanceId", own) == own else Phase.NONE

    @property
    def kept(self) -> dict[str, KubernetesObject]:
        """Return what the record keeps, by `Kind/name`."""
        return json.loads(self.record["data"]["originals"]) if self.record is not None else {}

    @property
    def set_name(self) -> str:
        return naming.bookies(self.seen.cluster.name)

    @property
    def foreign(self) -> KubernetesObject | None:
        """The StatefulSet, if it has another owner."""
        found = self.stateful_set
        return found if found is not None and not is_own(found, self.seen.cluster) else None

    def claims_of(self, pod: str) -> Iterator[tuple[str, str]]:
        """Kind and name of each."""
        for kind in (naming.JOURNAL, naming.LEDGER):
            yield kind, naming.claim(in_place.claim_template(self.seen.cluster.spec, kind, 0), pod)


@dataclass(frozen=True)
class Step:
    words: str
    act: Callable[[Api], Awaitable[object]] | None = None
    """None: it is waited for."""


def of_pod_set(set_name: str, pod: KubernetesObject) -> bool:
    return re.fullmatch(rf"{re.escape(set_name)}-\d+", pod["metadata"]["name"]) is not None


def is_ready(pod: KubernetesObject) -> bool:
    return condition(pod, "Ready").get("status") == "True" and "deletionTimestamp" not in pod["metadata"]


def runs_ours(pod: KubernetesObject) -> bool:
    return names.TEMPLATE_HASH in _annotations(pod)


# --- there --------------------------------------------------------------------------------------------------------


def next_there(sight: Sight) -> Step | None:
    """None: everything is handed over, and the operator is at work."""
    left = (
        _claim_labels(sight)
        or _orphaned(sight, sight.foreign, "its pods go on without it")
        or _names_held(sight, theirs=True)
        or _pod_labels(sight)
        or _handed_over(sight)
    )
    if left is not None:
        return paused(sight) or left
    if not sight.seen.cluster.paused:
        return None
    return Step(
        "everything is handed over; the operator restarts the bookies, one after the other",
        lambda api: _merge(api, sight.resource, {"metadata": {"annotations": {names.PAUSED: None}}}),
    )


def paused(sight: Sight) -> Step | None:
    told = condition(sight.resource, "Paused").get("status") == "True"
    if not sight.seen.cluster.paused:
        if told:  # of an earlier pause: a pass may be at work since
            return Step("waits until the operator says that it goes on: does it run?")
        return Step(
            "the operator is paused",
            lambda api: _merge(api, sight.resource, {"metadata": {"annotations": {names.PAUSED: "true"}}}),
        )
    return None if told else Step("waits until the operator says that it is paused: does it run?")


def _claim_labels(sight: Sight) -> Step | None:
    cluster = sight.seen.cluster
    common = {**labels(cluster, naming.BOOKIE), names.INSTANCE_ID: cluster.spec.bootstrap.instance_id}
    for pod in sight.pods:
        for kind, name in sight.claims_of(pod):
            claim, wanted = sight.claims.get(name), {**common, names.VOLUME: kind}
            if claim is not None and not wanted.items() <= _labels(claim).items():
                return _merging(f"claim {name} is marked as the cluster's", claim, {"labels": wanted})
    return None


def _orphaned(sight: Sight, owner: KubernetesObject | None, then: str) -> Step | None:
    """The pods stay; a second of a name cannot be made while the first is there."""
    if owner is None:
        return None
    words = f"StatefulSet {sight.set_name} is deleted: {then}"
    if "deletionTimestamp" in owner["metadata"]:
        return Step(words)
    return Step(words, lambda api: _delete_as_seen(api, owner, "Orphan"))


def _names_held(sight: Sight, *, theirs: bool) -> Step | None:
    """Before labels of pods change: a Service that selects nothing keeps the addresses that it has, so the bookies are
    found by their names all the time. Its next owner selects again."""
    service = sight.named.get(f"Service/{sight.set_name}")
    if service is None or is_own(service, sight.seen.cluster) is theirs or not _selector(service):
        return None
    return Step(
        f"Service {sight.set_name} keeps the names that it has",
        lambda api: _merge(api, service, {"spec": {"selector": None}}),
    )


def _pod_labels(sight: Sight) -> Step | None:
    wanted, marks = labels(sight.seen.cluster, naming.BOOKIE), {names.TAKEN_OVER: "true"}
    for name, pod in sight.pods.items():
        done = wanted.items() <= _labels(pod).items() and (runs_ours(pod) or names.TAKEN_OVER in _annotations(pod))
        if not done:
            patch = {"labels": wanted} if runs_ours(pod) else {"labels": wanted, "annotations": marks}
            return _merging(f"pod {name} is marked as the cluster's", pod, patch)
    return None


def _handed_over(sight: Sight) -> Step | None:
    cluster = sight.seen.cluster
    for key, each in sight.named.items():
        if is_own(each, cluster):
            continue
        if each["kind"] in _MADE_ANEW:
            return Step(f"{key} makes way for the operator's own", lambda api, each=each: _delete_as_seen(api, each))  # type: ignore[misc]
        patch = {"labels": labels(cluster, naming.BOOKIE), "annotations": {names.KEPT_BY_HELM: "keep"}}
        return _merging(f"{key} is handed over", each, patch)
    return None


# --- back ---------------------------------------------------------------------------------------------------------


def next_back(sight: Sight) -> Step | None:
    """None: everything is as it was."""
    own = sight.stateful_set if sight.foreign is None else None
    return (
        paused(sight)
        or _orphaned(sight, own, "its pods go on without it")
        or _names_held(sight, theirs=False)
        or _pods_back(sight)
        or _objects_back(sight)
        or _set_back(sight)
        or _claims_back(sight)
        or _rolled_back(sight)
        or _strategy_back(sight)
    )


def added(sight: Sight) -> list[str]:
    """Bookies that the old StatefulSet did not have, and would stop as soon as it is made again."""
    number = int(sight.kept[f"StatefulSet/{sight.set_name}"]["spec"].get("replicas", 1))
    own = sight.stateful_set if sight.foreign is None else None
    asked = int(own["spec"].get("replicas", 1)) if own is not None else number
    there = {pod for pod in sight.pods if int(pod.rpartition("-")[2]) >= number}
    return sorted(there | {naming.pod(sight.set_name, each) for each in range(number, asked)})


def _pods_back(sight: Sight) -> Step | None:
    """Return the step that gives a pod back to the old StatefulSet; None: all pods are its own.

    Each pod gets the labels by which it selects; those that it made lose the operator's.
    """
    spec = sight.kept[f"StatefulSet/{sight.set_name}"]["spec"]
    selected = spec["selector"]["matchLabels"]
    made: Mapping[str, str] = spec["template"]["metadata"]["labels"]
    for name, pod in sight.pods.items():
        if names.TAKEN_OVER in _annotations(pod):
            lost = {each: None for each in _OWN_LABELS if each not in made}
            patch = {"labels": {**lost, **made}, "annotations": {names.TAKEN_OVER: None}}
        elif not selected.items() <= _labels(pod).items():
            patch = {"labels": selected}
        else:
            continue
        return _merging(f"pod {name} is marked as the old StatefulSet's", pod, patch)
    return None


def _objects_back(sight: Sight) -> Step | None:
    for key, old in sight.kept.items():
        live = sight.named.get(key)
        if old["kind"] == STATEFUL_SET.kind:
            continue
        if live is None:
            return Step(f"{key} is made again", lambda api, old=old: api.kubernetes.create(old))  # type: ignore[misc]
        if not is_own(live, sight.seen.cluster) and _selector(live) == _selector(old):
            continue
        if old["kind"] in _MADE_ANEW:
            return Step(f"{key} makes way for the old one", lambda api, live=live: _delete_as_seen(api, live))  # type: ignore[misc]
        return Step(f"{key} is as it was", lambda api, live=live, old=old: _restore(api, live, old))  # type: ignore[misc]
    return None


def _set_back(sight: Sight) -> Step | None:
    old = sight.kept[f"StatefulSet/{sight.set_name}"]
    if sight.stateful_set is None:
        held = {**old, "spec": {**old["spec"], "updateStrategy": {"type": "OnDelete"}}}
        return Step(
            f"StatefulSet {sight.set_name} is made again, and takes its pods back as they are",
            lambda api: api.kubernetes.create(held),
        )
    uid = sight.stateful_set["metadata"]["uid"]
    loose = [name for name, pod in sight.pods.items() if controller_of(pod).get("uid") != uid]
    return Step(f"waits until StatefulSet {sight.set_name} has taken {loose[0]} back") if loose else None


def _claims_back(sight: Sight) -> Step | None:
    for name, claim in sight.claims.items():
        if names.INSTANCE_ID in _labels(claim):
            ours = dict.fromkeys((*_OWN_LABELS, names.INSTANCE_ID, names.VOLUME))
            made: Mapping[str, str] = sight.kept[f"StatefulSet/{sight.set_name}"]["spec"]["selector"]["matchLabels"]
            return _merging(f"claim {name} is as it was", claim, {"labels": {**ours, **made}})
    return None


def _rolled_back(sight: Sight) -> Step | None:
    """Return the next pod that the old StatefulSet has to make again in place of the cluster's, the highest number
    first."""
    owner = sight.stateful_set
    assert owner is not None  # it was made before
    wanted = [naming.pod(sight.set_name, ordinal) for ordinal in range(int(owner["spec"].get("replicas", 1)))]
    for name in wanted:
        if name not in sight.pods or not is_ready(sight.pods[name]):
            return Step(f"waits until pod {name} is ready")
    pod = next_to_return(sight.pods, wanted)
    if pod is None:
        return None
    name = str(pod["metadata"]["name"])
    if (words := _not_now(sight, name, wanted)) is not None:
        return words
    return Step(f"pod {name} is made again by the old StatefulSet", lambda api: _delete(api, pod))


def next_to_return(pods: Mapping[str, KubernetesObject], wanted: list[str]) -> KubernetesObject | None:
    return next((pods[name] for name in reversed(wanted) if name in pods and runs_ours(pods[name])), None)


def _not_now(sight: Sight, name: str, wanted: list[str]) -> Step | None:
    """Return what the proof before a stop lacks."""
    world, desired = sight.seen.world, sight.seen.desired
    facts = world.facts
    if facts is None:
        return Step(f"waits for facts about the cluster: {world.facts_error or 'no pod is reachable'}")
    if facts.instance_id != world.cluster.status.instance_id:
        return Step(f"waits: the metadata service has instance id {facts.instance_id}, which is another cluster's")
    away = [each for each in wanted if desired.bookie_id(each) not in facts.writable]
    if away:
        return Step(f"waits until {', '.join(away)} takes new data")
    began = max(seconds(condition(sight.pods[each], "Ready").get("lastTransitionTime")) or 0.0 for each in wanted)
    obstacle = gates.first(gates.replicated(world), gates.returned_checked(world))
    if obstacle is None and not gates.audited_after(world, began):
        return Step("waits for an audit that began after the last restart", _audit(sight))
    obstacle = obstacle or gates.stoppable(world, frozenset({desired.bookie_id(name)}))
    return Step(f"waits: {obstacle.message}") if obstacle is not None else None


def _strategy_back(sight: Sight) -> Step | None:
    old = sight.kept[f"StatefulSet/{sight.set_name}"]["spec"].get("updateStrategy") or {"type": "RollingUpdate"}
    live = sight.stateful_set
    assert live is not None
    if live["spec"].get("updateStrategy", {}).get("type") == old["type"]:
        return None
    return Step(
        f"StatefulSet {sight.set_name} is as it was",
        lambda api: _merge(api, live, {"spec": {"updateStrategy": old}}),
    )


# --- the record ---------------------------------------------------------------------------------------------------


def new_record(sight: Sight) -> KubernetesObject:
    """Return the record of what others own now, but not of what the operator made in an earlier run. The phase is
    `TakingOver`."""
    cluster = sight.seen.cluster
    kept = {key: original(each) for key, each in sight.named.items() if not is_own(each, cluster)}
    assert sight.foreign is not None
    kept[key_of(sight.foreign)] = original(sight.foreign)
    metadata = {"name": record_name(cluster.name), "namespace": cluster.namespace}
    data = {
        "phase": Phase.TAKING_OVER.value,
        "instanceId": cluster.spec.bootstrap.instance_id,
        "originals": json.dumps(kept, sort_keys=True),
    }
    return {"apiVersion": "v1", "kind": CONFIG_MAP.kind, "metadata": metadata, "data": data}


def kept_anew(sight: Sight) -> dict[str, str] | None:
    """Return what the record is to keep instead, where an object was changed that is still to be handed over; None: all
    is as it was.

    Once the StatefulSet is gone those that pods depend on are changed here, and are kept as they were.
    """
    cluster, owner = sight.seen.cluster, sight.foreign
    candidates = dict(sight.named) if owner is None else {**sight.named, key_of(owner): owner}
    live = {
        key: original(each)
        for key, each in candidates.items()
        if not is_own(each, cluster)
        and "deletionTimestamp" not in each["metadata"]  # with what Kubernetes wrote to it since; it was kept before
        and (owner is not None or each["kind"] in _MADE_ANEW)
        and (_selector(each) or not _selector(sight.kept.get(key, {})))  # `_names_held`, and a StatefulSet made again
    }
    kept = {**sight.kept, **live}
    return None if kept == sight.kept else {"originals": json.dumps(kept, sort_keys=True)}


def original(obj: KubernetesObject) -> KubernetesObject:
    """Return the object as it may be made again."""
    metadata = {key: each for key, each in obj["metadata"].items() if key not in _SERVER_SIDE}
    return {key: each for key, each in obj.items() if key != "status"} | {"metadata": metadata}


def may_be_handed_over(key: str) -> bool:
    return key.partition("/")[0] in _KEPT_KINDS | _MADE_ANEW


# --- requests -----------------------------------------------------------------------------------------------------


def _audit(sight: Sight) -> Callable[[Api], Awaitable[object]]:
    """Return a request for an audit to the pod that gave the facts."""
    cluster, at = sight.seen.cluster.name, sight.seen.tellers[0]

    async def act(api: Api) -> None:
        async with session_to(await pods_of(api, cluster), opener(api)) as session:
            admin = Admin(session, await read_token(api, cluster), trust=trust_of(api, cluster), timeout_s=_ASK_S)
            try:
                await admin.trigger_audit(at)
            except AdminError as error:
                raise Fault(f"no audit could be asked for: {error}; repeat the command") from error

    return act


def _merging(words: str, obj: KubernetesObject, metadata: Mapping[str, Any]) -> Step:
    return Step(words, lambda api: _merge(api, obj, {"metadata": dict(metadata)}))


async def _merge(api: Api, obj: KubernetesObject, patch: KubernetesObject) -> None:
    found, resource = obj["metadata"], CLUSTER if obj.get("kind") == CLUSTER.kind else resource_of(obj)
    await api.kubernetes.merge_exactly(resource, found["namespace"], found["name"], found["uid"], patch)


async def _delete_as_seen(api: Api, obj: KubernetesObject, propagation: str = "Background") -> None:
    """Delete the object unless it was changed since: a change is to be kept first."""
    await _delete(api, obj, propagation, obj["metadata"]["resourceVersion"])


async def _delete(api: Api, obj: KubernetesObject, propagation: str = "Background", version: str = "") -> None:
    found = obj["metadata"]
    await api.kubernetes.delete(
        resource_of(obj),
        found["namespace"],
        found["name"],
        uid=found["uid"],
        propagation=propagation,
        resource_version=version,
    )


async def _restore(api: Api, live: KubernetesObject, old: KubernetesObject) -> None:
    """Restore the object as it was, whatever was added."""
    metadata = {**old["metadata"], "resourceVersion": live["metadata"]["resourceVersion"]}
    await api.kubernetes.replace({**old, "metadata": metadata})


def _selector(obj: KubernetesObject) -> Any:
    return (obj.get("spec") or {}).get("selector")


def _labels(obj: KubernetesObject) -> Mapping[str, str]:
    return obj["metadata"].get("labels") or {}


def _annotations(obj: KubernetesObject) -> Mapping[str, str]:
    return obj["metadata"].get("annotations") or {}
