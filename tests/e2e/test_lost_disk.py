"""A bookie whose volumes and pod are gone is made anew, after the proof that nothing has its last copy there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bookie_protocol.errors import V2Code
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


_ABANDON = """\
import json, os, sys
from bookie_client import BlockingClient
client = BlockingClient(sys.argv[1])
client.start()
ledger = client.create(ensemble=3, write_quorum=3, ack_quorum=2, password=b"pw")
for number in range(3):
    ledger.append(b"%d" % number)
print(json.dumps([ledger.ledger_id, list(ledger.metadata.last_ensemble)]), flush=True)
os._exit(0)  # as a writer that is idle: the ledger stays open, and nobody tells it anything
"""
_GO_ON = """\
import json, socket, struct, sys
from bookie_protocol.keys import master_key
from bookie_protocol.wire import v2
from tests.support.v2_frames import encode_add_request
uri, ledger_id, bookie = sys.argv[1], int(sys.argv[2]), sys.argv[3]
host, _, port = bookie.rpartition(":")
entry = struct.pack(">qqqq", ledger_id, 3, 2, 4) + b"lost"
with socket.create_connection((host, int(port)), timeout=30) as connection:
    connection.sendall(encode_add_request(master_key(b"pw"), entry))
    answer = connection.makefile("rb")
    print(json.dumps(int(v2.decode_response(answer.read(int.from_bytes(answer.read(4)))).code)))
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


def test_an_idle_writer_beside_a_busy_one(make_cluster, make_workload, make_recorder, kube, zookeeper_service):
    """Each bookie of an idle writer's ensemble is replaced in turn: none of them takes what closing would lose, and the
    busy writer goes on (leaving its block compares everything with what was acknowledged)."""
    cluster = make_cluster(replicas=4, repair={"autoReplaceAfterSeconds": 5})
    cluster.wait_ready(240)
    recorder = make_recorder(cluster.name)
    uri = zookeeper_service.uri(f"/{cluster.name}", "hierarchical")

    def run(pod: str, program: str, *arguments: str) -> Any:
        return json.loads(kube.run_in_pod(pod, "bookie", "python3", "-c", program, uri, *arguments))

    with make_workload(cluster.name) as workload:
        workload.progress(400)
        ledger_id, ensemble = run(f"{cluster.name}-bookie-0", _ABANDON)
        for bookie_id in ensemble:
            bookie = bookie_id.partition(".")[0]
            claims = cluster.claims(bookie)
            recorder.expect(*claims)
            for claim in claims:
                kube.delete("PersistentVolumeClaim", claim)
            kube.delete("Pod", bookie)
            cluster.wait_operation("Replace", 240)
            workload.progress()
            cluster.wait_ready(900)
            assert "cookie" in recorder.gone(bookie)
            for replaced in ensemble[: ensemble.index(bookie_id) + 1]:
                assert run(bookie, _GO_ON, str(ledger_id), replaced) == V2Code.EFENCED
        cluster.wait_replicated()
        kube.run_in_pod(f"{cluster.name}-bookie-0", "bookie", "python3", "-c", _DELETE, uri, str(ledger_id))
        workload.progress()
