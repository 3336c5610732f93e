"""The metadata service: the embedded one, and the Jobs that make, look for and remove a cluster's metadata.

Invariants
- The Job that makes a cluster changes nothing where there is one: it may run again at any time.
- Where bookies have a template, the Job that removes the metadata has its image and configuration: these fit each
  other, and are there. The newest ones may neither fit (`planner.holding`) nor be there: while a cluster is deleted
  nothing is applied.
- The embedded service has one replica and one volume: for development only. It demands the token and TLS, but for a
  cluster that was there before operators made these (`is_protected`).

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bookie_operator.builders import commands, naming
from bookie_operator.builders.claims import claim
from bookie_operator.builders.common import (
    READ_ONLY_CONTAINER,
    Manifest,
    account_name,
    common_pod_spec,
    environment,
    labels,
    manifest,
    pod_metadata,
    selector,
    stamped,
    temporary_mount,
    temporary_volume,
)
from bookie_operator.builders.container import (
    HTTP,
    NAME,
    container,
    http_probe,
    image,
    metadata_mount,
    metadata_volume,
    shareable,
    shared_extras,
    volumes,
)
from bookie_operator.builders.context import BuildContext
from bookie_operator.builders.metadata_uri import is_protected, moves_to
from bookie_operator.crds import names
from bookie_operator.crds.cluster_spec import MetadataServiceKind
from bookie_operator.crds.pod_spec import LivenessProbe, Probe
from bookie_operator.world.model import ClusterView

DATA: Final = "data"
_PORT: Final = "metadata"
_STARTUP: Final = Probe(period_seconds=2, failure_threshold=150)
_ATTEMPTS: Final = 20
"""Attempts of a Job, ten seconds to six minutes apart: they last more than an hour without a metadata service."""
_LOOKS: Final = 3
"""Attempts of a Job that only looks."""
_OF_THE_IMAGE: Final = ("image", "imagePullPolicy", "env", "envFrom")
"""Fields of a container: what is run, and what it is configured by beside its files."""


def embedded_service(cluster: ClusterView, context: BuildContext) -> list[Manifest]:
    """Service and StatefulSet; empty: the metadata service is external."""
    if cluster.spec.metadata_service.type is not MetadataServiceKind.EMBEDDED:
        return []
    name, chosen = naming.metadata(cluster.name), selector(cluster, naming.METADATA)
    port = {"name": _PORT, "port": naming.METADATA_PORT, "targetPort": _PORT, "protocol": "TCP"}
    service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": chosen, "ports": [port]}
    stateful_set = {
        "replicas": 1,
        "serviceName": name,
        "selector": {"matchLabels": chosen},
        "updateStrategy": {"type": "RollingUpdate"},
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
        "revisionHistoryLimit": 3,
        "template": {"metadata": pod_metadata(cluster, naming.METADATA), "spec": _server(cluster, context)},
        "volumeClaimTemplates": [_claim(cluster)],
    }
    return [
        manifest(cluster, "v1", "Service", name, naming.METADATA, {"spec": service}),
        manifest(cluster, "apps/v1", "StatefulSet", name, naming.METADATA, {"spec": stateful_set}),
    ]


def _claim(cluster: ClusterView) -> dict[str, Any]:
    service = cluster.spec.metadata_service
    with_labels = {**labels(cluster, naming.METADATA), names.VOLUME: "metadata"}
    return claim(DATA, service.size, service.storage_class_name, with_labels)


def _server(cluster: ClusterView, context: BuildContext) -> dict[str, Any]:
    guarded = is_protected(cluster)
    server: dict[str, Any] = {
        "name": NAME,
        "image": image(cluster, context),
        "imagePullPolicy": cluster.spec.image_pull_policy,
        "args": commands.metadata_service(cluster),
        "ports": [
            {"name": _PORT, "containerPort": naming.METADATA_PORT},
            {"name": HTTP, "containerPort": naming.HTTP_PORT},
        ],
        "startupProbe": http_probe(commands.ALIVE, _STARTUP),
        "livenessProbe": http_probe(commands.ALIVE, LivenessProbe()),
        "readinessProbe": http_probe(commands.READY, Probe(period_seconds=5)),
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": dict(READ_ONLY_CONTAINER),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [temporary_mount(), {"name": DATA, "mountPath": "/data"}],
    }
    more = [temporary_volume()]
    if guarded:
        server["volumeMounts"].append(metadata_mount())
        more.append(metadata_volume(cluster, "tls.crt", "tls.key"))
    return {
        **common_pod_spec(cluster, account_name(cluster)),
        "terminationGracePeriodSeconds": 30,
        "containers": [server],
        "volumes": more,
    }


def initialisation_job(cluster: ClusterView, context: BuildContext, config_name: str) -> Manifest:
    name = naming.metadata_init(cluster.name)
    made = job_container(cluster, context, []) | {"command": commands.initialise(cluster)}
    del made["args"]
    return _job(cluster, config_name, name, naming.METADATA_INIT, made)


def check_job(cluster: ClusterView, context: BuildContext, config_name: str) -> Manifest | None:
    """Looks which cluster is where the metadata are to be from now on; None: they stay where they are."""
    uri = moves_to(cluster)
    if not uri:
        return None
    name = naming.metadata_check(cluster.name)
    made = job_container(cluster, context, [], [environment("BK_metadataServiceUri", uri)])
    made |= {"command": commands.look()}
    del made["args"]
    return _job(cluster, config_name, name, naming.METADATA_INIT, made, attempts=_LOOKS)


def destruction_job(cluster: ClusterView, context: BuildContext, config_name: str) -> Manifest:
    name = naming.metadata_destroy(cluster.name)
    made = job_container(cluster, context, commands.destroy(cluster))
    return _job(cluster, config_name, name, naming.METADATA_DESTROY, made)


def job_container(
    cluster: ClusterView,
    context: BuildContext,
    arguments: Sequence[str],
    env: Sequence[Mapping[str, Any]] = (),
    resources: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the container of a Job that uses the metadata service as bookies do."""
    # Where a quota wants limits for everything nothing else has what bookies need to be made at all.
    resources = resources or cluster.spec.pod.resources or {"requests": {"cpu": "50m", "memory": "64Mi"}}
    made = container(cluster, context, arguments, env, resources)
    made["terminationMessagePath"] = commands.TERMINATION_LOG
    made["volumeMounts"] += shared_extras(cluster)[1]
    return made


def _job(
    cluster: ClusterView,
    config_name: str,
    name: str,
    component: str,
    job_container: Mapping[str, Any],
    attempts: int = _ATTEMPTS,
) -> Manifest:
    pod = {
        **common_pod_spec(cluster, account_name(cluster)),
        "restartPolicy": "Never",
        "containers": [job_container],
        "volumes": [*volumes(cluster, config_name), *shared_extras(cluster)[0]],
    }
    spec = {
        "backoffLimit": attempts,
        "template": {"metadata": pod_metadata(cluster, component), "spec": pod},
    }
    return manifest(cluster, "batch/v1", "Job", name, component, {"spec": spec})


def run_by(job: Manifest, image: str) -> Manifest:
    """Return the Job with another image."""
    template = job["spec"]["template"]
    containers = [{**each, "image": image} for each in template["spec"]["containers"]]
    made = {**template, "spec": {**template["spec"], "containers": containers}}
    return stamped({**job, "spec": {**job["spec"], "template": made}})


def as_bookies_are(job: Manifest, bookies: Mapping[str, Any]) -> Manifest:
    """The Job with image, configuration and all that this refers to as pods of bookies have them; `bookies`: the spec
    of such pods."""
    (own,) = job["spec"]["template"]["spec"]["containers"]
    bookie = next(each for each in bookies["containers"] if each["name"] == NAME)
    shared, mounts = shareable(bookies["volumes"], bookie["volumeMounts"])
    mounted = {each["name"] for each in mounts}
    shared = [each for each in shared if each["name"] in mounted]
    made = {**own, **{key: bookie[key] for key in _OF_THE_IMAGE if key in bookie}, "volumeMounts": mounts}
    pod = {**job["spec"]["template"]["spec"], "containers": [made], "volumes": shared}
    if secrets := bookies.get("imagePullSecrets"):
        pod["imagePullSecrets"] = secrets
    return stamped({**job, "spec": {**job["spec"], "template": {**job["spec"]["template"], "spec": pod}}})
