"""`kubectl bookie` against the real API: what it shows is what is, and what it asks for is done."""

from __future__ import annotations

import json
import tarfile

import pytest

from tests.e2e.support.kube import condition_of
from tests.e2e.support.plugin import Plugin

_NOT_THERE = 11


@pytest.fixture
def plugin(settings, kube) -> Plugin:
    return Plugin(settings.kubeconfig, kube.namespace)


def test_all_of_its_commands(make_cluster, make_workload, make_recorder, plugin, kube, settings, tmp_path):
    cluster = make_cluster(replicas=4)
    cluster.wait_ready(300)
    recorder = make_recorder(cluster.name)
    bookies = sorted(cluster.pods())
    with make_workload(cluster.name) as workload:
        shown = plugin.run("status", cluster.name)
        assert all(bookie in shown for bookie in bookies)
        assert "4 of 4 serve, 4 writable" in shown
        told = json.loads(plugin.run("status", cluster.name, "-o", "json"))
        assert told["cluster"]["metadata"]["uid"] == cluster.get()["metadata"]["uid"]
        assert cluster.name in plugin.run("status", "no-such-cluster", code=_NOT_THERE)
        rest = json.loads(plugin.run("plan", cluster.name, "-o", "json"))
        assert (rest["decision"]["type"], rest["violations"]) == ("Rest", [])
        assert not rest["doubts"] or settings.local  # then there is no Deployment of an operator to look at

        paused_for(cluster, plugin, bookies[-1])

        assert "Done" in plugin.run("audit", cluster.name, "--wait")
        before = cluster.uids()
        assert "Done" in plugin.run("restart", cluster.name, bookies[0], "--wait")
        after = cluster.wait_pods(4)
        assert [name for name in bookies if after[name]["metadata"]["uid"] != before[name]] == [bookies[0]]
        cluster.wait_ready(300)
        workload.progress()
        moved(cluster, plugin, kube, bookies[1])
        taken_out(cluster, plugin, kube, bookies[-1])
        assert "cookie" in recorder.gone(bookies[-1])
        workload.progress()

        lines = plugin.run("logs", cluster.name, "--tail", "5").splitlines()
        assert {line.split()[0] for line in lines} >= set(bookies[:-1])
        bundle(cluster, plugin, kube, tmp_path / "bundle.tar.gz")


def test_a_claim_without_the_labels_of_its_cluster_is_taken_only_on_purpose(make_cluster, make_workload, plugin, kube):
    """As one that was restored from a snapshot: the operator leaves it alone until somebody says whose it is."""
    cluster = make_cluster()
    cluster.wait_ready(240)
    name, before = sorted(cluster.claims(f"{cluster.name}-bookie-1").items())[0]
    pods, labels = cluster.uids(), before["metadata"]["labels"]
    with make_workload(cluster.name) as workload:
        kube.patch("PersistentVolumeClaim", name, {"metadata": {"labels": dict.fromkeys(labels)}})
        told = cluster.wait_condition("Stalled", "True", 120, reason="AdoptRequired")
        assert f"kubectl bookie adopt {cluster.name} {name}" in told["message"]
        assert not kube.get("PersistentVolumeClaim", name)["metadata"].get("labels")
        workload.progress()
        assert name in plugin.run("adopt", cluster.name, name)
        cluster.wait_ready(120)
        after = kube.get("PersistentVolumeClaim", name)["metadata"]
        assert (after["uid"], after["labels"]) == (before["metadata"]["uid"], labels)
        assert "podkeeper.dev/adopt" not in after["annotations"]
        assert cluster.uids() == pods
        workload.progress()


def moved(cluster, plugin, kube, serving) -> None:
    """A bookie that serves is drained, and then has new volumes, of another class; no entry is lost on the way. Needs
    a storage class `no-resize`."""
    pods = cluster.uids()
    generation = cluster.change(storage={"ledger": {"storageClassName": "no-resize"}})
    cluster.wait_ready(300, generation=generation)
    assert cluster.uids() == pods
    before = {each["metadata"]["name"]: each["metadata"]["uid"] for each in kube.list("PersistentVolumeClaim")}
    assert "Done" in plugin.run("move", cluster.name, serving, "--wait", "--timeout", "900")
    claims = kube.list("PersistentVolumeClaim")
    after = {each["metadata"]["name"]: each["metadata"]["uid"] for each in claims}
    slow = {each["metadata"]["name"] for each in claims if each["spec"]["storageClassName"] == "no-resize"}
    assert slow == {f"ledger-0-{serving}"}
    changed = {name for name, uid in after.items() if before.get(name) != uid}
    assert changed == {name for name in before if name.endswith(f"-{serving}")}
    cluster.wait_ready(300)


def taken_out(cluster, plugin, kube, last) -> None:
    """The task waits until `spec` agrees, and says to what; the cluster is not judged by it."""
    plugin.run("decommission", cluster.name, last)
    told = kube.wait_for(
        "BookieTask",
        lambda tasks: next((each for each in map(_message, tasks.values()) if "spec.replicas" in each), None),
        120,
        "the task to say how many replicas there have to be",
    )
    assert "lower spec.replicas to 3" in told
    assert condition_of(cluster.get(), "Stalled")["status"] != "True"
    cluster.scale(3)
    cluster.wait_ready(900)
    cluster.wait_pods(3)
    assert "Done" in plugin.run("status", cluster.name)


def _message(task) -> str:
    return str((task.get("status") or {}).get("message", ""))


def paused_for(cluster, plugin, last) -> None:
    """A change waits while it is paused, and the plan tells what would be done."""
    plugin.run("pause", cluster.name)
    cluster.wait_condition("Paused", "True", 60)
    generation = cluster.change(pod={"annotations": {"example.org/note": "seen"}})
    cluster.wait_condition("Paused", "True", 60, generation=generation)
    assert "paused" in plugin.run("plan", cluster.name)
    assert "paused already" in plugin.run("pause", cluster.name)
    cluster.change(pod={"annotations": None})
    plugin.run("resume", cluster.name)
    cluster.wait_condition("Paused", "False", 60)
    cluster.wait_ready(300)


def bundle(cluster, plugin, kube, path) -> None:
    """Everything in one file, and no secret in it."""
    plugin.run("support-bundle", cluster.name, "-o", str(path))
    token = kube.get("Secret", f"{cluster.name}-admin-token")["data"]["token"]
    with tarfile.open(path) as archive:
        files = {name: archive.extractfile(name).read().decode() for name in archive.getnames()}
    top = f"{cluster.name}-support/"
    assert {"cluster.yaml", "pods.yaml", "events.yaml", "secrets.yaml", "missing.txt"} <= {
        name.removeprefix(top) for name in files
    }
    for bookie in cluster.pods():
        assert json.loads(files[f"{top}facts/{bookie}/info.json"])["totalSpace"] > 0
        assert files[f"{top}logs/{bookie}.log"]
    assert not [name for name, text in files.items() if token in text]
