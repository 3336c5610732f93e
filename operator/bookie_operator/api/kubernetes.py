"""Kubernetes' API server: reads that are not cached, and writes that say what they rely on.

Invariants
- Reads leave `resourceVersion` unset: the server asks its store, not its cache.
- Every deletion has the UID of what is deleted, every scaling the resource version of what was seen.
- Objects are written by server-side apply with one field manager, `podkeeper-operator`; what others own stays theirs.

Threads: one event loop.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from bookie_operator.api.errors import Absent, Expired, Invalid, Undeclared, Unreachable
from bookie_operator.api.kinds import (
    POD,
    PROMETHEUS_RULE,
    STATEFUL_SET,
    VOLUME_ATTRIBUTES_CLASS,
    KubernetesObject,
    Resource,
    resource_of,
)
from bookie_operator.api.transport import Request, Transport

Objects = list[KubernetesObject]
FIELD_MANAGER: Final = "podkeeper-operator"
_APPLY: Final = "application/apply-patch+yaml"
_MERGE: Final = "application/merge-patch+json"
_METADATA_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
_IN_PART: Final = (PROMETHEUS_RULE, VOLUME_ATTRIBUTES_CLASS)
"""Kinds that may be missing from a group that is there."""
_UNDECLARED: Final = re.compile(r"\.status\.((?:[\w.]|\[[^\]]*\])+): field not declared in schema")
_INDEX: Final = re.compile(r"\[[^\]]*\]")
"""Index of an item in a list."""
_PAGE: Final = 500
"""Objects of one answer of a list."""


class Kubernetes:
    """Calls raise the errors of `api.errors`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    # --- reads --------------------------------------------------------------------------------------------------------

    async def get(self, resource: Resource, namespace: str, name: str) -> KubernetesObject:
        return await self._object(Request("GET", resource.path(namespace, name), {}))

    async def find(self, resource: Resource, namespace: str, name: str) -> KubernetesObject | None:
        """None: there is none, for sure."""
        try:
            return await self.get(resource, namespace, name)
        except Absent:
            return None

    async def list(
        self,
        resource: Resource,
        namespace: str = "",
        labels: Mapping[str, str | None] | None = None,
        *,
        fields: str = "",
        metadata_only: bool = False,
        page: int = _PAGE,
        kept: Callable[[KubernetesObject], KubernetesObject] = lambda obj: obj,
    ) -> list[KubernetesObject]:
        """All of them with these labels (None: without this one) and this field selector; without `namespace` those of
        all namespaces. `kept`: what is kept of each, from one answer of `page` objects to the next."""
        query = {"limit": str(page)}
        if labels:
            query["labelSelector"] = ",".join(
                f"!{name}" if value is None else f"{name}={value}" for name, value in labels.items()
            )
        if fields:
            query["fieldSelector"] = fields
        accept = _METADATA_ONLY if metadata_only else "application/json"
        request = Request("GET", resource.path(namespace), query, accept=accept)
        try:
            return await self._pages(request, kept)
        except Expired:
            return await self._pages(request, kept)

    async def groups(self) -> frozenset[str]:
        """API groups that the server has, such as `cert-manager.io`; and kinds as `monitoring.coreos.com/PodMonitor` of
        two of them: people install some definitions of the Prometheus operator without the others, and Kubernetes'
        own storage has kinds that came late, or before their time in a beta version of the group."""
        listed = await self._object(Request("GET", "/apis", {}))
        versions = {
            group["name"]: [each["groupVersion"] for each in group.get("versions") or ()]
            for group in listed.get("groups") or ()
        }
        roots = [f"/apis/{each}" for resource in _IN_PART for each in versions.get(resource.group, ())]
        kinds = await asyncio.gather(*map(self._kinds_below, roots))
        return frozenset(versions).union(*kinds)

    async def _kinds_below(self, root: str) -> frozenset[str]:
        try:
            listed = await self._object(Request("GET", root, {}))
        except Absent:
            return frozenset()
        group = root.split("/")[2]
        return frozenset(f"{group}/{each['kind']}" for each in listed.get("resources") or ())

    # --- writes -------------------------------------------------------------------------------------------------------

    async def apply(self, obj: KubernetesObject, *, dry_run: bool = False, force: bool = True) -> KubernetesObject:
        """Server-side apply; `force` takes fields over that others own, where it is Conflict else. With a resource
        version: Conflict if it is older."""
        query = {"fieldManager": FIELD_MANAGER, "force": str(force).lower()} | ({"dryRun": "All"} if dry_run else {})
        path = resource_of(obj).path(obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        return await self._object(Request("PATCH", path, query, obj, _APPLY))

    async def apply_status(self, obj: KubernetesObject, vital: Collection[str] = ()) -> frozenset[str]:
        """`status` alone, as `apply`; `obj` has nothing else beside its metadata.

        Fields that the definition lacks, because it is of an earlier release: a server refuses the whole for them, so
        it is applied without, and they are what is returned. Raises Undeclared where one of them is `vital`."""
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        path = resource_of(obj).path(obj["metadata"].get("namespace", ""), obj["metadata"]["name"], "status")
        unknown: frozenset[str] = frozenset()
        while True:
            try:
                await self._object(Request("PATCH", path, query, obj, _APPLY))
                return unknown
            except (Invalid, Unreachable) as exc:
                more = frozenset(_INDEX.sub("", found) for found in _UNDECLARED.findall(str(exc))) - unknown
                if not more:
                    raise
                if not more.isdisjoint(vital):
                    raise Undeclared(str(exc), more) from exc
            unknown |= more
            obj = {**obj, "status": _without(obj["status"], [each.split(".") for each in more])}

    async def create(self, obj: KubernetesObject) -> KubernetesObject:
        """Conflict: there is one of that name."""
        path = resource_of(obj).path(obj["metadata"].get("namespace", ""))
        return await self._object(Request("POST", path, {"fieldManager": FIELD_MANAGER}, obj))

    async def replace(self, obj: KubernetesObject) -> KubernetesObject:
        """Replace the object at the resource version that was read: Conflict if another writer was faster."""
        path = resource_of(obj).path(obj["metadata"].get("namespace", ""), obj["metadata"]["name"])
        return await self._object(Request("PUT", path, {"fieldManager": FIELD_MANAGER}, obj))

    async def merge(
        self, resource: Resource, namespace: str, name: str, patch: KubernetesObject, subresource: str = ""
    ) -> KubernetesObject:
        """A JSON merge patch; with `metadata.resourceVersion` in it: Conflict if it is older."""
        path = resource.path(namespace, name, subresource)
        return await self._object(Request("PATCH", path, {"fieldManager": FIELD_MANAGER}, patch, _MERGE))

    async def merge_exactly(
        self, resource: Resource, namespace: str, name: str, uid: str, patch: KubernetesObject
    ) -> KubernetesObject:
        """A JSON merge patch of the object with this UID.

        Raises Absent also when another object has its name by now.
        """
        found = await self.get(resource, namespace, name)
        if found["metadata"]["uid"] != uid:
            raise Absent(f"{resource.kind} {namespace}/{name} with UID {uid}: another one has its name")
        seen = {"resourceVersion": found["metadata"]["resourceVersion"]}
        metadata = {**patch.get("metadata", {}), **seen}
        return await self.merge(resource, namespace, name, {**patch, "metadata": metadata})

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str,
        propagation: str = "Background",
        resource_version: str = "",
    ) -> None:
        """`propagation`: `Background`, `Foreground`, or `Orphan` (what it owns stays). `resource_version`: only if it
        is still what it was then; empty: whatever it became. Conflict: it is another one, or was changed."""
        preconditions = {"uid": uid} | ({"resourceVersion": resource_version} if resource_version else {})
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": preconditions,
            "propagationPolicy": propagation,
        }
        await self._transport.request(Request("DELETE", resource.path(namespace, name), {}, body))

    async def scale(self, namespace: str, name: str, replicas: int, resource_version: str) -> None:
        """Scale a StatefulSet. Conflict: it is not what it was at that resource version."""
        body = {
            "apiVersion": "autoscaling/v1",
            "kind": "Scale",
            "metadata": {"name": name, "namespace": namespace, "resourceVersion": resource_version},
            "spec": {"replicas": replicas},
        }
        path = STATEFUL_SET.path(namespace, name, "scale")
        await self._transport.request(Request("PUT", path, {"fieldManager": FIELD_MANAGER}, body))

    async def evict(self, namespace: str, pod: str, uid: str) -> None:
        """TooManyRequests: the PodDisruptionBudget forbids it now. Conflict: it is another pod."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": uid}},
        }
        await self._transport.request(Request("POST", POD.path(namespace, pod, "eviction"), {}, body))

    async def close(self) -> None:
        await asyncio.to_thread(self._transport.close)

    async def _pages(self, request: Request, kept: Callable[[KubernetesObject], KubernetesObject]) -> Objects:
        found: Objects = []
        while True:
            page = await self._object(request)
            found += map(kept, page.get("items") or ())
            proceed = (page.get("metadata") or {}).get("continue")
            if not proceed:
                return found
            request = replace(request, query={**request.query, "continue": proceed})

    async def _object(self, request: Request) -> dict[str, Any]:
        answer: dict[str, Any] = await self._transport.request(request)
        return answer


def _without(value: Any, paths: Collection[Sequence[str]]) -> Any:
    """Leave out what is at these paths, in every item of a list."""
    if isinstance(value, list):
        return [_without(item, paths) for item in value]
    if not isinstance(value, dict):
        return value
    gone = {path[0] for path in paths if len(path) == 1}
    return {
        key: _without(item, [path[1:] for path in paths if len(path) > 1 and path[0] == key])
        for key, item in value.items()
        if key not in gone
    }
