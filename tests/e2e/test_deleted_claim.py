"""A claim is deleted under a running bookie, and is there only until its pod ends: that is told, nothing ends the pod,
and what is advised takes the data elsewhere first."""

from __future__ import annotations


def test_nothing_stops_the_bookie_and_its_data_go_elsewhere(
    make_cluster, make_workload, make_recorder, kube, zookeeper_service
):
    cluster = make_cluster(replicas=4)
    cluster.wait_ready(240)
    recorder = make_recorder(cluster.name)
    bookie = f"{cluster.name}-bookie-1"
    claims = {name: claim["metadata"]["uid"] for name, claim in cluster.claims(bookie).items()}
    with make_workload(cluster.name) as workload:
        workload.progress(400)
        before = cluster.uids()
        recorder.expect(f"ledger-0-{bookie}")
        kube.delete("PersistentVolumeClaim", f"ledger-0-{bookie}")
        told = cluster.wait_condition("Stalled", "True", 120, reason="ClaimBeingDeleted")["message"]
        assert f"ledger-0-{bookie}" in told

        # Neither a drain of its node nor a change of the template stops it.
        generation = cluster.change(config={"journalMaxGroupWaitMSec": "2"})
        cluster.wait_condition("Stalled", "True", 120, reason="ClaimBeingDeleted", generation=generation)
        assert not kube.evict(bookie)
        workload.progress()
        assert cluster.uids() == before
        assert not recorder.gone(bookie)[1:], "more than the one claim"

        cluster.task(f"replace-{bookie}", "Replace", bookies=[bookie])
        cluster.wait_ready(900, generation=generation)
        assert "cookie" in recorder.gone(bookie), "its data went elsewhere before its volumes"
        cluster.wait_pods(4)
        after = {name: claim["metadata"]["uid"] for name, claim in cluster.claims(bookie).items()}
        assert after.keys() == claims.keys()
        assert not set(after.values()) & set(claims.values())
        assert not set(cluster.uids().values()) & set(before.values()), "the configuration waited for this"
        cluster.wait_replicated()
        workload.progress()
