"""The restricted Pod Security Standard, as far as a PodSpec can break it.

Source: Kubernetes documentation, Pod Security Standards, profiles Baseline and Restricted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

VOLUME_KINDS: Final = frozenset(
    {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
)
PROFILES: Final = frozenset({"RuntimeDefault", "Localhost"})
_CONTAINERS: Final = ("initContainers", "containers", "ephemeralContainers")


def violations(pod_spec: Mapping[str, Any]) -> list[str]:
    """What a namespace with `pod-security.kubernetes.io/enforce: restricted` would refuse, one line each."""
    found = [f"{name}: true" for name in ("hostNetwork", "hostPID", "hostIPC") if pod_spec.get(name)]
    for volume in pod_spec.get("volumes") or ():
        kinds = set(volume) - {"name"}
        found += [f"volume {volume['name']}: {kind}" for kind in kinds - VOLUME_KINDS]
    security = pod_spec.get("securityContext") or {}
    if security.get("sysctls"):
        found.append("sysctls")
    for kind in _CONTAINERS:
        for container in pod_spec.get(kind) or ():
            found += [f"container {container['name']}: {each}" for each in _container(container, security)]
    return found


def _container(container: Mapping[str, Any], pod: Mapping[str, Any]) -> Iterator[str]:
    own = container.get("securityContext") or {}
    if own.get("privileged"):
        yield "privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield "allowPrivilegeEscalation is not false"
    capabilities = own.get("capabilities") or {}
    if "ALL" not in (capabilities.get("drop") or ()):
        yield "does not drop all capabilities"
    if set(capabilities.get("add") or ()) - {"NET_BIND_SERVICE"}:
        yield "adds capabilities"
    if not own.get("runAsNonRoot", pod.get("runAsNonRoot")):
        yield "runAsNonRoot is not true"
    if own.get("runAsUser", pod.get("runAsUser")) == 0:
        yield "runAsUser is 0"
    if (own.get("seccompProfile") or pod.get("seccompProfile") or {}).get("type") not in PROFILES:
        yield "no seccomp profile"
    if own.get("procMount", "Default") != "Default":
        yield "procMount"
    if any("hostPort" in port and port["hostPort"] for port in container.get("ports") or ()):
        yield "hostPort"
    for name in ("postStart", "preStop"):
        if "host" in ((container.get("lifecycle") or {}).get(name) or {}).get("httpGet", {}):
            yield f"{name} names a host"
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        if "host" in (container.get(name) or {}).get("httpGet", {}):
            yield f"{name} names a host"
