"""The common parts of all objects of a cluster: labels, owner, hash, account, and the security of pods.

It also says whose an object is that bears a name which an object of a cluster has.

A hash shows whether an object has to be applied again, or a pod to be replaced. Canonical JSON is UTF-8 with sorted
keys and without blanks; the hash is SHA-256 in lower-case hexadecimal digits. Equal contents have equal hashes whatever
order they were made in, also in another process and another release.

Names are made of the cluster's, and others may have had the same thought: the bookies of a Pulsar release `pulsar` have
a Service `pulsar-bookie` too. An object of another owner is neither changed nor deleted (`is_own`).

Invariants
- Selectors are a subset of the labels of what they select, and hold neither version nor hash.
- Pods satisfy the restricted Pod Security Standard. Their account may do nothing, and its token is mounted nowhere.

Threads: pure functions, any thread.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from bookie_operator.builders import naming
from bookie_operator.crds import names
from bookie_operator.crds.cluster_spec import BootstrapMode, Nodes
from bookie_operator.crds.pod_spec import User
from bookie_operator.world.model import ClusterView

APP: Final = "podkeeper"
MANAGER: Final = "podkeeper-operator"
KIND: Final = "BookieCluster"
HOSTNAME: Final = "kubernetes.io/hostname"
USER: Final = 10001
"""User and group of the image."""

OWN_VOLUME: Final = "podkeeper-"
"""Begins the names of volumes that the operator adds, so that they are none of the user's."""
TEMPORARY: Final = f"{OWN_VOLUME}tmp"
CONTAINER_SECURITY: Final[Mapping[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}
READ_ONLY_CONTAINER: Final[Mapping[str, Any]] = {**CONTAINER_SECURITY, "readOnlyRootFilesystem": True}


def selector(cluster: ClusterView, component: str) -> dict[str, str]:
    """Labels that the pods of one component have, and nothing else."""
    return {names.NAME: APP, names.INSTANCE: cluster.name, names.COMPONENT: component}


def labels(cluster: ClusterView, component: str) -> dict[str, str]:
    return {**selector(cluster, component), names.PART_OF: cluster.name, names.MANAGED_BY: MANAGER}


def owner_reference(cluster: ClusterView) -> dict[str, Any]:
    return {
        "apiVersion": f"{names.GROUP}/{names.VERSION}",
        "kind": KIND,
        "name": cluster.name,
        "uid": cluster.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def manifest(
    cluster: ClusterView,
    api_version: str,
    kind: str,
    name: str,
    component: str,
    content: Mapping[str, Any],
    *,
    more_labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    owned: bool = True,
) -> Manifest:
    """An object with labels, owner and hash. `content`: everything beside kind and metadata."""
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": cluster.namespace,
        "labels": {**(more_labels or {}), **labels(cluster, component)},
        "annotations": dict(annotations or {}),
    }
    if owned:
        metadata["ownerReferences"] = [owner_reference(cluster)]
    return stamped({"apiVersion": api_version, "kind": kind, "metadata": metadata, **content})


def pod_security(cluster: ClusterView) -> dict[str, Any]:
    """The security context of every pod. Groups of volumes are changed only where they differ, so a large one does
    not hold up a start."""
    ids = {"runAsUser": USER, "runAsGroup": USER, "fsGroup": USER} if cluster.spec.pod.user is User.IMAGE else {}
    return {
        "runAsNonRoot": True,
        **ids,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def pod_metadata(cluster: ClusterView, component: str) -> dict[str, Any]:
    """The metadata of pods beside the bookies: with what the user adds to all pods."""
    made: dict[str, Any] = {"labels": {**cluster.spec.pod.labels, **labels(cluster, component)}}
    if cluster.spec.pod.annotations:
        made["annotations"] = dict(cluster.spec.pod.annotations)
    return made


def common_pod_spec(cluster: ClusterView, account: str) -> dict[str, Any]:
    """Return the part of the pod that all components share."""
    spec = cluster.spec
    shared: dict[str, Any] = {
        "serviceAccountName": account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(cluster),
    }
    if spec.image_pull_secrets:
        shared["imagePullSecrets"] = list(spec.image_pull_secrets)
    if spec.pod.priority_class_name:
        shared["priorityClassName"] = spec.pod.priority_class_name
    if spec.pod.tolerations:
        shared["tolerations"] = list(spec.pod.tolerations)
    return shared


def over_zones(cluster: ClusterView, component: str) -> dict[str, Any]:
    """Return the constraint that spreads the pods of a component over the zones that there are, as far as that goes."""
    return {
        "maxSkew": 1,
        "topologyKey": cluster.spec.placement.zone_topology_key,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selector(cluster, component)},
    }


def apart(cluster: ClusterView, component: str) -> dict[str, list[dict[str, Any]]]:
    """The rule of an anti-affinity by which no two pods of the component share a node, or not where there are more."""
    term: dict[str, Any] = {
        "topologyKey": HOSTNAME,
        "labelSelector": {"matchLabels": selector(cluster, component)},
    }
    if cluster.spec.placement.nodes is Nodes.SHARED:
        return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}


def temporary_volume() -> dict[str, Any]:
    """The root file system is read-only; libraries want a place for temporary files all the same."""
    return {"name": TEMPORARY, "emptyDir": {"sizeLimit": "256Mi"}}


def temporary_mount() -> dict[str, Any]:
    return {"name": TEMPORARY, "mountPath": "/tmp"}


def environment(name: str, value: str) -> dict[str, Any]:
    return {"name": name, "value": value}


def from_field(name: str, path: str) -> dict[str, Any]:
    """A variable that holds a field of the pod."""
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


Manifest = dict[str, Any]
"""An object of Kubernetes, as JSON has it."""

LENGTH: Final = 16
"""Digits of a hash in an annotation: 64 bits tell the contents of one object's history apart."""


def canonical(value: Any) -> bytes:
    """Raises TypeError or ValueError for what JSON cannot hold, such as infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def content_hash(value: Any, length: int = LENGTH) -> str:
    return hashlib.sha256(canonical(value)).hexdigest()[:length]


def stamped(manifest: Manifest) -> Manifest:
    """A copy with its own hash as annotation `podkeeper.dev/object-hash`."""
    metadata = manifest["metadata"]
    annotations = {key: text for key, text in metadata.get("annotations", {}).items() if key != names.OBJECT_HASH}
    bare = {**manifest, "metadata": {**metadata, "annotations": annotations}}
    annotations = {**annotations, names.OBJECT_HASH: content_hash(bare)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def object_hash(manifest: Manifest) -> str:
    """Return the hash of a stamped object."""
    return str(manifest["metadata"]["annotations"][names.OBJECT_HASH])


def key_of(manifest: Manifest) -> str:
    """`Kind/name`."""
    return f"{manifest['kind']}/{manifest['metadata']['name']}"


def account_name(cluster: ClusterView) -> str:
    return cluster.spec.pod.service_account_name or naming.bookies(cluster.name)


def service_account(cluster: ClusterView) -> Manifest | None:
    """None: the user brings one."""
    if cluster.spec.pod.service_account_name:
        return None
    content = {"automountServiceAccountToken": False}
    return manifest(cluster, "v1", "ServiceAccount", naming.bookies(cluster.name), naming.BOOKIE, content)


_CERTIFICATE: Final = "cert-manager.io/certificate-name"
"""Annotation of a Secret that cert-manager filled."""


def is_own(obj: Mapping[str, Any], cluster: ClusterView) -> bool:
    """Return whether the object is the cluster's, by the UID of its controller.

    Without a controller it is the cluster's if it has the operator's labels, and is the identity or the claim for
    backups, which outlive their cluster, or a cluster is taken over on request.
    """
    controller = controller_of(obj)
    if controller:
        return bool(controller.get("uid") == cluster.uid)
    labels = obj["metadata"].get("labels") or {}
    made_here = labels.get(names.MANAGED_BY) == MANAGER and labels.get(names.INSTANCE) == cluster.name
    adopting = cluster.spec.bootstrap.mode is BootstrapMode.ADOPT
    outlives = (("Secret", naming.identity(cluster.name)), ("PersistentVolumeClaim", naming.backup(cluster.name)))
    return made_here and (adopting or (obj.get("kind"), obj["metadata"]["name"]) in outlives)


def is_outlived(obj: Mapping[str, Any], cluster: ClusterView) -> bool:
    """Return whether an earlier cluster of this name owns it, with which Kubernetes takes it away."""
    controller = controller_of(obj)
    same = controller.get("kind") == KIND and controller.get("name") == cluster.name
    return same and controller.get("uid") != cluster.uid


def is_issued(secret: Mapping[str, Any]) -> bool:
    """Return whether cert-manager filled it for a Certificate of its name."""
    metadata = secret["metadata"]
    return bool((metadata.get("annotations") or {}).get(_CERTIFICATE) == metadata["name"])


def owner_of(obj: Mapping[str, Any]) -> str:
    """Return the owner in words."""
    controller = controller_of(obj)
    if controller:
        return f"it belongs to {controller.get('kind', 'something')} {controller.get('name', '')}"
    manager = (obj["metadata"].get("labels") or {}).get(names.MANAGED_BY, "")
    return f"{manager} manages it" if manager and manager != MANAGER else "it has no owner"


def controller_of(obj: Mapping[str, Any]) -> Mapping[str, Any]:
    """The owner that answers for the object; empty: there is none."""
    owners = obj["metadata"].get("ownerReferences") or ()
    return next((each for each in owners if each.get("controller")), {})
