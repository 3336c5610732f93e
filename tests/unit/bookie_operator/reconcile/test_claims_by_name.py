"""Claims with the names of bookies' claims and without the cluster's labels: Kubernetes mounts them, so they count."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from bookie_operator.api.kinds import CLAIM, CLUSTER, POD
from bookie_operator.crds import names
from tests.support.fake_kubernetes.cluster import NAME, NAMESPACE, FakeCluster, fake_cluster, settled_cluster

LEDGER = "ledger-0-demo-bookie-1"
STORAGE = {"journal": {"size": "10Gi"}, "ledger": {"size": "100Gi"}}


def put(fake: FakeCluster, name: str = LEDGER) -> None:
    """A claim of another owner, as other software, a backup without labels or a person makes it."""
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    status = {"phase": "Bound", "capacity": {"storage": "1Gi"}}
    metadata = {"name": name, "labels": {"app": "another"}}
    fake.store.create(CLAIM, NAMESPACE, {"metadata": metadata, "spec": spec, "status": status})


def strip(fake: FakeCluster, name: str = LEDGER) -> str:
    """Take the labels from a claim that a bookie uses, and return its UID."""
    live = fake.store.get(CLAIM, NAMESPACE, name)
    bare = copy.deepcopy(live)
    bare["metadata"]["labels"] = {}
    fake.store.objects[CLAIM][(NAMESPACE, name)] = bare
    return str(live["metadata"]["uid"])


def claim(fake: FakeCluster, name: str = LEDGER) -> dict[str, Any]:
    return fake.store.get(CLAIM, NAMESPACE, name)


async def passes(fake: FakeCluster, number: int) -> None:
    for _ in range(number):
        await fake.one_pass()


async def test_a_new_cluster_makes_nothing_over_it() -> None:
    async with fake_cluster() as fake:
        put(fake)
        fake.apply(replicas=3, storage=STORAGE)
        await fake.until(lambda: fake.reason("Stalled") == "AdoptRequired", limit=30)
        await passes(fake, 10)
        assert fake.pods() == []
        fake.store.delete(CLAIM, NAMESPACE, LEDGER)
        await fake.settle()


async def test_no_bookie_is_added_over_it() -> None:
    async with settled_cluster(replicas=3, storage=STORAGE) as fake:
        put(fake, "journal-0-demo-bookie-3")
        fake.apply(replicas=4, storage=STORAGE)
        await fake.until(lambda: fake.reason("Stalled") == "LeftoverClaims", limit=30)
        assert "journal-0-demo-bookie-3" in fake.message("Stalled")
        assert "adopt" not in fake.message("Stalled"), "which would lead nowhere: a new bookie has empty volumes"
        await passes(fake, 10)
        assert len(fake.pods()) == 3
        fake.store.delete(CLAIM, NAMESPACE, "journal-0-demo-bookie-3")
        await fake.until(lambda: len(fake.pods()) == 4)


async def test_one_that_a_bookie_uses_is_reported_and_left_alone_until_it_is_adopted() -> None:
    async with settled_cluster(replicas=3, storage=STORAGE) as fake:
        uid = strip(fake)
        await fake.until(lambda: fake.reason("Stalled") == "AdoptRequired", limit=30)
        assert LEDGER in fake.message("Stalled")
        fake.apply(replicas=3, storage={**STORAGE, "ledger": {"size": "200Gi"}})
        await fake.until(
            lambda: claim(fake, "ledger-0-demo-bookie-0")["spec"]["resources"]["requests"]["storage"] == "200Gi"
        )
        await passes(fake, 20)
        assert claim(fake)["spec"]["resources"]["requests"]["storage"] == "100Gi"
        claim(fake)["metadata"].setdefault("annotations", {})[names.ADOPT] = NAME
        await fake.until(lambda: claim(fake)["spec"]["resources"]["requests"]["storage"] == "200Gi")
        found = claim(fake)["metadata"]
        sibling = claim(fake, "ledger-0-demo-bookie-0")["metadata"]
        assert (found["uid"], found["labels"]) == (uid, sibling["labels"])
        assert names.ADOPT not in found["annotations"]
        await fake.until(lambda: fake.condition("Stalled") != "True")


async def test_one_that_is_deleted_under_its_bookie_is_noticed() -> None:
    async with settled_cluster(replicas=3, storage=STORAGE) as fake:
        strip(fake)
        fake.store.delete(CLAIM, NAMESPACE, LEDGER)
        assert "deletionTimestamp" in claim(fake)["metadata"]
        uids = fake.uids()
        fake.ask("task", "Restart", bookies=["demo-bookie-1"])
        await passes(fake, 20)
        assert "ClaimBeingDeleted" in {
            fake.reason("Stalled"),
            fake.reason("Reconciling"),
            *fake.message("Stalled").split(),
        }
        assert fake.uids() == uids, "its pod is all that keeps the volume"


async def test_a_bookie_is_not_started_anew_over_it() -> None:
    async with settled_cluster(replicas=3, storage=STORAGE) as fake:
        uid = strip(fake)
        claim(fake, "journal-0-demo-bookie-1")["status"]["phase"] = "Lost"
        fake.store.delete(POD, NAMESPACE, "demo-bookie-1")
        fake.ask("task", "Replace", bookies=["demo-bookie-1"])
        await passes(fake, 40)
        assert claim(fake)["metadata"]["uid"] == uid
        assert "deletionTimestamp" not in claim(fake)["metadata"]


@pytest.mark.parametrize("when_deleted", ["Retain", "Delete"])
@pytest.mark.parametrize("kept", [(), (names.INSTANCE_ID,)])
async def test_it_outlives_the_cluster(when_deleted: str, kept: tuple[str, ...]) -> None:
    async with settled_cluster(replicas=3, storage={**STORAGE, "retention": {"whenDeleted": when_deleted}}) as fake:
        labels = claim(fake)["metadata"]["labels"]
        uid = strip(fake)
        claim(fake)["metadata"]["labels"] = {key: labels[key] for key in kept}
        fake.annotate(names.CONFIRM_DELETE, NAME)
        fake.store.delete(CLUSTER, NAMESPACE, NAME)
        await fake.until(lambda: fake.store.find(CLUSTER, NAMESPACE, NAME) is None)
        assert claim(fake)["metadata"]["uid"] == uid


async def test_one_that_no_bookie_mounts_is_not_adopted_and_holds_up_nothing() -> None:
    async with settled_cluster(replicas=3, storage=STORAGE) as fake:
        name = "ledger-7-demo-bookie-1"
        put(fake, name)
        labels = claim(fake)["metadata"]["labels"]
        found = claim(fake, name)
        found["metadata"]["labels"] = {key: value for key, value in labels.items() if key != names.INSTANCE_ID}
        found["metadata"]["annotations"] = {names.ADOPT: NAME}
        fake.store.objects[CLAIM][(NAMESPACE, name)] = found
        fake.apply(replicas=4, storage=STORAGE)
        await fake.until(lambda: len(fake.pods()) == 4)
        await fake.until(lambda: fake.reason("Stalled") == "AdoptionRefused", limit=30)
        assert names.INSTANCE_ID not in claim(fake, name)["metadata"]["labels"]
        del claim(fake, name)["metadata"]["annotations"][names.ADOPT]
        await fake.until(lambda: fake.condition("Stalled") != "True")
