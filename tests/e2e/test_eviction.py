"""Somebody evicts pods as fast as the API lets them: one bookie at a time goes, and none while a copy is missing."""

from __future__ import annotations

import threading
import time

from tests.e2e.support.kube import Kube, pod_ready

STORM_SECONDS = 120.0


class Watcher:
    """Follows how many bookies are ready, all the time."""

    def __init__(self, kube: Kube, selector: str) -> None:
        self._kube = kube
        self._selector = selector
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.fewest = 99

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=60)
        self._kube.close()

    def _run(self) -> None:
        def look(pods: dict) -> bool:
            self.fewest = min(self.fewest, sum(map(pod_ready, pods.values())))
            return self._stop.is_set()

        while not self._stop.is_set():
            try:
                self._kube.wait_for("Pod", look, 2, "pods", selector=self._selector)
            except AssertionError:
                continue


def test_an_eviction_storm(make_cluster, make_workload, make_recorder, settings, kube):
    cluster = make_cluster(replicas=4)
    cluster.wait_ready(240)
    recorder = make_recorder(cluster.name)
    evicted = 0
    with (
        make_workload(cluster.name) as workload,
        Watcher(Kube(settings.kubeconfig, kube.namespace), cluster.selector) as watcher,
    ):
        before = cluster.uids()
        end = time.monotonic() + STORM_SECONDS
        while time.monotonic() < end:
            for bookie in before:
                evicted += kube.evict(bookie)
            workload.state()
        assert evicted >= 2, "the budget never let anybody go"
        assert watcher.fewest >= 3, f"{4 - watcher.fewest} of 4 bookies were away at a time"
        cluster.wait_ready(300)
        cluster.wait_replicated()
        workload.progress()
    assert not recorder.removals
