"""Bookies that the chart of Apache Pulsar runs come under the operator where they are: on their volumes, with their
ids, pod by pod, under a writer; and back, and forward once more."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Iterator

import pytest

from tests.e2e.support.kube import Object
from tests.e2e.support.plugin import Plugin
from tests.e2e.support.pulsar_chart import PulsarChart

NAME = "inplace"
HASH = "podkeeper.dev/template-hash"


@pytest.fixture
def plugin(settings, kube) -> Plugin:
    return Plugin(settings.kubeconfig, kube.namespace)


@pytest.fixture
def chart(kube, zookeeper_service) -> Iterator[PulsarChart]:
    made = PulsarChart(kube, NAME, zookeeper_service.hosts)
    yield made
    made.uninstall()


def layout(chart: PulsarChart) -> Object:
    return {
        kind: {"claim": f"{chart.bookie}-{volume}", "mountPath": f"/pulsar/data/bookkeeper/{volume}"}
        for kind, volume in (("journal", "journal"), ("ledger", "ledgers"))
    }


def ours(kube, chart: PulsarChart) -> list[str]:
    """Pods of the chart's names that the operator made."""
    names = [chart.pod(number) for number in range(4)]
    found = [kube.get("Pod", name) for name in names]
    return [pod["metadata"]["name"] for pod in found if pod and HASH in (pod["metadata"].get("annotations") or {})]


def uids(kube, chart: PulsarChart) -> dict[str, str]:
    """Of the claims."""
    names = [f"{chart.bookie}-{volume}-{chart.pod(n)}" for n in range(4) for volume in ("journal", "ledgers")]
    return {name: kube.get("PersistentVolumeClaim", name)["metadata"]["uid"] for name in names}


def test_the_charts_bookies_are_taken_over_and_given_back(
    make_cluster, make_workload, chart, plugin, kube, settings, zookeeper_service
):
    """One more than the ensemble, as in `test_pulsar_chart`. Leaving the writer's block reads every copy of every
    acknowledged entry."""
    chart.install(settings.java_image, replicas=4, recoveries=0)
    printed = kube.run_in_pod(chart.pod(0), chart.bookie, "sh", "-c", "bin/bookkeeper shell whatisinstanceid 2>&1")
    instance = re.search(r"InstanceId: *(\S+)", printed)[1]
    claims = uids(kube, chart)
    cluster = make_cluster(
        NAME,
        replicas=4,
        storage={"journal": {"size": "2Gi"}, "ledger": {"size": "2Gi"}},
        metadataService={
            "type": "External",
            "uri": zookeeper_service.uri("", "hierarchical"),
            "rootPath": f"/{NAME}/ledgers",
        },
        bootstrap={"mode": "Adopt", "instanceId": instance, "inPlace": layout(chart)},
    )
    cluster.wait_condition("Stalled", "True", 120, reason="NameTaken")
    with make_workload(NAME, zookeeper_service.uri(f"/{NAME}/ledgers", "hierarchical")) as workload:
        workload.progress(400)
        print(plugin.run("migrate", "plan", NAME, "--in-place"))

        running = threading.Thread(target=_run_until_undone, args=(plugin,), daemon=True)
        running.start()
        kube.wait_for("Pod", lambda _: bool(ours(kube, chart)), 600, "the first bookie to be the operator's")
        workload.progress(200)
        print(plugin.run("migrate", "undo", NAME, "--in-place"))
        running.join(120)
        assert not ours(kube, chart)
        assert uids(kube, chart) == claims
        workload.progress(200)

        print(plugin.run("migrate", "run", NAME, "--in-place"))
        status = cluster.wait_ready(600)
        assert status["instanceId"] == instance
        assert len(ours(kube, chart)) == 4
        assert uids(kube, chart) == claims
        assert {each["bookieId"] for each in status["bookies"]} == {chart.id_of(number) for number in range(4)}
        workload.progress(400)


def _run_until_undone(plugin: Plugin) -> None:
    """It ends when somebody takes it back."""
    try:
        plugin.run("migrate", "run", NAME, "--in-place", code=10)
    except (AssertionError, subprocess.SubprocessError) as error:
        print(f"the first run: {error}")
