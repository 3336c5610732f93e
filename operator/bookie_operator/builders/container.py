"""The container of every process that reads the bookies' configuration: bookie, auto-recovery, gateway, metadata Jobs.

Invariant: what the configuration refers to (token, certificates, volumes that the user adds) is there for all of them.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bookie_operator.builders import config, naming
from bookie_operator.builders.common import (
    OWN_VOLUME,
    READ_ONLY_CONTAINER,
    environment,
    from_field,
    temporary_mount,
    temporary_volume,
)
from bookie_operator.builders.context import BuildContext
from bookie_operator.builders.metadata_uri import is_etcd, is_protected
from bookie_operator.builders.settings import PREFIX
from bookie_operator.crds.pod_spec import Probe
from bookie_operator.world.model import ClusterView

NAME: Final = "bookie"
CONFIG: Final = f"{OWN_VOLUME}config"
TOKEN: Final = f"{OWN_VOLUME}admin-token"
CLIENT_TOKEN: Final = f"{OWN_VOLUME}client-token"
TLS: Final = f"{OWN_VOLUME}tls"
HTTP: Final = "http"
HTTPS: Final = "https"
METADATA: Final = f"{OWN_VOLUME}metadata"
"""Volume with what opens a metadata service that the operator runs."""
ADMIN_TLS: Final = f"{OWN_VOLUME}admin-tls"
"""Volume with the certificate of the HTTP port. A pod that has it serves HTTPS."""
_SHARED_KINDS: Final = frozenset({"name", "configMap", "secret", "projected", "downwardAPI", "emptyDir", "csi"})
"""Volumes that several pods may have at the same time."""


def image(cluster: ClusterView, context: BuildContext) -> str:
    return cluster.spec.image or f"{context.image_repository}:{cluster.spec.version}"


def container(
    cluster: ClusterView,
    context: BuildContext,
    arguments: Sequence[str],
    env: Sequence[Mapping[str, Any]],
    resources: Mapping[str, Any],
) -> dict[str, Any]:
    """One that runs `bookie ARGUMENTS`. Variables of `spec.pod.env` come last, but take none of the operator's away."""
    spec = cluster.spec
    own = [from_field("POD_NAME", "metadata.name"), environment("BOOKIE_CONF", config.PATH), *map(dict, env)]
    taken = {each["name"] for each in own}
    more = [each for each in spec.pod.env if each.get("name") not in taken]
    made: dict[str, Any] = {
        "name": NAME,
        "image": image(cluster, context),
        "imagePullPolicy": spec.image_pull_policy,
        "args": list(arguments),
        "env": [*own, *more],
        "envFrom": [{"prefix": PREFIX, "configMapRef": {"name": naming.settings(cluster.name)}}],
        "securityContext": dict(READ_ONLY_CONTAINER),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": _mounts(cluster),
    }
    if resources:
        made["resources"] = dict(resources)
    return made


def _mounts(cluster: ClusterView) -> list[dict[str, Any]]:
    mounts = [
        temporary_mount(),
        {"name": CONFIG, "mountPath": config.DIRECTORY, "readOnly": True},
        {"name": TOKEN, "mountPath": config.TOKEN_DIRECTORY, "readOnly": True},
    ]
    if config.demands_client_token(cluster):
        mounts.append({"name": CLIENT_TOKEN, "mountPath": config.CLIENT_TOKEN_DIRECTORY, "readOnly": True})
    if metadata_access(cluster) is not None:
        mounts.append(metadata_mount())
    if cluster.spec.tls.admin_api.enabled:
        mounts.append({"name": ADMIN_TLS, "mountPath": config.ADMIN_TLS_DIRECTORY, "readOnly": True})
    if cluster.spec.tls.enabled:
        mounts.append({"name": TLS, "mountPath": config.TLS_DIRECTORY, "readOnly": True})
    return mounts


def volumes(cluster: ClusterView, config_name: str) -> list[dict[str, Any]]:
    """Return the volumes that every such container mounts."""
    found = [
        temporary_volume(),
        {"name": CONFIG, "configMap": {"name": config_name}},
        # Owner and group may read: the group is that of the pod's volumes.
        {"name": TOKEN, "secret": {"secretName": naming.admin_token(cluster.name), "defaultMode": 0o440}},
    ]
    if config.demands_client_token(cluster):
        secret = {"secretName": naming.client_token(cluster.name), "defaultMode": 0o440}
        found.append({"name": CLIENT_TOKEN, "secret": secret})
    if (access := metadata_access(cluster)) is not None:
        found.append(access)
    if cluster.spec.tls.admin_api.enabled:
        secret = {"secretName": admin_tls_secret(cluster), "defaultMode": 0o440}
        found.append({"name": ADMIN_TLS, "secret": secret})
    if cluster.spec.tls.enabled:
        found.append({"name": TLS, "secret": {"secretName": tls_secret(cluster), "defaultMode": 0o440}})
    return found


def metadata_access(cluster: ClusterView) -> dict[str, Any] | None:
    """The volume of a client of a metadata service that the operator runs; None: it needs nothing of the operator's."""
    if is_etcd(cluster):
        return tls_files(naming.metadata_client(cluster.name))
    return metadata_volume(cluster, "ca.crt") if is_protected(cluster) else None


def tls_files(secret: str) -> dict[str, Any]:
    """A certificate for the connections of a metadata service, with its key and its authority."""
    return {"name": METADATA, "secret": {"secretName": secret, "defaultMode": 0o440}}


def metadata_volume(cluster: ClusterView, *files: str) -> dict[str, Any]:
    """Return the token of the embedded metadata service, and of its certificate these files."""
    parts = {naming.metadata_token(cluster.name): (config.TOKEN_KEY,), naming.metadata_certificate(cluster.name): files}
    sources = [
        {"secret": {"name": name, "items": [{"key": key, "path": key} for key in keys]}} for name, keys in parts.items()
    ]
    return {"name": METADATA, "projected": {"defaultMode": 0o440, "sources": sources}}


def metadata_mount() -> dict[str, Any]:
    return {"name": METADATA, "mountPath": config.METADATA_DIRECTORY, "readOnly": True}


def tls_secret(cluster: ClusterView) -> str:
    """The user's Secret, or the one that cert-manager fills."""
    return cluster.spec.tls.secret_name or naming.certificate(cluster.name)


def admin_tls_secret(cluster: ClusterView) -> str:
    """The user's Secret, the one that cert-manager fills, or the one that the operator makes: each has its own name, so
    that pods of an earlier `spec` go on with theirs."""
    wanted = cluster.spec.tls.admin_api
    made = naming.admin_certificate if wanted.issuer_ref is None else naming.admin_issued
    return wanted.secret_name or made(cluster.name)


def http_port(cluster: ClusterView) -> dict[str, Any]:
    """The port, whose name tells what is spoken: those who read metrics go by it."""
    return {"name": HTTPS if cluster.spec.tls.admin_api.enabled else HTTP, "containerPort": naming.HTTP_PORT}


def shared_extras(cluster: ClusterView) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Volumes and mounts of `spec.pod` that other pods than the bookies can have too, such as a Secret with the login
    to the metadata service."""
    return shareable(cluster.spec.pod.extra_volumes, cluster.spec.pod.extra_volume_mounts)


def shareable(
    volumes: Sequence[Mapping[str, Any]], mounts: Sequence[Mapping[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the volumes that several pods may have at the same time, and where they are mounted."""
    found = [dict(volume) for volume in volumes if volume.keys() <= _SHARED_KINDS]
    known = {volume.get("name") for volume in found}
    return found, [dict(mount) for mount in mounts if mount.get("name") in known]


def http_probe(path: str, times: Probe, port: str = HTTP) -> dict[str, Any]:
    """`port`: its name; the kubelet verifies no certificate."""
    get = {"path": path, "port": port}
    return {
        "httpGet": {**get, "scheme": "HTTPS"} if port == HTTPS else get,
        "periodSeconds": times.period_seconds,
        "timeoutSeconds": times.timeout_seconds,
        "failureThreshold": times.failure_threshold,
    }
