"""A claim is deleted under a running bookie, and is there only until its pod ends: that is told, nothing ends the pod,
and what is advised takes the data elsewhere first."""

from __future__ import annotations

from tests.support.until import until_true


def test_nothing_stops_the_bookie_and_its_data_go_elsewhere(
    make_cluster, make_workload, make_recorder, kube, zookeeper_service
):
    cluster = make_cluster(replicas=4)
    cluster.wait_ready(240)
    recorder = make_recorder(cluster.name)
    bookie, other = (f"{cluster.name}-bookie-{number}" for number in (1, 0))
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

        bookie_id = told.partition("`bookie cluster decommission ")[2].partition("`")[0]
        done = kube.run_in_pod(other, "bookie", "bookie", "cluster", "decommission", bookie_id)
        assert "none names" in done, done
        until_true(lambda: "cookie" in recorder.gone(bookie), 30)
        assert cluster.uids() == before
        workload.progress()

        kube.delete("Pod", bookie)
        cluster.task(f"replace-{bookie}", "Replace", bookies=[bookie])
        cluster.wait_ready(900, generation=generation)
        cluster.wait_pods(4)
        after = {name: claim["metadata"]["uid"] for name, claim in cluster.claims(bookie).items()}
        assert after.keys() == claims.keys()
        assert not set(after.values()) & set(claims.values())
        assert not set(cluster.uids().values()) & set(before.values()), "the configuration waited for this"
        cluster.wait_replicated()
        workload.progress()
