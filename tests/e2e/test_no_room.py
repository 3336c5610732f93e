"""More bookies are asked for than there is room for: whatever was asked for with them, it can be taken back."""

from __future__ import annotations

from tests.e2e.support.kube import condition_of

SOON = {"soakSeconds": 5, "progressDeadlineSeconds": 30}


def told(cluster, words: str):
    """Until a condition that asks for a person says this."""
    return cluster.kube.wait_for(
        "BookieCluster",
        lambda found: words in condition_of(found[cluster.name], "Stalled")["message"],
        240,
        f"{cluster.name} to say {words}",
        name=cluster.name,
    )


def winner(cluster, rivals: set[str]) -> dict[str, str]:
    """Those of these pods that have a node, by name with their UID, once there are any."""

    def look(pods) -> dict[str, str]:
        found = {name: pod for name, pod in pods.items() if name in rivals and pod["spec"].get("nodeName")}
        return {name: pod["metadata"]["uid"] for name, pod in found.items()} or None

    return cluster.kube.wait_for("Pod", look, 120, f"a node for one of {rivals}", selector=cluster.selector)


def test_more_bookies_and_another_template_in_one_patch(make_cluster, make_workload, make_recorder, nodes):
    """With fewer nodes than bookies. The message advises fewer replicas, and that helps."""
    cluster = make_cluster(replicas=len(nodes) - 1, update=SOON)
    cluster.wait_ready(300)
    recorder = make_recorder(cluster.name)
    first = cluster.uids()
    with make_workload(cluster.name) as workload:
        workload.progress(400)
        cluster.change(replicas=len(nodes) + 2, config={"journalMaxGroupWaitMSec": "2"})
        told(cluster, "lower spec.replicas")
        workload.progress()
        assert set(cluster.pods()) > first.keys()

        generation = cluster.change(replicas=len(first))
        cluster.wait_ready(900, generation=generation)
        pods = cluster.wait_pods(len(first))
        assert pods.keys() == first.keys()
        assert not set(cluster.uids().values()) & set(first.values()), "the new template did not reach every bookie"
        assert {name.split("-", 2)[2] for name in cluster.claims()} == pods.keys()
        workload.progress()
    assert {each.bookie for each in recorder.removals}.isdisjoint(first)


def test_a_newcomer_on_the_node_of_a_member_makes_room_again(make_cluster, make_workload, make_recorder, nodes, kube):
    """It waited for a node, and a member that is restarted leaves one; fewer replicas lead back."""
    cluster = make_cluster(replicas=len(nodes), update=SOON)
    cluster.wait_ready(300)
    recorder = make_recorder(cluster.name)
    before = {name: claim["metadata"]["uid"] for name, claim in cluster.claims().items()}
    member, newcomer = (f"{cluster.name}-bookie-{number}" for number in (1, len(nodes)))
    with make_workload(cluster.name) as workload:
        workload.progress(400)
        cluster.scale(len(nodes) + 1)
        kube.wait_for("Pod", lambda pods: newcomer in pods, 120, "the newcomer", selector=cluster.selector)
        while newcomer not in (has_it := winner(cluster, {newcomer, member})):
            kube.delete("Pod", member)
            kube.wait_gone("Pod", member, 90, uid=has_it[member])
        told(cluster, "no node takes it")
        workload.progress()

        cluster.scale(len(nodes))
        cluster.wait_ready(900)
        assert cluster.wait_pods(len(nodes)).keys() == {f"{cluster.name}-bookie-{number}" for number in range(5)}
        assert {name: claim["metadata"]["uid"] for name, claim in cluster.claims().items()} == before
        cluster.wait_replicated()
        workload.progress()
    assert {each.bookie for each in recorder.removals} <= {newcomer}


def test_a_quota_that_refuses_pods(make_cluster, make_workload, kube):
    """It is told in its own words. Fewer replicas lead out while it stays, and so does another quota."""
    cluster = make_cluster(update=SOON)
    cluster.wait_ready(240)
    with make_workload(cluster.name) as workload:
        pods = sum(pod["status"]["phase"] in ("Pending", "Running") for pod in kube.list("Pod"))  # ended ones are free
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}}
        kube.apply({**quota, "spec": {"hard": {"pods": str(pods)}}})
        try:
            cluster.change(replicas=4, config={"journalMaxGroupWaitMSec": "2"})
            told(cluster, "exceeded quota: few")
            workload.progress()
            generation = cluster.change(replicas=3)
            cluster.wait_ready(600, generation=generation)
            cluster.wait_pods(3)
            assert not cluster.claims(f"{cluster.name}-bookie-3")
            workload.progress()

            cluster.scale(4)
            told(cluster, "exceeded quota: few")
        finally:
            kube.delete("ResourceQuota", "few")
        cluster.wait_ready(600)
        cluster.wait_pods(4)
        workload.progress()
