"""What one pass asks of the API server: the objects of a cluster, and what is around them.

Invariants
- Every read of what is the cluster's goes to the API server's store; nothing of it is kept from pass to pass.
- What the operator may not read is None, what is not there is empty. Whatever else cannot be read ends the pass with an
  error of `api.errors`.

Threads: one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from bookie_operator.api.admin import Admin
from bookie_operator.api.errors import Absent, Forbidden
from bookie_operator.api.kinds import (
    BUDGET,
    CERTIFICATE,
    CLAIM,
    CONFIG_MAP,
    CRON_JOB,
    DEPLOYMENT,
    JOB,
    NETWORK_POLICY,
    POD,
    POD_EVENT,
    POD_MONITOR,
    PROMETHEUS_RULE,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    STATEFUL_SET,
    TASK,
    KubernetesObject,
    Resource,
)
from bookie_operator.api.kubernetes import Kubernetes
from bookie_operator.builders import common, naming
from bookie_operator.crds import names
from bookie_operator.observe import volumes, workloads
from bookie_operator.observe.surroundings import AT_REST_S, IN_TROUBLE_S, Surroundings
from bookie_operator.observe.times import condition
from bookie_operator.planner.desired import Desired
from bookie_operator.world.model import ClusterView

if TYPE_CHECKING:
    from bookie_operator.api.etcd import Etcd

_T = TypeVar("_T")
_METADATA_ONLY: Final = (CONFIG_MAP, SERVICE, SERVICE_ACCOUNT, NETWORK_POLICY, BUDGET)
_OPTIONAL: Final = {CERTIFICATE: CERTIFICATE.group, POD_MONITOR: POD_MONITOR.group_kind}
"""Kinds, and what tells among `Sources.api_groups` that this Kubernetes has them."""


@dataclass(frozen=True)
class Sources:
    """The services that are asked."""

    kubernetes: Kubernetes
    admin: Admin
    """Admin API of the pods, with the token of this cluster."""
    api_groups: frozenset[str] = frozenset()
    admin_port: int = 8000
    surroundings: Surroundings | None = None
    """None: nodes and storage classes are not asked for at all; a namespaced operator may not."""
    taken: Mapping[str, str] = field(default_factory=dict)
    """Secrets with tokens that have another owner, as `World.taken` names them."""
    etcd: Etcd | None = None
    """The etcd that the operator runs; None: it runs none."""


@dataclass(frozen=True)
class Read:
    """The objects as the API server has them."""

    stateful_sets: list[KubernetesObject]
    pods: list[KubernetesObject]
    claims: list[KubernetesObject]
    deployments: list[KubernetesObject]
    jobs: list[KubernetesObject]
    tasks: list[KubernetesObject]
    others: list[KubernetesObject]
    """Whose kind, name and metadata matter; each with its kind."""
    nodes: list[KubernetesObject] | None
    classes: list[KubernetesObject] | None
    identity: KubernetesObject | None
    backup: list[KubernetesObject] | None
    """The CronJob of backups, also that of another owner; None: the operator may not read it."""
    backups: list[KubernetesObject]
    """Jobs that back the metadata up, whatever made them."""


async def read_objects(sources: Sources, cluster: ClusterView, desired: Desired, identity: str) -> Read:
    """Read the objects of the cluster, and those that have a name which it needs. `identity`: as of `observe`."""
    kubernetes, namespace = sources.kubernetes, cluster.namespace
    ours = {names.NAME: "podkeeper", names.INSTANCE: cluster.name}
    managed = {names.INSTANCE: cluster.name, names.MANAGED_BY: "podkeeper-operator"}
    wanted_claims = volumes.claim_names(cluster, desired)
    optional = [each for each, sign in _OPTIONAL.items() if sign in sources.api_groups]
    rules = PROMETHEUS_RULE.group_kind in sources.api_groups

    async def headers(resource: Resource) -> list[KubernetesObject]:
        found = await kubernetes.list(resource, namespace, managed, metadata_only=True)
        return [{**each, "kind": resource.kind} for each in found]

    async def alerts() -> list[KubernetesObject]:
        """List the alerts. A Role of an earlier release does not name them: only a cluster that wants some needs it."""
        return (await allowed(headers(PROMETHEUS_RULE)) or []) if rules else []

    async def full(resource: Resource, labels: Mapping[str, str | None] | None) -> list[KubernetesObject]:
        return [{**each, "kind": resource.kind} for each in await kubernetes.list(resource, namespace, labels)]

    async def named(resource: Resource, name: str) -> list[KubernetesObject]:
        found = await kubernetes.find(resource, namespace, name)
        return [{**found, "kind": resource.kind}] if found is not None else []

    async def claims_by_name() -> list[KubernetesObject]:
        """List claims by label, and where a bookie's claim is not among them by name: Kubernetes mounts what has the
        name."""
        labelled = await full(CLAIM, ours)
        if wanted_claims <= {each["metadata"]["name"] for each in labelled}:
            return labelled
        return [
            each
            for each in await full(CLAIM, None)
            if each["metadata"]["name"] in wanted_claims
            or ours.items() <= (each["metadata"].get("labels") or {}).items()
        ]

    secrets = [key.partition("/")[2] for key in desired.support if key.startswith(f"{SECRET.kind}/")]
    secrets += desired.issued
    workload, around, listed, named_secrets = await asyncio.gather(
        asyncio.gather(
            full(STATEFUL_SET, managed),
            full(POD, {**ours, names.JOB: None}),
            claims_by_name(),
            full(DEPLOYMENT, managed),
            full(JOB, managed),
        ),
        asyncio.gather(
            _there(full(TASK, None)),
            kubernetes.find(SECRET, namespace, identity),
            allowed(named(CRON_JOB, naming.backup(cluster.name))),
        ),
        asyncio.gather(*[*(headers(each) for each in (*_METADATA_ONLY, *optional)), alerts()]),
        asyncio.gather(*(kubernetes.find(SECRET, namespace, name) for name in secrets if name != identity)),
    )
    tasks, found_identity, backup = around
    kept = [*named_secrets, found_identity]
    other = [each for group in listed for each in group]
    other += [{**each, "kind": SECRET.kind} for each in kept if each is not None]
    sets, pods, claims, deployments, jobs = workload
    nodes, classes = await _around(sources, pods)
    return Read(
        [each for each in sets if common.is_own(each, cluster)],
        pods,
        claims,
        [each for each in deployments if common.is_own(each, cluster)],
        [each for each in jobs if common.is_own(each, cluster)],
        tasks or [],
        other,
        nodes,
        classes,
        found_identity if found_identity is not None and common.is_own(found_identity, cluster) else None,
        backup,
        [each for each in jobs if workloads.component_of(each) == naming.BACKUP],
    )


def own_backup(found: list[KubernetesObject] | None, cluster: ClusterView) -> KubernetesObject | None:
    """Return the CronJob of backups that is the cluster's own."""
    return next((each for each in found or () if common.is_own(each, cluster)), None)


async def events_of(kubernetes: Kubernetes, namespace: str, obj: Mapping[str, Any]) -> list[KubernetesObject]:
    """Return the events of an object; none if the operator may not read them."""
    fields = f"involvedObject.uid={obj['metadata']['uid']}"
    return await allowed(kubernetes.list(POD_EVENT, namespace, fields=fields)) or []


async def allowed(reading: Awaitable[_T]) -> _T | None:
    """Return what is read, or None if the operator may not read it."""
    try:
        return await reading
    except Forbidden:
        return None


async def _there(reading: Awaitable[_T]) -> _T | None:
    """Return what is read, or None if there is no such kind."""
    try:
        return await reading
    except Absent:
        return None


async def _around(
    sources: Sources, pods: Iterable[KubernetesObject]
) -> tuple[list[KubernetesObject] | None, list[KubernetesObject] | None]:
    """Return nodes and storage classes; nodes are newly read while a bookie is not as it should be."""
    if sources.surroundings is None:
        return None, None
    well = all(condition(pod, "Ready").get("status") == "True" for pod in pods if workloads.is_bookie(pod))
    age = AT_REST_S if well else IN_TROUBLE_S
    return await sources.surroundings.nodes(age), await sources.surroundings.storage_classes()
