"""An etcd that the operator runs: how its members start, are restarted and replaced, and what goes with the cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from bookie_operator.api.kinds import BUDGET, CLAIM, CLUSTER, JOB, POD, SECRET, STATEFUL_SET
from bookie_operator.builders import naming
from bookie_operator.crds import names
from tests.support.fake_kubernetes.cluster import NAME, NAMESPACE, FakeCluster, fake_cluster, settled_cluster

ETCD = {"type": "Etcd", "uri": ""}
STORAGE = {"journal": {"size": "10Gi"}, "ledger": {"size": "100Gi"}, "retention": {"whenDeleted": "Delete"}}
SET = f"{NAME}-metadata"
MEMBERS = [f"{SET}-{ordinal}" for ordinal in range(3)]
LOST = MEMBERS[1]


def claim_of(fake: FakeCluster, pod: str) -> str:
    return str(fake.store.get(CLAIM, NAMESPACE, f"data-{pod}")["metadata"]["uid"])


async def settle(fake: FakeCluster) -> None:
    """Passes until it is ready, the first of which finds what has changed."""
    await fake.one_pass()
    await fake.settle()


def lose(fake: FakeCluster, pod: str) -> None:
    """Its claim and its pod are deleted: it comes back with an empty volume."""
    fake.store.delete(CLAIM, NAMESPACE, f"data-{pod}")
    fake.store.delete(POD, NAMESPACE, pod)
    fake.run_controllers()


def members_of(fake: FakeCluster) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in fake.status["metadataMembers"]}


def listed(fake: FakeCluster) -> dict[str, int]:
    return {each.name: each.id for each in fake.etcd.members.values()}


async def test_a_cluster_comes_to_be_with_an_etcd_of_its_own() -> None:
    async with fake_cluster() as fake:
        fake.apply(metadataService=ETCD)
        await fake.settle()
        hosts = ",".join(f"{pod}.{SET}.{NAMESPACE}.svc:2379" for pod in MEMBERS)
        assert fake.status["metadataServiceUri"] == f"etcd://{hosts}/ledgers"
        assert sorted(fake.etcd.running) == MEMBERS
        assert fake.store.get(BUDGET, NAMESPACE, SET)["spec"]["maxUnavailable"] == 1
        assert fake.condition("MetadataHealthy") == "True"
        found = members_of(fake)
        assert [found[pod]["state"] for pod in MEMBERS] == ["Serving"] * 3
        assert [found[pod]["claimUid"] for pod in MEMBERS] == [claim_of(fake, pod) for pod in MEMBERS]
        assert sum(found[pod]["leader"] for pod in MEMBERS) == 1
        assert fake.etcd.violations == []
        for secret in (naming.metadata_certificate(NAME), naming.metadata_client(NAME)):
            assert {"tls.crt", "tls.key", "ca.crt"} <= fake.store.get(SECRET, NAMESPACE, secret)["data"].keys()


async def test_members_start_before_the_metadata_are_made_and_bookies_after() -> None:
    async with fake_cluster() as fake:
        fake.controllers.no_pods.add(naming.metadata_init(NAME))
        fake.apply(metadataService=ETCD)
        await fake.until(lambda: len(fake.etcd.running) == 3)
        await fake.until(lambda: fake.store.find(JOB, NAMESPACE, naming.metadata_init(NAME)) is not None)
        assert fake.pods() == []


async def test_a_member_whose_claim_is_gone_is_replaced() -> None:
    async with settled_cluster(metadataService=ETCD) as fake:
        before = listed(fake)
        lose(fake, LOST)
        await fake.one_pass()
        assert fake.condition("MetadataHealthy") == "False"
        await fake.settle()
        after = listed(fake)
        assert after[LOST] != before[LOST]
        assert {pod: after[pod] for pod in MEMBERS if pod != LOST} == {
            pod: before[pod] for pod in MEMBERS if pod != LOST
        }
        assert fake.etcd.calls == ["remove", "add"]
        assert fake.etcd.violations == []
        assert members_of(fake)[LOST]["claimUid"] == claim_of(fake, LOST)


async def test_two_members_of_five_are_replaced_one_after_the_other() -> None:
    async with settled_cluster(metadataService={**ETCD, "etcd": {"replicas": 5}}) as fake:
        lose(fake, MEMBERS[0])
        lose(fake, MEMBERS[2])
        await settle(fake)
        assert fake.etcd.calls == ["remove", "add"] * 2
        assert fake.etcd.violations == []
        assert len(fake.etcd.running) == 5


async def test_a_member_whose_claim_is_the_same_and_empty_is_not_replaced() -> None:
    """A disk that is not mounted looks like this, and its data may come back."""
    async with settled_cluster(metadataService=ETCD) as fake:
        own = fake.etcd.data.pop(claim_of(fake, LOST))
        fake.store.delete(POD, NAMESPACE, LOST)
        fake.run_controllers()
        await fake.until(lambda: fake.reason("Stalled") == "MemberVolumeEmpty")
        for _ in range(5):
            await fake.one_pass()
        assert fake.etcd.calls == []
        assert members_of(fake)[LOST]["state"] == "Lost"
        fake.etcd.data[claim_of(fake, LOST)] = own
        fake.store.delete(POD, NAMESPACE, LOST)
        fake.run_controllers()
        await settle(fake)
        assert fake.etcd.calls == []


async def test_an_empty_volume_that_is_given_up_is_replaced() -> None:
    async with settled_cluster(metadataService=ETCD) as fake:
        del fake.etcd.data[claim_of(fake, LOST)]
        fake.store.delete(POD, NAMESPACE, LOST)
        fake.run_controllers()
        await fake.until(lambda: fake.reason("Stalled") == "MemberVolumeEmpty")
        lose(fake, LOST)
        await settle(fake)
        assert fake.etcd.calls == ["remove", "add"]
        assert fake.etcd.violations == []


async def test_without_a_majority_nothing_is_removed() -> None:
    async with settled_cluster(metadataService=ETCD) as fake:
        lose(fake, MEMBERS[0])
        lose(fake, MEMBERS[1])
        await fake.until(lambda: fake.reason("Stalled") == "MetadataUnknown")
        for _ in range(5):
            await fake.one_pass()
        assert fake.etcd.calls == []
        assert fake.condition("MetadataHealthy") == "Unknown"
        assert not [pod for pod in fake.store.list(POD, NAMESPACE) if names.ETCD_START in _annotations(pod)]


async def test_while_another_member_is_away_none_is_removed() -> None:
    async with settled_cluster(metadataService=ETCD) as fake:
        fake.etcd.silent.add(MEMBERS[2])
        lose(fake, LOST)
        for _ in range(5):
            await fake.one_pass()
        assert fake.etcd.calls == []
        fake.etcd.silent.clear()
        await settle(fake)
        assert fake.etcd.calls == ["remove", "add"]


async def test_a_member_is_replaced_while_an_operation_waits() -> None:
    async with settled_cluster(metadataService=ETCD, replicas=4) as fake:
        fake.fill(4, 4)
        fake.controllers.stuck[f"{NAME}-bookie-0"] = {"waiting": {"reason": "CrashLoopBackOff"}}
        fake.apply(metadataService=ETCD, replicas=4, config={"journalMaxSizeMB": "512"})
        await fake.until(lambda: bool(fake.status.get("operation")))
        lose(fake, LOST)
        await fake.until(lambda: fake.etcd.calls == ["remove", "add"])
        assert fake.status["operation"]["type"] == "Rollout"


async def decommissioning(fake: FakeCluster) -> dict[str, Any]:
    """The last of four bookies, which all have ledgers, is being drained; the operation."""
    fake.fill(6, 4)
    fake.bookkeeper.work = lambda: None  # type: ignore[method-assign]
    fake.apply(metadataService=ETCD, replicas=3)
    await fake.until(lambda: bool(fake.bookkeeper.drains))
    return dict(fake.status["operation"])


async def test_a_member_is_replaced_in_the_midst_of_a_decommission() -> None:
    async with settled_cluster(metadataService=ETCD, replicas=4) as fake:
        operation = await decommissioning(fake)
        lose(fake, LOST)
        await fake.until(lambda: fake.condition("MetadataHealthy") == "True" and len(fake.etcd.calls) == 2)
        assert fake.etcd.calls == ["remove", "add"]
        assert fake.status["operation"]["id"] == operation["id"]
        del fake.bookkeeper.work  # type: ignore[method-assign]
        await settle(fake)
        done = fake.status["history"][0]
        assert (done["id"], done["outcome"]) == (operation["id"], "Done")
        assert fake.pods() == [f"{NAME}-bookie-{ordinal}" for ordinal in range(3)]
        assert fake.whole()
        assert fake.etcd.violations == []


async def test_a_decommission_waits_while_etcd_has_no_majority() -> None:
    """What nothing tells is unknown: the bookie keeps its cookie and its volumes until it is known again."""
    async with settled_cluster(metadataService=ETCD, replicas=4) as fake:
        operation = await decommissioning(fake)
        claims = {each["metadata"]["name"] for each in fake.store.list(CLAIM, NAMESPACE)}
        fake.etcd.silent.add(MEMBERS[2])
        lose(fake, LOST)
        fake.bookkeeper.reachable = False
        del fake.bookkeeper.work  # type: ignore[method-assign]
        for _ in range(30):
            await fake.one_pass()
        assert fake.etcd.calls == []
        assert fake.condition("MetadataHealthy") == "Unknown"
        assert fake.status["operation"]["id"] == operation["id"]
        assert {each["metadata"]["name"] for each in fake.store.list(CLAIM, NAMESPACE)} == claims
        assert fake.bookkeeper.deleted_cookies == []
        fake.etcd.silent.clear()
        fake.bookkeeper.reachable = True
        await settle(fake)
        assert fake.etcd.calls == ["remove", "add"]
        assert fake.status["history"][0]["outcome"] == "Done"
        assert fake.whole()
        assert fake.etcd.violations == []


async def test_another_image_reaches_members_one_after_the_other_and_the_leader_last() -> None:
    async with settled_cluster(metadataService=ETCD) as fake:
        gone: list[str] = []
        fake.store.listeners.append(
            lambda change: (
                gone.append(change.obj["metadata"]["name"])
                if change.resource == POD and change.type == "DELETED"
                else None
            )
        )
        bookies = [uid for pod, uid in fake.uids().items() if "bookie" in pod]
        leader = next(pod for pod in MEMBERS if members_of(fake)[pod]["leader"])
        fake.apply(metadataService={**ETCD, "etcd": {"image": "registry.example/etcd:3.6.6"}})
        await fake.until(lambda: (fake.status.get("operation") or {}).get("type") == "Metadata")
        await settle(fake)
        assert sorted(gone) == MEMBERS
        assert gone[-1] == leader
        assert fake.status["history"][0]["outcome"] == "Done"
        assert bookies == [uid for pod, uid in fake.uids().items() if "bookie" in pod]
        assert fake.etcd.violations == []


async def test_no_member_is_restarted_while_another_one_does_not_serve() -> None:
    async with settled_cluster(metadataService=ETCD) as fake:
        before = fake.uids()
        fake.etcd.silent.add(MEMBERS[0])
        fake.apply(metadataService={**ETCD, "etcd": {"image": "registry.example/etcd:3.6.6"}})
        for _ in range(10):
            await fake.one_pass()
        assert {pod: fake.uids()[pod] for pod in MEMBERS} == {pod: before[pod] for pod in MEMBERS}
        assert fake.reason("MetadataHealthy") == "MembersAway"


async def test_an_image_that_cannot_be_pulled_stops_at_the_first_member_and_holds_up_nothing_else() -> None:
    async with settled_cluster(metadataService=ETCD) as fake:
        fake.controllers.broken_images.add("wrong")
        fake.apply(metadataService={**ETCD, "etcd": {"image": "wrong"}})
        await fake.until(lambda: len(fake.etcd.running) == 2)
        fake.time += 3600
        await fake.until(lambda: "history" in fake.status and fake.status["history"] != [])
        assert (fake.status["history"][0]["outcome"], fake.status.get("operation")) == ("Failed", None)
        await fake.until(lambda: fake.reason("Stalled") == "ImagePullFailed")
        assert len(fake.etcd.running) == 2
        fake.apply(metadataService={**ETCD, "etcd": {"image": "wrong"}}, config={"journalMaxSizeMB": "512"})
        await fake.until(lambda: (fake.status.get("operation") or {}).get("type") == "Rollout")
        fake.apply(metadataService={**ETCD, "etcd": {"image": "right"}})
        await settle(fake)
        assert len(fake.etcd.running) == 3
        assert fake.etcd.violations == []


async def test_an_image_that_cannot_be_pulled_is_mended_before_there_is_a_cluster() -> None:
    async with fake_cluster() as fake:
        fake.controllers.broken_images.add("wrong")
        fake.controllers.no_pods.add(naming.metadata_init(NAME))
        fake.apply(metadataService={**ETCD, "etcd": {"image": "wrong"}})
        for _ in range(20):
            await fake.one_pass()
        assert fake.etcd.running == {}
        fake.apply(metadataService={**ETCD, "etcd": {"image": "right"}})
        await fake.until(lambda: len(fake.etcd.running) == 3)
        fake.controllers.no_pods.clear()
        await settle(fake)
        assert len(fake.etcd.running) == 3
        assert fake.etcd.violations == []


async def test_a_full_etcd_is_told() -> None:
    async with settled_cluster(metadataService=ETCD) as fake:
        fake.etcd.errors[MEMBERS[0]] = ("memberID:1 alarm:NOSPACE ",)
        await fake.one_pass()
        assert (fake.condition("MetadataHealthy"), fake.reason("MetadataHealthy")) == ("False", "MetadataFull")


@pytest.mark.parametrize(("when_deleted", "left"), [("Delete", 0), ("Retain", 3)])
async def test_volumes_of_members_go_with_a_cluster_only_if_that_was_confirmed(when_deleted: str, left: int) -> None:
    storage = {**STORAGE, "retention": {"whenDeleted": when_deleted}}
    async with settled_cluster(metadataService=ETCD, storage=storage) as fake:
        order: list[str] = []
        _note_deleted_claims(fake, order)
        fake.annotate(names.CONFIRM_DELETE, NAME)
        fake.store.delete(CLUSTER, NAMESPACE, NAME)
        await fake.until(lambda: fake.store.find(CLUSTER, NAMESPACE, NAME) is None)
        claims = [each["metadata"] for each in fake.store.list(CLAIM, NAMESPACE)]
        kept = [each["name"] for each in claims if SET in each["name"] and "deletionTimestamp" not in each]
        assert len(kept) == left
        if not left:
            assert [SET in name for name in order] == sorted(SET in name for name in order)


async def test_a_cluster_is_taken_over_with_the_volumes_of_its_members() -> None:
    async with settled_cluster(metadataService=ETCD) as fake:
        before = listed(fake)
        fake.store.delete(CLUSTER, NAMESPACE, NAME)
        await fake.until(lambda: fake.store.find(CLUSTER, NAMESPACE, NAME) is None)
        for each in (*fake.store.list(STATEFUL_SET, NAMESPACE), *fake.store.list(POD, NAMESPACE)):
            resource = STATEFUL_SET if "replicas" in each["spec"] else POD
            if fake.store.find(resource, NAMESPACE, each["metadata"]["name"]) is not None:
                fake.store.delete(resource, NAMESPACE, each["metadata"]["name"])
        fake.apply(metadataService=ETCD, bootstrap={"mode": "Adopt"})
        await settle(fake)
        assert listed(fake) == before
        assert fake.etcd.violations == []


def _annotations(pod: dict[str, Any]) -> dict[str, str]:
    return pod["metadata"].get("annotations") or {}


def _note_deleted_claims(fake: FakeCluster, order: list[str]) -> None:
    delete: Callable[..., Any] = fake.store.delete

    def noted(resource: Any, namespace: str, name: str, *rest: Any, **more: Any) -> Any:
        if resource == CLAIM:
            order.append(name)
        return delete(resource, namespace, name, *rest, **more)

    fake.store.delete = noted  # type: ignore[method-assign]
