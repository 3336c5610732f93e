"""The pods of a run: the driver's, and the template that Spark makes the executors' of.

Invariants
- They satisfy the restricted Pod Security Standard, with read-only root file systems.
- Only a driver that makes executors gets a token of Kubernetes.
- The driver's first process is the job itself, which begins Java: so it hears when the pod is to end, and tells how far
  it came.
- What a job refers to (passwords, logins, certificates, volumes of the user) is at the same path on all of them.

Threads: pure functions, any thread.
"""

from __future__ import annotations

import shlex
from typing import Any, Final

from bookie_operator.builders import config, naming
from bookie_operator.builders.common import (
    OWN_VOLUME,
    READ_ONLY_CONTAINER,
    TEMPORARY,
    account_name,
    environment,
    from_field,
    pod_security,
)
from bookie_operator.builders.container import (
    ADMIN_TLS,
    admin_tls_secret,
    metadata_access,
    metadata_mount,
    shared_extras,
    tls_secret,
)
from bookie_operator.builders.jobs import spark
from bookie_operator.builders.jobs.common import (
    BLOCK_PORT,
    DRIVER,
    DRIVER_PORT,
    EXECUTOR,
    default_account,
    object_name,
    pod_labels,
)
from bookie_operator.builders.metadata_uri import metadata_service_uri
from bookie_operator.crds.job_spec import JobKind
from bookie_operator.world.model import ClusterView, JobResource

CONTAINER: Final = "job"
COMMAND: Final = ("bookie", "job")
"""Command in the image with Spark: `JOB [arguments]` follow."""
SUBMIT_VARIABLE: Final = "PYSPARK_SUBMIT_ARGS"
"""Arguments of `spark-submit`, by which PySpark begins Java."""
TERMINATION_LOG: Final = "/dev/termination-log"
PASSWORD_DIRECTORY: Final = "/etc/podkeeper/password"
ADMIN_KINDS: Final = frozenset({JobKind.SPACE, JobKind.COMPACT_REPORT})
"""Jobs whose driver asks the bookies' admin API."""
TOKEN_ARGUMENT: Final = "--admin-token-file"
CA_ARGUMENT: Final = "--admin-ca-file"
_NO_PROGRAM: Final = "pyspark-shell"
"""Name that `spark-submit` is to run, where Python runs it."""
_SPARK: Final = f"{OWN_VOLUME}spark"
_PASSWORD: Final = f"{OWN_VOLUME}password"
_TLS: Final = f"{OWN_VOLUME}tls"
_LOGINS: Final = {
    "SharedToken": ("authTokenFile",),
    "SASLClientProviderFactory": ("saslJaasConfigFile", "saslJaasClientSectionName"),
}
"""Keys of the bookies' configuration that are options of jobs as well, by the provider of clients' logins."""
_TO_THE_METADATA: Final = (
    "metadataServiceTlsEnable",
    "metadataServiceTrustStorePath",
    "metadataServiceCertificatePath",
    "metadataServiceKeyPath",
)
_TOKEN: Final = f"{OWN_VOLUME}admin-token"
_JOB_NAME_LABEL: Final = "batch.kubernetes.io/job-name"
_GRACE_SECONDS: Final = 30


def driver_template(cluster: ClusterView, job: JobResource, image: str) -> dict[str, Any]:
    """Return the template of the Job's pods."""
    spec, many = job.spec, job.spec.executors.instances > 0
    volumes, mounts = _volumes(cluster, job)
    if _asks_admin(job):
        source = {"secretName": naming.admin_token(cluster.name), "defaultMode": 0o440}
        volumes.append({"name": _TOKEN, "secret": source})
        mounts.append({"name": _TOKEN, "mountPath": config.TOKEN_DIRECTORY, "readOnly": True})
    if _trusts_admin(cluster, job):
        items = [{"key": "ca.crt", "path": "ca.crt"}]  # the key is for those who serve
        source = {"secretName": admin_tls_secret(cluster), "defaultMode": 0o440, "items": items}
        volumes.append({"name": ADMIN_TLS, "secret": source})
        mounts.append({"name": ADMIN_TLS, "mountPath": config.ADMIN_TLS_DIRECTORY, "readOnly": True})
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": cluster.spec.image_pull_policy,
        "command": list(COMMAND),
        "args": [spec.kind.value, *spec.args, *_job_arguments(cluster, job)],
        "workingDir": "/tmp",
        "env": [
            environment("BK_metadataServiceUri", metadata_service_uri(cluster)),
            environment("HOME", "/tmp"),
            from_field("POD_NAME", "metadata.name"),
            from_field("JOB_NAME", f"metadata.labels['{_JOB_NAME_LABEL}']"),
            environment(SUBMIT_VARIABLE, shlex.join([*_spark_arguments(job), _NO_PROGRAM])),
            *spec.env,
        ],
        "securityContext": dict(READ_ONLY_CONTAINER),
        "terminationMessagePath": TERMINATION_LOG,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [*mounts, {"name": _SPARK, "mountPath": spark.DIRECTORY, "readOnly": True}],
    }
    if many:
        container["ports"] = [
            {"name": "driver", "containerPort": DRIVER_PORT},
            {"name": "blocks", "containerPort": BLOCK_PORT},
        ]
    if spec.resources:
        container["resources"] = dict(spec.resources)
    account = spec.executors.service_account_name or default_account(cluster.name)
    pod: dict[str, Any] = {
        **_placed(cluster, job),
        "serviceAccountName": account if many else account_name(cluster),
        "automountServiceAccountToken": many,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "containers": [container],
        "volumes": [*volumes, {"name": _SPARK, "configMap": {"name": object_name(job.name)}}],
    }
    if many:
        pod["subdomain"] = object_name(job.name)
    return {"metadata": {"labels": pod_labels(job, DRIVER)}, "spec": pod}


def executor_template(cluster: ClusterView, job: JobResource) -> dict[str, Any]:
    """Return the pod that Spark completes: image, command, resources, names and the account are its own."""
    volumes, mounts = _volumes(cluster, job)
    container = {
        "name": spark.EXECUTOR_CONTAINER,
        "env": [
            environment("BK_metadataServiceUri", metadata_service_uri(cluster)),
            environment("HOME", "/tmp"),
            *job.spec.env,
        ],
        "securityContext": dict(READ_ONLY_CONTAINER),
        "volumeMounts": mounts,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"labels": pod_labels(job, EXECUTOR)},
        "spec": {
            **_placed(cluster, job),
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": _GRACE_SECONDS,
            "containers": [container],
            "volumes": volumes,
        },
    }


def _spark_arguments(job: JobResource) -> list[str]:
    """Return the arguments of `spark-submit`. Kubernetes puts the variables in."""
    found = ["--master", spark.master(job), "--properties-file", f"{spark.DIRECTORY}/{spark.DEFAULTS_FILE}"]
    if job.spec.executors.instances:
        host = spark.driver_host(job, "$(JOB_NAME)")
        found += ["--conf", "spark.kubernetes.driver.pod.name=$(POD_NAME)", "--conf", f"spark.driver.host={host}"]
    return found


def _job_arguments(cluster: ClusterView, job: JobResource) -> list[str]:
    """Return the arguments that the operator adds to `spec.args`."""
    found = ["--result", TERMINATION_LOG]
    if job.spec.password_secret is not None:
        found += ["--password-file", f"{PASSWORD_DIRECTORY}/{job.spec.password_secret.key}"]
    if _asks_admin(job):
        found += [TOKEN_ARGUMENT, f"{config.TOKEN_DIRECTORY}/{config.TOKEN_KEY}"]
    if _trusts_admin(cluster, job):
        found += [CA_ARGUMENT, f"{config.ADMIN_TLS_DIRECTORY}/ca.crt"]
    for name, value in _access(cluster).items():
        found += ["--option", f"{name}={value}"]
    return found


def _asks_admin(job: JobResource) -> bool:
    """Return whether the job asks with the cluster's token: it does unless the user brings another one."""
    return job.spec.kind in ADMIN_KINDS and not _gives(job, TOKEN_ARGUMENT)


def _trusts_admin(cluster: ClusterView, job: JobResource) -> bool:
    """Return whether the job goes by the cluster's authority: it does unless the user brings another one."""
    enabled = cluster.spec.tls.admin_api.enabled
    return enabled and job.spec.kind in ADMIN_KINDS and not _gives(job, CA_ARGUMENT)


def _gives(job: JobResource, argument: str) -> bool:
    return any(each.partition("=")[0] == argument for each in job.spec.args)


def _access(cluster: ClusterView) -> dict[str, str]:
    """Options of the client: how the bookies of the cluster, and its metadata service, want to be reached."""
    spec, found = cluster.spec, {}
    if spec.tls.enabled:
        found = {
            "tls.caFile": f"{config.TLS_DIRECTORY}/ca.crt",
            "tls.certificateFile": f"{config.TLS_DIRECTORY}/tls.crt",
            "tls.keyFile": f"{config.TLS_DIRECTORY}/tls.key",
        }
        if spec.tls.issuer_ref is None:  # a certificate of the user may name other hosts
            found["tls.checkHostname"] = "false"
    found |= config.metadata_files(cluster)
    logins = _LOGINS.get(spec.config.get("clientAuthProviderFactoryClass", "").strip().rpartition(".")[2], ())
    for key in ("zkAuthScheme", "zkAuthCredentialsPath", *_TO_THE_METADATA, *logins):
        if text := spec.config.get(key, "").strip():
            found.setdefault(key, text)
    return found


def _volumes(cluster: ClusterView, job: JobResource) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Volumes and mounts of driver and executors. The volume for temporary files has no limit of its own: shuffles
    spill to it."""
    extra, extra_mounts = shared_extras(cluster)
    volumes: list[dict[str, Any]] = [{"name": TEMPORARY, "emptyDir": {}}]
    mounts: list[dict[str, Any]] = [{"name": TEMPORARY, "mountPath": "/tmp"}]
    if cluster.spec.tls.enabled:
        volumes.append({"name": _TLS, "secret": {"secretName": tls_secret(cluster), "defaultMode": 0o440}})
        mounts.append({"name": _TLS, "mountPath": config.TLS_DIRECTORY, "readOnly": True})
    if (password := job.spec.password_secret) is not None:
        items = [{"key": password.key, "path": password.key}]
        source = {"secretName": password.name, "defaultMode": 0o440, "items": items}
        volumes.append({"name": _PASSWORD, "secret": source})
        mounts.append({"name": _PASSWORD, "mountPath": PASSWORD_DIRECTORY, "readOnly": True})
    if (access := metadata_access(cluster)) is not None:
        volumes.append(access)
        mounts.append(metadata_mount())
    if any(cluster.spec.config.get(key, "").strip() for key in ("zkAuthCredentialsPath", *_TO_THE_METADATA)):
        given = {volume.get("name") for volume in job.spec.volumes}
        volumes += [volume for volume in extra if volume.get("name") not in given]
        mounts += [mount for mount in extra_mounts if mount.get("name") not in given]
    return [*volumes, *job.spec.volumes], [*mounts, *job.spec.volume_mounts]


def _placed(cluster: ClusterView, job: JobResource) -> dict[str, Any]:
    """Return the placement of driver and executors, and the user that they run as."""
    spec = job.spec
    found: dict[str, Any] = {"enableServiceLinks": False, "securityContext": pod_security(cluster)}
    if cluster.spec.image_pull_secrets:
        found["imagePullSecrets"] = list(cluster.spec.image_pull_secrets)
    if spec.node_selector:
        found["nodeSelector"] = dict(spec.node_selector)
    if spec.tolerations:
        found["tolerations"] = list(spec.tolerations)
    if spec.affinity:
        found["affinity"] = dict(spec.affinity)
    if spec.priority_class_name:
        found["priorityClassName"] = spec.priority_class_name
    return found
