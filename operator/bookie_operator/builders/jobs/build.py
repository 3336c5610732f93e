"""The build of a BookieJob: all objects that run it for its cluster.

A schedule is a CronJob of Kubernetes, which makes the Jobs; what runs once is one Job. Both are the BookieJob's own and
go with it.

Invariants
- A run that found something has ended: it is not tried again. A pod that was taken away counts as no failure.
- A BookieJob's CronJob can be stopped without a change of what it makes.

Threads: pure functions, any thread.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from bookie_operator.builders.common import Manifest, canonical, content_hash, key_of, object_hash
from bookie_operator.builders.container import image as cluster_image
from bookie_operator.builders.context import BuildContext
from bookie_operator.builders.jobs import spark
from bookie_operator.builders.jobs.common import (
    BLOCK_PORT,
    DRIVER,
    DRIVER_PORT,
    EXECUTOR,
    job_object,
    object_labels,
)
from bookie_operator.builders.jobs.pod import CONTAINER, driver_template, executor_template
from bookie_operator.crds import names
from bookie_operator.planner.jobs import FINDINGS_EXIT, DesiredJob
from bookie_operator.world.model import ClusterView, JobResource

_SPARK_TAG: Final = "-spark"
_FREE: Final = {
    "suspend",
    "ttl_seconds_after_finished",
    "successful_jobs_history_limit",
    "failed_jobs_history_limit",
    "time_zone",
}
"""Fields of a BookieJob that runs once that may be changed, or mean nothing to it."""
_TAGGED: Final = re.compile(r"[^@]+:[A-Za-z0-9_][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class JobObjects:
    """The objects that `build_job` makes."""

    support: tuple[Manifest, ...]
    """Objects that are applied before any run, in this order."""
    runner: Manifest
    """The CronJob, or the Job."""

    def desired(self) -> DesiredJob:
        """Names and hashes, for the planner."""
        template = self.runner["metadata"]["annotations"][names.TEMPLATE_HASH]
        return DesiredJob(
            support={key_of(each): object_hash(each) for each in self.support},
            runner=key_of(self.runner),
            runner_hash=object_hash(self.runner),
            template_hash=template,
            inputs=self.runner["metadata"]["annotations"].get(names.TEMPLATE_INPUTS, ""),
        )

    def manifest(self, key: str) -> Manifest:
        """Return the manifest of `Kind/name`; raises KeyError."""
        return {key_of(each): each for each in (*self.support, self.runner)}[key]


def build_job(cluster: ClusterView, job: JobResource, context: BuildContext) -> JobObjects:
    """Build all objects of a valid `spec`."""
    image = spark_image(cluster, job, context)
    support = [_config_map(cluster, job, image)]
    if job.spec.executors.instances:
        support.append(_service(job))
    if cluster.spec.network_policy.enabled:
        support.append(_network_policy(job))
    run = _job_spec(cluster, job, image)
    digest = content_hash(run)
    if job.spec.scheduled:
        runner = _cron_job(job, run, digest)
    else:
        once = {**_stamp(digest), names.TEMPLATE_INPUTS: _asked_for(job)}
        runner = job_object(job, "batch/v1", "Job", {"spec": {**run, "suspend": job.spec.suspend}}, once)
    return JobObjects(tuple(support), runner)


def spark_image(cluster: ClusterView, job: JobResource, context: BuildContext) -> str:
    """The image of `spec`; else the cluster's with `-spark` after its tag. One that is named by digest has no sibling
    that could be guessed: then it is the operator's repository and the cluster's version."""
    if job.spec.image:
        return job.spec.image
    image = cluster_image(cluster, context)
    if not _TAGGED.fullmatch(image):
        image = f"{context.image_repository}:{cluster.spec.version}"
    return f"{image}{_SPARK_TAG}"


def _asked_for(job: JobResource) -> str:
    """Hash of what the one run is made of, as people asked for it: neither the cluster nor a release counts."""
    return content_hash(job.spec.model_dump(mode="json", by_alias=True, exclude=_FREE, exclude_defaults=True))


def _stamp(digest: str) -> dict[str, str]:
    return {names.TEMPLATE_HASH: digest}


def _config_map(cluster: ClusterView, job: JobResource, image: str) -> Manifest:
    data = {spark.DEFAULTS_FILE: spark.spark_defaults(cluster, job, image)}
    if job.spec.executors.instances:
        # JSON is YAML too.
        data[spark.EXECUTOR_FILE] = canonical(executor_template(cluster, job)).decode()
    return job_object(job, "v1", "ConfigMap", {"data": data})


def _service(job: JobResource) -> Manifest:
    """Gives each run's driver a name of its own. Also before it is ready: executors look for it at once."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {names.JOB: job.name, names.COMPONENT: DRIVER},
        "ports": [
            {"name": "driver", "port": DRIVER_PORT, "targetPort": "driver", "protocol": "TCP"},
            {"name": "blocks", "port": BLOCK_PORT, "targetPort": "blocks", "protocol": "TCP"},
        ],
    }
    return job_object(job, "v1", "Service", {"spec": spec})


def _network_policy(job: JobResource) -> Manifest:
    """Let driver and executors of the job reach each other, and no other pod reach them. The bookies' own policies let
    them in as pods of the cluster."""
    own = {"podSelector": {"matchLabels": {names.JOB: job.name}}}
    ports = [{"protocol": "TCP", "port": port} for port in (DRIVER_PORT, BLOCK_PORT)]
    many = job.spec.executors.instances > 0
    components = {"key": names.COMPONENT, "operator": "In", "values": [DRIVER, EXECUTOR]}
    spec = {
        "podSelector": {"matchLabels": {names.JOB: job.name}, "matchExpressions": [components]},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [own], "ports": ports}] if many else [],
    }
    return job_object(job, "networking.k8s.io/v1", "NetworkPolicy", {"spec": spec})


def _job_spec(cluster: ClusterView, job: JobResource, image: str) -> dict[str, Any]:
    """The specification of every run."""
    spec = job.spec
    found: dict[str, Any] = {
        "backoffLimit": spec.backoff_limit,
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {
                    "action": "FailJob",
                    "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": [FINDINGS_EXIT]},
                },
            ]
        },
        "template": driver_template(cluster, job, image),
    }
    if spec.active_deadline_seconds is not None:
        found["activeDeadlineSeconds"] = spec.active_deadline_seconds
    if spec.executors.instances:
        # The pod of an indexed Job has a host name that is known before it is there.
        found |= {"completionMode": "Indexed", "completions": 1, "parallelism": 1}
    return found


def _cron_job(job: JobResource, run: dict[str, Any], digest: str) -> Manifest:
    spec = job.spec
    metadata = {"labels": object_labels(job), "annotations": _stamp(digest)}
    content: dict[str, Any] = {
        "schedule": spec.schedule,
        "timeZone": spec.time_zone,
        "suspend": spec.suspend,
        "concurrencyPolicy": spec.concurrency_policy.value,
        "successfulJobsHistoryLimit": spec.successful_jobs_history_limit,
        "failedJobsHistoryLimit": spec.failed_jobs_history_limit,
        "jobTemplate": {"metadata": metadata, "spec": run},
    }
    if spec.starting_deadline_seconds is not None:
        content["startingDeadlineSeconds"] = spec.starting_deadline_seconds
    return job_object(job, "batch/v1", "CronJob", {"spec": content}, _stamp(digest))
