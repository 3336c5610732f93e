"""The Kubernetes API as the tests use it: objects as plain dictionaries, and waiting by watches.

Invariants
- `wait_for` looks at every state that the API server tells, and sleeps nowhere.
- A time-out names what was waited for and what was seen last.
- A watch that ends or breaks is begun anew: how long there is time says the waiting alone.

Threads: one object for each thread.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import DynamicApiError, ResourceNotFoundError
from kubernetes.stream import stream
from urllib3.exceptions import HTTPError

Object = dict[str, Any]
Found = TypeVar("Found")

KINDS: Final = {
    "Pod": "v1",
    "Node": "v1",
    "Namespace": "v1",
    "Secret": "v1",
    "ConfigMap": "v1",
    "Event": "v1",
    "Service": "v1",
    "ServiceAccount": "v1",
    "PersistentVolumeClaim": "v1",
    "StatefulSet": "apps/v1",
    "Deployment": "apps/v1",
    "Job": "batch/v1",
    "CronJob": "batch/v1",
    "Lease": "coordination.k8s.io/v1",
    "NetworkPolicy": "networking.k8s.io/v1",
    "Role": "rbac.authorization.k8s.io/v1",
    "RoleBinding": "rbac.authorization.k8s.io/v1",
    "PodDisruptionBudget": "policy/v1",
    "ResourceQuota": "v1",
    "StorageClass": "storage.k8s.io/v1",
    "CustomResourceDefinition": "apiextensions.k8s.io/v1",
    "ValidatingAdmissionPolicy": "admissionregistration.k8s.io/v1",
    "ValidatingAdmissionPolicyBinding": "admissionregistration.k8s.io/v1",
    "BookieCluster": "podkeeper.dev/v1alpha1",
    "BookieJob": "podkeeper.dev/v1alpha1",
    "BookieTask": "podkeeper.dev/v1alpha1",
}
_MERGE: Final = "application/merge-patch+json"
_MANAGER: Final = "e2e"
_WATCH_SECONDS: Final = 30
PATIENCE: Final = float(os.environ.get("PODKEEPER_E2E_PATIENCE", "1"))
"""A factor of every time-out."""


class Kube:
    """A connection to the API server of a kubeconfig; `close` ends it."""

    def __init__(self, kubeconfig: str, namespace: str) -> None:
        self.namespace = namespace
        self._client = config.new_client_from_config(config_file=kubeconfig)
        self._dynamic = DynamicClient(self._client)
        self._core = client.CoreV1Api(self._client)

    def close(self) -> None:
        self._client.close()

    # --- objects ------------------------------------------------------------------------------------------------------

    def get(self, kind: str, name: str) -> Object | None:
        """None: there is none."""
        try:
            return self._kind(kind).get(name=name, namespace=self._scope(kind)).to_dict()
        except DynamicApiError as error:
            if error.status == 404:
                return None
            raise

    def list(self, kind: str, selector: str = "") -> list[Object]:
        found = self._kind(kind).get(namespace=self._scope(kind), label_selector=selector or None)
        return [item.to_dict() for item in found.items]

    def apply(self, body: Mapping[str, Any], *, dry_run: bool = False) -> Object:
        """Server-side apply. Raises `DynamicApiError` with the message that a user sees."""
        kind = self._kind(body["kind"])
        extra = {"dry_run": "All"} if dry_run else {}
        return kind.server_side_apply(
            body=dict(body),
            namespace=self._scope(body["kind"]),
            field_manager=_MANAGER,
            force_conflicts=True,
            **extra,
        ).to_dict()

    def patch(self, kind: str, name: str, body: Mapping[str, Any], *, subresource: str = "") -> Object:
        """A merge patch."""
        target = self._kind(kind)
        if subresource:
            target = getattr(target, subresource)
        patched = target.patch(body=dict(body), name=name, namespace=self._scope(kind), content_type=_MERGE)
        return patched.to_dict()

    def annotate(self, kind: str, name: str, annotations: Mapping[str, str | None]) -> None:
        self.patch(kind, name, {"metadata": {"annotations": dict(annotations)}})

    def delete(self, kind: str, name: str, *, uid: str = "", propagation: str = "", grace: int | None = None) -> bool:
        """False: there was none."""
        body: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid:
            body["preconditions"] = {"uid": uid}
        if propagation:
            body["propagationPolicy"] = propagation
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        try:
            self._kind(kind).delete(name=name, namespace=self._scope(kind), body=body)
        except DynamicApiError as error:
            if error.status != 404:
                raise
            return False
        return True

    def evict(self, pod: str) -> bool:
        """False: its budget forbids it now, or it is gone."""
        body = client.V1Eviction(metadata=client.V1ObjectMeta(name=pod, namespace=self.namespace))
        try:
            self._core.create_namespaced_pod_eviction(pod, self.namespace, body)
        except ApiException as error:
            if error.status not in (404, 429):
                raise
            return False
        return True

    def logs(self, pod: str, *, previous: bool = False, lines: int = 300) -> str:
        answer = self._core.read_namespaced_pod_log(
            pod, self.namespace, previous=previous, tail_lines=lines, _preload_content=False
        )
        return answer.data.decode(errors="replace")

    def ask_pod(self, pod: str, port: int, path: str, *, method: str = "GET", seconds: float = 90.0) -> Any:
        """A JSON answer of a pod's HTTP server, by way of the API server. Raises `ApiException`."""
        api = self._core
        calls = {
            "GET": api.connect_get_namespaced_pod_proxy_with_path,
            "POST": api.connect_post_namespaced_pod_proxy_with_path,
            "PUT": api.connect_put_namespaced_pod_proxy_with_path,
        }
        answer = calls[method](
            f"{pod}:{port}", self.namespace, path.lstrip("/"), _preload_content=False, _request_timeout=seconds
        )
        if not 200 <= answer.status < 300:
            raise ApiException(status=answer.status, reason=answer.data.decode(errors="replace")[:500])
        return json.loads(answer.data)

    def run_in_pod(self, pod: str, container: str, *command: str) -> str:
        """What a command in a container prints, as `kubectl exec`. Raises `ApiException`."""
        answer = stream(
            self._core.connect_get_namespaced_pod_exec,
            pod,
            self.namespace,
            container=container,
            command=list(command),
            stdout=True,
            stderr=True,
            stdin=False,
            tty=False,
        )
        return str(answer)

    # --- waiting ------------------------------------------------------------------------------------------------------

    def wait_for(
        self,
        kind: str,
        condition: Callable[[dict[str, Object]], Found | None],
        seconds: float,
        what: str,
        *,
        name: str = "",
        selector: str = "",
        show: Callable[[Object], str] | None = None,
    ) -> Found:
        """Until `condition` (of objects by name) gives something that is neither None nor False; AssertionError after
        `seconds`, with `what` and each object as `show` tells it."""
        seconds *= PATIENCE
        end = time.monotonic() + seconds
        seen: dict[str, Object] = {}
        while True:
            for seen in self._states(kind, name, selector, end):
                found = condition(seen)
                if found is not None and found is not False:
                    return found
                if time.monotonic() > end:
                    break
            if time.monotonic() > end:
                told = "\n".join(f"  {each}: {(show or _shown)(seen[each])}" for each in sorted(seen)) or "  nothing"
                raise AssertionError(f"waited {seconds:g} s for {what}; last seen:\n{told}")

    def wait_gone(self, kind: str, name: str, seconds: float, *, uid: str = "") -> None:
        """Until there is no such object, or another one of its name."""

        def gone(objects: dict[str, Object]) -> bool:
            return name not in objects or (bool(uid) and objects[name]["metadata"]["uid"] != uid)

        self.wait_for(kind, gone, seconds, f"the end of {kind} {name}", name=name)

    def _states(self, kind: str, name: str, selector: str, end: float) -> Iterable[dict[str, Object]]:
        """What there is, then again after each change; ends with the watch."""
        field = f"metadata.name={name}" if name else None
        resource, scope = self._kind(kind), self._scope(kind)
        listing = resource.get(namespace=scope, label_selector=selector or None, field_selector=field).to_dict()
        objects = {item["metadata"]["name"]: item for item in listing["items"]}
        yield objects
        left = max(1, min(_WATCH_SECONDS, round(end - time.monotonic())))
        try:
            for event in resource.watch(
                namespace=scope,
                label_selector=selector or None,
                field_selector=field,
                resource_version=listing["metadata"]["resourceVersion"],
                timeout=left,
            ):
                changed = event["raw_object"]
                if event["type"] == "DELETED":
                    objects.pop(changed["metadata"]["name"], None)
                elif event["type"] in ("ADDED", "MODIFIED"):
                    objects[changed["metadata"]["name"]] = changed
                yield objects
        except (ApiException, DynamicApiError) as error:
            if error.status != 410:
                raise
        except HTTPError:
            return  # the connection broke

    # --- inside -------------------------------------------------------------------------------------------------------

    def _kind(self, kind: str) -> Any:
        try:
            return self._dynamic.resources.get(api_version=KINDS[kind], kind=kind)
        except ResourceNotFoundError:
            self._dynamic = DynamicClient(self._client)  # a definition that is newer than this connection
            return self._dynamic.resources.get(api_version=KINDS[kind], kind=kind)

    def _scope(self, kind: str) -> str | None:
        return self.namespace if self._kind(kind).namespaced else None


def _shown(thing: Object) -> str:
    return json.dumps(thing.get("status", {}))[:1500]


def condition_of(thing: Mapping[str, Any], kind: str) -> Object:
    """A condition of its status; an empty one if it is not there."""
    for each in (thing.get("status") or {}).get("conditions") or []:
        if each["type"] == kind:
            return dict(each)
    return {"type": kind, "status": "", "reason": "", "message": ""}


def pod_ready(pod: Mapping[str, Any]) -> bool:
    return condition_of(pod, "Ready")["status"] == "True" and not pod["metadata"].get("deletionTimestamp")
