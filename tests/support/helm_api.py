"""As much of an API server as `helm uninstall` and `helm upgrade --dry-run` of one small release need. The release has
a check that runs before it is uninstalled. The server has at most one admission policy, for the record of the release.

Event loop only.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from tests.support.helm_charts import NAMESPACE, Object, program

RELEASE: Final = "podkeeper"
_RECORD: Final = f"sh.helm.release.v1.{RELEASE}.v1"
_CHART: Final = {"apiVersion": "v2", "name": "small", "version": "0.1.0"}
_PART: Final = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "part", "namespace": NAMESPACE}}
_KINDS: Final = {
    "/api/v1": [("secrets", "Secret"), ("configmaps", "ConfigMap")],
    "/apis/batch/v1": [("jobs", "Job")],
}
_MARK: Final = "uninstalling"


@dataclass
class HelmApi:
    """`policy`: a ValidatingAdmissionPolicy as the chart renders it. `check_fails`: the check finds a cluster."""

    folder: Path
    check: Object
    check_fails: bool
    policy: Object | None
    record: Object | None = None
    job: Object | None = None
    deleted: list[str] = field(default_factory=list)
    url: str = ""

    def __post_init__(self) -> None:
        self.record = self._recorded("deployed")

    async def helm(self, *arguments: str) -> tuple[int, str]:
        """Return the exit code, and what Helm printed."""
        cluster = {"name": "c", "cluster": {"server": self.url}}
        context = {"name": "c", "context": {"cluster": "c", "user": "u"}}
        config = {"apiVersion": "v1", "kind": "Config", "clusters": [cluster], "contexts": [context]}
        users = {"current-context": "c", "users": [{"name": "u", "user": {}}]}
        path = self.folder / "kubeconfig"
        path.write_text(json.dumps({**config, **users}), encoding="utf-8")
        own = [f"--kubeconfig={path}", f"--namespace={NAMESPACE}"]
        variables = {"HOME": str(self.folder), "PATH": "/usr/bin:/bin"}
        pipe = asyncio.subprocess.PIPE
        run = await asyncio.create_subprocess_exec(
            program("helm"), *arguments, *own, stdout=pipe, stderr=asyncio.subprocess.STDOUT, env=variables
        )
        printed, _ = await asyncio.wait_for(run.communicate(), 120)
        assert run.returncode is not None
        return run.returncode, printed.decode()

    def chart(self) -> str:
        """Return the folder of the chart that it is upgraded to."""
        templates = self.folder / "small" / "templates"
        templates.mkdir(parents=True, exist_ok=True)
        (templates.parent / "Chart.yaml").write_text(json.dumps(_CHART), encoding="utf-8")
        (templates / "part.yaml").write_text(json.dumps(_PART), encoding="utf-8")
        return str(templates.parent)

    @property
    def state(self) -> str | None:
        """As Helm has recorded it; None: it is uninstalled."""
        return self.record["metadata"]["labels"]["status"] if self.record is not None else None

    async def answer(self, request: web.Request) -> web.StreamResponse:
        path, method = request.path, request.method
        found = _discovery(path)
        if found is not None:
            return web.json_response(found)
        kind, _, name = path.rpartition(f"/namespaces/{NAMESPACE}/")[2].partition("/")
        if method == "DELETE":
            self.deleted.append(kind)
        match kind, method:
            case "secrets", "GET" if not name:
                return web.json_response(_list("Secret", self._selected(request.query.get("labelSelector", ""))))
            case "secrets", "PUT":
                return self._put(await request.read())
            case "secrets", "DELETE":
                self.record = None
                return web.json_response({"kind": "Status", "status": "Success"})
            case "secrets", _ if self.record is not None:
                return web.json_response(self.record)
            case "jobs", "POST":
                ending = {"type": "Failed" if self.check_fails else "Complete", "status": "True", "reason": "Over"}
                metadata = {**self.check["metadata"], "uid": "j", "resourceVersion": "2"}
                self.job = {**self.check, "metadata": metadata, "status": {"conditions": [ending]}}
                return web.json_response(self.job, status=201)
            case "jobs", "GET" if "watch" in request.query:
                return await self._watched(request)
            case "jobs", "GET" if not name:
                return web.json_response(_list("Job", [self.job] if self.job is not None else []))
            case "jobs", "DELETE" if self.job is not None:
                self.job = None
                return web.json_response({"kind": "Status", "status": "Success"})
            case "configmaps", "DELETE":
                return web.json_response({"kind": "Status", "status": "Success"})
        return _failure(404, "NotFound")

    def _put(self, body: bytes) -> web.Response:
        """Helm speaks protobuf here, in which texts stand as they are."""
        marks, marked = _MARK.encode() in body, self.state == _MARK
        if marks and not marked and self.policy is not None:
            wanted = self.policy["spec"]["matchConstraints"]["objectSelector"]["matchLabels"]
            assert self.record is not None
            if wanted.items() <= {**self.record["metadata"]["labels"], "status": _MARK}.items():
                return _failure(422, "Invalid")
        self.record = self._recorded(_MARK if marks else "deployed")
        return web.json_response(self.record)

    def _selected(self, selector: str) -> list[Object]:
        labels = dict(each.split("=") for each in selector.split(",") if each)
        found = [self.record] if self.record is not None else []
        return [each for each in found if labels.items() <= each["metadata"]["labels"].items()]

    async def _watched(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        await response.write(json.dumps({"type": "ADDED", "object": self.job}).encode() + b"\n")
        return response

    def _recorded(self, status: str) -> Object:
        told = {"first_deployed": "2026-01-01T00:00:00Z", "last_deployed": "2026-01-01T00:00:00Z"}
        of_check = {"name": "check", "kind": "Job", "path": "small/templates/check.yaml", "events": ["pre-delete"]}
        policies = {"delete_policies": ["before-hook-creation", "hook-succeeded"]}
        release = {
            "name": RELEASE,
            "version": 1,
            "namespace": NAMESPACE,
            "info": {**told, "status": status},
            "chart": {"metadata": _CHART},
            "manifest": json.dumps(_PART),
            "hooks": [{**of_check, **policies, "manifest": json.dumps(self.check)}],
        }
        packed = base64.b64encode(base64.b64encode(gzip.compress(json.dumps(release).encode()))).decode()
        labels = {"name": RELEASE, "owner": "helm", "status": status, "version": "1"}
        metadata = {"name": _RECORD, "namespace": NAMESPACE, "labels": labels, "resourceVersion": "1", "uid": "u"}
        secret = {"apiVersion": "v1", "kind": "Secret", "type": "helm.sh/release.v1"}
        return {**secret, "metadata": metadata, "data": {"release": packed}}


@asynccontextmanager
async def serve_helm(api: HelmApi) -> AsyncIterator[HelmApi]:
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", api.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        api.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield api
    finally:
        await runner.cleanup()


def _discovery(path: str) -> Any:
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    if path in _KINDS:
        resources = [
            {"name": name, "kind": kind, "namespaced": True, "verbs": verbs, "singularName": ""}
            for name, kind in _KINDS[path]
        ]
        group = path.removeprefix("/apis/").removeprefix("/api/")
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group, "resources": resources}
    version = {"groupVersion": "batch/v1", "version": "v1"}
    batch = {"name": "batch", "versions": [version], "preferredVersion": version}
    known: dict[str, Any] = {
        "/version": {"major": "1", "minor": "31", "gitVersion": "v1.31.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [batch]},
        "/openapi/v3": {"paths": {one.lstrip("/"): {"serverRelativeURL": f"/openapi/v3{one}"} for one in _KINDS}},
    }
    of_schema = path.removeprefix("/openapi/v3")
    if of_schema in _KINDS:
        known[path] = _schema(of_schema)
    return known.get(path)


def _schema(group: str) -> Any:
    """It says alone that the server validates fields, so Helm does not."""
    parameters = [{"name": name, "in": "query"} for name in ("fieldValidation", "dryRun")]
    of, _, version = group.removeprefix("/apis/").removeprefix("/api/").rpartition("/")
    paths = {
        f"{group}/namespaces/{{namespace}}/{name}/{{name}}": {
            "patch": {
                "parameters": parameters,
                "x-kubernetes-group-version-kind": {"group": of, "version": version, "kind": kind},
                "responses": {},
            }
        }
        for name, kind in _KINDS[group]
    }
    return {"openapi": "3.0.0", "info": {"title": "", "version": ""}, "paths": paths, "components": {"schemas": {}}}


def _list(kind: str, items: list[Object]) -> Any:
    return {"kind": f"{kind}List", "apiVersion": "v1", "metadata": {"resourceVersion": "2"}, "items": items}


def _failure(code: int, reason: str) -> web.Response:
    told = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code}
    return web.json_response(told, status=code)
