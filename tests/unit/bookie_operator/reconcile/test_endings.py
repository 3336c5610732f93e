"""Whole flows in this process: how clusters end, wait and go wrong, and what they keep."""

from __future__ import annotations

import pytest

from bookie_operator.api.kinds import CLAIM, CLUSTER, EVENT, POD, SECRET, STATEFUL_SET
from bookie_operator.crds import names
from tests.support.fake_kubernetes.cluster import NAME, NAMESPACE, fake_cluster


async def test_a_deleted_cluster_keeps_its_volumes_and_can_be_adopted() -> None:
    async with fake_cluster() as fake:
        fake.apply(replicas=3)
        await fake.settle()
        fake.fill(4, 3)
        claims = {each["metadata"]["uid"] for each in fake.store.list(CLAIM, NAMESPACE)}
        fake.store.delete(CLUSTER, NAMESPACE, NAME)
        while fake.store.find(CLUSTER, NAMESPACE, NAME) is not None:
            await fake.one_pass()
        assert await fake.one_pass() is None
        fake.run_controllers()
        assert fake.store.list(POD, NAMESPACE) == []
        assert {each["metadata"]["uid"] for each in fake.store.list(CLAIM, NAMESPACE)} == claims
        assert fake.store.find(SECRET, NAMESPACE, "demo-identity") is not None
        assert len(fake.bookkeeper.cookies) == 3
        fake.apply(replicas=3, bootstrap={"mode": "Adopt"})
        await fake.settle()
        assert {each["metadata"]["uid"] for each in fake.store.list(CLAIM, NAMESPACE)} == claims
        assert fake.whole()


async def test_volumes_of_a_deleted_cluster_are_not_taken_over_unasked() -> None:
    async with fake_cluster() as fake:
        fake.apply(replicas=3)
        await fake.settle()
        fake.store.delete(CLUSTER, NAMESPACE, NAME)
        while fake.store.find(CLUSTER, NAMESPACE, NAME) is not None:
            await fake.one_pass()
        fake.apply(replicas=3)
        await fake.until(lambda: fake.condition("Stalled") == "True")
        assert fake.reason("Stalled") == "AdoptRequired"
        assert fake.pods() == []


async def test_data_go_only_when_that_was_confirmed() -> None:
    async with fake_cluster() as fake:
        storage = {"journal": {"size": "10Gi"}, "ledger": {"size": "100Gi"}, "retention": {"whenDeleted": "Delete"}}
        fake.apply(replicas=3, storage=storage)
        await fake.settle()
        fake.store.delete(CLUSTER, NAMESPACE, NAME)
        await fake.until(lambda: fake.condition("DeletionBlocked") == "True")
        for _ in range(5):
            await fake.one_pass()
        assert len(fake.bookkeeper.writable) == 3
        fake.annotate(names.CONFIRM_DELETE, NAME)
        while fake.store.find(CLUSTER, NAMESPACE, NAME) is not None:
            await fake.one_pass()
        fake.run_controllers()
        assert fake.store.list(CLAIM, NAMESPACE) == []
        assert fake.store.find(SECRET, NAMESPACE, "demo-identity") is None


async def test_while_paused_nothing_is_changed() -> None:
    async with fake_cluster() as fake:
        fake.apply(replicas=3)
        await fake.settle()
        fake.annotate(names.PAUSED, "true")
        fake.apply(replicas=5)
        await fake.until(lambda: fake.condition("Paused") == "True")
        before = len(fake.server.writes())
        for _ in range(5):
            await fake.one_pass()
        assert len(fake.server.writes()) == before
        assert len(fake.pods()) == 3
        fake.annotate(names.PAUSED, None)
        await fake.settle()
        assert len(fake.pods()) == 5


async def test_a_statefulset_that_was_scaled_by_hand_is_put_back() -> None:
    async with fake_cluster() as fake:
        fake.apply(replicas=4)
        await fake.settle()
        fake.store.patch(STATEFUL_SET, NAMESPACE, "demo-bookie", {"spec": {"replicas": 2}})
        fake.run_controllers()
        await fake.until(lambda: len(fake.bookkeeper.writable) == 4, limit=10)
        assert "ExternalScaleDown" in {event["reason"] for event in fake.store.list(EVENT, NAMESPACE)}
        assert len(fake.store.list(CLAIM, NAMESPACE)) == 8


async def test_a_statefulset_that_was_deleted_takes_its_bookies_over_again() -> None:
    async with fake_cluster() as fake:
        fake.apply(replicas=4)
        await fake.settle()
        before = fake.uids()
        live = fake.store.get(STATEFUL_SET, NAMESPACE, "demo-bookie")
        fake.store.delete(STATEFUL_SET, NAMESPACE, "demo-bookie", live["metadata"]["uid"], "Orphan")
        await fake.until(lambda: fake.store.find(STATEFUL_SET, NAMESPACE, "demo-bookie") is not None, limit=5)
        await fake.settle()
        assert fake.uids() == before
        assert fake.store.get(STATEFUL_SET, NAMESPACE, "demo-bookie")["spec"]["replicas"] == 4


@pytest.mark.parametrize("spec", [{"replicas": "many"}, {"replicas": 2}, {"config": {"bookiePort": "1"}}])
async def test_a_wrong_spec_changes_nothing_and_says_what_to_do(spec: dict[str, object]) -> None:
    async with fake_cluster() as fake:
        fake.apply(replicas=3)
        await fake.settle()
        before = fake.uids()
        fake.apply(**spec)
        await fake.until(lambda: fake.condition("SpecValid") == "False", limit=5)
        assert fake.condition("Stalled") == "True"
        assert fake.reason("Stalled") == "InvalidSpec"
        assert next(iter(spec)) in fake.message("SpecValid")
        assert fake.status["instanceId"] == "instance-1"
        count = len(fake.server.writes())
        for _ in range(5):
            await fake.one_pass()
        assert len(fake.server.writes()) == count
        assert fake.uids() == before


async def test_a_task_asks_for_an_audit_and_is_dropped_later() -> None:
    async with fake_cluster() as fake:
        fake.apply(replicas=3)
        await fake.settle()
        fake.ask("look", "Audit", ttlSecondsAfterFinished=60)
        from bookie_operator.api.kinds import TASK

        await fake.until(lambda: (fake.store.get(TASK, NAMESPACE, "look").get("status") or {}).get("phase") == "Done")
        task = fake.store.get(TASK, NAMESPACE, "look")
        assert {each["type"] for each in task["status"]["conditions"]} == {"Complete"}
        await fake.until(lambda: fake.store.find(TASK, NAMESPACE, "look") is None, limit=20)
