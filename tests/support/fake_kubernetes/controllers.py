"""The controllers that the operator relies on: StatefulSets, Deployments, Jobs, volumes.

One step brings the world as far as it can go at once; a pod takes one step to start and, if it is told so, never gets
ready."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from bookie_operator.api.kinds import CLAIM, CRON_JOB, DEPLOYMENT, JOB, NODE, POD, STATEFUL_SET, STORAGE_CLASS, Resource
from bookie_operator.builders import location
from bookie_operator.builders.common import content_hash
from bookie_operator.crds import names
from tests.support.fake_kubernetes.claims import Driver
from tests.support.fake_kubernetes.objects import Object
from tests.support.fake_kubernetes.store import Store


@dataclass
class Controllers:
    store: Store
    started: Callable[[Object], None]
    """A pod's program runs."""
    job_message: Callable[[str], str]
    """Termination message of a Job's pod, by the Job's name."""
    refuses: Callable[[Object], bool] = lambda pod: False
    """A pod's program ends, because cookie and directories disagree."""
    held: Callable[[Object], Object | None] = lambda pod: None
    """The status of a pod whose init container waits; None: it may start."""
    stuck: dict[str, Object] = field(default_factory=dict)
    """Pods, by name, that do not get ready, with the state of their container."""
    broken_images: set[str] = field(default_factory=set)
    ends: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Of runs of BookieJobs, by the BookieJob's name: exit code and termination message. Without, they go on."""
    backup_ends: tuple[int, str] | None = (0, "6 /backups/metadata-x")
    """So ends every backup of the metadata; None: they go on."""
    job_messages: dict[str, str] = field(default_factory=dict)
    """Instead of `job_message`, by the Job's name."""
    no_pods: set[str] = field(default_factory=set)
    """Jobs whose pods nobody can make."""
    driver: Driver = field(init=False)
    _addresses: Iterator[int] = field(default_factory=lambda: itertools.count(2))
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(29_000_000))

    def __post_init__(self) -> None:
        self.driver = Driver(self.store)

    def step(self) -> bool:
        """Whether anything changed."""
        before = self.store.version
        for each in self.store.list(STATEFUL_SET):
            self._stateful_set(each)
        for each in self.store.list(DEPLOYMENT):
            self._deployment(each)
        for each in self.store.list(JOB):
            self._job(each)
        for each in self.store.list(CLAIM):
            self._claim(each)
        for each in self.store.list(POD):
            self._pod(each)
        return self.store.version != before

    # --- StatefulSets -------------------------------------------------------------------------------------------------

    def _stateful_set(self, owner: Object) -> None:
        namespace, name, spec = owner["metadata"]["namespace"], owner["metadata"]["name"], owner["spec"]
        if "deletionTimestamp" in owner["metadata"]:
            return
        wanted = [f"{name}-{ordinal}" for ordinal in range(spec["replicas"])]
        revision = f"{name}-{content_hash(spec['template'], 10)}"
        for pod in self.store.children(POD, namespace, spec["selector"]["matchLabels"]):
            self._adopt(owner, pod)
            if _owner_of(pod) == owner["metadata"]["uid"] and pod["metadata"]["name"] not in wanted:
                self.store.delete(POD, namespace, pod["metadata"]["name"])
        for pod_name in wanted:
            if self.store.find(POD, namespace, pod_name) is None and self._claims(owner, pod_name):
                self._make(owner, pod_name, _with_claims(spec, pod_name), revision, pod_name)
        pods = [pod for each in wanted if (pod := self.store.find(POD, namespace, each)) is not None]
        status = {
            "observedGeneration": owner["metadata"]["generation"],
            "replicas": len(pods),
            "readyReplicas": sum(is_ready(pod) for pod in pods),
            "updateRevision": revision,
        }
        self._status(STATEFUL_SET, owner, status)

    def _adopt(self, owner: Object, pod: Object) -> None:
        name, metadata = owner["metadata"]["name"], pod["metadata"]
        if not metadata.get("ownerReferences") and metadata["name"].rpartition("-")[0] == name:
            patch = {"metadata": {"ownerReferences": [_reference(owner)]}}
            self.store.patch(POD, metadata["namespace"], metadata["name"], patch)

    def _claims(self, owner: Object, pod_name: str) -> bool:
        """Whether none of them is just going."""
        namespace = owner["metadata"]["namespace"]
        for template in owner["spec"].get("volumeClaimTemplates") or ():
            name = f"{template['metadata']['name']}-{pod_name}"
            live = self.store.find(CLAIM, namespace, name)
            if live is not None and "deletionTimestamp" in live["metadata"]:
                return False
            if live is None:
                labels = {**(template["metadata"].get("labels") or {}), **owner["spec"]["selector"]["matchLabels"]}
                metadata = {
                    "name": name,
                    "labels": labels,
                    "annotations": dict(template["metadata"].get("annotations") or {}),
                    "finalizers": ["kubernetes.io/pvc-protection"],
                }
                self.store.create(CLAIM, namespace, {"metadata": metadata, "spec": copy.deepcopy(template["spec"])})
        return True

    def _make(self, owner: Object, name: str, template: Object, revision: str, hostname: str) -> None:
        metadata: Any = copy.deepcopy(template.get("metadata") or {})
        metadata |= {"name": name, "ownerReferences": [_reference(owner)]}
        metadata.setdefault("labels", {})["controller-revision-hash"] = revision
        spec = {**copy.deepcopy(template["spec"]), "hostname": hostname}
        body = {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}
        self.store.create(POD, owner["metadata"]["namespace"], body)

    # --- others -------------------------------------------------------------------------------------------------------

    def _deployment(self, owner: Object) -> None:
        namespace, name, spec = owner["metadata"]["namespace"], owner["metadata"]["name"], owner["spec"]
        uid, generation = owner["metadata"]["uid"], owner["metadata"]["generation"]
        wanted = [f"{name}-{uid[:8]}g{generation}-p{number}x" for number in range(spec.get("replicas", 1))]
        for pod in self.store.list(POD, namespace):
            if _owner_of(pod) == uid and pod["metadata"]["name"] not in wanted:
                self.store.delete(POD, namespace, pod["metadata"]["name"])
        for pod_name in wanted:
            if self.store.find(POD, namespace, pod_name) is None:
                self._make(owner, pod_name, spec["template"], "x", pod_name)
        ready = sum(_owner_of(pod) == uid and is_ready(pod) for pod in self.store.list(POD, namespace))
        status = {"observedGeneration": generation, "readyReplicas": ready, "updatedReplicas": len(wanted)}
        self._status(DEPLOYMENT, owner, status)

    def _job(self, owner: Object) -> None:
        namespace, name = owner["metadata"]["namespace"], owner["metadata"]["name"]
        if (owner.get("status") or {}).get("conditions") or owner["spec"].get("suspend") or name in self.no_pods:
            return
        pod = self.store.find(POD, namespace, f"{name}-abcde")
        if pod is None:
            self._make(owner, f"{name}-abcde", owner["spec"]["template"], "x", name)
            pod = self.store.get(POD, namespace, f"{name}-abcde")
        of_a_job = (owner["metadata"].get("labels") or {}).get(names.JOB)
        end: tuple[int, str] | None
        if of_a_job:
            end = self.ends.get(of_a_job)
        elif (owner["metadata"].get("labels") or {}).get(names.COMPONENT) == "backup":
            end = self.backup_ends
        else:
            end = (0, self.job_messages.get(name, self.job_message(name)))
        if end is not None:
            self._end(owner, pod, *end)

    def _end(self, owner: Object, pod: Object, code: int, message: str) -> None:
        now = self.store.time()
        terminated = {"exitCode": code, "message": message, "finishedAt": now}
        done = {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [{"name": "job", "state": {"terminated": terminated}}],
        }
        self._status(POD, pod, done)
        kind, reason = ("Failed", "BackoffLimitExceeded") if code else ("Complete", "")
        condition = {"type": kind, "status": "True", "reason": reason, "lastTransitionTime": now}
        ended = {"failed": 1} if code else {"completionTime": now, "succeeded": 1}
        self._status(JOB, owner, {"conditions": [condition], **ended})

    def fire(self, namespace: str, name: str) -> str:
        """The schedule of a CronJob is due; the name of the Job that it makes, empty: it is suspended."""
        owner = self.store.get(CRON_JOB, namespace, name)
        if owner["spec"]["suspend"]:
            return ""
        template: Any = copy.deepcopy(owner["spec"]["jobTemplate"])
        made = f"{name}-{next(self._numbers)}"
        metadata = {**template["metadata"], "name": made, "ownerReferences": [_reference(owner)]}
        self.store.create(JOB, namespace, {"metadata": metadata, "spec": template["spec"]})
        self._status(CRON_JOB, owner, {"lastScheduleTime": self.store.time()})
        return made

    def _claim(self, claim: Object) -> None:
        namespace, name = claim["metadata"]["namespace"], claim["metadata"]["name"]
        if "deletionTimestamp" in claim["metadata"]:
            if not any(name.endswith(f"-{pod['metadata']['name']}") for pod in self.store.list(POD, namespace)):
                self.store.patch(CLAIM, namespace, name, {"metadata": {"finalizers": []}})
            return
        size = claim["spec"]["resources"]["requests"]["storage"]
        capacity = ((claim.get("status") or {}).get("capacity") or {}).get("storage")
        if capacity is None:
            if self.driver.accepts(claim):
                named = claim["spec"].get("volumeAttributesClassName")
                has = {"currentVolumeAttributesClassName": named} if named else {}
                self._status(CLAIM, claim, {"phase": "Bound", "capacity": {"storage": size}, **has})
            return
        grown = {"capacity": {"storage": size}} if capacity != size and self._grows(claim) else {}
        self._status(CLAIM, claim, {**grown, **self.driver.status_of(claim)})

    def _grows(self, claim: Object) -> bool:
        found = self.store.find(STORAGE_CLASS, "", claim["spec"].get("storageClassName") or "standard")
        return found is not None and found.get("allowVolumeExpansion") is True

    def _pod(self, pod: Object) -> None:
        name, status = pod["metadata"]["name"], pod.get("status") or {}
        if status.get("phase") in ("Succeeded", "Failed") or is_ready(pod):
            return
        if self._unbound(pod):
            return
        if "nodeName" not in pod["spec"]:
            if self._cordoned(node := _node_of(pod)):
                return
            pod = self.store.patch(POD, pod["metadata"]["namespace"], name, {"spec": {"nodeName": node}})
        if self._waits_for_location(pod):
            return
        if (held := self.held(pod)) is not None:
            if {**status, **held} != status:
                self._status(POD, pod, held)
            return
        address = status.get("podIP") or self._address()
        waiting = self.stuck.get(name)
        if waiting is None and pod["spec"]["containers"][0].get("image") in self.broken_images:
            waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
        if waiting is None and self.refuses(pod):
            waiting = {"terminated": {"exitCode": 2, "message": "there is no cookie"}}
        now = self.store.time()
        ready = waiting is None
        program = "etcd" if pod["spec"]["containers"][0]["name"] == "etcd" else "bookie"
        new = {
            "phase": "Running" if ready else "Pending",
            "podIP": address,
            "conditions": [
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": now},
                {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": now},
            ],
            "containerStatuses": [
                {"name": program, "restartCount": 0, "state": {"running": {"startedAt": now}} if ready else waiting}
            ],
        }
        if {**new, "conditions": 0} == {**status, "conditions": 0}:
            return
        stored = self._status(POD, pod, new)
        if ready:
            self.started(stored)

    def _waits_for_location(self, pod: Object) -> bool:
        """Its init container waits for an annotation. Where there is no Node nobody could write it, and it waits no
        longer."""
        learns = any(each["name"] == location.NAME for each in pod["spec"].get("initContainers") or ())
        told = names.NETWORK_LOCATION in (pod["metadata"].get("annotations") or {})
        return learns and not told and self.store.find(NODE, "", pod["spec"]["nodeName"]) is not None

    def _unbound(self, pod: Object) -> bool:
        """A claim of a StatefulSet's pod has no volume."""
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        claims = [each for each in self.store.list(CLAIM, namespace) if each["metadata"]["name"].endswith(f"-{name}")]
        return any("capacity" not in (each.get("status") or {}) for each in claims)

    def _cordoned(self, node: str) -> bool:
        found = self.store.find(NODE, "", node)
        return found is not None and (found.get("spec") or {}).get("unschedulable") is True

    def _address(self) -> str:
        number = next(self._addresses)
        return f"127.1.{number // 250}.{number % 250 + 2}"

    def _status(self, resource: Resource, obj: Object, status: Object) -> Object:
        metadata = obj["metadata"]
        live = self.store.get(resource, metadata["namespace"], metadata["name"])
        new = {"metadata": {"resourceVersion": ""}, "status": {**(live.get("status") or {}), **status}}
        return self.store.replace(resource, metadata["namespace"], metadata["name"], new, "status")


def _with_claims(spec: Object, pod_name: str) -> Object:
    """The template of a StatefulSet's pod, with the claims that it mounts."""
    names = [each["metadata"]["name"] for each in spec.get("volumeClaimTemplates") or ()]
    claims = [{"name": each, "persistentVolumeClaim": {"claimName": f"{each}-{pod_name}"}} for each in names]
    pod = spec["template"]["spec"]
    return {**spec["template"], "spec": {**pod, "volumes": [*(pod.get("volumes") or ()), *claims]}}


def _node_of(pod: Object) -> str:
    """Each zone has a node for each ordinal; all other pods share one."""
    zone = (pod["spec"].get("nodeSelector") or {}).get("topology.kubernetes.io/zone")
    return f"node-{zone}-{pod['metadata']['name'].rpartition('-')[2]}" if zone else "node-1"


def is_ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _reference(owner: Object) -> Object:
    metadata = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }


def _owner_of(pod: Object) -> str:
    return next((each["uid"] for each in pod["metadata"].get("ownerReferences") or () if each.get("controller")), "")
