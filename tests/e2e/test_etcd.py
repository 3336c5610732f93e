"""A cluster with its metadata in etcd, from its making to its end, while clients write.

etcd runs on this machine, as the ring's ZooKeeper does, at the address that pods reach.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.e2e.support.bookie_cluster import CONFIRM_DELETE
from tests.e2e.support.environment import Environment
from tests.support.etcd import MISSING, PROGRAM, EtcdServer


@pytest.fixture
def etcd_service(settings: Environment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    assert shutil.which(PROGRAM), MISSING
    server = EtcdServer(tmp_path_factory.mktemp("etcd"), members=3, host=settings.host)
    server.start()
    yield server
    server.stop()


def keys(etcd: EtcdServer, below: str) -> list[str]:
    """But for sessions, which end by themselves."""
    return [key for key in etcd.control("get", below, "--prefix", "--keys-only").split() if "/@/" not in key]


def test_create_scale_roll_decommission_delete(etcd_service, make_cluster, make_workload, settings, kube):
    root = "/on-etcd"
    storage = {"journal": {"size": "1Gi"}, "ledger": {"size": "2Gi"}, "retention": {"whenDeleted": "Delete"}}
    metadata = {"type": "External", "uri": etcd_service.uri(""), "rootPath": root}
    cluster = make_cluster(name="on-etcd", metadataService=metadata, storage=storage)
    status = cluster.wait_ready(240)
    assert status["metadataServiceUri"] == etcd_service.uri(root)
    assert len([key for key in keys(etcd_service, f"{root}/cookies/") if key != f"{root}/cookies//"]) == 3
    with make_workload(cluster.name, etcd_service.uri(root)) as workload:
        workload.progress(400)
        cluster.scale(4)
        cluster.wait_ready(240)
        cluster.wait_pods(4)
        workload.progress()

        before = cluster.uids()
        generation = cluster.change(image=settings.next_image)
        cluster.wait_operation("Rollout")
        workload.progress()
        cluster.wait_ready(900, generation=generation)
        assert not set(cluster.uids().values()) & set(before.values())
        workload.progress()

        fourth = f"{cluster.name}-bookie-3"
        cluster.scale(3)
        assert cluster.wait_operation("Decommission")["bookie"] == fourth
        workload.progress()
        status = cluster.wait_ready(900)
        cluster.wait_pods(3)
        assert (status["history"][0]["type"], status["history"][0]["outcome"]) == ("Decommission", "Done")
        assert not cluster.claims(fourth)
        assert not [key for key in keys(etcd_service, f"{root}/cookies/") if fourth in key]

        etcd_service.leader().kill()
        workload.progress(seconds=120)
        assert cluster.wait_ready(240)["writableReplicas"] == 3
    kube.annotate("BookieCluster", cluster.name, {CONFIRM_DELETE: cluster.name})
    cluster.delete()
    cluster.wait_gone(600)
    assert keys(etcd_service, f"{root}/") == []
    assert not cluster.claims()
