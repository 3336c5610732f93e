"""Finding a cluster and what belongs to it; who asks for one that is not there hears which there are.

Threads: one event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bookie_operator.api.errors import Absent, Forbidden
from bookie_operator.api.kinds import BOOKIE_JOB, CLUSTER, POD, TASK, KubernetesObject, Resource
from bookie_operator.crds import names
from bookie_operator.crds.cluster_status import BookieClusterStatus
from bookie_operator.crds.validation import parse_status
from bookie_operator.plugin.connection import Api
from bookie_operator.plugin.faults import Fault, NotThereFault, UsageFault

NAMESPACE: Final = Resource("v1", "Namespace", "namespaces", namespaced=False)
_SHOWN: Final = 20


async def list_clusters(api: Api, *, everywhere: bool = False) -> list[KubernetesObject]:
    """Raises `NotThereFault` if this Kubernetes does not know the kind."""
    try:
        return await api.kubernetes.list(CLUSTER, "" if everywhere else api.namespace)
    except Absent as error:
        raise NotThereFault(
            "this Kubernetes has no BookieClusters: install the chart podkeeper-operator, or apply crds/*.yaml"
        ) from error


async def find_cluster(api: Api, name: str | None) -> KubernetesObject:
    """The cluster of this name; without a name the only one there is."""
    if name is None:
        found = await list_clusters(api)
        if len(found) == 1:
            return found[0]
        if not found:
            raise await _missing(api, "any", [])
        raise UsageFault(f"which one? there are: {_listed(_names(found))}")
    cluster = await api.kubernetes.find(CLUSTER, api.namespace, name)
    if cluster is None:
        raise await _missing(api, name, _names(await list_clusters(api)))
    return cluster


def status_of(cluster: KubernetesObject) -> BookieClusterStatus:
    """Raises `Fault` for one that cannot be read."""
    try:
        return parse_status(cluster.get("status") or {})
    except ValueError as error:
        raise Fault(f"{error}; is this kubectl-bookie older than the operator?") from None


def domain_of(cluster: KubernetesObject) -> str:
    """Return the end of the ids of bookies that were taken over in place."""
    found = ((cluster.get("spec") or {}).get("bootstrap") or {}).get("inPlace")
    return str(found.get("domain", "cluster.local")) if isinstance(found, dict) else ""


def check_bookies(cluster: KubernetesObject, bookies: Sequence[str]) -> None:
    """Raises `NotThereFault` if the cluster has no bookie of one of these names."""
    known = [bookie.name for bookie in status_of(cluster).bookies]
    for bookie in bookies:
        if bookie not in known:
            name = cluster["metadata"]["name"]
            raise NotThereFault(f"cluster {name} has no bookie {bookie}; it has: {_listed(known) or 'none yet'}")


async def pods_of(api: Api, cluster: str) -> list[KubernetesObject]:
    """The pods of bookies, auto-recovery, gateways and embedded metadata, by name."""
    found = await api.kubernetes.list(POD, api.namespace, {names.NAME: "podkeeper", names.INSTANCE: cluster})
    return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))


async def tasks_of(api: Api, cluster: str) -> list[KubernetesObject]:
    """The newest last."""
    found = [task for task in await api.kubernetes.list(TASK, api.namespace) if task["spec"]["cluster"] == cluster]
    return sorted(found, key=lambda task: str(task["metadata"].get("creationTimestamp", "")))


async def jobs_of(api: Api, cluster: str) -> list[KubernetesObject]:
    """The jobs by name; none where BookieJobs are not defined, or not for this user."""
    try:
        found = await api.kubernetes.list(BOOKIE_JOB, api.namespace)
    except (Absent, Forbidden):
        return []
    of = [job for job in found if job["spec"]["clusterRef"]["name"] == cluster]
    return sorted(of, key=lambda job: str(job["metadata"]["name"]))


async def _missing(api: Api, name: str, there: list[str]) -> Fault:
    if there:
        return NotThereFault(f"no BookieCluster {name} in namespace {api.namespace}; there are: {_listed(there)}")
    try:
        if await api.kubernetes.find(NAMESPACE, "", api.namespace) is None:
            return NotThereFault(f"no namespace {api.namespace}; give another with -n")
    except Forbidden:
        pass
    try:
        elsewhere = await api.kubernetes.list(CLUSTER)
    except Forbidden:
        elsewhere = []
    places = [f"{each['metadata']['name']} (-n {each['metadata']['namespace']})" for each in elsewhere]
    hint = f"; elsewhere there are: {_listed(places)}" if places else ""
    which = "BookieCluster" if name == "any" else f"BookieCluster {name}"
    return NotThereFault(f"no {which} in namespace {api.namespace}, which has none{hint}")


def _names(objects: Sequence[KubernetesObject]) -> list[str]:
    return sorted(str(each["metadata"]["name"]) for each in objects)


def _listed(words: Sequence[str]) -> str:
    more = f" and {len(words) - _SHOWN} more" if len(words) > _SHOWN else ""
    return ", ".join(words[:_SHOWN]) + more
