"""The operator's own look and decision, without its hands: what `kubectl bookie plan` shows.

The code is the operator's. Its settings beside the cluster (image, namespace) are read from its Deployment; where that
cannot be read it is guessed from the bookies, and the plan says so.

Threads: one event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from bookie_operator.api.admin import Admin, Endpoint
from bookie_operator.api.errors import Forbidden
from bookie_operator.api.kinds import DEPLOYMENT, STATEFUL_SET, KubernetesObject
from bookie_operator.builders import naming
from bookie_operator.builders.build import build
from bookie_operator.builders.common import key_of
from bookie_operator.builders.context import BuildContext
from bookie_operator.builders.desired_objects import DesiredObjects
from bookie_operator.crds import names
from bookie_operator.crds.validation import known_spec, parse_spec, validate
from bookie_operator.observe.observing import observe, with_config_changes, with_needs
from bookie_operator.observe.others import cluster_view
from bookie_operator.observe.sources import Sources
from bookie_operator.observe.surroundings import Surroundings
from bookie_operator.planner import holding, invariants
from bookie_operator.planner.decision import Needs, Plan
from bookie_operator.planner.desired import Desired
from bookie_operator.planner.plan import needs
from bookie_operator.planner.plan import plan as make_plan
from bookie_operator.plugin.clusters import pods_of, status_of
from bookie_operator.plugin.connection import Api
from bookie_operator.plugin.forwarding import Open, read_token, session_to, trust_of
from bookie_operator.world.model import ClusterView, World

_OPERATOR: Final = {names.NAME: "podkeeper-operator"}
_ADMIN_TIMEOUT_S: Final = 15.0


@dataclass(frozen=True)
class Planned:
    plan: Plan | None
    """None: the spec cannot be read."""
    spec_errors: tuple[str, ...] = ()
    violations: tuple[str, ...] = ()
    """Violations of the operator's invariants: it would refuse the plan itself."""
    doubts: tuple[str, ...] = field(default=())
    """Parts that could not be read, and make the plan less certain."""


@dataclass(frozen=True)
class Seen:
    """The cluster as the operator sees it, and the objects that it would make."""

    cluster: ClusterView
    world: World
    objects: DesiredObjects
    desired: Desired
    tellers: tuple[Endpoint, ...]
    doubts: tuple[str, ...]


async def planned(api: Api, cluster: KubernetesObject, open_socket: Open) -> Planned:
    """Reads only. Raises KubernetesError, and `Fault` for a status that cannot be read."""
    seen = await see(api, cluster, open_socket, needs)
    if not isinstance(seen, Seen):
        return Planned(None, seen)
    doubts = list(seen.doubts)
    if seen.world.facts is None and seen.world.pods:
        doubts.append(f"no pod could tell about the cluster: {seen.world.facts_error or 'none is reachable'}")
    plan = make_plan(seen.world, seen.desired)
    violations = tuple(invariants.check(seen.world, seen.desired, plan))
    return Planned(plan, seen.world.spec_errors, violations, tuple(doubts))


async def see(
    api: Api, cluster: KubernetesObject, open_socket: Open, asks: Callable[[World, Desired], Needs]
) -> Seen | tuple[str, ...]:
    """Return what was seen, or why the spec cannot be read. `asks`: what is asked for beside. Raises as `planned`."""
    status = status_of(cluster)
    asked, ignored = known_spec(cluster.get("spec") or {})
    spec, errors = parse_spec(asked)
    if spec is None:
        return errors
    errors = validate(spec, status)
    view = cluster_view(cluster)
    doubts: list[str] = list(ignored)
    context = await _build_context(api, view.name, doubts)
    try:
        objects = build(view, context)
    except Exception as exc:
        return errors or (f"spec: no objects can be made of it ({type(exc).__name__})",)
    desired = objects.desired()
    if desired.members is not None:  # they speak gRPC, and only the operator has a way to them
        desired = replace(desired, members=None)
        doubts.append("the members of etcd were not asked: the plan leaves out what is about them")
    token = await _token(api, view.name, doubts)
    async with session_to(await pods_of(api, view.name), open_socket) as session:
        admin = Admin(session, token, trust=trust_of(api, view.name), timeout_s=_ADMIN_TIMEOUT_S)
        sources = Sources(api.kubernetes, admin, context.api_groups, surroundings=Surroundings(api.kubernetes))
        observed = await observe(
            sources,
            view,
            desired,
            identity=naming.identity(view.name),
            cleanup_job=key_of(objects.destroy_job),
            now=time.time(),
            spec_errors=errors,
            objects=objects,
        )
        desired = holding.hold(observed.world, desired)
        observed = await with_needs(sources, observed, asks(observed.world, desired))
        observed = await with_config_changes(api.kubernetes, observed, objects, desired.held)
    return Seen(view, observed.world, objects, desired, observed.tellers, tuple(doubts))


async def _token(api: Api, cluster: str, doubts: list[str]) -> str:
    try:
        return await read_token(api, cluster)
    except Forbidden:
        doubts.append(f"you may not read Secret {naming.admin_token(cluster)}, so no bookie was asked")
        return ""


async def _build_context(api: Api, cluster: str, doubts: list[str]) -> BuildContext:
    context = BuildContext(api_groups=await api.kubernetes.groups())
    try:
        found = await api.kubernetes.list(DEPLOYMENT, labels=_OPERATOR)
    except Forbidden:
        try:
            found = await api.kubernetes.list(DEPLOYMENT, api.namespace, _OPERATOR)
        except Forbidden:
            found = []
    if found:
        image = _environment(found[0]).get("PODKEEPER_IMAGE", "")
        return replace(
            context,
            image_repository=image or context.image_repository,
            operator_namespace=str(found[0]["metadata"]["namespace"]),
            reads_nodes=not any("--no-nodes" in (each.get("args") or ()) for each in _containers(found[0])),
        )
    doubts.append("the operator's Deployment was not found, so its settings are guessed: does it run?")
    sets = await api.kubernetes.list(STATEFUL_SET, api.namespace, {names.INSTANCE: cluster})
    images = [container["image"] for each in sets for container in _containers(each) if container["name"] == "bookie"]
    return replace(context, image_repository=_repository(images[0])) if images else context


def _repository(image: str) -> str:
    """Return the image without tag and digest; a port of the registry stays."""
    name = image.partition("@")[0]
    head, colon, tag = name.rpartition(":")
    return head if colon and "/" not in tag else name


def _containers(workload: KubernetesObject) -> list[dict[str, Any]]:
    return list(workload["spec"]["template"]["spec"]["containers"])


def _environment(workload: KubernetesObject) -> Mapping[str, str]:
    return {
        variable["name"]: str(variable.get("value", ""))
        for container in _containers(workload)
        for variable in container.get("env") or ()
    }
