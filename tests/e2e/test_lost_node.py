"""A node that never comes back takes a bookie with it: it is replaced when a person vouches for that, not before."""

from __future__ import annotations

import pytest

from tests.e2e.support.kube import condition_of


def node_of(cluster, bookie: str) -> str:
    return str(cluster.pods()[bookie]["spec"]["nodeName"])


def out_of_service(kube, node: str, present: bool) -> None:
    taint = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
    found = [each for each in kube.get("Node", node)["spec"].get("taints") or [] if each["key"] != taint["key"]]
    kube.patch("Node", node, {"spec": {"taints": [*found, taint] if present else found}})


@pytest.fixture
def lost_node(machine, kube, nodes):
    """A node that a test may cut the power of; afterwards it is up again."""
    lost: list[str] = []
    yield lost
    for node in lost:
        out_of_service(kube, node, False)
        machine.start(node)
        kube.wait_for(
            "Node",
            lambda found, node=node: condition_of(found[node], "Ready")["status"] == "True",
            120,
            "the node",
            name=node,
        )


def test_a_node_is_lost_for_good(make_cluster, make_workload, make_recorder, kube, nodes, machine, lost_node):
    """Four bookies on five nodes: copies have a spare bookie to go to, and the new bookie a node."""
    cluster = make_cluster(replicas=4, repair={"autoReplaceAfterSeconds": 5})
    cluster.wait_ready(240)
    recorder = make_recorder(cluster.name)
    bookie = next(name for name in sorted(cluster.pods()) if node_of(cluster, name) != nodes[0])
    node = node_of(cluster, bookie)
    others = {name: uid for name, uid in cluster.uids().items() if name != bookie}
    with make_workload(cluster.name) as workload:
        workload.progress(400)
        lost_node.append(node)
        machine.kill(node)
        workload.progress(seconds=120)
        cluster.wait_condition("Ready", "False", 240)
        assert not recorder.removals

        out_of_service(kube, node, True)
        cluster.wait_operation("Replace", 400)
        workload.progress()
        cluster.wait_ready(900)
        pods = cluster.wait_pods(4)
        assert node_of(cluster, bookie) != node
        assert {name: pod["metadata"]["uid"] for name, pod in pods.items() if name != bookie} == others
        assert "cookie" in recorder.gone(bookie)
        cluster.wait_replicated()
        workload.progress()


def test_a_node_is_cut_off_and_comes_back(make_cluster, make_workload, make_recorder, nodes, machine):
    """Nothing is deleted for it: its bookie is the same afterwards."""
    cluster = make_cluster()
    cluster.wait_ready(240)
    recorder = make_recorder(cluster.name)
    bookie = next(name for name in sorted(cluster.pods()) if node_of(cluster, name) != nodes[0])
    node = node_of(cluster, bookie)
    claims = {name: claim["metadata"]["uid"] for name, claim in cluster.claims().items()}
    with make_workload(cluster.name) as workload:
        machine.disconnect(node)
        try:
            cluster.wait_condition("Ready", "False", 240)
        finally:
            machine.connect(node)
        cluster.wait_ready(600)
        cluster.wait_replicated()
        workload.progress()
        assert {name: claim["metadata"]["uid"] for name, claim in cluster.claims().items()} == claims
    assert not recorder.removals
