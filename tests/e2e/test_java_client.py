"""The stock Java client writes and reads from a pod of the cluster, and reads what ours wrote."""

from __future__ import annotations

import pytest

from bookie_protocol.digest import DigestType
from tests.e2e.support import manifests
from tests.e2e.support.java_pod import java_client_in
from tests.e2e.support.kube import pod_ready
from tests.interop.java_client import payloads

ENTRIES = 300


@pytest.fixture
def java_pod(kube, settings, nodes):
    kube.apply(manifests.pod("java", settings.java_image, ["sleep", "infinity"], node=nodes[0]))
    kube.wait_for("Pod", lambda pods: "java" in pods and pod_ready(pods["java"]), 120, "the Java pod", name="java")
    yield "java"
    kube.delete("Pod", "java", grace=0)


def test_java_writes_and_reads(
    make_cluster, make_workload, make_recorder, java_pod, kube, settings, tmp_path, zookeeper_service
):
    # a bookie more than the ensemble: this client gives a ledger up when it finds no other one
    cluster = make_cluster(replicas=4)
    cluster.wait_ready(240)
    uri = zookeeper_service.uri(f"/{cluster.name}", "hierarchical")
    with (
        make_workload(cluster.name) as workload,
        java_client_in(settings.kubeconfig, kube.namespace, java_pod, uri, tmp_path / "java.log") as java,
    ):
        for digest in (DigestType.CRC32C, DigestType.MAC):
            ledger = java.create((3, 3, 2), digest=digest)
            java.append(ledger, ENTRIES)
            java.close(ledger)
            assert java.open(ledger, digest=digest)["lac"] == ENTRIES - 1
            assert java.read(ledger, 0, ENTRIES - 1) == payloads(ledger, ENTRIES)
            assert len(java.metadata(ledger)["ensembles"][0]) == 3
        workload.progress()

        # While the bookies are restarted one by one.
        ledger = java.create((3, 3, 2))
        generation = cluster.change(config={"journalMaxGroupWaitMSec": "2"})
        cluster.wait_operation("Rollout")
        written = 0
        while cluster.status().get("operation") or cluster.status().get("observedGeneration", 0) < generation:
            java.append(ledger, 10)
            written += 10
        cluster.wait_ready(900, generation=generation)
        java.close(ledger)
        java.open(ledger)
        wanted = payloads(ledger, written)
        for first in range(0, written, ENTRIES):  # one answer with all of them does not fit into the program's heap
            piece = wanted[first : first + ENTRIES]
            assert java.read(ledger, first, first + len(piece) - 1) == piece
