"""BookieJobs for tests of the operator's builders, and the golden files that are made of them.

    python -m tests.support.operator_jobs          writes the golden files

A golden file holds every object that runs a BookieJob; the files in its ConfigMap are shown as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from bookie_operator.builders.context import BuildContext
from bookie_operator.builders.jobs.build import JobObjects, build_job
from bookie_operator.crds.job_spec import BookieJobSpec, BookieJobStatus
from bookie_operator.world.model import ClusterView, JobResource
from tests.support.operator_clusters import MINIMAL, cluster, write_golden, yaml_dumper

GOLDEN: Final = Path(__file__).parents[1] / "unit" / "bookie_operator" / "builders" / "jobs" / "golden"

Spec = Mapping[str, Any]

ONCE: Final[Spec] = {"clusterRef": {"name": "demo"}, "kind": "audit"}
SCHEDULED: Final[Spec] = {
    **ONCE,
    "kind": "scrub",
    "args": ["--max-bytes-per-second", "50m", "--where", "bytes > 1e9"],
    "schedule": "0 3 * * 0",
    "timeZone": "Europe/Berlin",
    "resources": {"requests": {"cpu": "500m"}, "limits": {"memory": "3Gi"}},
}
_EXECUTORS: Final[Spec] = {
    **ONCE,
    "kind": "offload",
    "args": ["--target", "s3a://archive/demo", "--older-than", "7d"],
    "schedule": "@daily",
    "suspend": True,
    "concurrencyPolicy": "Replace",
    "startingDeadlineSeconds": 600,
    "executors": {"instances": 4, "cores": 2, "memory": "5Gi"},
    "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
    "sparkConf": {"spark.sql.shuffle.partitions": "64", "spark.hadoop.fs.s3a.endpoint": "https://s3.example.org"},
    "backoffLimit": 1,
    "activeDeadlineSeconds": 86400,
    "successfulJobsHistoryLimit": 1,
    "passwordSecret": {"name": "ledgers"},
    "env": [{"name": "AWS_ACCESS_KEY_ID", "valueFrom": {"secretKeyRef": {"name": "archive", "key": "id"}}}],
    "volumes": [{"name": "jars", "persistentVolumeClaim": {"claimName": "jars"}}],
    "volumeMounts": [{"name": "jars", "mountPath": "/jars", "readOnly": True}],
    "nodeSelector": {"pool": "batch"},
    "tolerations": [{"key": "batch", "operator": "Exists"}],
    "affinity": {"podAffinity": {}},
    "priorityClassName": "batch",
}
_SECURED_CLUSTER: Final[Spec] = {
    **MINIMAL,
    "image": "registry.example/podkeeper:9.1",
    "imagePullSecrets": [{"name": "registry"}],
    "imagePullPolicy": "Always",
    "tls": {"enabled": True, "secretName": "our-own"},
    "config": {"zkAuthCredentialsPath": "/etc/zookeeper/login", "zkAuthScheme": "sasl"},
    "networkPolicy": {"enabled": False},
    "pod": {
        "extraVolumes": [{"name": "login", "secret": {"secretName": "zookeeper-login"}}],
        "extraVolumeMounts": [{"name": "login", "mountPath": "/etc/zookeeper", "readOnly": True}],
    },
}


def job(
    spec: Spec = ONCE,
    *,
    name: str = "weekly",
    status: BookieJobStatus | None = None,
    uid: str = "job-uid",
    deleting: bool = False,
) -> JobResource:
    parsed = BookieJobSpec.model_validate(dict(spec))
    return JobResource(name, "storage", uid, 1, parsed, status or BookieJobStatus(), deleting)


CASES: Final[Mapping[str, tuple[ClusterView, JobResource]]] = {
    "once": (cluster(), job(ONCE, name="audit-now")),
    "scheduled": (cluster(), job(SCHEDULED)),
    "executors": (cluster(), job(_EXECUTORS, name="nightly-offload")),
    "reporting": (cluster(), job({**ONCE, "kind": "space"}, name="space-now")),
    "secured": (cluster(_SECURED_CLUSTER), job({**_EXECUTORS, "executors": {"instances": 1}}, name="a" * 40)),
}


def built(case: str) -> JobObjects:
    return build_job(*CASES[case], BuildContext())


def rendered(case: str) -> str:
    """The golden file's content."""
    objects = built(case)
    return yaml.dump_all(
        [*objects.support, objects.runner], Dumper=yaml_dumper(), sort_keys=False, width=120, allow_unicode=True
    )


if __name__ == "__main__":
    write_golden(GOLDEN, CASES, rendered)
