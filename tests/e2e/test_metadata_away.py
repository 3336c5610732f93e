"""The metadata service stops, or hangs, for a minute: nothing is restarted or decided, and it goes on after."""

from __future__ import annotations

import time

import pytest

AWAY_SECONDS = 60.0
NOTICED_SECONDS = 25.0
"""As docs/operator.md says."""


@pytest.mark.parametrize("how", ["stopped", "hanging"])
def test_away_for_a_minute(make_cluster, make_workload, make_recorder, zookeeper_service, how):
    cluster = make_cluster()
    cluster.wait_ready(240)
    recorder = make_recorder(cluster.name)
    with make_workload(cluster.name) as workload:
        restarts = restart_counts(cluster)
        pods = cluster.uids()
        away = time.monotonic()
        zookeeper_service.stop() if how == "stopped" else zookeeper_service.pause()
        try:
            found = cluster.wait_condition("Ready", "False", NOTICED_SECONDS)
            assert found["reason"] == "MetadataUnreachable", found
            time.sleep(max(0.0, AWAY_SECONDS - (time.monotonic() - away)))  # the minute itself
        finally:
            zookeeper_service.start() if how == "stopped" else zookeeper_service.resume()
        cluster.wait_ready(300)
        workload.progress(seconds=120)
        assert cluster.uids() == pods
        assert restart_counts(cluster) == restarts
    assert not recorder.removals


def test_away_while_a_bookie_is_drained(make_cluster, make_workload, make_recorder, zookeeper_service):
    """Unknown is unsafe: the decommission waits, then goes on to its end."""
    cluster = make_cluster(replicas=4)
    cluster.wait_ready(240)
    recorder = make_recorder(cluster.name)
    fourth = f"{cluster.name}-bookie-3"
    with make_workload(cluster.name) as workload:
        workload.progress(400)
        cluster.scale(3)
        cluster.wait_operation("Decommission")
        zookeeper_service.stop()
        try:
            cluster.wait_condition("Available", "Unknown", AWAY_SECONDS)
            assert not recorder.gone(fourth)
        finally:
            zookeeper_service.start()
        cluster.wait_ready(900)
        cluster.wait_pods(3)
        workload.progress(seconds=120)
        assert "cookie" in recorder.gone(fourth)


def restart_counts(cluster) -> dict[str, int]:
    return {
        name: sum(each["restartCount"] for each in pod["status"]["containerStatuses"])
        for name, pod in cluster.pods().items()
    }
