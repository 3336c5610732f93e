"""A bookie whose volumes and pod are gone is made anew, after the proof that nothing has its last copy there."""

from __future__ import annotations

import pytest


@pytest.mark.smoke
def test_claims_and_pod_are_deleted(make_cluster, make_workload, make_recorder, kube):
    """With a spare bookie, the operator replaces it by itself."""
    cluster = make_cluster(replicas=4, repair={"autoReplaceAfterSeconds": 5})
    cluster.wait_ready(240)
    recorder = make_recorder(cluster.name)
    with make_workload(cluster.name) as workload:
        workload.progress(400)
        bookie = f"{cluster.name}-bookie-1"
        others = {name: uid for name, uid in cluster.uids().items() if name != bookie}
        uid = cluster.uids()[bookie]
        claims = cluster.claims(bookie)
        recorder.expect(*claims)
        for claim in claims:
            kube.delete("PersistentVolumeClaim", claim)
        kube.delete("Pod", bookie)
        cluster.wait_operation("Replace", 240)
        workload.progress()
        cluster.wait_ready(900)
        pods = cluster.wait_pods(4)
        assert pods[bookie]["metadata"]["uid"] != uid
        assert {name: pod["metadata"]["uid"] for name, pod in pods.items() if name != bookie} == others
        assert not {claim["metadata"]["uid"] for claim in cluster.claims(bookie).values()} & {
            claim["metadata"]["uid"] for claim in claims.values()
        }
        assert "cookie" in recorder.gone(bookie)
        cluster.wait_replicated()
        workload.progress()


def test_a_volume_is_lost(make_cluster, make_workload, make_recorder, kube, machine):
    """Only on request, without `autoReplaceAfterSeconds`: by a task that names the bookie."""
    cluster = make_cluster(replicas=4)
    cluster.wait_ready(240)
    recorder = make_recorder(cluster.name)
    with make_workload(cluster.name) as workload:
        workload.progress(400)
        bookie = f"{cluster.name}-bookie-2"
        machine.lose_volume(kube.namespace, f"ledger-0-{bookie}")
        kube.delete("Pod", bookie)
        found = cluster.wait_condition("Ready", "False", 240)
        assert found["message"]
        assert set(cluster.claims(bookie)) == {f"journal-0-{bookie}", f"ledger-0-{bookie}"}
        cluster.task("replace", "Replace", bookies=[bookie])
        cluster.wait_operation("Replace", 240)
        workload.progress()
        cluster.wait_ready(900)
        cluster.wait_pods(4)
        assert "cookie" in recorder.gone(bookie)
        cluster.wait_replicated()
        workload.progress()
