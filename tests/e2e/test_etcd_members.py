"""A cluster whose etcd the operator runs, while clients write: its members restart one after the other, one that lost
its volume is replaced, also while a bookie is taken out, and their volumes go with the cluster. What the operator does
with bookies goes on as with any other metadata service."""

from __future__ import annotations

from typing import Any

from tests.e2e.support.bookie_cluster import CONFIRM_DELETE
from tests.e2e.support.kube import pod_ready


def members(cluster) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in cluster.status()["metadataMembers"]}


def uids(kube, pods) -> dict[str, str]:
    return {name: kube.get("Pod", name)["metadata"]["uid"] for name in pods}


def small_etcd(settings) -> dict[str, Any]:
    return {"image": settings.etcd_image, "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}}}


def lose(kube, pod: str) -> str:
    """Delete the claim and the pod of a member; return the claim's UID."""
    claim = kube.get("PersistentVolumeClaim", f"data-{pod}")["metadata"]["uid"]
    uid = kube.get("Pod", pod)["metadata"]["uid"]
    kube.delete("PersistentVolumeClaim", f"data-{pod}")
    kube.delete("Pod", pod)
    kube.wait_gone("Pod", pod, 120, uid=uid)
    return claim


def wait_replaced(cluster, kube, pod: str, old_claim: str) -> None:
    kube.wait_for("Pod", lambda found: pod in found and pod_ready(found[pod]), 300, "the member in its place", name=pod)
    cluster.wait_condition("MetadataHealthy", "True", 120)
    assert members(cluster)[pod]["claimUid"] not in ("", old_claim)


def test_create_restart_lose_a_member_delete(make_cluster, make_workload, settings, kube):
    storage = {"journal": {"size": "1Gi"}, "ledger": {"size": "2Gi"}, "retention": {"whenDeleted": "Delete"}}
    etcd = small_etcd(settings)
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

        old = lose(kube, pods[1])
        workload.progress(200)
        wait_replaced(cluster, kube, pods[1], old)
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


def test_a_member_is_lost_for_good_in_the_midst_of_a_decommission(make_cluster, make_workload, settings, kube):
    """The leader goes, so that the drain, the auditor and the operator's proofs all lose the member that they use. The
    drain goes on while etcd gets another member, and neither is taken back."""
    metadata = {"type": "Etcd", "size": "1Gi", "etcd": small_etcd(settings)}
    cluster = make_cluster(name="etcd-drain", replicas=4, metadataService=metadata)
    status = cluster.wait_ready(300)
    fourth = f"{cluster.name}-bookie-3"
    with make_workload(cluster.name, status["metadataServiceUri"]) as workload:
        workload.progress(400)
        others = {name: uid for name, uid in cluster.uids().items() if name != fourth}
        cluster.scale(3)
        operation = cluster.wait_operation("Decommission")
        assert operation["bookie"] == fourth

        leader = next(name for name, each in members(cluster).items() if each["leader"])
        old = lose(kube, leader)
        wait_replaced(cluster, kube, leader, old)
        workload.progress(seconds=120)

        status = cluster.wait_ready(900)
        done = status["history"][0]
        assert (done["id"], done["outcome"]) == (operation["id"], "Done")
        assert cluster.uids() == others
        assert not cluster.claims(fourth)
        assert [each["state"] for each in members(cluster).values()] == ["Serving"] * 3
        workload.progress()


def test_scale_roll_expand_decommission_delete(make_cluster, make_workload, settings, kube):
    storage = {"journal": {"size": "1Gi"}, "ledger": {"size": "2Gi"}, "retention": {"whenDeleted": "Delete"}}
    metadata = {"type": "Etcd", "size": "1Gi", "etcd": small_etcd(settings)}
    cluster = make_cluster(name="etcd-flows", metadataService=metadata, storage=storage)
    status = cluster.wait_ready(300)
    with make_workload(cluster.name, status["metadataServiceUri"]) as workload:
        workload.progress(200)
        cluster.scale(4)
        cluster.wait_ready(240)
        cluster.wait_pods(4)
        workload.progress()

        before = cluster.uids()
        generation = cluster.change(image=settings.next_image)
        cluster.wait_operation("Metadata")  # the members' init container has the bookies' image
        cluster.wait_operation("Rollout", 600)
        workload.progress()
        cluster.wait_ready(900, generation=generation)
        assert not set(cluster.uids().values()) & set(before.values())

        pods, etcd = cluster.uids(), uids(kube, members(cluster))
        generation = cluster.change(storage={"ledger": {"size": "3Gi"}})
        cluster.wait_ready(600, generation=generation)
        assert cluster.capacities("ledger") == {"3Gi"}
        assert (cluster.uids(), uids(kube, members(cluster))) == (pods, etcd)
        workload.progress()

        fourth = f"{cluster.name}-bookie-3"
        cluster.scale(3)
        assert cluster.wait_operation("Decommission")["bookie"] == fourth
        workload.progress()
        status = cluster.wait_ready(900)
        cluster.wait_pods(3)
        assert (status["history"][0]["type"], status["history"][0]["outcome"]) == ("Decommission", "Done")
        assert not cluster.claims(fourth)
        workload.progress()
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
