"""Three, four and three bookies again, while clients write: the last one is drained before it goes."""

from __future__ import annotations

import pytest


@pytest.mark.smoke
def test_four_bookies_and_three_again(make_cluster, make_workload, make_recorder):
    cluster = make_cluster()
    cluster.wait_ready(240)
    recorder = make_recorder(cluster.name)
    with make_workload(cluster.name) as workload:
        cluster.scale(4)
        cluster.wait_ready(240)
        cluster.wait_pods(4)
        workload.progress(400)

        fourth = f"{cluster.name}-bookie-3"
        assert cluster.claims(fourth)
        cluster.scale(3)
        operation = cluster.wait_operation("Decommission")
        assert operation["bookie"] == fourth
        workload.progress()
        status = cluster.wait_ready(900)
        cluster.wait_pods(3)
        workload.progress()
        assert status["history"][0]["type"] == "Decommission"
        assert status["history"][0]["outcome"] == "Done"
        assert not cluster.claims(fourth)
        assert sorted(recorder.gone(fourth)) == ["cookie", f"journal-0-{fourth}", f"ledger-0-{fourth}"]

        # The ordinal is used again, with new disks.
        cluster.scale(4)
        cluster.wait_ready(240)
        cluster.wait_pods(4)
        workload.progress()


def test_a_scale_down_is_taken_back(make_cluster, make_workload, make_recorder):
    """Who raises the replicas again before the bookie has gone keeps it."""
    cluster = make_cluster(replicas=4)
    cluster.wait_ready(240)
    uids = cluster.uids()
    recorder = make_recorder(cluster.name)
    with make_workload(cluster.name) as workload:
        workload.progress(400)
        cluster.scale(3)
        cluster.wait_operation("Decommission")
        cluster.scale(4)
        cluster.wait_ready(600)
        workload.progress()
        status = cluster.status()
        assert status["writableReplicas"] == 4
        if status["history"][0]["outcome"] == "Cancelled":
            assert cluster.uids() == uids
            assert not recorder.gone(f"{cluster.name}-bookie-3")


def test_no_bookie_below_the_ensemble_goes(make_cluster, make_recorder):
    """`kubectl scale` of the StatefulSet is put back and reported; three of three is as low as it gets."""
    cluster = make_cluster()
    cluster.wait_ready(240)
    recorder = make_recorder(cluster.name)
    sts = f"{cluster.name}-bookie"
    cluster.kube.patch("StatefulSet", sts, {"spec": {"replicas": 2}}, subresource="scale")
    cluster.kube.wait_for(
        "StatefulSet",
        lambda found: found[sts]["spec"]["replicas"] == 3,
        120,
        "the StatefulSet to be put back",
        name=sts,
    )
    cluster.wait_pods(3)
    cluster.wait_ready(240)
    assert "ExternalScaleDown" in cluster.events()
    assert not recorder.removals
