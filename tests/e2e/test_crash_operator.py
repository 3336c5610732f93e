"""The operator dies after every few side effects, in each flow; whoever comes next goes on from the status alone."""

from __future__ import annotations


def test_create_scale_and_grow(make_cluster, make_workload, make_recorder, dying_operator):
    """From nothing to three bookies, a fourth, larger volumes, and three again."""
    cluster = make_cluster()
    cluster.wait_ready(600)
    recorder = make_recorder(cluster.name)
    with make_workload(cluster.name) as workload:
        cluster.scale(4)
        cluster.wait_ready(600)
        pods = cluster.uids()
        generation = cluster.change(storage={"ledger": {"size": "3Gi"}})
        cluster.wait_ready(600, generation=generation)
        assert cluster.uids() == pods
        workload.progress(400)
        cluster.scale(3)
        cluster.wait_ready(1200)
        assert "cookie" in recorder.gone(f"{cluster.name}-bookie-3")
        workload.progress()
    assert len(dying_operator.deaths) > 20


def test_rollout(make_cluster, make_workload, make_recorder, dying_operator, settings):
    cluster = make_cluster()
    cluster.wait_ready(600)
    recorder = make_recorder(cluster.name)
    with make_workload(cluster.name) as workload:
        generation = cluster.change(image=settings.next_image)
        cluster.wait_ready(1200, generation=generation)
        assert {pod["spec"]["containers"][0]["image"] for pod in cluster.pods().values()} == {settings.next_image}
        workload.progress()
    assert not recorder.removals
    assert dying_operator.deaths


def test_replace(make_cluster, make_workload, make_recorder, dying_operator, kube):
    cluster = make_cluster(replicas=4, repair={"autoReplaceAfterSeconds": 5})
    cluster.wait_ready(600)
    recorder = make_recorder(cluster.name)
    with make_workload(cluster.name) as workload:
        workload.progress(400)
        bookie = f"{cluster.name}-bookie-1"
        claims = cluster.claims(bookie)
        recorder.expect(*claims)
        for claim in claims:
            kube.delete("PersistentVolumeClaim", claim)
        kube.delete("Pod", bookie)
        cluster.wait_operation("Replace", 240)
        cluster.wait_ready(1200)
        assert "cookie" in recorder.gone(bookie)
        cluster.wait_replicated()
        workload.progress()


def test_delete_and_adopt(make_cluster, make_workload, make_recorder, dying_operator):
    cluster = make_cluster()
    cluster.wait_ready(600)
    recorder = make_recorder(cluster.name)
    with make_workload(cluster.name) as workload:
        workload.progress(400)
        claims = {name: claim["metadata"]["uid"] for name, claim in cluster.claims().items()}
        wanted = dict(cluster.get()["spec"])
        cluster.delete()
        cluster.wait_gone(600)
        cluster.apply({**wanted, "bootstrap": {"mode": "Adopt"}})
        cluster.wait_ready(600)
        assert {name: claim["metadata"]["uid"] for name, claim in cluster.claims().items()} == claims
        workload.progress()
    assert not recorder.removals
    assert dying_operator.deaths


def test_deletion_with_data(make_cluster, make_recorder, dying_operator, kube):
    """Confirmed: claims go, and nothing of the cluster is left."""
    storage = {"journal": {"size": "1Gi"}, "ledger": {"size": "2Gi"}, "retention": {"whenDeleted": "Delete"}}
    cluster = make_cluster(storage=storage)
    cluster.wait_ready(600)
    make_recorder(cluster.name).expect(*cluster.pods(), *cluster.claims())
    cluster.annotate(confirm_delete=cluster.name)
    cluster.delete()
    cluster.wait_gone(600)
    kube.wait_for(
        "PersistentVolumeClaim",
        lambda claims: not claims,
        120,
        "the claims' end",
        selector=f"app.kubernetes.io/instance={cluster.name}",
    )
    assert kube.get("Secret", f"{cluster.name}-identity") is None
    assert len(dying_operator.deaths) > 10


def test_the_installed_operator_is_killed(make_cluster, make_workload, make_recorder, operator, kube):
    """Its pod is deleted without grace again and again while a bookie is drained."""
    cluster = make_cluster(replicas=4)
    cluster.wait_ready(240)
    recorder = make_recorder(cluster.name)
    with make_workload(cluster.name) as workload:
        workload.progress(400)
        cluster.scale(3)
        for _ in range(5):
            for pod in kube.list("Pod", "app.kubernetes.io/name=podkeeper-operator"):
                kube.delete("Pod", pod["metadata"]["name"], grace=0)
            workload.progress()
        cluster.wait_ready(900)
        cluster.wait_pods(3)
        assert "cookie" in recorder.gone(f"{cluster.name}-bookie-3")
        workload.progress()
