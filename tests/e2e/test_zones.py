"""Bookies of several zones: a StatefulSet for each, on nodes of that zone, filled and emptied evenly."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from tests.e2e.support.kube import Kube

_LABEL = "topology.kubernetes.io/zone"


@pytest.fixture
def zone_of(kube, nodes) -> dict[str, str]:
    """By node."""
    zones = {node["metadata"]["name"]: node["metadata"]["labels"].get(_LABEL, "") for node in kube.list("Node")}
    assert len(set(zones.values())) >= 3, f"the ring needs nodes of three zones: {zones}"
    return zones


def placed(cluster, zone_of) -> dict[str, str]:
    """Zone of each bookie's node."""
    return {name: zone_of[pod["spec"]["nodeName"]] for name, pod in cluster.pods().items()}


def test_a_fourth_bookie_comes_and_goes(make_cluster, make_workload, make_recorder, zone_of):
    zones = sorted(set(zone_of.values()))[:3]
    cluster = make_cluster(placement={"zones": [{"name": zone} for zone in zones], "minZonesPerWriteQuorum": 2})
    cluster.wait_ready(300)
    cluster.wait_pods(3)
    assert sorted(placed(cluster, zone_of).values()) == zones
    for name, zone in placed(cluster, zone_of).items():
        assert name.startswith(f"{cluster.name}-bookie-{zone}-")
    recorder = make_recorder(cluster.name)
    with make_workload(cluster.name) as workload:
        first = cluster.uids()
        cluster.scale(4)
        cluster.wait_ready(300)
        cluster.wait_pods(4)
        (fourth,) = set(cluster.pods()) - set(first)
        assert fourth.startswith(f"{cluster.name}-bookie-{placed(cluster, zone_of)[fourth]}-")
        workload.progress(400)

        cluster.scale(3)
        operation = cluster.wait_operation("Decommission")
        assert operation["bookie"] == fourth
        cluster.wait_ready(900)
        assert cluster.uids() == first
        assert "cookie" in recorder.gone(fourth)

        # One zone after the other, and no bookie is left out.
        generation = cluster.change(config={"journalMaxGroupWaitMSec": "2"})
        cluster.wait_ready(900, generation=generation)
        assert not set(cluster.uids().values()) & set(first.values())
        assert sorted(placed(cluster, zone_of).values()) == zones
        workload.progress()


def cordon(kube: Kube, nodes: list[str], unschedulable: bool = True) -> None:
    for node in nodes:
        kube.patch("Node", node, {"spec": {"unschedulable": unschedulable or None}})


def test_a_zone_is_drained_at_once(make_cluster, make_workload, make_recorder, kube, nodes, zone_of):
    """As `kubectl drain` of all its nodes does it: cordoned first, then evicted as the budget lets them go."""
    zones = sorted(set(zone_of.values()))[:3]
    cluster = make_cluster(
        replicas=5,
        placement={"zones": [{"name": zone} for zone in zones], "minZonesPerWriteQuorum": 2},
        autorecovery={"lostBookieRecoveryDelaySeconds": 1800},
    )
    cluster.wait_ready(300)
    cluster.wait_pods(5)
    counts = Counter(placed(cluster, zone_of).values())
    drained = next(zone for zone in zones if counts[zone] == 2 and zone != zone_of[nodes[0]])
    going = {name for name, zone in placed(cluster, zone_of).items() if zone == drained}
    staying = cluster.uids().keys() - going
    recorder = make_recorder(cluster.name)
    with make_workload(cluster.name, placement="zone-aware") as workload:
        workload.progress(400)
        cluster.wait_replicated()
        before = cluster.uids()
        cordoned = [node for node in nodes if zone_of[node] == drained]
        cordon(kube, cordoned)
        try:
            left, end = set(going), time.monotonic() + 180
            while left:
                assert time.monotonic() < end, f"{left} could not be evicted: {cluster.status()}"
                left -= {bookie for bookie in left if kube.evict(bookie)}
                if len(left) < len(going):
                    assert not [bookie for bookie in staying if kube.evict(bookie)], "one of another zone could go"
                workload.state()
            cluster.wait_pods_gone(before[bookie] for bookie in going)
            workload.progress(400)
            assert {name: cluster.uids()[name] for name in staying} == {name: before[name] for name in staying}
        finally:
            cordon(kube, cordoned, unschedulable=False)
        cluster.wait_pods(5)
        cluster.wait_ready(300)
        cluster.wait_replicated()
        workload.progress()
    assert not recorder.removals
