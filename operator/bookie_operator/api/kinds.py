"""The kinds of objects that the operator reads or writes, and their paths.

Threads: values without I/O, for any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from bookie_operator.crds import names

KubernetesObject = dict[str, Any]
"""An object as JSON has it."""


@dataclass(frozen=True)
class Resource:
    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def group(self) -> str:
        """Empty: Kubernetes' core."""
        return self.api_version.rpartition("/")[0]

    @property
    def group_kind(self) -> str:
        """Group and kind, as `Kubernetes.groups` names single kinds."""
        return f"{self.group}/{self.kind}"

    @property
    def root(self) -> str:
        """`/api/v1`, `/apis/apps/v1`..."""
        return f"/{'apis' if '/' in self.api_version else 'api'}/{self.api_version}"

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path of one object, or of the collection without `name`; without `namespace` that of all namespaces."""
        parts = [self.root]
        if self.namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name:
            parts.append(quote(name, safe=""))
        if subresource:
            parts.append(subresource)
        return "/".join(parts)


CLUSTER: Final = Resource(f"{names.GROUP}/{names.VERSION}", "BookieCluster", "bookieclusters")
TASK: Final = Resource(f"{names.GROUP}/{names.VERSION}", "BookieTask", "bookietasks")
BOOKIE_JOB: Final = Resource(f"{names.GROUP}/{names.VERSION}", "BookieJob", "bookiejobs")
POD: Final = Resource("v1", "Pod", "pods")
CLAIM: Final = Resource("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
VOLUME: Final = Resource("v1", "PersistentVolume", "persistentvolumes", namespaced=False)
CONFIG_MAP: Final = Resource("v1", "ConfigMap", "configmaps")
SECRET: Final = Resource("v1", "Secret", "secrets")
SERVICE: Final = Resource("v1", "Service", "services")
SERVICE_ACCOUNT: Final = Resource("v1", "ServiceAccount", "serviceaccounts")
NODE: Final = Resource("v1", "Node", "nodes", namespaced=False)
STATEFUL_SET: Final = Resource("apps/v1", "StatefulSet", "statefulsets")
DEPLOYMENT: Final = Resource("apps/v1", "Deployment", "deployments")
JOB: Final = Resource("batch/v1", "Job", "jobs")
CRON_JOB: Final = Resource("batch/v1", "CronJob", "cronjobs")
BUDGET: Final = Resource("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICY: Final = Resource("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
ROLE: Final = Resource("rbac.authorization.k8s.io/v1", "Role", "roles")
ROLE_BINDING: Final = Resource("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings")
STORAGE_CLASS: Final = Resource("storage.k8s.io/v1", "StorageClass", "storageclasses", namespaced=False)
VOLUME_ATTRIBUTES_CLASS: Final = Resource(
    "storage.k8s.io/v1", "VolumeAttributesClass", "volumeattributesclasses", namespaced=False
)
"""The kind whose existence is asked; its objects are never read."""
LEASE: Final = Resource("coordination.k8s.io/v1", "Lease", "leases")
POD_EVENT: Final = Resource("v1", "Event", "events")
EVENT: Final = Resource("events.k8s.io/v1", "Event", "events")
POD_MONITOR: Final = Resource("monitoring.coreos.com/v1", "PodMonitor", "podmonitors")
SERVICE_MONITOR: Final = Resource("monitoring.coreos.com/v1", "ServiceMonitor", "servicemonitors")
PROMETHEUS_RULE: Final = Resource("monitoring.coreos.com/v1", "PrometheusRule", "prometheusrules")
CERTIFICATE: Final = Resource("cert-manager.io/v1", "Certificate", "certificates")

ALL: Final[tuple[Resource, ...]] = (
    CLUSTER,
    TASK,
    BOOKIE_JOB,
    POD,
    CLAIM,
    VOLUME,
    CONFIG_MAP,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    NODE,
    STATEFUL_SET,
    DEPLOYMENT,
    JOB,
    CRON_JOB,
    BUDGET,
    NETWORK_POLICY,
    ROLE,
    ROLE_BINDING,
    STORAGE_CLASS,
    LEASE,
    EVENT,
    POD_MONITOR,
    SERVICE_MONITOR,
    PROMETHEUS_RULE,
    CERTIFICATE,
)

_BY_TYPE: Final = {(resource.api_version, resource.kind): resource for resource in ALL}
_BY_KIND: Final = {resource.kind: resource for resource in ALL}


def resource_of(obj: KubernetesObject) -> Resource:
    """Raises KeyError for a kind that the operator does not know."""
    return _BY_TYPE[obj["apiVersion"], obj["kind"]]


def resource_of_kind(kind: str) -> Resource:
    """Raises KeyError for a kind that the operator does not know."""
    return _BY_KIND[kind]


def key_of(obj: KubernetesObject) -> str:
    """`Kind/name`."""
    return f"{obj['kind']}/{obj['metadata']['name']}"
