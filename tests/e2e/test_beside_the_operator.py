"""What people and other programs do beside the operator: by hand, with a second operator, and by uninstalling
the first one too early."""

from __future__ import annotations

import pytest

from bookie_operator.lease import SCOPE_DURATION_S, SCOPE_LEASE
from tests.e2e.support.bookie_cluster import spec
from tests.e2e.support.helm import Helm
from tests.e2e.support.kube import Kube, condition_of


def test_what_is_changed_by_hand_is_put_back(make_cluster, kube):
    """An API server's own record of who answers for a field tells it, and nothing is told of what nobody changed."""
    cluster = make_cluster()
    cluster.wait_ready(240)
    pods = cluster.uids()
    assert "ChangedByHand" not in cluster.events()
    name = f"{cluster.name}-bookie"
    service = kube.get("Service", name)["spec"]["selector"]
    template = kube.get("StatefulSet", name)["spec"]["template"]
    (container,) = template["spec"]["containers"]

    kube.patch("Service", name, {"spec": {"selector": {"app": "nobody"}}})
    kube.patch("PodDisruptionBudget", name, {"spec": {"maxUnavailable": 3}})
    changed = [{**container, "image": "podkeeper:none"}]
    kube.patch("StatefulSet", name, {"spec": {"template": {"spec": {"containers": changed}}}})
    kube.wait_for("Service", lambda found: found[name]["spec"]["selector"] == service, 90, "the selector", name=name)
    kube.wait_for(
        "StatefulSet", lambda found: found[name]["spec"]["template"] == template, 90, "the template", name=name
    )
    kube.wait_for(
        "PodDisruptionBudget", lambda found: found[name]["spec"]["maxUnavailable"] < 3, 90, "the budget", name=name
    )
    assert "ChangedByHand" in cluster.events()
    cluster.wait_ready(120)
    assert cluster.uids() == pods


@pytest.fixture
def other(settings):
    """A namespace for another operator."""
    name = f"{settings.namespace}-other"
    kube = Kube(settings.kubeconfig, name)
    kube.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield kube
    kube.delete("Namespace", name)
    kube.close()


def test_a_second_operator_stays_out_and_says_so(make_cluster, kube, settings, other):
    cluster = make_cluster()
    cluster.wait_ready(240)
    before = cluster.status()
    helm = Helm(settings.kubeconfig, other.namespace)
    repository, _, tag = settings.image.rpartition(":")
    image = {"repository": repository, "tag": tag, "pullPolicy": "IfNotPresent"}
    helm.install("second", "podkeeper-operator", {"image": image, "clusterWide": True, "crds": {"install": False}})
    try:
        kube.wait_for("Event", lambda _: "AnotherOperator" in cluster.events(), 180, "the second one to stay out")
        (deployment,) = other.list("Deployment")
        assert condition_of(deployment, "Available")["status"] != "True"
        assert cluster.status()["conditions"] == before["conditions"]
    finally:
        helm.uninstall("second", hooks=False)


def test_a_second_release_in_one_namespace_stands_by_until_the_first_one_is_gone(
    make_cluster, kube, settings, helm, operator
):
    """Each has a Lease of its own by which it leads, and the namespace has one that only one of them holds."""
    if settings.local:
        pytest.skip("the first operator is a release here")
    cluster = make_cluster()
    cluster.wait_ready(240)
    before = cluster.status()
    repository, _, tag = settings.image.rpartition(":")
    image = {"repository": repository, "tag": tag, "pullPolicy": "IfNotPresent"}
    first, second = "podkeeper-operator", "second-podkeeper-operator"
    helm.install("second", "podkeeper-operator", {"image": image, "crds": {"install": False}})
    try:
        kube.wait_for("Event", lambda _: "AnotherOperator" in cluster.events(), 180, "the second one to stay out")
        kube.wait_for(
            "Deployment",
            lambda seen: condition_of(seen[second], "Available")["status"] == "False",
            120,
            "the second one to be not ready",
            name=second,
        )
        assert cluster.status()["conditions"] == before["conditions"]
        leases = {lease["metadata"]["name"] for lease in kube.list("Lease")}
        assert leases >= {first, second, SCOPE_LEASE}
        kube.patch("Deployment", first, {"spec": {"replicas": 0}}, subresource="scale")
        generation = cluster.scale(4)
        cluster.wait_ready(SCOPE_DURATION_S + 600, generation=generation)
        cluster.wait_pods(4)
    finally:
        helm.uninstall("second", hooks=False)
        kube.delete("Lease", SCOPE_LEASE)  # else the first one waits for five minutes too
        kube.patch("Deployment", first, {"spec": {"replicas": 1}}, subresource="scale")
    cluster.wait_ready(300, generation=cluster.scale(3))


def test_an_operator_is_not_uninstalled_before_its_clusters(make_cluster, helm, operator):
    cluster = make_cluster()
    cluster.wait_ready(240)
    with pytest.raises(AssertionError, match="uninstall"):
        helm.uninstall(operator.release)
    operator.install()  # Helm upgrades no release that it has marked as uninstalling
    cluster.scale(4)
    cluster.wait_ready(300)


def test_a_cluster_that_outlives_its_operator(make_cluster, make_workload, kube, operator, settings, zookeeper_service):
    """Its deletion hangs until somebody takes the finalizer off; the data stay, and can be taken up again."""
    cluster = make_cluster()
    instance = cluster.wait_ready(240)["instanceId"]
    claims = {name: claim["metadata"]["uid"] for name, claim in cluster.claims().items()}
    with make_workload(cluster.name) as workload:
        workload.progress(400)
        operator.uninstall()
        try:
            cluster.delete()
            assert cluster.get()["metadata"]["deletionTimestamp"]
            kube.patch("BookieCluster", cluster.name, {"metadata": {"finalizers": None}})
            cluster.wait_gone(60)
            kube.wait_for("Pod", lambda pods: not pods, 120, "the bookies' end", selector=cluster.selector)
        finally:
            operator.install()
        assert {name: claim["metadata"]["uid"] for name, claim in cluster.claims().items()} == claims
        uri, root = zookeeper_service.uri("", "hierarchical"), f"/{cluster.name}"
        cluster.apply(spec(settings.image, uri, root, bootstrap={"mode": "Adopt"}))
        assert cluster.wait_ready(300)["instanceId"] == instance
        assert {name: claim["metadata"]["uid"] for name, claim in cluster.claims().items()} == claims
        workload.progress()
