"""A new image, a new configuration and a restart reach the bookies one by one, and clients notice nothing."""

from __future__ import annotations

import pytest

from tests.e2e.support.kube import condition_of

LONGEST_GAP = 15.0
"""Seconds without an acknowledgement that clients may see while bookies are restarted one by one."""


def images(pods: dict) -> set[str]:
    return {pod["spec"]["containers"][0]["image"] for pod in pods.values()}


@pytest.mark.smoke
def test_another_image(make_cluster, make_workload, make_recorder, settings):
    cluster = make_cluster()
    cluster.wait_ready(240)
    recorder = make_recorder(cluster.name)
    with make_workload(cluster.name) as workload:
        before = cluster.uids()
        generation = cluster.change(image=settings.next_image)
        cluster.wait_operation("Rollout")
        workload.progress()
        cluster.wait_ready(900, generation=generation)
        pods = cluster.wait_pods(3)
        assert images(pods) == {settings.next_image}
        assert not set(cluster.uids().values()) & set(before.values())
        assert cluster.status()["history"][0]["type"] == "Rollout"
        assert workload.progress()["longestGap"] < LONGEST_GAP
    assert not recorder.removals


def test_a_configuration(make_cluster, make_workload, make_recorder):
    """A key that a running bookie cannot take. Meanwhile a bookie may be away for longer than usual."""
    cluster = make_cluster()
    cluster.wait_ready(240)
    recorder = make_recorder(cluster.name)
    with make_workload(cluster.name) as workload:
        before = cluster.uids()
        generation = cluster.change(config={"journalMaxGroupWaitMSec": "2"})
        operation = cluster.wait_operation("Rollout", step="Await")
        assert operation["saved"]["recoveryDelay"] == "5"
        assert int(operation["saved"]["raisedDelay"]) > 240
        cluster.wait_ready(900, generation=generation)
        assert not set(cluster.uids().values()) & set(before.values())
        assert workload.progress()["longestGap"] < LONGEST_GAP
        assert cluster.status()["history"][0]["outcome"] == "Done"
    assert not recorder.removals


def test_an_image_that_cannot_be_pulled(make_cluster, make_workload, settings):
    """The canary stops the roll; what was there before serves on, and the old image mends it."""
    # a bookie more than the ensemble: while one is away new ledgers take the others
    cluster = make_cluster(replicas=4, update={"soakSeconds": 5, "progressDeadlineSeconds": 30})
    cluster.wait_ready(240)
    with make_workload(cluster.name) as workload:
        before = cluster.uids()
        cluster.change(image="podkeeper:no-such-tag")
        found = cluster.wait_condition("Stalled", "True", 400)
        assert "no-such-tag" in found["message"] or "image" in found["message"].lower()
        untouched = set(before.values()) & set(cluster.uids().values())
        assert len(untouched) == 3
        workload.progress()
        assert condition_of(cluster.get(), "Ready")["status"] != "True"
        generation = cluster.change(image=settings.image)
        cluster.wait_ready(600, generation=generation)
        assert untouched <= set(cluster.uids().values())


def test_operator_upgrade_restarts_no_bookie(make_cluster, operator, settings):
    cluster = make_cluster()
    cluster.wait_ready(240)
    before = cluster.uids()
    operator.install(settings.next_image)
    try:
        generation = cluster.change(disruption={"enabled": True, "maxUnavailable": 1})
        cluster.wait_ready(240, generation=generation)
        assert cluster.uids() == before
    finally:
        operator.install(settings.image)
    cluster.wait_ready(240)
    assert cluster.uids() == before
