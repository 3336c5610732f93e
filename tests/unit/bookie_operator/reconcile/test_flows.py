"""Whole flows against an API server, controllers and bookies in this process: how clusters come to be, and change."""

from __future__ import annotations

import base64

from bookie_operator.api.kinds import (
    BUDGET,
    CLAIM,
    CONFIG_MAP,
    DEPLOYMENT,
    EVENT,
    JOB,
    POD,
    SECRET,
    SERVICE,
    STATEFUL_SET,
)
from bookie_operator.crds import names
from tests.support.fake_kubernetes.cluster import NAMESPACE, fake_cluster


async def test_a_cluster_comes_to_be() -> None:
    async with fake_cluster() as fake:
        fake.apply(replicas=3)
        assert await fake.settle() < 20
        assert fake.pods() == ["demo-bookie-0", "demo-bookie-1", "demo-bookie-2"]
        assert len(fake.bookkeeper.writable) == 3
        made = {
            kind.kind: {obj["metadata"]["name"] for obj in fake.store.list(kind, NAMESPACE)}
            for kind in (SERVICE, BUDGET, DEPLOYMENT, JOB, SECRET, CONFIG_MAP)
        }
        assert made["Service"] == {"demo-bookie", "demo-client"}
        assert made["Deployment"] == {"demo-autorecovery"}
        assert made["Job"] == {"demo-metadata-init"}
        assert made["Secret"] == {"demo-identity", "demo-admin-token"}
        assert len(made["ConfigMap"]) == 2
        assert fake.resource["metadata"]["finalizers"] == [names.FINALIZER]
        status = fake.status
        assert status["instanceId"] == "instance-1"
        assert (status["replicas"], status["readyReplicas"], status["updatedReplicas"], status["writableReplicas"]) == (
            3,
            3,
            3,
            3,
        )
        assert {each["state"] for each in status["bookies"]} == {"Writable"}
        assert status["version"] == {"current": "0.1.0", "target": "0.1.0"}
        assert {fake.condition(kind) for kind in ("Ready", "Available", "SpecValid", "LedgersReplicated")} == {"True"}
        assert {fake.condition(kind) for kind in ("Reconciling", "Stalled", "Paused")} == {"False"}
        assert fake.reason("SpareCapacity") == "NoSpareBookie"
        claims = fake.store.list(CLAIM, NAMESPACE)
        assert {each["metadata"]["labels"][names.INSTANCE_ID] for each in claims} == {"instance-1"}
        assert not any(each["metadata"].get("ownerReferences") for each in claims)
        reasons = {event["reason"] for event in fake.store.list(EVENT, NAMESPACE)}
        assert "StatefulSetCreated" in reasons


async def test_nothing_is_written_at_rest() -> None:
    async with fake_cluster() as fake:
        fake.apply(replicas=3)
        await fake.settle()
        await fake.one_pass()
        before = len(fake.server.writes())
        version = fake.resource["metadata"]["resourceVersion"]
        for _ in range(40):
            assert await fake.one_pass() == 30.0
        assert fake.server.writes()[before:] == []
        assert fake.resource["metadata"]["resourceVersion"] == version


async def test_more_bookies() -> None:
    async with fake_cluster() as fake:
        fake.apply(replicas=3)
        await fake.settle()
        before = fake.uids()
        fake.apply(replicas=12)
        await fake.settle()
        assert len(fake.bookkeeper.writable) == 12
        assert fake.status["replicas"] == 12
        assert fake.status["history"][0]["type"] == "ScaleUp"
        assert before.items() <= fake.uids().items()


async def test_fewer_bookies_after_their_ledgers_are_elsewhere() -> None:
    """With twelve bookies: the last one has the highest number, not the last name."""
    async with fake_cluster() as fake:
        fake.apply(replicas=12)
        await fake.settle()
        fake.fill(24, 12)
        fake.apply(replicas=11)
        while fake.condition("ScalingDown") != "True":
            await fake.one_pass()
        await fake.until(lambda: fake.condition("ScalingDown") == "False")
        await fake.settle()
        assert fake.bookkeeper.deleted_cookies == [fake.bookie_id("demo-bookie-11")]
        assert len(fake.pods()) == 11
        assert fake.whole()
        left = {each["metadata"]["name"] for each in fake.store.list(CLAIM, NAMESPACE)}
        assert "ledger-0-demo-bookie-11" not in left
        assert "ledger-0-demo-bookie-10" in left
        assert fake.status["history"][0]["outcome"] == "Done"


async def test_a_new_version_is_rolled_one_after_the_other() -> None:
    async with fake_cluster() as fake:
        fake.apply(replicas=4)
        await fake.settle()
        fake.fill(8, 4)
        before = fake.uids()
        fake.apply(replicas=4, version="0.1.1")
        while fake.condition("Ready") == "True":
            await fake.one_pass()
        for _ in range(300):
            if fake.condition("Ready") == "True":
                break
            await fake.one_pass()
            assert len(fake.bookkeeper.writable) >= 3
        assert fake.status["version"] == {"current": "0.1.1", "target": "0.1.1"}
        after = fake.uids()
        assert all(after[pod] != before[pod] for pod in fake.pods())
        assert fake.bookkeeper.delay == 300
        images = {
            pod["spec"]["containers"][0]["image"]
            for pod in fake.store.list(POD, NAMESPACE, f"{names.COMPONENT}=bookie")
        }
        assert images == {"podkeeper:0.1.1"}


async def test_an_image_that_is_not_there_stops_the_roll_at_one_bookie() -> None:
    async with fake_cluster() as fake:
        fake.apply(replicas=4)
        await fake.settle()
        fake.controllers.broken_images.add("podkeeper:9.9.9")
        fake.apply(replicas=4, version="9.9.9", update={"progressDeadlineSeconds": 60})
        await fake.until(lambda: fake.condition("Stalled") == "True")
        assert "no such image" in fake.message("Stalled")
        assert len(fake.bookkeeper.writable) == 3
        fake.apply(replicas=4, version="0.1.0")
        await fake.settle()
        assert len(fake.bookkeeper.writable) == 4


async def test_volumes_grow_and_no_bookie_stops() -> None:
    async with fake_cluster() as fake:
        fake.apply(replicas=3)
        await fake.settle()
        before = {name: uid for name, uid in fake.uids().items() if "-bookie-" in name}
        fake.apply(replicas=3, storage={"journal": {"size": "10Gi"}, "ledger": {"size": "200Gi"}})
        await fake.settle()
        sizes = {
            each["metadata"]["name"]: each["status"]["capacity"]["storage"]
            for each in fake.store.list(CLAIM, NAMESPACE)
        }
        assert sizes["ledger-0-demo-bookie-2"] == "200Gi"
        assert sizes["journal-0-demo-bookie-2"] == "10Gi"
        assert {name: uid for name, uid in fake.uids().items() if "-bookie-" in name} == before
        (template, _) = sorted(
            each["spec"]["resources"]["requests"]["storage"]
            for each in fake.store.get(STATEFUL_SET, NAMESPACE, "demo-bookie")["spec"]["volumeClaimTemplates"]
        )[::-1]
        assert template == "200Gi"


async def test_the_token_that_pods_mount_is_the_one_that_is_shown() -> None:
    async with fake_cluster() as fake:
        fake.apply(replicas=3)
        await fake.settle()
        secret = fake.store.get(SECRET, NAMESPACE, "demo-admin-token")
        fake.admin.token = base64.b64decode(secret["data"]["token"]).decode()
        assert len(fake.admin.token) > 40
        await fake.one_pass()
        assert fake.condition("Available") == "True"
        rotated = base64.b64encode(b"new\nold\n").decode()
        fake.store.patch(SECRET, NAMESPACE, "demo-admin-token", {"data": {"token": rotated}})
        await fake.one_pass()
        assert fake.condition("Available") == "Unknown"
        fake.admin.token = "new"
        await fake.one_pass()
        assert fake.condition("Available") == "True"
