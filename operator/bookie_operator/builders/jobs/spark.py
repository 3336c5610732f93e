"""Spark's configuration for a run, as the file that `spark-submit` reads.

Without executors all work is done in the driver's pod (`local[*]`). With executors the driver, in client mode, makes
their pods itself; they find it by its name in a headless Service, which is that of this one run.

Invariants
- Nothing secret is in it: all who may read ConfigMaps can read it.
- What the operator sets wins over `spec.sparkConf`; its defaults do not.

Source: Apache Spark documentation, "Running Spark on Kubernetes", client mode.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from typing import Final

from bookie_operator.builders.common import account_name
from bookie_operator.builders.config import properties
from bookie_operator.builders.jobs.common import BLOCK_PORT, DRIVER_PORT, object_name
from bookie_operator.builders.settings import MIB, memory_budget_mb
from bookie_operator.crds.quantity import bytes_of
from bookie_operator.world.model import ClusterView, JobResource

DIRECTORY: Final = "/etc/podkeeper/spark"
DEFAULTS_FILE: Final = "spark-defaults.conf"
EXECUTOR_FILE: Final = "executor.yaml"
EXECUTOR_CONTAINER: Final = "executor"
LOCAL: Final = "local[*]"
KUBERNETES: Final = "k8s://https://kubernetes.default.svc"
_HEADER: Final = "# Written by the operator: change spec.sparkConf of the BookieJob instead."
_JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1"
"""Jobs do their work in Python, and Java passes results on: what its optimising compiler takes of the processors it
does not give back."""
_SMALLEST_HEAP_MB: Final = 512
_TASKS_PER_SLOT: Final = 2
_FEWEST_PARTITIONS: Final = 8


def master(job: JobResource) -> str:
    return KUBERNETES if job.spec.executors.instances else LOCAL


def driver_host(job: JobResource, job_name: str) -> str:
    """Return the host at which executors reach the driver of the run whose Job is `job_name`: the only pod of an
    indexed Job."""
    return f"{job_name}-0.{object_name(job.name)}.{job.namespace}.svc"


def spark_defaults(cluster: ClusterView, job: JobResource, image: str) -> str:
    """Return the content of the file."""
    keys = {**_defaults(job), **job.spec.spark_conf}
    if job.spec.executors.instances:
        keys |= _on_kubernetes(cluster, job, image)
    return properties(keys, _HEADER)


def _defaults(job: JobResource) -> dict[str, str]:
    executors = job.spec.executors
    partitions = executors.instances * executors.cores * _TASKS_PER_SLOT
    keys = {
        "spark.app.name": job.name,
        "spark.driver.extraJavaOptions": _JAVA_OPTIONS,
        "spark.executor.extraJavaOptions": _JAVA_OPTIONS,
        "spark.jars.ivy": "/tmp/ivy",
        "spark.log.level": "WARN",
        "spark.sql.shuffle.partitions": str(max(_FEWEST_PARTITIONS, partitions)),
        "spark.sql.warehouse.dir": "/tmp/warehouse",
        "spark.ui.enabled": "false",
    }
    if (budget := memory_budget_mb(job.spec.resources)) is not None:
        keys["spark.driver.memory"] = f"{max(_SMALLEST_HEAP_MB, budget)}m"
    return keys


def _on_kubernetes(cluster: ClusterView, job: JobResource, image: str) -> dict[str, str]:
    executors = job.spec.executors
    half = bytes_of(executors.memory) // 2 // MIB
    return {
        "spark.submit.deployMode": "client",
        "spark.driver.bindAddress": "0.0.0.0",
        "spark.driver.port": str(DRIVER_PORT),
        "spark.driver.blockManager.port": str(BLOCK_PORT),
        "spark.blockManager.port": str(BLOCK_PORT),
        "spark.executor.instances": str(executors.instances),
        "spark.executor.cores": str(executors.cores),
        "spark.executor.memory": f"{half}m",
        "spark.executor.memoryOverhead": f"{half}m",
        "spark.kubernetes.namespace": job.namespace,
        "spark.kubernetes.container.image": image,
        "spark.kubernetes.container.image.pullPolicy": cluster.spec.image_pull_policy,
        # By the name in the Service, not by what the driver listens on.
        "spark.kubernetes.executor.useDriverPodIP": "false",
        "spark.kubernetes.executor.podTemplateFile": f"{DIRECTORY}/{EXECUTOR_FILE}",
        "spark.kubernetes.executor.podTemplateContainerName": EXECUTOR_CONTAINER,
        "spark.kubernetes.authenticate.executor.serviceAccountName": account_name(cluster),
        # What the driver would need more rights for.
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
        "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
    }
