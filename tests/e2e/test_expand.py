"""Volumes grow without a pod being restarted; what cannot grow says so and breaks nothing."""

from __future__ import annotations


def test_ledger_volumes_grow(make_cluster, make_workload, make_recorder, kube):
    cluster = make_cluster()
    cluster.wait_ready(240)
    recorder = make_recorder(cluster.name)
    with make_workload(cluster.name) as workload:
        pods = cluster.uids()
        (before,) = kube.list("StatefulSet", cluster.selector)
        generation = cluster.change(storage={"ledger": {"size": "3Gi"}})
        cluster.wait_ready(600, generation=generation)
        assert cluster.capacities("ledger") == {"3Gi"}
        assert cluster.capacities("journal") == {"1Gi"}
        (after,) = kube.list("StatefulSet", cluster.selector)
        assert after["metadata"]["uid"] != before["metadata"]["uid"]
        templates = {
            each["metadata"]["name"]: each["spec"]["resources"]["requests"]["storage"]
            for each in after["spec"]["volumeClaimTemplates"]
        }
        assert templates["ledger-0"] == "3Gi"
        assert cluster.uids() == pods
        owners = {pod["metadata"]["ownerReferences"][0]["uid"] for pod in cluster.pods().values()}
        assert owners == {after["metadata"]["uid"]}
        workload.progress()
    assert not recorder.removals


def test_a_class_that_cannot_grow(make_cluster, make_workload):
    """Needs a storage class `no-resize` without expansion."""
    cluster = make_cluster(
        storage={"journal": {"size": "1Gi"}, "ledger": {"size": "2Gi", "storageClassName": "no-resize"}}
    )
    cluster.wait_ready(240)
    with make_workload(cluster.name) as workload:
        pods = cluster.uids()
        cluster.change(storage={"ledger": {"size": "3Gi"}})
        found = cluster.wait_condition("Stalled", "True", 240)
        assert "no-resize" in found["message"]
        assert cluster.capacities("ledger") == {"2Gi"}
        assert cluster.uids() == pods
        workload.progress()


def test_an_expansion_that_fails(make_cluster, make_workload):
    """Needs a storage class `failing-resize` whose driver refuses."""
    cluster = make_cluster(
        storage={"journal": {"size": "1Gi"}, "ledger": {"size": "2Gi", "storageClassName": "failing-resize"}}
    )
    cluster.wait_ready(240)
    with make_workload(cluster.name) as workload:
        pods = cluster.uids()
        cluster.change(storage={"ledger": {"size": "3Gi"}})
        found = cluster.wait_condition("Stalled", "True", 300)
        assert "ledger-0-" in found["message"]
        assert cluster.uids() == pods
        assert cluster.get()["spec"]["storage"]["ledger"]["size"] == "3Gi"
        workload.progress()
