"""A volume is gone with its data, and people ask for the bookie to be made anew.

Threads: that of the test.
"""

from __future__ import annotations

from tests.e2e.support.bookie_cluster import BookieCluster
from tests.e2e.support.machine import Machine
from tests.e2e.support.workload import Workload


def lose_and_replace(cluster: BookieCluster, machine: Machine, workload: Workload, bookie: str, volume: str) -> None:
    """The bookie loses a volume (`ledger-0`) and with it everything: it comes back with new volumes, all of them, after
    a task; until every ledger has its copies."""
    kube, number = cluster.kube, len(cluster.pods())
    before = {name: claim["metadata"]["uid"] for name, claim in cluster.claims(bookie).items()}
    machine.lose_volume(kube.namespace, f"{volume}-{bookie}")
    kube.delete("Pod", bookie)
    found = cluster.wait_condition("Ready", "False", 240)
    assert found["message"]
    assert set(cluster.claims(bookie)) == before.keys(), "nothing is deleted before somebody asks for it"
    cluster.task(f"replace-{bookie}", "Replace", bookies=[bookie])
    cluster.wait_operation("Replace", 240)
    workload.progress()
    cluster.wait_ready(900)
    cluster.wait_pods(number)
    after = {name: claim["metadata"]["uid"] for name, claim in cluster.claims(bookie).items()}
    assert after.keys() == before.keys()
    assert not set(after.values()) & set(before.values()), "a volume of the old bookie is in use"
    cluster.wait_replicated()
    workload.progress()
