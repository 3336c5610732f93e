"""What cannot be done is refused with its reason before anything is done for it, and holds nothing else up."""

from __future__ import annotations

import pytest

from tests.e2e.support.kube import condition_of

LIMITS = {"limits": {"cpu": "2", "memory": "1Gi"}}


def test_fewer_bookies_than_ledgers_need(make_cluster, make_workload):
    """`replicas` and `durability` are lowered together, and the ledgers still have three bookies each."""
    cluster = make_cluster()
    cluster.wait_ready(240)
    with make_workload(cluster.name) as workload:
        workload.progress(400)
        durability = {"ensembleSize": 2, "writeQuorum": 2, "ackQuorum": 2}
        cluster.change(replicas=2, durability=durability)
        cluster.wait_condition("Stalled", "True", 240, reason="NoSpareBookie")
        workload.progress()
        assert cluster.status()["writableReplicas"] == 3
        assert not cluster.status().get("operation")
        generation = cluster.change(replicas=3, durability={"ensembleSize": 3, "writeQuorum": 3})
        cluster.wait_ready(300, generation=generation)


def test_a_task_that_cannot_be_done(make_cluster, kube):
    """It fails with its reason; the cluster is not judged by it, and takes it with it when it goes."""
    cluster = make_cluster()
    cluster.wait_ready(240)
    names = [f"{kind.lower()}-{cluster.name}" for kind in ("Replace", "Decommission")]
    for name in names:
        cluster.task(name, name.partition("-")[0].capitalize(), bookies=[f"{cluster.name}-bookie-7"])

    def failed(tasks) -> bool:
        found = [tasks[name].get("status") or {} for name in names]
        return all(one.get("phase") == "Failed" and "there is no bookie" in one["message"] for one in found)

    kube.wait_for("BookieTask", failed, 120, "both tasks to fail")
    assert condition_of(cluster.get(), "Ready")["status"] == "True"
    cluster.delete()
    cluster.wait_gone(300)
    for name in names:
        kube.wait_gone("BookieTask", name, 60)


@pytest.fixture
def limits_only(kube):
    """A quota that takes pods with limits only."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "limits"}}
    kube.apply({**quota, "spec": {"hard": {"limits.cpu": "100", "limits.memory": "100Gi"}}})
    yield
    kube.delete("ResourceQuota", "limits")


def test_a_quota_on_limits(make_cluster, limits_only):
    """Jobs and auto-recovery ask for what `spec` says, too. Without limits the quota's own words are told."""
    cluster = make_cluster()
    told = cluster.wait_condition("Stalled", "True", 180, reason="PodsRefused")["message"]
    assert "must specify limits" in told
    probe = {"periodSeconds": 3}
    autorecovery = {"replicas": 1, "lostBookieRecoveryDelaySeconds": 5, "resources": LIMITS}
    generation = cluster.change(pod={"resources": LIMITS, "readinessProbe": probe}, autorecovery=autorecovery)
    cluster.wait_ready(240, generation=generation)
    cluster.wait_pods(3)


def test_all_bookies_on_one_node(make_cluster, make_workload, nodes):
    """As the quick start has it, on a machine that has no other node."""
    one = {"nodeSelector": {"kubernetes.io/hostname": nodes[0]}, "readinessProbe": {"periodSeconds": 3}}
    cluster = make_cluster(replicas=4, placement={"nodes": "Shared"}, pod=one)
    cluster.wait_ready(240)
    assert {pod["spec"]["nodeName"] for pod in cluster.wait_pods(4).values()} == {nodes[0]}
    with make_workload(cluster.name) as workload:
        workload.progress(200)
