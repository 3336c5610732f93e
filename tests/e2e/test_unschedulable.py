"""A bookie whose node takes no pods is not lost: its volumes are there, and nothing of it is replaced."""

from __future__ import annotations

import pytest

from tests.e2e.support import manifests
from tests.e2e.support.kube import Kube, condition_of
from tests.support.until import until_true

TAINT = {"key": "example.org/maintenance", "value": "true", "effect": "NoSchedule"}
RESOURCES = {"requests": {"memory": "512Mi"}}
_UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


def cordon(kube: Kube, node: str, present: bool) -> None:
    kube.patch("Node", node, {"spec": {"unschedulable": present or None}})


def taint(kube: Kube, node: str, present: bool) -> None:
    kept = [each for each in kube.get("Node", node)["spec"].get("taints") or [] if each["key"] != TAINT["key"]]
    kube.patch("Node", node, {"spec": {"taints": [*kept, TAINT] if present else kept}})


def fill(kube: Kube, node: str, present: bool, image: str) -> None:
    """A pod asks for all of the memory that the pods on it leave."""
    if not present:
        kube.delete("Pod", "filler", grace=0)
        kube.wait_gone("Pod", "filler", 60)
        return
    there = [pod for pod in kube.list("Pod") if pod["spec"].get("nodeName") == node]
    containers = [container for pod in there for container in pod["spec"]["containers"]]
    asked = [(each.get("resources") or {}).get("requests", {}).get("memory", "0") for each in containers]
    left = _bytes(kube.get("Node", node)["status"]["allocatable"]["memory"]) - sum(map(_bytes, asked))
    pod = manifests.pod("filler", image, ["sleep", "infinity"])
    pod["spec"]["nodeName"] = node
    pod["spec"]["containers"][0]["resources"] = {"requests": {"memory": str(left)}}
    kube.apply(pod)


def _bytes(quantity: str) -> int:
    unit = quantity.lstrip("0123456789")
    return int(quantity.removesuffix(unit)) * _UNITS[unit]


@pytest.fixture
def closed_node(kube, nodes, settings):
    """A node that a test may close to pods; afterwards it is as before."""
    node = nodes[-1]
    yield node
    cordon(kube, node, False)
    taint(kube, node, False)
    fill(kube, node, False, settings.image)


def test_a_bookie_on_a_node_that_takes_no_pods(
    make_cluster, make_workload, make_recorder, kube, nodes, closed_node, settings
):
    """Cordoned, tainted and full, one after the other, and for longer than a lost bookie would be waited for."""
    pod = {"resources": RESOURCES, "readinessProbe": {"periodSeconds": 3}}
    cluster = make_cluster(replicas=len(nodes), repair={"autoReplaceAfterSeconds": 5}, pod=pod)
    cluster.wait_ready(240)
    recorder = make_recorder(cluster.name)
    (bookie,) = [name for name, pod in cluster.pods().items() if pod["spec"]["nodeName"] == closed_node]
    claims = {name: claim["metadata"]["uid"] for name, claim in cluster.claims().items()}

    def waits(words: str) -> None:
        """It is told in the scheduler's words, work goes on elsewhere, and nothing is done to it."""

        def told(clusters) -> bool:
            found = condition_of(clusters[cluster.name], "Stalled")
            return found["status"] == "True" and found["reason"] == "Unschedulable" and words in found["message"]

        kube.wait_for("BookieCluster", told, 180, f"{bookie} to be told as {words}", name=cluster.name)
        workload.progress(600)
        cluster.wait_replicated()
        assert not cluster.status().get("operation")
        assert {name: claim["metadata"]["uid"] for name, claim in cluster.claims().items()} == claims

    with make_workload(cluster.name) as workload:
        workload.progress(400)
        cordon(kube, closed_node, True)
        until_true(lambda: kube.evict(bookie), 60)
        waits("were unschedulable")
        taint(kube, closed_node, True)
        fill(kube, closed_node, True, settings.image)
        cordon(kube, closed_node, False)
        waits("untolerated taint")
        taint(kube, closed_node, False)
        waits("Insufficient memory")
        fill(kube, closed_node, False, settings.image)
        cluster.wait_ready(300)
        workload.progress()
    assert not recorder.removals
    assert "Replace" not in {each["type"] for each in cluster.status().get("history") or []}
