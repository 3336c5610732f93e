"""The API server, on the loop of the test, over HTTP or beside an operator: paths, verbs, content types, subresources,
watches and faults."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import urllib3
from aiohttp import web
from kubernetes import client

from bookie_operator.api.kinds import BUDGET, POD, STATEFUL_SET, Resource
from bookie_operator.api.transport import Request, Transport, judged
from tests.support.fake_kubernetes.faults import Fault
from tests.support.fake_kubernetes.objects import Object, matches, selected_by
from tests.support.fake_kubernetes.store import RESOURCES, Refused, Store

_PATH = re.compile(
    r"/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+/[^/]+))(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<plural>[a-z]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>status|scale|eviction))?"
)


_ONLY_NAMED = (
    Resource("v1", "Namespace", "namespaces", namespaced=False),
    Resource("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False),
)
"""What kopf looks for, and does not use here."""


@dataclass(frozen=True)
class Asked:
    """A request, whichever way it came."""

    method: str
    path: str
    query: Mapping[str, str]
    body: Any
    content_type: str
    accept: str


class ApiServer:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        """`METHOD path` of every request but watches."""
        self.watches: list[tuple[str, str, bool]] = []
        """Plural and label selector of every watch, and whether it asked for metadata alone."""
        self.host = ""
        self.page = 0
        """Objects of an answer, if the client allows as many; 0: as many as it allows."""
        self.forbidden: set[str] = set()
        """Plurals that nobody may read."""
        self.unknown: set[str] = set()
        """Plurals that are not defined."""
        self.broken_watches: set[str] = set()
        """Plurals whose watches are told of an error when something changes the next time."""

    def writes(self) -> list[str]:
        return [each for each in self.requests if not each.startswith("GET ")]

    def configuration(self) -> client.Configuration:
        return client.Configuration(host=self.host)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch"):
            return await self._watch(request)
        line = f"{request.method} {request.path}"
        self.requests.append(line)
        content, accept = await request.read(), request.headers.get("Accept", "")
        body = json.loads(content) if content else {}
        asked = Asked(request.method, request.path, request.query, body, request.content_type, accept)
        fault = self._fault(line)
        if fault is not None:
            await asyncio.sleep(fault.delay_s)
            if fault.breaks and request.transport is not None:
                request.transport.abort()
        status, headers, told = self._told(asked, fault)
        return web.json_response(told, status=status, headers=headers)

    def ask(self, request: Request) -> Any:
        """What an operator hears without a connection: `handle` where none breaks and none is slow."""
        self.requests.append(str(request))
        body = json.loads(json.dumps(request.body)) if request.body is not None else {}
        asked = Asked(request.method, request.path, request.query, body, request.content_type, request.accept)
        status, headers, told = self._told(asked, self._fault(str(request)))
        content = msgspec.json.encode(told)
        if status == 200:
            return msgspec.json.decode(content)
        return judged(request, urllib3.HTTPResponse(content, headers, status))

    def _fault(self, line: str) -> Fault | None:
        return next((each for each in self.faults if each.strikes(line)), None)

    def _told(self, asked: Asked, fault: Fault | None) -> tuple[int, dict[str, str], Object]:
        """Status, headers and content of an answer."""
        if fault is not None and fault.status:
            if fault.done:
                self._answer(asked)
            return fault.status, fault.headers, _failure(fault.status, "Fault", f"fault {fault.status}")
        try:
            return 200, {}, self._answer(asked)
        except Refused as refused:
            headers = {"Retry-After": "1"} if refused.status == 429 else {}
            return refused.status, headers, _failure(refused.status, refused.reason, refused.message)

    def _answer(self, asked: Asked) -> Object:
        if asked.path in ("/apis", "/api", "/version"):
            return _discovery(asked.path, self.unknown)
        found = _PATH.fullmatch(asked.path)
        if found is None:
            return _resources(asked.path, self.unknown)
        resource = RESOURCES.get((found["core"] or found["group"], found["plural"]))
        if resource is None or found["plural"] in self.unknown:
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        if found["plural"] in self.forbidden:
            raise Refused(403, "Forbidden", f"{found['plural']} is forbidden")
        named = (resource, found["namespace"] or "", found["name"] or "")
        if found["sub"] == "scale":
            return self._scale(asked, *named)
        if found["sub"] == "eviction":
            return self._evict(*named, asked.body)
        return self._verb(asked, *named, found["sub"] or "")

    def _verb(self, asked: Asked, resource: Resource, namespace: str, name: str, sub: str) -> Object:
        body = asked.body
        match asked.method:
            case "GET" if name:
                return self.store.shown(self.store.get(resource, namespace, name))
            case "GET":
                return self._list(asked, resource, namespace)
            case "POST":
                return self.store.create(resource, namespace, body)
            case "PUT":
                return self.store.replace(resource, namespace, name, body, sub)
            case "PATCH" if "apply-patch" in asked.content_type:
                if asked.query.get("dryRun"):
                    return body
                return self.store.apply(resource, namespace, name, body, asked.query["fieldManager"], sub)
            case "PATCH":
                patched = self.store.patch(resource, namespace, name, body, sub)
                self.store.updated_by(patched, asked.query.get("fieldManager", ""), body)
                return patched
            case "DELETE":
                wanted, propagation = body.get("preconditions") or {}, body.get("propagationPolicy", "Background")
                version = wanted.get("resourceVersion", "")
                return self.store.delete(resource, namespace, name, wanted.get("uid", ""), propagation, version)
        raise Refused(405, "MethodNotAllowed", asked.method)

    def _list(self, asked: Asked, resource: Resource, namespace: str) -> Object:
        query = asked.query
        items = self.store.list(resource, namespace, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        at = int(query.get("continue", "0"))
        limit = min(int(query.get("limit") or len(items) or 1), self.page or len(items) or 1)
        metadata: dict[str, Any] = {"resourceVersion": str(self.store.version)}
        if at + limit < len(items):
            metadata["continue"] = str(at + limit)
        shown = [self.store.shown(each) for each in items[at : at + limit]]
        if "as=PartialObjectMetadataList;" in asked.accept:
            shown = [_header(each) for each in shown] or None  # as a real one has it
        return {
            "apiVersion": resource.api_version,
            "kind": f"{resource.kind}List",
            "metadata": metadata,
            "items": shown,
        }

    def _scale(self, asked: Asked, resource: Resource, namespace: str, name: str) -> Object:
        live, body = self.store.get(resource, namespace, name), asked.body
        if asked.method != "GET":
            expected = (body.get("metadata") or {}).get("resourceVersion")
            if expected and expected != live["metadata"]["resourceVersion"]:
                raise Refused(409, "Conflict", f"{name}: the object has been modified")
            live = self.store.patch(resource, namespace, name, {"spec": {"replicas": body["spec"]["replicas"]}})
        return {
            "apiVersion": "autoscaling/v1",
            "kind": "Scale",
            "metadata": live["metadata"],
            "spec": {"replicas": live["spec"]["replicas"]},
        }

    def _evict(self, resource: Resource, namespace: str, name: str, body: Object) -> Object:
        pod = self.store.get(resource, namespace, name)
        for budget in self.store.list(BUDGET, namespace):
            selector = budget["spec"]["selector"]
            chosen = selector["matchLabels"]
            if not selected_by(pod, chosen) or _is_excepted(pod, selector.get("matchExpressions") or ()):
                continue
            if self._disrupted(namespace, chosen) >= budget["spec"].get("maxUnavailable", 1):
                raise Refused(
                    429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget."
                )
        uid = ((body.get("deleteOptions") or {}).get("preconditions") or {}).get("uid", "")
        self.store.delete(POD, namespace, name, uid)
        return {"kind": "Status", "status": "Success"}

    def _disrupted(self, namespace: str, chosen: dict[str, str]) -> int:
        """Pods of a budget that are away: fewer are ready than their StatefulSets want."""
        pods = self.store.children(POD, namespace, chosen)
        ready = sum(_is_ready(pod) for pod in pods)
        wanted = sum(
            each["spec"]["replicas"]
            for each in self.store.list(STATEFUL_SET, namespace)
            if all(each["spec"]["selector"]["matchLabels"].get(key) == value for key, value in chosen.items())
        )
        return max(wanted, len(pods)) - ready

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        found = _PATH.fullmatch(request.path)
        assert found is not None
        resource = RESOURCES[found["core"] or found["group"], found["plural"]]
        selector, seen = (
            request.query.get("labelSelector", ""),
            int(request.query.get("resourceVersion") or self.store.version),
        )
        header = "as=PartialObjectMetadata;" in request.headers.get("Accept", "")
        self.watches.append((resource.plural, selector, header))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        while True:
            if resource.plural in self.broken_watches:
                status = {"kind": "Status", "code": 500, "message": "etcdserver: leader changed"}
                await response.write(json.dumps({"type": "ERROR", "object": status}).encode() + b"\n")
                return response
            for change in [each for each in self.store.changes if each.version > seen]:
                seen = change.version
                here = not found["namespace"] or change.obj["metadata"].get("namespace") == found["namespace"]
                if change.resource == resource and here and matches(change.obj, selector):
                    try:
                        shown = _header(change.obj) if header else change.obj
                        await response.write(json.dumps({"type": change.type, "object": shown}).encode() + b"\n")
                    except ConnectionError:
                        return response
            async with self.store.changed:
                await self.store.changed.wait_for(lambda seen=seen: self.store.version > seen)


def _header(obj: Object) -> Object:
    return {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": obj["metadata"]}


def _is_excepted(pod: Object, expressions: Iterable[Object]) -> bool:
    labels = pod["metadata"].get("labels") or {}
    for each in expressions:
        assert each["operator"] == "NotIn", each
        if labels.get(each["key"]) in each["values"]:
            return True
    return False


def _is_ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _failure(status: int, reason: str, message: str) -> Object:
    return {"kind": "Status", "status": "Failure", "reason": reason, "message": message, "code": status}


def _discovery(path: str, unknown: Collection[str]) -> Object:
    if path == "/version":
        return {"major": "1", "minor": "33", "gitVersion": "v1.33.0"}
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    known = {version for version, plural in RESOURCES if "/" in version and plural not in unknown}
    versions = sorted(known | {"apiextensions.k8s.io/v1"})
    groups = [
        {
            "name": each.partition("/")[0],
            "versions": [{"groupVersion": each, "version": each.partition("/")[2]}],
            "preferredVersion": {"groupVersion": each, "version": each.partition("/")[2]},
        }
        for each in versions
    ]
    return {"kind": "APIGroupList", "groups": groups}


def _resources(path: str, unknown: Collection[str]) -> Object:
    version = path.removeprefix("/apis/").removeprefix("/api/")
    found = [each for (api_version, _), each in RESOURCES.items() if api_version == version]
    found += [each for each in _ONLY_NAMED if each.api_version == version]
    if not found:
        raise Refused(404, "NotFound", "the server could not find the requested resource")
    resources: list[Object] = []
    for each in found:
        if each.plural in unknown:
            continue
        about = {"kind": each.kind, "namespaced": each.namespaced, "singularName": each.kind.lower()}
        verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
        resources.append({"name": each.plural, "verbs": verbs, **about})
        resources.append({"name": f"{each.plural}/status", "verbs": ["get", "patch", "update"], **about})
    return {"kind": "APIResourceList", "groupVersion": version, "resources": resources}


class Beside(Transport):
    """The way of an operator whose API server runs on the loop of the test: threads and connections would be two thirds
    of what a pass takes. They are there where one may break or be slow, and for whoever has a transport of its own."""

    def __init__(self, server: ApiServer, timeout_s: float) -> None:
        super().__init__(server.configuration(), timeout_s=timeout_s)
        self._server = server

    async def request(self, request: Request) -> Any:
        if any(each.times > 0 and (each.breaks or each.delay_s) for each in self._server.faults):
            return await super().request(request)
        await asyncio.sleep(0)  # others have their turn meanwhile
        return self._server.ask(request)


@asynccontextmanager
async def serving(store: Store) -> AsyncIterator[ApiServer]:
    server = ApiServer(store)
    app = web.Application(client_max_size=16 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.host = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()
