"""The objects of an API server, with what it promises about them: resource versions that grow with every change, UIDs,
generations, finalizers, owners, preconditions; and everybody is told what changed."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from bookie_operator.api.kinds import ALL, POD_EVENT, VOLUME_ATTRIBUTES_CLASS, Resource
from tests.support.fake_kubernetes.objects import (
    Object,
    applied,
    copied,
    field_of,
    fields_of,
    matches,
    merge_patch,
    selected_by,
)

RESOURCES = {(each.api_version, each.plural): each for each in (*ALL, POD_EVENT, VOLUME_ATTRIBUTES_CLASS)}
_KEPT_CHANGES = 2000
MANAGER = "podkeeper-operator"
"""Whose fields are told apart from those of all others."""


class Refused(Exception):
    """An answer with a status of 4xx."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


@dataclass
class Change:
    version: int
    type: str
    resource: Resource
    obj: Object


@dataclass
class Store:
    clock: Callable[[], float]
    """Seconds since 1970."""
    objects: dict[Resource, dict[tuple[str, str], Object]] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    admission: list[Callable[[Resource, Object, Object | None], None]] = field(default_factory=list)
    """Called with what is about to be stored, and what was there; they raise `Refused`."""
    statuses: Callable[[Object], None] = lambda body: None
    """Called with what is to be applied to a status; raises `Refused`."""
    listeners: list[Callable[[Change], None]] = field(default_factory=list)
    collects: bool = True
    """False: the garbage collector takes its time, until `collect`."""
    _uncollected: list[tuple[str, str]] = field(default_factory=list)
    """Namespaces and UIDs of owners that are gone."""
    _versions: Iterator[int] = field(default_factory=lambda: itertools.count(100))
    _uids: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _managers: dict[tuple[str, str, str], Object] = field(default_factory=dict)
    """By UID, manager and subresource: what was applied."""
    _updates: dict[tuple[str, str], Object] = field(default_factory=dict)
    """By UID and manager: what was changed by patches."""
    _telling: set[asyncio.Task[None]] = field(default_factory=set)
    version: int = 99

    # --- reads --------------------------------------------------------------------------------------------------------

    def kind(self, resource: Resource) -> dict[tuple[str, str], Object]:
        return self.objects.setdefault(resource, {})

    def get(self, resource: Resource, namespace: str, name: str) -> Object:
        found = self.kind(resource).get((namespace, name))
        if found is None:
            raise Refused(404, "NotFound", f'{resource.plural} "{name}" not found')
        return found

    def find(self, resource: Resource, namespace: str, name: str) -> Object | None:
        return self.kind(resource).get((namespace, name))

    def list(self, resource: Resource, namespace: str = "", selector: str = "", fields: str = "") -> list[Object]:
        wanted = [term.partition("=") for term in fields.split(",") if term]
        return [
            obj
            for (found, _), obj in sorted(self.kind(resource).items())
            if (not namespace or found == namespace)
            and matches(obj, selector)
            and all(str(field_of(obj, path)) == value.lstrip("=") for path, _, value in wanted)
        ]

    def children(self, resource: Resource, namespace: str, match_labels: dict[str, str]) -> list[Object]:
        return [obj for obj in self.list(resource, namespace) if selected_by(obj, match_labels)]

    # --- writes -------------------------------------------------------------------------------------------------------

    def create(self, resource: Resource, namespace: str, body: Object) -> Object:
        name = body["metadata"]["name"]
        if (namespace, name) in self.kind(resource):
            raise Refused(409, "AlreadyExists", f'{resource.plural} "{name}" already exists')
        obj = copied(body)
        if resource.namespaced:
            obj["metadata"]["namespace"] = namespace
        obj["metadata"] |= {"uid": self._uid(), "creationTimestamp": self.time(), "generation": 1}
        obj |= {"apiVersion": resource.api_version, "kind": resource.kind}
        for judge in self.admission:
            judge(resource, obj, None)
        return self._stored(resource, namespace, obj, "ADDED")

    def replace(self, resource: Resource, namespace: str, name: str, body: Object, subresource: str = "") -> Object:
        live = self.get(resource, namespace, name)
        expected = (body.get("metadata") or {}).get("resourceVersion")
        if expected and expected != live["metadata"]["resourceVersion"]:
            raise Refused(
                409,
                "Conflict",
                f"{name}: the object has been modified; please apply your changes to the latest version",
            )
        new = copied(live)
        if subresource == "status":
            new["status"] = copied(body.get("status") or {})
        else:
            new = copied(body)
            new["metadata"] = {**copied(body["metadata"]), **_fixed(live)}
            if "status" in live:
                new["status"] = live["status"]
        return self._updated(resource, namespace, live, new)

    def patch(self, resource: Resource, namespace: str, name: str, patch: Object, subresource: str = "") -> Object:
        live = self.get(resource, namespace, name)
        expected = (patch.get("metadata") or {}).get("resourceVersion")
        kept = {key: value for key, value in patch.items() if key in ("metadata", "status")} if subresource else patch
        merged = merge_patch(live, kept)
        merged["metadata"]["resourceVersion"] = expected or live["metadata"]["resourceVersion"]
        return self.replace(resource, namespace, name, merged, subresource)

    def apply(
        self, resource: Resource, namespace: str, name: str, body: Object, manager: str, subresource: str = ""
    ) -> Object:
        if subresource == "status":
            self.statuses(body)
        live = self.find(resource, namespace, name)
        if live is None:
            if subresource or (body.get("metadata") or {}).get("resourceVersion"):
                raise Refused(404, "NotFound", f'{resource.plural} "{name}" not found')
            created = self.create(resource, namespace, body)
            self._managers[created["metadata"]["uid"], manager, ""] = copied(body)
            return created
        expected = body["metadata"].get("resourceVersion")
        if expected and expected != live["metadata"]["resourceVersion"]:
            raise Refused(409, "Conflict", f"{name}: the object has been modified")
        key = (live["metadata"]["uid"], manager, subresource)
        plain = {**body, "metadata": {k: v for k, v in body["metadata"].items() if k != "resourceVersion"}}
        new = applied(live, self._managers.get(key, {}), plain)
        new["metadata"] |= _fixed(live)
        if sum(bool(each.get("controller")) for each in new["metadata"].get("ownerReferences") or ()) > 1:
            raise Refused(422, "Invalid", f"{name}: only one reference can have controller set to true")
        stored = self._updated(resource, namespace, live, new)
        self._managers[key] = copied(plain)
        return stored

    def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        uid: str = "",
        propagation: str = "Background",
        version: str = "",
    ) -> Object:
        live = self.get(resource, namespace, name)
        if version and version != live["metadata"]["resourceVersion"]:
            raise Refused(409, "Conflict", f"{name}: the object has been modified")
        if uid and uid != live["metadata"]["uid"]:
            raise Refused(
                409,
                "Conflict",
                f"precondition failed: UID in precondition: {uid}, UID in object meta: {live['metadata']['uid']}",
            )
        if live["metadata"].get("finalizers"):
            if "deletionTimestamp" not in live["metadata"]:
                marked = copied(live)
                marked["metadata"]["deletionTimestamp"] = self.time()
                return self._stored(resource, namespace, marked, "MODIFIED")
            return live
        return self._gone(resource, namespace, live, propagation)

    def updated_by(self, obj: Object, manager: str, patch: Object) -> None:
        key = (obj["metadata"]["uid"], manager)
        self._updates[key] = merge_patch(self._updates.get(key, {}), patch)

    def shown(self, obj: Object) -> Object:
        """With who answers for which of its fields, if it was applied; whoever changed one is `somebody`."""
        metadata = obj["metadata"]
        applied_by = [key for key in ((metadata["uid"], MANAGER, ""),) if key in self._managers]
        if not applied_by:
            return obj
        entries: list[Object] = []
        for operation, body in (
            ("Apply", self._managers[applied_by[0]]),
            ("Update", self._updates.get((metadata["uid"], MANAGER), {})),
        ):
            header = {key: body.get("metadata", {}).get(key) for key in ("labels", "annotations", "ownerReferences")}
            content = {key: body[key] for key in body if key not in ("apiVersion", "kind", "metadata", "status")}
            named = {key: each for key, each in header.items() if each}
            own, others = fields_of({**content, "metadata": named}, obj)
            entries.append({"manager": MANAGER, "operation": operation, "fieldsV1": own})
            if others and operation == "Apply":
                entries.append({"manager": "somebody", "operation": "Update", "fieldsV1": others})
        return {**obj, "metadata": {**metadata, "managedFields": entries}}

    # --- inside -------------------------------------------------------------------------------------------------------

    def _updated(self, resource: Resource, namespace: str, live: Object, new: Object) -> Object:
        if new == live:
            return live
        for judge in self.admission:
            judge(resource, new, live)
        if new.get("spec") != live.get("spec"):
            new["metadata"]["generation"] = live["metadata"]["generation"] + 1
        if "deletionTimestamp" in new["metadata"] and not new["metadata"].get("finalizers"):
            return self._gone(resource, namespace, new, "Background")
        return self._stored(resource, namespace, new, "MODIFIED")

    def _stored(self, resource: Resource, namespace: str, obj: Object, change: str) -> Object:
        self.version = next(self._versions)
        obj["metadata"]["resourceVersion"] = str(self.version)
        self.kind(resource)[namespace if resource.namespaced else "", obj["metadata"]["name"]] = obj
        self._tell(Change(self.version, change, resource, obj))
        return obj

    def _gone(self, resource: Resource, namespace: str, obj: Object, propagation: str) -> Object:
        del self.kind(resource)[namespace if resource.namespaced else "", obj["metadata"]["name"]]
        self.version = next(self._versions)
        last = copied(obj)
        last["metadata"]["resourceVersion"] = str(self.version)
        self._tell(Change(self.version, "DELETED", resource, last))
        self._collect(namespace, obj["metadata"]["uid"], orphan=propagation == "Orphan")
        return last

    def collect(self) -> None:
        """What the garbage collector has left undone."""
        self.collects = True
        for namespace, owner in self._uncollected:
            self._collect(namespace, owner, orphan=False)
        self._uncollected.clear()

    def _collect(self, namespace: str, owner: str, *, orphan: bool) -> None:
        """What the garbage collector does: dependants go, or stay without their owner."""
        if not self.collects and not orphan:
            self._uncollected.append((namespace, owner))
            return
        for resource, objects in list(self.objects.items()):
            for (found, name), obj in list(objects.items()):
                owners = obj["metadata"].get("ownerReferences") or []
                if found != namespace or not any(each["uid"] == owner for each in owners):
                    continue
                if orphan:
                    kept = [each for each in owners if each["uid"] != owner]
                    self.patch(resource, found, name, {"metadata": {"ownerReferences": kept}})
                elif (found, name) in self.kind(resource):
                    self.delete(resource, found, name)

    def _tell(self, change: Change) -> None:
        self.changes.append(change)
        for listener in self.listeners:
            listener(change)
        del self.changes[:-_KEPT_CHANGES]
        telling = asyncio.get_running_loop().create_task(self._notify())
        self._telling.add(telling)
        telling.add_done_callback(self._telling.discard)

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    def _uid(self) -> str:
        number = next(self._uids)
        return f"{number:08x}-4a6b-4c1d-9e2f-{number:012x}"

    def time(self) -> str:
        return datetime.fromtimestamp(self.clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _fixed(live: Object) -> Object:
    """Metadata that no writer changes."""
    names = ("name", "namespace", "uid", "creationTimestamp", "generation", "resourceVersion", "deletionTimestamp")
    return {name: live["metadata"][name] for name in names if name in live["metadata"]}
