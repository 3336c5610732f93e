"""The metadata service that the operator runs, for development: it restarts, and its data go with it when asked to."""

from __future__ import annotations

from tests.e2e.support.kube import pod_ready


def test_from_the_first_ledger_to_the_last_claim(make_cluster, make_workload, kube):
    storage = {"journal": {"size": "1Gi"}, "ledger": {"size": "2Gi"}, "retention": {"whenDeleted": "Delete"}}
    cluster = make_cluster(replicas=4, metadataService={"type": "Embedded", "size": "1Gi"}, storage=storage)
    cluster.wait_ready(300)
    server, claim = f"{cluster.name}-metadata-0", f"data-{cluster.name}-metadata-0"
    assert kube.get("PersistentVolumeClaim", claim) is not None
    with make_workload(cluster.name, cluster.status()["metadataServiceUri"]) as workload:
        bookies = cluster.uids()
        uid = kube.get("Pod", server)["metadata"]["uid"]
        kube.delete("Pod", server)
        kube.wait_gone("Pod", server, 120, uid=uid)
        kube.wait_for(
            "Pod", lambda pods: server in pods and pod_ready(pods[server]), 120, "the metadata service", name=server
        )
        workload.progress(200, seconds=120)
        cluster.wait_ready(240)
        assert cluster.uids() == bookies

        fourth = f"{cluster.name}-bookie-3"
        cluster.scale(3)
        cluster.wait_ready(900)
        cluster.wait_pods(3)
        assert not cluster.claims(fourth)
        workload.progress()
    cluster.annotate(confirm_delete=cluster.name)
    cluster.delete()
    cluster.wait_gone(400)
    kube.wait_for(
        "PersistentVolumeClaim",
        lambda claims: not claims,
        120,
        "the claims' end",
        selector=f"app.kubernetes.io/instance={cluster.name}",
    )
