"""One snapshot: all that Kubernetes and the cluster's pods say now.

Invariants
- An object counts as the cluster's by its owner, never by its name or its labels.
- Half a snapshot is none: what cannot be read ends the pass, but for what the operator may not read (see `sources`).

Threads: one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from bookie_operator.api.admin import Endpoint
from bookie_operator.api.errors import Forbidden
from bookie_operator.api.kinds import (
    CERTIFICATE,
    CONFIG_MAP,
    SECRET,
    STATEFUL_SET,
    VOLUME,
    KubernetesObject,
    resource_of_kind,
)
from bookie_operator.api.kubernetes import Kubernetes
from bookie_operator.builders import common, naming
from bookie_operator.builders.common import Manifest
from bookie_operator.builders.config import FILE, changed_keys
from bookie_operator.builders.desired_objects import DesiredObjects
from bookie_operator.builders.identity import recorded_bookies
from bookie_operator.builders.secrets import secret_texts
from bookie_operator.crds import names
from bookie_operator.observe import backups, members, others, pods_facts, volumes, workloads
from bookie_operator.observe.drift import drift
from bookie_operator.observe.faults import elsewhere, fits_nowhere, refusals, starts_slowly
from bookie_operator.observe.sources import Read, Sources, allowed, events_of, own_backup, read_objects
from bookie_operator.planner.decision import Needs
from bookie_operator.planner.desired import Desired
from bookie_operator.world.model import (
    BackupView,
    ClaimView,
    ClusterView,
    DeploymentView,
    NodeView,
    PodFault,
    PodView,
    World,
)

_EXPLAINED: Final = 3
"""Pods whose events are read in one pass."""


@dataclass(frozen=True)
class Observed:
    """The snapshot, and where its pods are."""

    world: World
    endpoints: Mapping[str, Endpoint]
    """Endpoints by pod name."""
    tellers: tuple[Endpoint, ...]
    """Pods that answer for the cluster; the one that gave the facts of the snapshot comes first."""
    members: Mapping[str, str] = field(default_factory=dict)
    """Addresses of the members of etcd that run, by pod name."""
    expired_tasks: tuple[tuple[str, str], ...] = ()
    """Name and UID of the cluster's tasks that were to be deleted by now."""


async def observe(
    sources: Sources,
    cluster: ClusterView,
    desired: Desired,
    *,
    identity: str,
    cleanup_job: str = "",
    now: float,
    spec_errors: tuple[str, ...] = (),
    objects: DesiredObjects | None = None,
) -> Observed:
    """`identity`: name of the Secret that keeps who the cluster is; `cleanup_job`: `Job/name` of what removes its
    metadata; `objects`: with these it is judged whether applied objects were changed.

    Raises the errors of `api.errors`.
    """
    read = await read_objects(sources, cluster, desired, identity)
    bookies = [pod for pod in read.pods if workloads.is_bookie(pod)]
    reachable = pods_facts.endpoints(read.pods, sources.admin_port)
    candidates = pods_facts.tellers(read.pods, reachable)
    by_bookie = {pod["metadata"]["name"]: reachable.get(pod["metadata"]["name"]) for pod in bookies}
    own_members, member_hosts = members.members(read.pods, desired)
    (facts, teller, problem), bookie_facts, views, etcd = await asyncio.gather(
        pods_facts.cluster_facts(sources.admin, candidates),
        pods_facts.bookie_facts(sources.admin, by_bookie),
        _pod_views(sources.kubernetes, cluster.namespace, bookies, read, now),
        members.facts(sources.etcd, member_hosts),
    )
    found = [*read.others, *read.stateful_sets, *read.deployments, *read.jobs, *(read.backup or ())]
    tasks, outlived_tasks = others.task_views(read.tasks, cluster)
    identity_texts = secret_texts(read.identity)
    owned, taken, outlived = await _by_owner(sources, cluster, desired, found, cleanup_job)
    changed = _drift(owned, objects)
    views = _of_their_templates(views, read, changed, objects)
    job = await _metadata_job(sources, cluster, _named(read.jobs, desired.metadata_job), read.pods, now)
    check = await _metadata_job(sources, cluster, _named(read.jobs, desired.check_job), read.pods, now)
    makers = [*read.stateful_sets, *read.deployments, *read.jobs]
    refused = await refusals(makers, read.pods, lambda obj: events_of(sources.kubernetes, cluster.namespace, obj), now)
    cleanup = workloads.job_view(_named(read.jobs, cleanup_job), read.pods)
    world = World(
        now=now,
        cluster=cluster,
        stateful_sets=tuple(
            workloads.stateful_set_view(each) for each in read.stateful_sets if workloads.is_bookie(each)
        ),
        pods=tuple(sorted(views, key=lambda pod: (pod.stateful_set, pod.ordinal))),
        claims=tuple(_claims(read, cluster, desired, identity_texts)),
        object_hashes={
            _key(each): "" if _key(each) in changed and not _is_set_of_bookies(each) else _hash(each) for each in owned
        },
        object_uids={_key(each): each["metadata"]["uid"] for each in owned},
        drift=changed,
        taken={**taken, **sources.taken},
        outlived=outlived,
        refused=refused,
        metadata_job=job.state,
        metadata_job_message=job.message,
        metadata_job_finished_at=job.finished_at,
        metadata_instance_id=job.told if job.state == "Complete" else "",
        check_job=check.state,
        check_job_message=check.message,
        check_job_finished_at=check.finished_at,
        check_instance_id=check.told if check.state == "Complete" else "",
        cleanup_job=cleanup.state,
        cleanup_job_message=cleanup.message,
        cleanup_job_finished_at=cleanup.finished_at,
        identity=identity_texts,
        expandable=volumes.growing_classes(read.classes) if read.classes is not None else None,
        nodes=_nodes(read, cluster),
        facts=facts,
        facts_error=problem,
        bookies=bookie_facts,
        tasks=tasks,
        outlived_tasks=outlived_tasks,
        spec_errors=spec_errors,
        autorecovery=_deployment(read, desired.autorecovery.key, naming.AUTORECOVERY),
        gateway=_deployment(read, desired.gateway.key, naming.GATEWAY),
        backup=await _backup(sources, cluster, read, now),
        members=own_members,
        etcd=etcd,
    )
    ordered = [teller, *(each for each in candidates if each != teller)] if teller else candidates
    return Observed(world, reachable, tuple(ordered), member_hosts, others.expired_tasks(read.tasks, cluster.name, now))


def _nodes(read: Read, cluster: ClusterView) -> dict[str, NodeView] | None:
    if read.nodes is None:
        return None
    key = cluster.spec.placement.zone_topology_key
    return {node["metadata"]["name"]: others.node_view(node, key) for node in read.nodes}


async def with_needs(sources: Sources, observed: Observed, needs: Needs) -> Observed:
    """The world with what the planner wants to know beside: proofs, drains and safety, from the pod that gave the
    facts."""
    if not (needs.proofs or needs.drains or needs.outlooks or needs.safety):
        return observed
    teller = observed.tellers[0] if observed.world.facts is not None and observed.tellers else None
    told = await pods_facts.needed(sources.admin, teller, needs)
    world = replace(observed.world, proofs=told.proofs, drains=told.drains, outlooks=told.outlooks, safety=told.safety)
    return replace(observed, world=world)


def _hash(obj: KubernetesObject) -> str:
    return _annotation(obj, names.OBJECT_HASH)


def _is_set_of_bookies(obj: KubernetesObject) -> bool:
    """Its template has a hash of its own, and is put back in a way of its own."""
    return obj["kind"] == STATEFUL_SET.kind and workloads.is_bookie(obj)


def _as_applied(obj: KubernetesObject, objects: DesiredObjects | None) -> Mapping[str, Any] | None:
    return objects.as_applied(_key(obj), obj["metadata"].get("annotations") or {}) if objects is not None else None


def _drift(owned: Iterable[KubernetesObject], objects: DesiredObjects | None) -> dict[str, str]:
    """Return which of the cluster's own objects are not as they were applied."""
    found: dict[str, str] = {}
    for each in owned:
        manifest = _as_applied(each, objects)
        if manifest is not None and (words := drift(manifest, each["metadata"])):
            found[_key(each)] = words
    return found


def _of_their_templates(
    views: list[PodView], read: Read, changed: Mapping[str, str], objects: DesiredObjects | None
) -> list[PodView]:
    """Clear the template of pods that were made while the template of their StatefulSet was changed by others. That is
    known only where that template is ours by now: of an earlier release's, which waits, it is unknown."""
    sets = {
        each["metadata"]["name"]: each
        for each in read.stateful_sets
        if _key(each) not in changed and _as_applied(each, objects) is not None
    }
    pods = {each["metadata"]["name"]: each for each in read.pods}
    return [
        replace(one, template_hash="")
        if one.stateful_set in sets and not workloads.is_made_of(pods[one.name], sets[one.stateful_set])
        else one
        for one in views
    ]


def _claims(
    read: Read, cluster: ClusterView, desired: Desired, identity: Mapping[str, str] | None
) -> Iterator[ClaimView]:
    """Yield the claims of bookies that there are, are to be, or were recorded: a copy that was restored under another
    name bears the same labels, and is none of the cluster's."""
    sets = {each.name for each in desired.stateful_sets} | set(cluster.status.recorded_replicas)
    sets |= {each["metadata"]["name"] for each in read.stateful_sets}
    sets |= {pod.rpartition("-")[0] for pod in recorded_bookies(identity)}
    wanted, templates = {each.name for each in desired.stateful_sets}, volumes.claim_templates(cluster)
    for each in read.claims:
        view = volumes.claim_view(each, cluster)
        if view is not None and (owner := view.bookie.rpartition("-")[0]) in sets:
            named = view.name in {naming.claim(template, view.bookie) for template in templates}
            yield replace(view, mounted=named and owner in wanted)


async def _by_owner(
    sources: Sources, cluster: ClusterView, desired: Desired, found: list[KubernetesObject], cleanup_job: str
) -> tuple[list[KubernetesObject], dict[str, str], frozenset[str]]:
    """The cluster's own objects; those that have a name which it needs, with whose they are; and which of these an
    earlier cluster of its name owned."""
    issued = {f"{SECRET.kind}/{name}" for name in desired.issued}
    wanted = {
        *desired.support,
        *desired.monitoring,
        *desired.deployments,
        *(f"{STATEFUL_SET.kind}/{each.name}" for each in desired.stateful_sets),
        *(key for key in (desired.budget, desired.metadata_job, desired.check_job) if key),
        *(key for key in (desired.backup, desired.backup_claim) if key),
        *({cleanup_job} if cluster.deleting and cleanup_job else ()),
    }
    own = {_key(each): each for each in found if _key(each) in issued or common.is_own(each, cluster)}
    strangers = {_key(each): each for each in found if _key(each) not in own}
    unseen = sorted(wanted - own.keys() - strangers.keys())
    for key, each in zip(
        unseen, await asyncio.gather(*(_named_so(sources, cluster, key) for key in unseen)), strict=True
    ):
        if each is not None:
            (own if common.is_own(each, cluster) else strangers)[key] = each
    taken = {key: common.owner_of(strangers[key]) for key in sorted(wanted & strangers.keys())}
    for key in sorted(issued & own.keys()):
        certificate = f"{CERTIFICATE.kind}/{key.partition('/')[2]}"
        if certificate in desired.support and certificate not in own and not common.is_issued(own[key]):
            # A Certificate of that name would have cert-manager write the Secret over.
            taken[key] = taken[certificate] = common.owner_of(own[key])
    outlived = (key for key in taken if key in strangers and common.is_outlived(strangers[key], cluster))
    return list(own.values()), taken, frozenset(outlived)


async def _named_so(sources: Sources, cluster: ClusterView, key: str) -> KubernetesObject | None:
    """Return the object that has this name, whatever its labels say."""
    kind, _, name = key.partition("/")
    found = await allowed(sources.kubernetes.find(resource_of_kind(kind), cluster.namespace, name))
    return {**found, "kind": kind} if found is not None else None


async def _pod_views(
    kubernetes: Kubernetes, namespace: str, pods: Iterable[KubernetesObject], read: Read, now: float
) -> list[PodView]:
    """The pods with the events of the first few that do not begin: a volume that cannot be mounted shows nowhere
    else. And with what becomes of volumes that fit none of the nodes which were asked."""
    views = []
    explained = 0
    for pod in pods:
        events: list[KubernetesObject] = []
        if explained < _EXPLAINED and starts_slowly(pod, now):
            explained += 1
            events = await events_of(kubernetes, namespace, pod)
        view = workloads.pod_view(pod, events)
        if view is None:
            continue
        if elsewhere(pod) and (why := await _out_of_reach(kubernetes, view.name, read)):
            view = replace(view, fault=PodFault.VOLUME, fault_message=why)
        elif fits_nowhere(pod) and await _on_the_network(kubernetes, view.name, read):
            view = replace(view, fault=PodFault.UNSCHEDULABLE)
        elif view.fault is PodFault.UNSCHEDULABLE and await _only_cordoned(kubernetes, view.name, read):
            view = replace(view, kept_by_cordon=True)
        views.append(view)
    return views


async def _volumes(kubernetes: Kubernetes, pod: str, read: Read) -> dict[str, KubernetesObject | None]:
    """The PersistentVolumes of its bound claims, by claim; None: the operator may not read it."""
    bound = {
        claim["metadata"]["name"]: claim["spec"]["volumeName"]
        for claim in read.claims
        if claim["spec"].get("volumeName") and claim["metadata"]["name"].endswith(f"-{pod}")
    }
    return {claim: await allowed(kubernetes.find(VOLUME, "", name)) for claim, name in bound.items()}


async def _out_of_reach(kubernetes: Kubernetes, pod: str, read: Read) -> str:
    """Return which of its volumes went with a node that is gone; empty: none, or unknown."""
    if read.nodes is None:
        return ""
    nodes = [node for node in read.nodes if not others.node_view(node).out_of_service]
    for claim, volume in (await _volumes(kubernetes, pod, read)).items():
        if volume is None or not volumes.of_one_node(volume):
            continue
        if not any(volumes.fits(volume, node) for node in nodes):
            return f"volume {volume['metadata']['name']} of claim {claim} can be used on no node that there is"
    return ""


async def _only_cordoned(kubernetes: Kubernetes, pod: str, read: Read) -> bool:
    """Return whether each node that fits its volumes is cordoned, whatever keeps it from others. False if unknown."""
    cordoned = {node["metadata"]["name"]: others.node_view(node).unschedulable for node in read.nodes or ()}
    if not any(cordoned.values()):
        return False
    fitting = list(read.nodes or ())
    for volume in (await _volumes(kubernetes, pod, read)).values():
        if volume is None:
            return False
        fitting = [node for node in fitting if volumes.fits(volume, node)]
    return bool(fitting) and all(cordoned[node["metadata"]["name"]] for node in fitting)


async def _on_the_network(kubernetes: Kubernetes, pod: str, read: Read) -> bool:
    """Return whether no volume of it is a disk of a node: a zone that has no nodes now has lost nothing."""
    found = await _volumes(kubernetes, pod, read)
    return bool(found) and all(each is not None and not volumes.of_one_node(each) for each in found.values())


async def _metadata_job(
    sources: Sources, cluster: ClusterView, job: KubernetesObject | None, pods: list[KubernetesObject], now: float
) -> workloads.JobView:
    """The Job with what Kubernetes says of its pod while that does not begin."""
    waiting = {
        pod["metadata"]["uid"]: await events_of(sources.kubernetes, cluster.namespace, pod)
        for pod in workloads.pods_of_job(job, pods)
        if starts_slowly(pod, now)
    }
    return workloads.job_view(job, pods, waiting)


async def _backup(sources: Sources, cluster: ClusterView, read: Read, now: float) -> BackupView | None:
    if read.backup is None:
        return None
    own = own_backup(read.backup, cluster)
    runs = [
        (job, await _metadata_job(sources, cluster, job, read.pods, now)) for job in backups.runs_of(own, read.backups)
    ]
    return backups.backup_view(own, runs, now, backups.at_work(read.backups, read.pods))


def _deployment(read: Read, key: str, component: str) -> DeploymentView:
    live = _named(read.deployments, key)
    ready, replicas = workloads.ready_replicas(live)
    inputs = _annotation(live, names.TEMPLATE_INPUTS) if live is not None else ""
    pods = [pod.get("spec") or {} for pod in read.pods if workloads.component_of(pod) == component]
    template = ((live or {}).get("spec") or {}).get("template") or {}
    used = frozenset().union(*(workloads.config_maps(each) for each in (*pods, template.get("spec") or {})))
    return DeploymentView(inputs, ready, replicas, len(pods), used)


def _named(found: Iterable[KubernetesObject], key: str) -> KubernetesObject | None:
    return next((each for each in found if _key(each) == key), None)


def _key(obj: Mapping[str, Any]) -> str:
    return f"{obj['kind']}/{obj['metadata']['name']}"


def _annotation(obj: Mapping[str, Any], name: str) -> str:
    return str((obj["metadata"].get("annotations") or {}).get(name, ""))


async def with_config_changes(
    kubernetes: Kubernetes, observed: Observed, objects: DesiredObjects, held: frozenset[str]
) -> Observed:
    """Return the world with the keys of the bookies' configuration that a rollout is going to change, never their
    values.

    The file that StatefulSets have is in a ConfigMap of its own (see `builders.config`). Its content is read only while
    they are to get another one and no operation runs: it tells why a rollout begins, and nothing depends on it.
    `held`: names of StatefulSets that keep the template that they have, as `Desired` says. Raises the errors of
    `api.errors`, but for what is not there (any more) or may not be read."""
    wanted = next((each for each in objects.support if FILE in each.get("data", {})), None)
    name = _replaced(observed.world, held, objects.config_hash, wanted) if wanted is not None else ""
    if wanted is None or not name:
        return observed
    try:
        live = await kubernetes.find(CONFIG_MAP, observed.world.cluster.namespace, name)
    except Forbidden:
        return observed
    before = ((live or {}).get("data") or {}).get(FILE)
    if before is None:
        return observed
    return replace(observed, world=replace(observed.world, config_changes=changed_keys(before, wanted["data"][FILE])))


def _replaced(world: World, held: frozenset[str], hashed: str, wanted: Manifest) -> str:
    """Name of the ConfigMap with the file that some StatefulSet has instead of the one that is wanted; empty: all have
    that one, have to wait for it, or it does not matter now."""
    if world.cluster.status.operation is not None or world.cluster.deleting:
        return ""
    name = str(wanted["metadata"]["name"])
    files = name.removesuffix(hashed)
    for one in world.stateful_sets:
        if one.name in held:
            continue
        old = sorted(each for each in one.config_maps if each.startswith(files))
        if old and name not in old:
            return old[0]
    return ""
