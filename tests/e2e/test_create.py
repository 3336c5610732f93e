"""From nothing to the first ledger, as the documentation tells people to do it."""

from __future__ import annotations

import time

import pytest

from tests.e2e.support.bookie_cluster import CONFIRM_DELETE, BookieCluster

FIRST_LEDGER_SECONDS = 120.0
GRPC_PORT = 3182
_GATEWAYS = """\
import sys
import grpc
from bookie_protocol.ledger_service import ledger_service_pb2 as pb
from bookie_protocol.ledger_service.ledger_service_pb2_grpc import LedgerServiceStub

shown = [("authorization", "Bearer " + open("/etc/podkeeper/client/token").read().split()[0])]
service, *gateways = sys.argv[1:]
for gateway in gateways:
    entries = [f"{gateway} {number}".encode() for number in range(100)]
    create = pb.CreateRequest(ensemble_size=3, write_quorum=3, ack_quorum=2)
    requests = [pb.AppendRequest(create=create, entries=entries[:1]), pb.AppendRequest(entries=entries[1:])]
    with grpc.insecure_channel(gateway) as channel:
        *_, last = LedgerServiceStub(channel).Append(iter(requests), timeout=60, metadata=shown)
    with grpc.insecure_channel(service) as channel:
        read = LedgerServiceStub(channel).Read(pb.ReadRequest(ledger_id=last.ledger_id), timeout=60, metadata=shown)
        found = [entry for response in read for entry in response.entries]
    print(gateway, last.last_entry_id, last.closed, found == entries)
"""
"""Writes a ledger through each gateway and reads it through the Service: the last entry, whether it is closed, and
whether everything was read."""


def values(settings, uri: str, root: str) -> dict:
    tag = settings.image.rpartition(":")[2]
    return {
        "spec": {
            "version": tag,
            "image": settings.image,
            "replicas": 3,
            "metadataService": {"type": "External", "uri": uri, "rootPath": root},
            "storage": {"journal": {"size": "1Gi"}, "ledger": {"size": "2Gi"}},
            "autorecovery": {"replicas": 1},
        },
        "test": {"entries": 200},
        "annotations": {CONFIRM_DELETE: root.strip("/")},
    }


@pytest.mark.smoke
def test_first_ledger_within_two_minutes(helm, kube, settings, operator, zookeeper_service, nodes):
    """Both charts, then `helm test`, which writes a ledger and reads it back."""
    uri = zookeeper_service.uri("", "hierarchical")
    operator.uninstall()
    began = time.monotonic()
    operator.install()
    helm.install("first", "podkeeper-cluster", values(settings, uri, "/first"))
    cluster = BookieCluster(kube, "first")
    try:
        cluster.wait_condition("Available", "True", FIRST_LEDGER_SECONDS)
        helm.test("first")
        took = time.monotonic() - began
        print(f"first ledger after {took:.0f} s")
        cluster.wait_ready(180)
        assert took < FIRST_LEDGER_SECONDS
        every_gateway_serves(cluster)
    finally:
        helm.uninstall("first")
        for claim in cluster.claims():
            kube.delete("PersistentVolumeClaim", claim)


def every_gateway_serves(cluster: BookieCluster) -> None:
    """A ledger is appended to over gRPC at each bookie by name, and read at the Service, which takes any of them."""
    pods = sorted(cluster.wait_pods(3))
    domain = f"{cluster.name}-bookie.{cluster.kube.namespace}.svc"
    gateways = [f"{pod}.{domain}:{GRPC_PORT}" for pod in pods]
    service = f"{cluster.name}-client.{cluster.kube.namespace}.svc:{GRPC_PORT}"
    printed = cluster.kube.run_in_pod(pods[0], "bookie", "python3", "-c", _GATEWAYS, service, *gateways)
    told = [line for line in printed.splitlines() if line.startswith(f"{cluster.name}-bookie-")]
    assert told == [f"{gateway} 99 True True" for gateway in gateways], printed


def test_what_a_new_cluster_is(make_cluster, kube, nodes):
    """Objects, status and placement; nothing is written while nothing happens."""
    cluster = make_cluster()
    status = cluster.wait_ready(240)
    pods = cluster.wait_pods(3)
    assert len({pod["spec"]["nodeName"] for pod in pods.values()}) == 3
    assert all(not pod["spec"].get("automountServiceAccountToken", True) for pod in pods.values())
    assert status["writableReplicas"] == 3
    assert {pod["metadata"]["name"] for pod in kube.list("Pod", status["selector"])} == pods.keys()
    assert status["instanceId"]
    assert {each["state"] for each in status["bookies"]} == {"Writable"}
    (sts,) = kube.list("StatefulSet", cluster.selector)
    assert sts["spec"]["updateStrategy"]["type"] == "OnDelete"
    assert sts["spec"]["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
    assert len(cluster.claims()) == 6
    assert all(not claim["metadata"].get("ownerReferences") for claim in cluster.claims().values())

    version = cluster.get()["metadata"]["resourceVersion"]
    restarts = cluster.uids()
    try:
        kube.wait_for(
            "BookieCluster",
            lambda clusters: clusters[cluster.name]["metadata"]["resourceVersion"] != version,
            60,
            "a change of a cluster at rest",
            name=cluster.name,
        )
    except AssertionError:
        pass
    else:
        raise AssertionError(f"a cluster at rest was written: {cluster.get()['metadata']['managedFields']}")
    assert cluster.uids() == restarts
