"""What users get wrong: refused with one line by the API server, or told by a condition; nothing is broken by it."""

from __future__ import annotations

import pytest
from kubernetes.dynamic.exceptions import DynamicApiError

from tests.e2e.support.bookie_cluster import BookieCluster, spec
from tests.e2e.support.kube import condition_of

URI = "zk+hierarchical://198.18.0.1:2181"

REFUSED = {
    "acks above copies": ({"durability": {"ensembleSize": 3, "writeQuorum": 2, "ackQuorum": 3}}, "ackQuorum"),
    "copies above ensemble": ({"durability": {"ensembleSize": 2, "writeQuorum": 3, "ackQuorum": 2}}, "writeQuorum"),
    "too few bookies": ({"replicas": 2}, "replicas"),
    "two at a time": ({"update": {"maxUnavailable": 2}}, "maxUnavailable"),
    "a reserved key": ({"config": {"journalDirectories": "/data"}}, "journalDirectories"),
    "an unknown field": ({"replica": 3}, "replica"),
    "a size that is none": ({"storage": {"journal": {"size": "much"}, "ledger": {"size": "2Gi"}}}, "size"),
    "no metadata service": ({"metadataService": {"type": "External"}}, "metadataService"),
    "zones that do not add up": (
        {"placement": {"zones": [{"name": "a", "replicas": 1}, {"name": "b", "replicas": 1}]}},
        "zones",
    ),
    "TLS of nobody": ({"tls": {"enabled": True}}, "tls"),
}


@pytest.mark.smoke
@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.replace(" ", "-"))
def test_refused_by_the_api_server(kube, operator, settings, case):
    changes, words = REFUSED[case]
    cluster = BookieCluster(kube, "refused")
    with pytest.raises(DynamicApiError) as refusal:
        cluster.apply(spec(settings.image, URI, "/refused", **changes))
    assert words in str(refusal.value.body)
    assert kube.get("BookieCluster", "refused") is None


def test_what_cannot_be_changed(make_cluster):
    """Of a cluster that is there already."""
    cluster = make_cluster()
    cluster.wait_condition("Available", "True", 240)
    for members, words in (
        ({"metadataService": {"rootPath": "/elsewhere"}}, "metadataService"),
        ({"storage": {"ledger": {"volumes": 2}}}, "volumes"),
        ({"storage": {"index": {"size": "1Gi"}}}, "index"),
    ):
        with pytest.raises(DynamicApiError) as refusal:
            cluster.change(**members)
        assert words in str(refusal.value.body), members


def test_a_size_below_that_of_the_volumes_does_nothing(make_cluster):
    """Where it is allowed, so that an earlier release of a chart can be applied again."""
    cluster = make_cluster()
    cluster.wait_ready(240)
    pods = cluster.uids()
    generation = cluster.change(storage={"ledger": {"size": "1Gi"}, "allowSmallerSizes": True})
    cluster.wait_ready(240, generation=generation)
    assert cluster.capacities("ledger") == {"2Gi"}
    assert cluster.uids() == pods


def test_a_long_name(kube, operator, settings):
    with pytest.raises(DynamicApiError, match="40"):
        BookieCluster(kube, "n" * 41).apply(spec(settings.image, URI, "/long"))


def test_an_unknown_key_is_told(make_cluster):
    """A key that no bookie knows: the specification is not valid, and nothing is restarted."""
    cluster = make_cluster()
    cluster.wait_ready(240)
    pods = cluster.uids()
    generation = cluster.change(config={"journalMaxGropWaitMSec": "2"})
    found = cluster.wait_condition("SpecValid", "False", 120, generation=generation)
    assert "journalMaxGropWaitMSec" in found["message"]
    assert cluster.uids() == pods
    generation = cluster.change(config=None)
    cluster.wait_condition("SpecValid", "True", 120, generation=generation)
    cluster.wait_ready(240)


def test_a_missing_secret_is_told(make_cluster):
    cluster = make_cluster(tls={"enabled": True, "secretName": "no-such-secret"})
    told(cluster, "no-such-secret")


@pytest.mark.smoke
def test_a_missing_image_is_told(make_cluster):
    cluster = make_cluster(image="podkeeper:no-such-tag")
    told(cluster, "no-such-tag")


def test_an_unreachable_metadata_service_is_told(make_cluster, settings):
    nobody = f"{settings.host}:1"
    cluster = make_cluster(metadataService={"type": "External", "uri": f"zk+hierarchical://{nobody}", "rootPath": "/x"})
    told(cluster, nobody)


def told(cluster: BookieCluster, words: str) -> None:
    """Some condition says it, and the cluster is not ready."""

    def look(found: dict) -> bool:
        conditions = (found[cluster.name].get("status") or {}).get("conditions") or []
        return any(words.lower() in each["message"].lower() for each in conditions)

    cluster.kube.wait_for("BookieCluster", look, 240, f"a condition that names {words}", name=cluster.name)
    assert condition_of(cluster.get(), "Ready")["status"] != "True"
