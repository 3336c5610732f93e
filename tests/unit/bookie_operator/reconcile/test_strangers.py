"""Objects of other people that bear names which a cluster needs: they stay as they are, and everybody is told."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from bookie_operator.api.errors import Conflict
from bookie_operator.api.kinds import BUDGET, CERTIFICATE, CLAIM, CLUSTER, SECRET, SERVICE, STATEFUL_SET, Resource
from bookie_operator.crds import names
from bookie_operator.executor.workloads import apply_own
from bookie_operator.observe.others import cluster_view
from tests.support.fake_kubernetes.cluster import NAME, NAMESPACE, FakeCluster, fake_cluster, settled_cluster

HELM = {"app.kubernetes.io/managed-by": "Helm", "release": "demo"}
PULSAR = {"app": "pulsar", "component": "bookie"}
THEIRS: tuple[tuple[Resource, str, dict[str, Any]], ...] = (
    (SERVICE, "demo-bookie", {"spec": {"clusterIP": "None", "selector": PULSAR}}),
    (SERVICE, "demo-client", {"spec": {"selector": {"app": "shop"}, "ports": [{"name": "web", "port": 80}]}}),
    (BUDGET, "demo-bookie", {"spec": {"maxUnavailable": 1, "selector": {"matchLabels": PULSAR}}}),
    (SECRET, "demo-admin-tls", {"type": "kubernetes.io/tls", "data": {"tls.crt": "eA==", "tls.key": "eA=="}}),
    (SECRET, "demo-admin-ca", {"type": "kubernetes.io/tls", "data": {"tls.crt": "eA==", "tls.key": "eA=="}}),
    (SECRET, "demo-admin-token", {"type": "Opaque", "data": {"token": "dGhlaXJz"}}),
    (SECRET, "demo-identity", {"type": "Opaque", "data": {"a": "eA=="}}),
    (
        STATEFUL_SET,
        "demo-bookie",
        {
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": PULSAR},
                "template": {"metadata": {"labels": PULSAR}, "spec": {"containers": [{"name": "x"}]}},
            }
        },
    ),
)
IDS = [f"{resource.kind}-{name}" for resource, name, _ in THEIRS]


def put(fake: FakeCluster, resource: Resource, name: str, body: dict[str, Any]) -> dict[str, Any]:
    made = fake.store.create(resource, NAMESPACE, {"metadata": {"name": name, "labels": HELM}, **copy.deepcopy(body)})
    return copy.deepcopy({key: made[key] for key in made if key != "status"})


def found(fake: FakeCluster, resource: Resource, name: str) -> dict[str, Any]:
    live = fake.store.get(resource, NAMESPACE, name)
    metadata = {key: each for key, each in live["metadata"].items() if key != "resourceVersion"}
    return {**{key: live[key] for key in live if key != "status"}, "metadata": metadata}


def without_version(obj: dict[str, Any]) -> dict[str, Any]:
    return {**obj, "metadata": {key: each for key, each in obj["metadata"].items() if key != "resourceVersion"}}


@pytest.mark.parametrize(("resource", "name", "body"), THEIRS, ids=IDS)
async def test_a_new_cluster_waits_until_the_name_is_free(resource: Resource, name: str, body: dict[str, Any]) -> None:
    async with fake_cluster() as fake:
        before = put(fake, resource, name, body)
        fake.apply(replicas=3)
        await fake.until(lambda: fake.condition("Stalled") == "True", limit=30)
        assert name in fake.message("Stalled")
        for _ in range(20):
            await fake.one_pass()
        assert found(fake, resource, name) == without_version(before)
        assert fake.pods() == []
        fake.store.delete(resource, NAMESPACE, name)
        await fake.settle()
        assert found(fake, resource, name)["metadata"].get("ownerReferences") or name == "demo-identity"


async def test_what_is_somebody_elses_outlives_a_cluster() -> None:
    async with settled_cluster(replicas=3) as fake:
        fake.store.delete(SERVICE, NAMESPACE, "demo-client")
        before = put(fake, *THEIRS[1])
        fake.apply(replicas=4)
        await fake.until(lambda: len(fake.pods()) == 4 and fake.reason("Stalled") == "NameTaken")
        assert "Service/demo-client" in fake.message("Stalled")
        fake.store.delete(CLUSTER, NAMESPACE, NAME)
        await fake.until(lambda: fake.store.find(CLUSTER, NAMESPACE, NAME) is None)
        assert found(fake, SERVICE, "demo-client") == without_version(before)


def needed(fake: FakeCluster) -> list[tuple[Resource, str]]:
    """Kind and name of everything that the operator has made for the cluster, but for pods, claims and Jobs."""
    uid = fake.resource["metadata"]["uid"]
    return [
        (resource, name)
        for resource, objects in fake.store.objects.items()
        for (namespace, name), obj in objects.items()
        if namespace == NAMESPACE
        and resource.kind != "Job"
        and (
            any(each["uid"] == uid for each in obj["metadata"].get("ownerReferences") or ()) or name == "demo-identity"
        )
    ]


def occupied(fake: FakeCluster, names_of: list[tuple[Resource, str]]) -> list[tuple[Resource, str, dict[str, Any]]]:
    """Somebody else's object of each name, and as it is then."""
    for resource, name in names_of:
        selected = {"replicas": 0, "selector": {"matchLabels": PULSAR}, "template": {"metadata": {"labels": PULSAR}}}
        put(fake, resource, name, {"data": {"a": "eA=="}, "spec": selected})
    return [(resource, name, found(fake, resource, name)) for resource, name in names_of]


async def test_nothing_changes_whichever_of_its_names_are_somebody_elses() -> None:
    """All of them before there is a cluster, and all but the bookies' own while one runs."""
    async with settled_cluster(replicas=3, gateway={"enabled": True}) as fake:
        all_of_them = needed(fake)
        assert len({resource.kind for resource, _ in all_of_them}) >= 8, all_of_them
        others = [(resource, name) for resource, name in all_of_them if resource != STATEFUL_SET]
        for resource, name in others:
            fake.store.delete(resource, NAMESPACE, name)
        theirs = occupied(fake, others)
        for _ in range(12):
            await fake.one_pass()
        assert fake.condition("Stalled") == "True"
        assert len(fake.pods()) == 3
        fake.store.delete(CLUSTER, NAMESPACE, NAME)
        await fake.until(lambda: fake.store.find(CLUSTER, NAMESPACE, NAME) is None, limit=120)
        assert [(one, name, found(fake, one, name)) for one, name, _ in theirs] == theirs
    async with fake_cluster() as fake:
        theirs = occupied(fake, all_of_them)
        fake.apply(replicas=3, gateway={"enabled": True})
        for _ in range(8):
            await fake.one_pass()
        assert "demo-admin-tls" in fake.message("Stalled"), "it is looked at first"
        assert fake.pods() == []
        fake.store.delete(CLUSTER, NAMESPACE, NAME)
        await fake.until(lambda: fake.store.find(CLUSTER, NAMESPACE, NAME) is None, limit=120)
        assert [(one, name, found(fake, one, name)) for one, name, _ in theirs] == theirs


async def test_cert_manager_is_not_told_to_write_over_a_secret_that_somebody_made() -> None:
    async with settled_cluster(replicas=3) as fake:
        before, pods = put(fake, SECRET, "demo-bookie-tls", {"data": {"tls.crt": "eA=="}}), fake.uids()
        fake.apply(replicas=3, tls={"enabled": True, "issuerRef": {"name": "ca"}})
        await fake.until(lambda: fake.reason("Stalled") == "NameTaken")
        for _ in range(20):
            await fake.one_pass()
        assert fake.store.list(CERTIFICATE, NAMESPACE) == []
        assert found(fake, SECRET, "demo-bookie-tls") == without_version(before)
        assert fake.uids() == pods
        assert "Secret/demo-bookie-tls" in fake.message("Stalled")


@pytest.mark.parametrize("mode", ["New", "Adopt"])
async def test_a_cluster_made_again_waits_for_the_end_of_what_the_last_one_owned(mode: str) -> None:
    async with settled_cluster(replicas=3) as fake:
        fake.store.collects = False
        fake.store.delete(CLUSTER, NAMESPACE, NAME)
        await fake.until(lambda: fake.store.find(CLUSTER, NAMESPACE, NAME) is None)
        if mode == "New":
            for claim in fake.store.list(CLAIM, NAMESPACE):
                fake.store.delete(CLAIM, NAMESPACE, claim["metadata"]["name"])
            fake.bookkeeper.instance_id = ""
            fake.bookkeeper.cookies.clear()
        fake.apply(replicas=3, bootstrap={"mode": mode})
        last = fake.time + 10
        while fake.time < last:
            await fake.one_pass()
            assert fake.condition("Stalled") != "True", fake.message("Stalled")
            assert fake.condition("SpecValid") != "False", fake.message("SpecValid")
        assert fake.pods() == []
        fake.store.collect()
        await fake.settle(40)
        assert len(fake.pods()) == 3


async def test_what_came_after_the_look_is_not_taken_over() -> None:
    async with fake_cluster() as fake:
        fake.apply(replicas=3)
        before = put(fake, *THEIRS[1])
        ours = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "demo-client", "namespace": NAMESPACE}}
        with pytest.raises(Conflict, match="Helm"):
            await apply_own(fake.operators[0].kubernetes, cluster_view(fake.resource), ours)
        assert found(fake, SERVICE, "demo-client") == without_version(before)


async def test_a_restored_copy_of_a_claim_is_no_bookies_volume() -> None:
    async with fake_cluster() as fake:
        fake.apply(
            storage={"journal": {"size": "10Gi"}, "ledger": {"size": "9Gi"}, "retention": {"whenDeleted": "Delete"}}
        )
        await fake.settle()
        copied = fake.store.get(CLAIM, NAMESPACE, "ledger-0-demo-bookie-0")
        name = "ledger-0-demo-bookie-0-backup-20261125"
        body = {"metadata": {"name": name, "labels": copied["metadata"]["labels"]}, "spec": copied["spec"]}
        fake.store.create(CLAIM, NAMESPACE, body)
        fake.annotate(names.CONFIRM_DELETE, NAME)
        fake.store.delete(CLUSTER, NAMESPACE, NAME)
        await fake.until(lambda: fake.store.find(CLUSTER, NAMESPACE, NAME) is None)
        assert [each["metadata"]["name"] for each in fake.store.list(CLAIM, NAMESPACE)] == [name]
