"""Backups of the metadata every minute: the status tells of one, and a pod restores what is in its file."""

from __future__ import annotations

import json
from typing import Any

from tests.e2e.support.kube import condition_of

_RESTORE = """\
file=$(ls /backups/metadata-* | grep -v part | tail -1)
bookie cluster metadata restore "$file" /tmp/restored --json
"""


def test_a_backup_is_made_and_can_be_restored(make_cluster, settings, kube):
    cluster = make_cluster(metadataService={"type": "Embedded", "size": "1Gi"})
    cluster.wait_ready(300)
    cluster.change(backup={"schedule": "* * * * *", "keep": 2})
    cluster.wait_condition("MetadataBackedUp", "True", 300)
    backup = cluster.status()["backup"]
    assert backup["lastFile"].startswith("/backups/metadata-")
    assert backup["nextScheduleTime"]
    cluster.change(backup={"suspend": True})
    cluster.wait_condition("MetadataBackedUp", "True", 120, reason="Suspended")

    claim = f"{cluster.name}-backup"
    kube.apply(_restoring(cluster.get()["spec"]["image"], claim))
    ended = kube.wait_for(
        "Pod", lambda pods: _ended(pods.get("restoring", {})), 300, "the restore in a pod", name="restoring"
    )
    assert ended["exitCode"] == 0, ended
    assert json.loads(ended["message"])["instance_id"] == cluster.status()["instanceId"]

    cluster.change(backup=None)
    kube.wait_gone("CronJob", claim, 120)
    assert condition_of(cluster.get(), "MetadataBackedUp")["status"] != "True"
    assert "deletionTimestamp" not in kube.get("PersistentVolumeClaim", claim)["metadata"]
    kube.delete("Pod", "restoring")
    kube.delete("PersistentVolumeClaim", claim)


def _ended(pod: dict[str, Any]) -> dict[str, Any] | None:
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        if found := (status.get("state") or {}).get("terminated"):
            return dict(found)
    return None


def _restoring(image: str, claim: str) -> dict[str, Any]:
    container = {
        "name": "restore",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/sh", "-ec", f"{_RESTORE} | tee /dev/termination-log"],
        "volumeMounts": [{"name": "backups", "mountPath": "/backups"}, {"name": "tmp", "mountPath": "/tmp"}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "restoring"},
        "spec": {
            "restartPolicy": "Never",
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 10001,
                "fsGroup": 10001,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [
                {"name": "backups", "persistentVolumeClaim": {"claimName": claim}},
                {"name": "tmp", "emptyDir": {}},
            ],
        },
    }
