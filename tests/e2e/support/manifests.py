"""Objects that the tests make themselves; every pod passes the restricted Pod Security standard.

Threads: values, for any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Object = dict[str, Any]

POD_SECURITY: Object = {
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "runAsGroup": 10001,
    "fsGroup": 10001,
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY: Object = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def namespace(name: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": name,
            "labels": {
                "pod-security.kubernetes.io/enforce": "restricted",
                "pod-security.kubernetes.io/enforce-version": "latest",
            },
        },
    }


def config_map(name: str, files: Mapping[str, str]) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": dict(files)}


def pod(
    name: str,
    image: str,
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    files: str = "",
    node: str = "",
    probe: tuple[str, int] | None = None,
    metadata_secrets: Mapping[str, Sequence[str]] | None = None,
) -> Object:
    """`files`: a ConfigMap, mounted at /files. `node`: where it has to run. `probe`: path and port that answer when it
    is ready. `metadata_secrets`: Secrets of which /metadata has these files."""
    mounts = [{"name": "tmp", "mountPath": "/tmp"}]
    volumes: list[Object] = [{"name": "tmp", "emptyDir": {}}]
    if files:
        mounts.append({"name": "files", "mountPath": "/files"})
        volumes.append({"name": "files", "configMap": {"name": files}})
    if metadata_secrets:
        sources = [
            {"secret": {"name": name, "items": [{"key": key, "path": key} for key in keys]}}
            for name, keys in metadata_secrets.items()
        ]
        mounts.append({"name": "metadata", "mountPath": "/metadata"})
        volumes.append({"name": "metadata", "projected": {"sources": sources}})
    container: Object = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": list(command),
        "env": [{"name": key, "value": value} for key, value in (env or {}).items()],
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": mounts,
    }
    spec: Object = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "securityContext": POD_SECURITY,
        "containers": [container],
        "volumes": volumes,
    }
    if probe:
        container["readinessProbe"] = {"httpGet": {"path": probe[0], "port": probe[1]}, "periodSeconds": 1}
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": name}},
        "spec": spec,
    }
