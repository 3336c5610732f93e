"""Backups of the metadata every minute: the status tells of one that succeeds and of one that fails, and the commands
of docs/back-up.md bring the metadata back from the claim."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.e2e.support.environment import Environment
from tests.e2e.support.shell import ROOT, run

PAGE = ROOT / "docs" / "back-up.md"
EVERY_MINUTE = {"schedule": "* * * * *", "keep": 2}


def backed_up(cluster, kube, after: str = "") -> dict[str, object]:
    """A backup that ended later than this time, as the status has it."""

    def newer(found: dict[str, dict]) -> dict[str, object] | None:
        told = (found[cluster.name].get("status") or {}).get("backup") or {}
        return told if told.get("lastSuccessfulTime", "") > after else None

    return kube.wait_for("BookieCluster", newer, 300, "a backup", name=cluster.name)


def bookie_claims(cluster) -> dict[str, str]:
    return {name: each["metadata"]["uid"] for name, each in cluster.claims().items() if "-bookie-" in name}


def documented(namespace: str, cluster: str, *left_out: str) -> str:
    """The commands of the page for a cluster `events` in `storage`, for this one; without the blocks that hold one of
    these words."""
    section = PAGE.read_text(encoding="utf-8").partition("### Restore on Kubernetes")[2].partition("\n### ")[0]
    blocks = [block.partition("```")[0] for block in section.split("```sh\n")[1:]]
    script = "\n".join(block for block in blocks if not any(word in block for word in left_out))
    script, times = re.subn(r"-n storage\b", f"-n {namespace}", script)
    assert times >= 10, script
    script, times = re.subn(r"\bevents\b", cluster, script)
    assert times >= 6, script
    return script


def test_the_status_tells_of_backups_that_succeed_and_of_those_that_fail(make_cluster, kube):
    cluster = make_cluster(metadataService={"type": "Embedded", "size": "1Gi"})
    cluster.wait_ready(300)
    claim = f"{cluster.name}-backup"
    cluster.change(backup=EVERY_MINUTE)
    cluster.wait_condition("MetadataBackedUp", "True", 300, reason="BackedUp")
    first = cluster.status()["backup"]
    assert first["lastFile"].startswith(f"/backups/metadata-{cluster.status()['instanceId']}-")
    assert first["nextScheduleTime"]

    cluster.change(backup={"claimName": "there-is-none", "activeDeadlineSeconds": 60})
    cluster.wait_condition("MetadataBackedUp", "False", 400, reason="BackupFailed")
    failed = cluster.status()["backup"]
    assert failed["lastFailureMessage"]
    assert failed["lastFile"].startswith("/backups/metadata-")
    cluster.wait_ready(60)
    cluster.change(backup={"claimName": None, "activeDeadlineSeconds": None})
    cluster.wait_condition("MetadataBackedUp", "True", 400, reason="BackedUp")
    cluster.change(backup={"suspend": True})
    cluster.wait_condition("MetadataBackedUp", "True", 120, reason="Suspended")

    cluster.change(backup=None)
    kube.wait_gone("CronJob", claim, 120)
    cluster.wait_condition("MetadataBackedUp", "", 60)
    assert "deletionTimestamp" not in kube.get("PersistentVolumeClaim", claim)["metadata"]
    kube.delete("PersistentVolumeClaim", claim)


@pytest.fixture
def restore_job(kube) -> Iterator[None]:
    """The Job that the page makes is not left to another test, whatever becomes of this one: it cannot be changed."""
    yield
    job = kube.get("Job", "restore")
    if job is not None:
        uid = job["metadata"]["uid"]
        kube.delete("Job", "restore", uid=uid, propagation="Foreground")
        kube.wait_gone("Job", "restore", 120, uid=uid)


@pytest.mark.usefixtures("restore_job")
@pytest.mark.parametrize("kind", ["Embedded", "Etcd"])
def test_metadata_are_restored_as_the_page_says(make_cluster, make_workload, kube, settings: Environment, kind: str):
    """All of them were removed, or etcd has lost all its volumes, and the bookies have what they had."""
    service = {"type": kind, "size": "1Gi"}
    if kind == "Etcd":
        resources = {"requests": {"cpu": "20m", "memory": "64Mi"}}
        service["etcd"] = {"image": settings.etcd_image, "resources": resources}
    cluster = make_cluster(metadataService=service)
    status = cluster.wait_ready(300)
    with make_workload(cluster.name, status["metadataServiceUri"]) as workload:
        workload.progress(200)
    cluster.change(backup=EVERY_MINUTE)
    told = backed_up(cluster, kube)
    volumes = bookie_claims(cluster)

    left_out = "cluster nuke" if kind == "Etcd" else "etcd-start"
    shown = run(documented(kube.namespace, cluster.name, left_out), settings)
    assert f"of cluster {status['instanceId']} restored" in shown, shown[-5000:]
    cluster.wait_pods(3)
    cluster.wait_ready(600)
    assert cluster.status()["instanceId"] == status["instanceId"]
    assert bookie_claims(cluster) == volumes
    again = backed_up(cluster, kube, cluster.status()["backup"]["lastSuccessfulTime"])
    assert int(str(again["lastLedgers"])) >= int(str(told["lastLedgers"])) > 0
    cluster.change(backup={"suspend": True})
    with make_workload(cluster.name, status["metadataServiceUri"]) as workload:
        workload.progress(200)
