"""A bookie whose volumes and pod are gone is made anew, after the proof that nothing has its last copy there."""

from __future__ import annotations

import json

import pytest

from tests.e2e.support.lost_volume import lose_and_replace

_SINGLE_COPY = """\
import json, sys
from bookie_client import BlockingClient, PlacementOptions
uri, bookie = sys.argv[1:]
with BlockingClient(uri) as client:
    (bookie_id,) = [each for each in client.writable_bookies() if each.startswith(bookie)]
with BlockingClient(uri, placement=PlacementOptions(policy="local", local_bookie=bookie_id)) as client:
    with client.create(ensemble=1, write_quorum=1, ack_quorum=1) as ledger:
        ledger.append(b"the only copy")
    print(json.dumps(ledger.ledger_id))
"""
_DELETE = """\
import sys
from bookie_client import BlockingClient
with BlockingClient(sys.argv[1]) as client:
    client.delete(int(sys.argv[2]))
"""


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


def test_a_volume_is_lost(make_cluster, make_workload, make_recorder, machine):
    """Only on request, without `autoReplaceAfterSeconds`: by a task that names the bookie."""
    cluster = make_cluster(replicas=4)
    cluster.wait_ready(240)
    recorder = make_recorder(cluster.name)
    with make_workload(cluster.name) as workload:
        workload.progress(400)
        bookie = f"{cluster.name}-bookie-2"
        lose_and_replace(cluster, machine, workload, bookie, "ledger-0")
        assert "cookie" in recorder.gone(bookie)


def test_what_only_the_lost_bookie_had(make_cluster, make_workload, make_recorder, machine, kube, zookeeper_service):
    """It stays as it is until people give up by name what has no other copy."""
    cluster = make_cluster(replicas=4)
    cluster.wait_ready(240)
    recorder = make_recorder(cluster.name)
    uri = zookeeper_service.uri(f"/{cluster.name}", "hierarchical")
    first, bookie = (f"{cluster.name}-bookie-{number}" for number in (0, 1))
    with make_workload(cluster.name) as workload:
        workload.progress(400)
        ledger_id = json.loads(kube.run_in_pod(first, "bookie", "python3", "-c", _SINGLE_COPY, uri, bookie))
        claims = {name: claim["metadata"]["uid"] for name, claim in cluster.claims(bookie).items()}
        machine.lose_volume(kube.namespace, f"ledger-0-{bookie}")
        kube.delete("Pod", bookie)
        cluster.wait_condition("Ready", "False", 240)
        cluster.task(f"replace-{bookie}", "Replace", bookies=[bookie])
        found = cluster.wait_condition("Stalled", "True", 300, reason="LedgersUnrecoverable")
        assert str(ledger_id) in found["message"], found
        workload.progress()
        assert {name: claim["metadata"]["uid"] for name, claim in cluster.claims(bookie).items()} == claims
        assert not recorder.gone(bookie)

        recorder.give_up(ledger_id)
        cluster.task(f"accept-{cluster.name}", "AcceptLoss", ledgers=[ledger_id])
        cluster.wait_pods(4, 600)
        assert "cookie" in recorder.gone(bookie)
        assert not {claim["metadata"]["uid"] for claim in cluster.claims(bookie).values()} & set(claims.values())
        kube.run_in_pod(first, "bookie", "python3", "-c", _DELETE, uri, str(ledger_id))
        cluster.wait_ready(900)
        cluster.wait_replicated()
        workload.progress()
