"""A cluster whose etcd the operator runs, while clients write: its members restart one after the other, one that lost
its volume is replaced, and their volumes go with the cluster."""

from __future__ import annotations

from typing import Any

from tests.e2e.support.bookie_cluster import CONFIRM_DELETE
from tests.e2e.support.kube import pod_ready


def members(cluster) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in cluster.status()["metadataMembers"]}


def uids(kube, pods) -> dict[str, str]:
    return {name: kube.get("Pod", name)["metadata"]["uid"] for name in pods}


def test_create_restart_lose_a_member_delete(make_cluster, make_workload, settings, kube):
    storage = {"journal": {"size": "1Gi"}, "ledger": {"size": "2Gi"}, "retention": {"whenDeleted": "Delete"}}
    etcd = {"image": settings.etcd_image, "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}}}
    metadata = {"type": "Etcd", "size": "1Gi", "etcd": etcd}
    cluster = make_cluster(name="own-etcd", metadataService=metadata, storage=storage)
    status = cluster.wait_ready(300)
    pods = [f"{cluster.name}-metadata-{ordinal}" for ordinal in range(3)]
    assert sorted(members(cluster)) == pods
    assert [each["state"] for each in members(cluster).values()] == ["Serving"] * 3
    cluster.wait_condition("MetadataHealthy", "True", 60)
    with make_workload(cluster.name, status["metadataServiceUri"]) as workload:
        workload.progress(200)

        before, bookies = uids(kube, pods), cluster.uids()
        limits = {**etcd, "resources": {**etcd["resources"], "limits": {"memory": "512Mi"}}}
        generation = cluster.change(metadataService={"etcd": limits})
        cluster.wait_operation("Metadata")
        workload.progress()
        cluster.wait_ready(600, generation=generation)
        after = uids(kube, pods)
        assert not set(after.values()) & set(before.values())
        assert cluster.uids() == bookies

        lost = pods[1]
        claim = f"data-{lost}"
        old = kube.get("PersistentVolumeClaim", claim)["metadata"]["uid"]
        kube.delete("PersistentVolumeClaim", claim)
        kube.delete("Pod", lost)
        kube.wait_gone("Pod", lost, 120, uid=after[lost])
        workload.progress(200)
        kube.wait_for(
            "Pod", lambda found: lost in found and pod_ready(found[lost]), 300, "the member in its place", name=lost
        )
        cluster.wait_condition("MetadataHealthy", "True", 120)
        assert members(cluster)[lost]["claimUid"] not in ("", old)
        workload.progress()
        cluster.wait_ready(240)
        assert cluster.uids() == bookies

        leader = next(name for name, each in members(cluster).items() if each["leader"])
        kube.delete("Pod", leader)
        workload.progress(seconds=120)
        cluster.wait_ready(240)
    kube.annotate("BookieCluster", cluster.name, {CONFIRM_DELETE: cluster.name})
    cluster.delete()
    cluster.wait_gone(600)
    kube.wait_for(
        "PersistentVolumeClaim",
        lambda claims: not claims,
        120,
        "the claims' end",
        selector=f"app.kubernetes.io/instance={cluster.name}",
    )
