"""Two BookieClusters with one metadata root: the second one makes nothing there, and whoever deletes one with its data
takes nothing of the other's."""

from __future__ import annotations

from tests.e2e.support.bookie_cluster import spec
from tests.e2e.support.kube import condition_of

GOES = {"journal": {"size": "1Gi"}, "ledger": {"size": "2Gi"}, "retention": {"whenDeleted": "Delete"}}


def test_the_second_one_is_refused_and_its_deletion_takes_nothing(
    make_cluster, make_workload, make_recorder, kube, settings, zookeeper_service
):
    first = make_cluster()
    instance = first.wait_ready(240)["instanceId"]
    recorder = make_recorder(first.name)
    root, uri = f"/{first.name}", zookeeper_service.uri("", "hierarchical")
    with make_workload(first.name) as workload:
        workload.progress(400)
        of_the_root = {"type": "External", "uri": uri, "rootPath": root}
        second = make_cluster(metadataService=of_the_root, storage=GOES)
        told = second.wait_condition("Stalled", "True", 180, reason="RootTaken")["message"]
        assert instance in told
        assert "spec.metadataService.rootPath" in told
        assert not second.pods()
        assert not second.claims()

        second.annotate(confirm_delete=second.name)
        second.delete()
        second.wait_gone(180)
        workload.progress()
        assert first.wait_ready(60)["instanceId"] == instance

        # What the message advises: a root of its own.
        second.apply(spec(settings.image, uri, root, storage=GOES))
        second.wait_condition("Stalled", "True", 180, reason="RootTaken")
        second.change(metadataService={"rootPath": f"/{second.name}"})
        assert second.wait_ready(240)["instanceId"] != instance
        workload.progress()
    assert not recorder.removals
    assert len(kube.list("Pod", first.selector)) == 3


def test_bookies_that_joined_on_purpose_do_not_take_the_ledgers_of_the_others_with_them(
    make_cluster, make_workload, make_recorder, zookeeper_service
):
    """Ledgers of everybody have copies on all six bookies."""
    first = make_cluster()
    instance = first.wait_ready(240)["instanceId"]
    recorder = make_recorder(first.name)
    of_the_root = {
        "type": "External",
        "uri": zookeeper_service.uri("", "hierarchical"),
        "rootPath": f"/{first.name}",
    }
    second = make_cluster(metadataService=of_the_root, storage=GOES, bootstrap={"instanceId": instance})
    second.wait_ready(240)
    with make_workload(first.name) as workload:
        workload.progress(400)
        second.annotate(confirm_delete=second.name)
        second.delete()
        told = second.wait_condition("DeletionBlocked", "True", 180)["message"]
        assert f"{first.name}-bookie-" in told
        assert "Retain" in told
        workload.progress()
        assert len(second.wait_pods(3, 30)) == 3
        assert condition_of(first.get(), "Ready")["status"] == "True"
    assert not recorder.removals
    # Nobody deletes it by any other way than this; `make_cluster` clears what stays.
    second.kube.patch("BookieCluster", second.name, {"metadata": {"finalizers": None}})
