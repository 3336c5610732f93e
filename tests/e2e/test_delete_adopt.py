"""Deleting a cluster keeps its data, unless somebody says twice that they should go; and it can be taken up again."""

from __future__ import annotations

from tests.e2e.support.bookie_cluster import spec
from tests.e2e.support.kube import condition_of


def test_delete_and_adopt(make_cluster, make_workload, make_recorder, kube, settings, zookeeper_service):
    cluster = make_cluster()
    instance = cluster.wait_ready(240)["instanceId"]
    recorder = make_recorder(cluster.name)
    workload = make_workload(cluster.name)
    with workload:
        workload.progress(400)
        claims = {name: claim["metadata"]["uid"] for name, claim in cluster.claims().items()}
        cluster.delete()
        cluster.wait_gone(300)
        kube.wait_for("Pod", lambda pods: not pods, 120, "the bookies' end", selector=cluster.selector)
        assert {name: claim["metadata"]["uid"] for name, claim in cluster.claims().items()} == claims
        assert kube.get("Secret", f"{cluster.name}-identity") is not None

        uri = zookeeper_service.uri("", "hierarchical")
        root = f"/{cluster.name}"
        cluster.apply(spec(settings.image, uri, root, bootstrap={"mode": "New"}))
        found = cluster.wait_condition("Stalled", "True", 120)
        assert found["reason"] == "AdoptRequired", found
        assert not cluster.pods()

        cluster.apply(spec(settings.image, uri, root, bootstrap={"mode": "Adopt"}))
        status = cluster.wait_ready(300)
        assert status["instanceId"] == instance
        assert {name: claim["metadata"]["uid"] for name, claim in cluster.claims().items()} == claims
        workload.progress()
    assert not recorder.removals


def test_deletion_with_data_takes_a_confirmation(make_cluster, make_workload, make_recorder, kube):
    storage = {
        "journal": {"size": "1Gi"},
        "ledger": {"size": "2Gi"},
        "retention": {"whenDeleted": "Delete"},
    }
    cluster = make_cluster(storage=storage)
    cluster.wait_ready(240)
    recorder = make_recorder(cluster.name)
    with make_workload(cluster.name) as workload:
        pods = cluster.uids()
        cluster.delete()
        found = cluster.wait_condition("DeletionBlocked", "True", 120)
        assert "confirm-delete" in found["message"]
        workload.progress()
        assert cluster.uids() == pods
    assert not recorder.removals
    recorder.expect(*pods, *cluster.claims())
    cluster.annotate(confirm_delete=cluster.name)
    cluster.wait_gone(300)
    kube.wait_for(
        "PersistentVolumeClaim",
        lambda claims: not claims,
        120,
        "the claims' end",
        selector=f"app.kubernetes.io/instance={cluster.name}",
    )


def test_pause_is_an_emergency_brake(make_cluster, make_workload):
    """Nothing changes while it is paused, a deletion included."""
    cluster = make_cluster()
    cluster.wait_ready(240)
    with make_workload(cluster.name) as workload:
        pods = cluster.uids()
        cluster.annotate(paused="true")
        cluster.wait_condition("Paused", "True", 60)
        cluster.change(config={"journalMaxGroupWaitMSec": "2"})
        cluster.delete()
        found = cluster.wait_condition("DeletionBlocked", "True", 60)
        assert "pause" in (found["reason"] + found["message"]).lower()
        assert cluster.uids() == pods
        workload.progress()
    cluster.annotate(paused=None)
    cluster.wait_gone(300)


def test_an_adopted_cluster_has_to_be_the_same(make_cluster):
    """An instance id that is not that of the metadata stops everything before a pod starts."""
    cluster = make_cluster(bootstrap={"mode": "Adopt", "instanceId": "00000000-0000-0000-0000-000000000000"})
    found = cluster.wait_condition("Stalled", "True", 180)
    assert found["message"]
    assert not cluster.pods()
    assert condition_of(cluster.get(), "Ready")["status"] != "True"
