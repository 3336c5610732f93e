"""Whole flows in this process: how clusters end, wait and go wrong, and what they keep."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bookie_operator.api.errors import Forbidden
from bookie_operator.api.kinds import (
    BUDGET,
    CLAIM,
    CLUSTER,
    CONFIG_MAP,
    DEPLOYMENT,
    EVENT,
    JOB,
    POD,
    SECRET,
    SERVICE,
    STATEFUL_SET,
    STORAGE_CLASS,
    TASK,
    Resource,
)
from bookie_operator.crds import names
from bookie_operator.planner.flows import delete
from bookie_operator.status.events import REPEAT_S
from tests.support.fake_kubernetes.cluster import NAME, NAMESPACE, FakeCluster, fake_cluster, settled_cluster
from tests.support.fake_kubernetes.objects import Object
from tests.support.fake_kubernetes.store import Refused


async def test_a_deleted_cluster_keeps_its_volumes_and_can_be_adopted() -> None:
    async with settled_cluster(replicas=3) as fake:
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
    async with settled_cluster(replicas=3) as fake:
        fake.store.delete(CLUSTER, NAMESPACE, NAME)
        while fake.store.find(CLUSTER, NAMESPACE, NAME) is not None:
            await fake.one_pass()
        fake.apply(replicas=3)
        await fake.until(lambda: fake.condition("Stalled") == "True")
        assert fake.reason("Stalled") == "AdoptRequired"
        assert fake.pods() == []
        assert "spec.bootstrap.mode" in fake.message("Stalled")
        fake.apply(replicas=3, bootstrap={"mode": "Adopt"})
        await fake.settle()


async def test_bookies_of_another_owner_are_not_waited_for() -> None:
    """A StatefulSet that lost its owner, as after `kubectl delete --cascade=orphan`, is not the cluster's own."""
    async with settled_cluster(replicas=3) as fake:
        key = (NAMESPACE, f"{NAME}-bookie")
        live = fake.store.objects[STATEFUL_SET][key]
        metadata = {name: value for name, value in live["metadata"].items() if name != "ownerReferences"}
        fake.store.objects[STATEFUL_SET][key] = {**live, "metadata": metadata}
        uids = fake.uids()
        fake.store.delete(CLUSTER, NAMESPACE, NAME)
        await fake.until(lambda: fake.store.find(CLUSTER, NAMESPACE, NAME) is None, limit=30)
        assert {name: uid for name, uid in uids.items() if "-bookie-" in name} == fake.uids()


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


def end_namespace(fake: FakeCluster) -> None:
    """From now on nothing new is taken in it, not even an event."""

    def refuse(resource: Resource, obj: Object, before: Object | None) -> None:
        if before is None:
            why = f"unable to create new content in namespace {NAMESPACE} because it is being terminated"
            raise Refused(403, "Forbidden", f'{resource.plural} "{obj["metadata"]["name"]}" is forbidden: {why}')

    fake.store.admission.append(refuse)


def sweep_namespace(fake: FakeCluster) -> None:
    """As the namespace controller does: whatever is there is deleted, in no order that would help anybody."""
    for resource in (SECRET, CONFIG_MAP, EVENT, SERVICE, CLUSTER, STATEFUL_SET, DEPLOYMENT, JOB, POD, CLAIM, BUDGET):
        for each in fake.store.list(resource, NAMESPACE):
            if fake.store.find(resource, NAMESPACE, each["metadata"]["name"]) is not None:
                fake.store.delete(resource, NAMESPACE, each["metadata"]["name"])


@pytest.mark.parametrize("swept", [False, True], ids=["before its contents go", "while its contents go"])
@pytest.mark.parametrize("when_deleted", ["Retain", "Delete"])
async def test_a_namespace_that_is_deleted_is_not_held_up(when_deleted: str, swept: bool) -> None:
    """Neither the Job that removes the metadata nor an event can be made any more."""
    async with fake_cluster() as fake:
        storage = {"journal": {"size": "10Gi"}, "ledger": {"size": "100Gi"}, "retention": {"whenDeleted": when_deleted}}
        fake.apply(replicas=3, storage=storage)
        await fake.settle()
        fake.annotate(names.CONFIRM_DELETE, NAME)
        end_namespace(fake)
        fake.store.delete(CLUSTER, NAMESPACE, NAME)
        if swept:
            sweep_namespace(fake)
        began = fake.time
        while fake.store.find(CLUSTER, NAMESPACE, NAME) is not None:
            await fake.one_pass()
            if not swept and when_deleted == "Delete" and fake.time - began > delete.METADATA_SECONDS:
                # The claims stay until the namespace takes them: no Job can ask whether another cluster needs them.
                assert len(fake.store.list(CLAIM, NAMESPACE)) == 6
                sweep_namespace(fake)
                swept, began = True, fake.time
            assert fake.time - began < delete.METADATA_SECONDS + 60.0
        refused = fake.measured("reconcile_errors_total", reason="Forbidden")
        assert (refused > 0) is (when_deleted == "Delete")
        fake.run_controllers()
        assert fake.store.list(POD, NAMESPACE) == []
        assert len(fake.store.list(CLAIM, NAMESPACE)) == (6 if when_deleted == "Retain" and not swept else 0)


async def test_what_goes_before_its_cluster_is_missed_and_holds_nothing_up() -> None:
    async with settled_cluster(replicas=3) as fake:
        end_namespace(fake)
        fake.store.delete(SERVICE, NAMESPACE, "demo-client")
        await fake.one_pass()
        assert "is being terminated" in fake.message("Stalled")
        fake.store.delete(SECRET, NAMESPACE, "demo-admin-token")
        with pytest.raises(Forbidden):
            await fake.one_pass()
        sweep_namespace(fake)
        began = fake.time
        while fake.store.find(CLUSTER, NAMESPACE, NAME) is not None:
            await fake.one_pass()
            assert fake.time - began < 60.0


async def test_while_paused_nothing_is_changed() -> None:
    async with settled_cluster(replicas=3) as fake:
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
    async with settled_cluster(replicas=4) as fake:
        fake.store.patch(STATEFUL_SET, NAMESPACE, "demo-bookie", {"spec": {"replicas": 2}})
        fake.run_controllers()
        await fake.until(lambda: len(fake.bookkeeper.writable) == 4, limit=10)
        assert "ExternalScaleDown" in {event["reason"] for event in fake.store.list(EVENT, NAMESPACE)}
        assert len(fake.store.list(CLAIM, NAMESPACE)) == 8


async def test_a_statefulset_that_was_deleted_takes_its_bookies_over_again() -> None:
    async with settled_cluster(replicas=4) as fake:
        before = fake.uids()
        live = fake.store.get(STATEFUL_SET, NAMESPACE, "demo-bookie")
        fake.store.delete(STATEFUL_SET, NAMESPACE, "demo-bookie", live["metadata"]["uid"], "Orphan")
        await fake.until(lambda: fake.store.find(STATEFUL_SET, NAMESPACE, "demo-bookie") is not None, limit=5)
        await fake.settle()
        assert fake.uids() == before
        assert fake.store.get(STATEFUL_SET, NAMESPACE, "demo-bookie")["spec"]["replicas"] == 4


def volumes(size: str) -> dict[str, object]:
    volume = {"size": size, "storageClassName": "standard"}
    return {"journal": volume, "ledger": volume}


def class_cannot_grow(fake: FakeCluster) -> None:
    fake.store.patch(STORAGE_CLASS, "", "standard", {"allowVolumeExpansion": False})
    fake.apply(replicas=4, storage=volumes("20Gi"))


def not_ready(fake: FakeCluster, reason: str) -> None:
    fake.controllers.stuck["demo-bookie-1"] = {"waiting": {"reason": reason}}
    fake.store.delete(POD, NAMESPACE, "demo-bookie-1")
    fake.run_controllers()


def image_is_gone(fake: FakeCluster) -> None:
    not_ready(fake, "ImagePullBackOff")


def volume_is_lost(fake: FakeCluster) -> None:
    not_ready(fake, "ContainerCreating")
    claim = fake.store.get(CLAIM, NAMESPACE, "ledger-0-demo-bookie-1")
    lost = {"metadata": {"resourceVersion": ""}, "status": {**claim["status"], "phase": "Lost"}}
    fake.store.replace(CLAIM, NAMESPACE, "ledger-0-demo-bookie-1", lost, "status")


@pytest.mark.parametrize(
    ("reason", "trouble"),
    [
        ("StorageClassNotExpandable", class_cannot_grow),
        ("ImagePullFailed", image_is_gone),
        ("BookieLost", volume_is_lost),
    ],
)
async def test_what_needs_a_person_before_anything_began_is_one_event(
    reason: str, trouble: Callable[[FakeCluster], None]
) -> None:
    async with settled_cluster(replicas=4, storage=volumes("10Gi")) as fake:
        trouble(fake)
        await fake.until(lambda: fake.condition("Stalled") == "True", limit=20)
        assert fake.reason("Stalled") == reason
        assert "operation" not in fake.status
        until = fake.time + 2 * REPEAT_S
        await fake.until(lambda: fake.time > until)
        told = [event for event in fake.store.list(EVENT, NAMESPACE) if event["reason"] == reason]
        assert [(event["type"], event["note"]) for event in told] == [("Warning", fake.message("Stalled"))]
        assert "series" not in told[0]  # it is told when it begins, not in every pass


async def test_another_reason_to_need_a_person_is_another_event() -> None:
    async with settled_cluster(replicas=4, storage=volumes("10Gi")) as fake:
        class_cannot_grow(fake)
        await fake.until(lambda: fake.condition("Stalled") == "True", limit=20)
        fake.apply(replicas=4, storage=volumes("20Gi"), config={"bookiePort": "1"})
        await fake.until(lambda: fake.reason("Stalled") == "InvalidSpec", limit=20)
        reasons = [event["reason"] for event in fake.store.list(EVENT, NAMESPACE) if event["type"] == "Warning"]
        assert sorted(reasons) == ["InvalidSpec", "StorageClassNotExpandable"]


@pytest.mark.parametrize("spec", [{"replicas": "many"}, {"replicas": 2}, {"config": {"bookiePort": "1"}}])
async def test_a_wrong_spec_changes_nothing_and_says_what_to_do(spec: dict[str, object]) -> None:
    async with settled_cluster(replicas=3) as fake:
        before = fake.uids()
        fake.apply(**spec)
        await fake.until(lambda: fake.condition("SpecValid") == "False", limit=5)
        assert fake.condition("Stalled") == "True"
        assert fake.reason("Stalled") == "InvalidSpec"
        assert next(iter(spec)) in fake.message("SpecValid")
        assert fake.status["instanceId"] == fake.resource["metadata"]["uid"]
        count = len(fake.server.writes())
        for _ in range(5):
            await fake.one_pass()
        assert len(fake.server.writes()) == count
        assert fake.uids() == before


async def test_a_task_asks_for_an_audit_and_is_dropped_later() -> None:
    async with settled_cluster(replicas=3) as fake:
        fake.ask("look", "Audit", ttlSecondsAfterFinished=60)
        from bookie_operator.api.kinds import TASK

        await fake.until(lambda: (fake.store.get(TASK, NAMESPACE, "look").get("status") or {}).get("phase") == "Done")
        task = fake.store.get(TASK, NAMESPACE, "look")
        assert {each["type"] for each in task["status"]["conditions"]} == {"Complete"}
        fake.annotate(names.PAUSED, "true")
        fake.time += 700
        for _ in range(3):
            await fake.one_pass()
        assert fake.store.find(TASK, NAMESPACE, "look") is not None, "while it is paused nothing is changed"
        fake.annotate(names.PAUSED, None)
        await fake.until(lambda: fake.store.find(TASK, NAMESPACE, "look") is None, limit=20)


async def test_a_task_goes_with_its_cluster_and_does_nothing_for_the_next_one() -> None:
    async with settled_cluster(replicas=3) as fake:
        fake.ask("taken-up", "AcceptLoss", ledgers=[3, 7])
        fake.ask("refused", "Restart", bookies=["demo-bookie-9"])
        for name, phase in (("taken-up", "Running"), ("refused", "Failed")):
            await fake.until(lambda: (fake.store.get(TASK, NAMESPACE, name).get("status") or {}) != {})  # noqa: B023
            assert fake.store.get(TASK, NAMESPACE, name)["status"]["phase"] == phase
        fake.store.delete(CLUSTER, NAMESPACE, NAME)
        await fake.until(lambda: fake.store.find(CLUSTER, NAMESPACE, NAME) is None)
        assert fake.store.find(TASK, NAMESPACE, "taken-up") is None
        assert fake.store.find(TASK, NAMESPACE, "refused") is None

        fake.ask("never-taken-up", "Restart")
        fake.time += 3600.0
        fake.apply(replicas=3, bootstrap={"mode": "Adopt"})
        await fake.settle()
        before = fake.uids()
        await fake.until(lambda: (fake.store.get(TASK, NAMESPACE, "never-taken-up").get("status") or {}) != {})
        status = fake.store.get(TASK, NAMESPACE, "never-taken-up")["status"]
        assert status["phase"] == "Failed"
        assert "an earlier BookieCluster demo" in status["message"]
        assert not fake.store.get(TASK, NAMESPACE, "never-taken-up")["metadata"].get("ownerReferences")
        assert fake.uids() == before


async def test_without_an_operator_people_take_the_finalizer_off_and_the_cluster_can_be_taken_over_again() -> None:
    async with settled_cluster(replicas=3) as fake:
        claims = {each["metadata"]["uid"] for each in fake.store.list(CLAIM, NAMESPACE)}
        fake.store.delete(CLUSTER, NAMESPACE, NAME)
        fake.run_controllers()
        assert len(fake.pods()) == 3
        fake.store.patch(CLUSTER, NAMESPACE, NAME, {"metadata": {"finalizers": None}})
        assert fake.store.find(CLUSTER, NAMESPACE, NAME) is None
        fake.run_controllers()
        assert fake.pods() == []
        fake.apply(replicas=3, bootstrap={"mode": "Adopt"})
        await fake.settle()
        assert {each["metadata"]["uid"] for each in fake.store.list(CLAIM, NAMESPACE)} == claims
