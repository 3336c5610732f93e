"""Gateways in a Deployment of their own come, serve, change their number and go, beside bookies that go on."""

from __future__ import annotations

from tests.e2e.support.bookie_cluster import BookieCluster
from tests.e2e.support.kube import Object, pod_ready

LEDGERS = 20
"""Each over a connection of its own: all gateways have some."""
_PROGRAM = """\
import sys
import grpc
from bookie_protocol.ledger_service import ledger_service_pb2 as pb
from bookie_protocol.ledger_service.ledger_service_pb2_grpc import LedgerServiceStub

shown = [("authorization", "Bearer " + open("/etc/podkeeper/client/token").read().split()[0])]
service, ledgers = sys.argv[1], int(sys.argv[2])
for number in range(ledgers):
    entries = [f"{number} {entry}".encode() for entry in range(100)]
    create = pb.CreateRequest(ensemble_size=3, write_quorum=3, ack_quorum=2)
    requests = [pb.AppendRequest(create=create, entries=entries[:1]), pb.AppendRequest(entries=entries[1:])]
    with grpc.insecure_channel(service) as channel:
        *_, last = LedgerServiceStub(channel).Append(iter(requests), timeout=60, metadata=shown)
    with grpc.insecure_channel(service) as channel:
        read = LedgerServiceStub(channel).Read(pb.ReadRequest(ledger_id=last.ledger_id), timeout=60, metadata=shown)
        found = [entry for response in read for entry in response.entries]
    print("ledger", number, last.last_entry_id, last.closed, found == entries)
"""
"""Writes ledgers at the Service and reads each: its last entry, whether it is closed, and whether all was read."""


def selector(cluster: BookieCluster) -> str:
    return f"app.kubernetes.io/instance={cluster.name},app.kubernetes.io/component=gateway"


def wait_gateways(cluster: BookieCluster, count: int) -> dict[str, Object]:
    """So many pods, all ready; 0: none is left."""

    def look(pods: dict[str, Object]) -> dict[str, Object] | bool:
        return (pods or True) if len(pods) == count and all(map(pod_ready, pods.values())) else False

    what = f"{count} gateways of {cluster.name}"
    found = cluster.kube.wait_for("Pod", look, 180, what, selector=selector(cluster))
    return found if isinstance(found, dict) else {}


def serves(cluster: BookieCluster) -> None:
    service = f"{cluster.name}-gateway.{cluster.kube.namespace}.svc:3182"
    bookie = min(cluster.pods())
    printed = cluster.kube.run_in_pod(bookie, "bookie", "python3", "-c", _PROGRAM, service, str(LEDGERS))
    told = [line for line in printed.splitlines() if line.startswith("ledger ")]
    assert told == [f"ledger {number} 99 True True" for number in range(LEDGERS)], printed


def test_gateways_beside_bookies(make_cluster, make_workload, kube):
    cluster = make_cluster()
    cluster.wait_ready(240)
    bookies = cluster.uids()
    with make_workload(cluster.name) as workload:
        cluster.change(gateway={"enabled": True, "replicas": 2})
        cluster.wait_ready(240)
        first = wait_gateways(cluster, 2)
        assert len({pod["spec"]["nodeName"] for pod in first.values()}) == 2
        serves(cluster)

        cluster.change(gateway={"replicas": 3})
        cluster.wait_ready(240)
        assert wait_gateways(cluster, 3).keys() > first.keys()
        serves(cluster)

        cluster.change(gateway={"enabled": False})
        wait_gateways(cluster, 0)
        for kind in ("Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service"):
            kube.wait_gone(kind, f"{cluster.name}-gateway", 120)
        cluster.wait_ready(120)
        workload.progress()
    assert cluster.uids() == bookies


def test_a_cluster_with_gateways_is_deleted(make_cluster, kube):
    """Its gateways stop in good order, and do not hold it up."""
    cluster = make_cluster(gateway={"enabled": True})
    cluster.wait_ready(240)
    wait_gateways(cluster, 2)
    serves(cluster)
    cluster.delete()
    cluster.wait_gone(300)
    wait_gateways(cluster, 0)
    kube.wait_gone("Service", f"{cluster.name}-gateway", 60)
