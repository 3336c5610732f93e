"""Backups of the metadata on a schedule: the CronJob, and the claim for the files.

Invariants
- The claim has no owner, so it outlives the cluster. Nothing of the operator changes or deletes it.
- Each run has what bookies have to reach the metadata service, whichever that is, and no right in Kubernetes.
- The program removes old files itself, once it has read the new one back.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from typing import Any, Final

from bookie_operator.builders import commands, naming
from bookie_operator.builders.claims import claim
from bookie_operator.builders.common import (
    OWN_VOLUME,
    Manifest,
    account_name,
    common_pod_spec,
    labels,
    manifest,
    pod_metadata,
    stamped,
)
from bookie_operator.builders.container import shared_extras, volumes
from bookie_operator.builders.context import BuildContext
from bookie_operator.builders.metadata import job_container
from bookie_operator.crds.cluster_spec import Backup
from bookie_operator.world.model import ClusterView

_VOLUME: Final = f"{OWN_VOLUME}backups"
_RETRIES: Final = 2
_KEPT_JOBS: Final = 3
"""Runs of each outcome whose pods and logs are kept."""


def cron_job(cluster: ClusterView, context: BuildContext, config_name: str) -> Manifest | None:
    """None: `spec` asks for no backups."""
    backup = cluster.spec.backup
    if backup is None:
        return None
    name = naming.backup(cluster.name)
    spec = {
        "schedule": backup.schedule,
        "timeZone": backup.time_zone,
        "suspend": backup.suspend,
        # One that is missed is made up for, however late: a backup is never too late.
        "concurrencyPolicy": "Forbid",
        "successfulJobsHistoryLimit": _KEPT_JOBS,
        "failedJobsHistoryLimit": _KEPT_JOBS,
        "jobTemplate": {
            "metadata": {"labels": labels(cluster, naming.BACKUP)},
            "spec": _job(cluster, context, config_name, backup),
        },
    }
    return manifest(cluster, "batch/v1", "CronJob", name, naming.BACKUP, {"spec": spec})


def _job(cluster: ClusterView, context: BuildContext, config_name: str, backup: Backup) -> dict[str, Any]:
    made = job_container(cluster, context, [], resources=backup.resources)
    made["command"] = commands.back_up(cluster, backup.keep)
    del made["args"]
    made["volumeMounts"].append({"name": _VOLUME, "mountPath": commands.BACKUPS})
    files = {"claimName": backup.claim_name or naming.backup(cluster.name)}
    pod = {
        **common_pod_spec(cluster, account_name(cluster)),
        "restartPolicy": "Never",
        "containers": [made],
        "volumes": [
            *volumes(cluster, config_name),
            *shared_extras(cluster)[0],
            {"name": _VOLUME, "persistentVolumeClaim": files},
        ],
    }
    disrupted = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    return {
        "backoffLimit": _RETRIES,
        "activeDeadlineSeconds": backup.active_deadline_seconds,
        "podFailurePolicy": {"rules": [disrupted]},
        "template": {"metadata": pod_metadata(cluster, naming.BACKUP), "spec": pod},
    }


def backup_claim(cluster: ClusterView) -> Manifest | None:
    """None: there are no backups, or they go to a claim of the user's."""
    backup = cluster.spec.backup
    if backup is None or backup.claim_name:
        return None
    with_labels = labels(cluster, naming.BACKUP)
    made = claim(naming.backup(cluster.name), backup.size, backup.storage_class_name, with_labels)
    made["metadata"] |= {"namespace": cluster.namespace, "annotations": {}}
    return stamped(made)
