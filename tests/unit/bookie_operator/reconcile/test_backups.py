"""Backups of the metadata on a schedule: what makes them, what is told of them, and what outlives them."""

from __future__ import annotations

from typing import Any

import pytest

from bookie_operator.api.kinds import CLAIM, CLUSTER, CRON_JOB, DEPLOYMENT, JOB, STATEFUL_SET
from bookie_operator.crds import names
from bookie_operator.crds.cron import next_time
from bookie_operator.status.conditions import FALSE, TRUE, UNKNOWN
from tests.support.fake_kubernetes.cluster import NAME, NAMESPACE, FakeCluster, fake_cluster, settled_cluster

BACKUP = {"schedule": "0 * * * *"}
OBJECT = f"{NAME}-backup"
CONDITION = "MetadataBackedUp"


def told(fake: FakeCluster) -> tuple[str, str]:
    return fake.condition(CONDITION), fake.reason(CONDITION)


def backup(fake: FakeCluster) -> dict[str, Any]:
    return dict(fake.status["backup"])


def cron_job(fake: FakeCluster) -> dict[str, Any]:
    return fake.store.get(CRON_JOB, NAMESPACE, OBJECT)


async def run(fake: FakeCluster) -> str:
    """A backup is due, and a pass sees what came of it; the name of its Job."""
    fake.time += 3600
    job = fake.controllers.fire(NAMESPACE, OBJECT)
    fake.run_controllers()
    await fake.one_pass()
    return job


@pytest.mark.parametrize("metadata", [{"uri": "zk://zk:2181"}, {"type": "Etcd"}, {"type": "Embedded"}])
async def test_a_cluster_is_made_with_backups(metadata: dict[str, str]) -> None:
    async with fake_cluster() as fake:
        fake.apply(metadataService={"uri": "", **metadata}, backup=BACKUP)
        await fake.until(lambda: fake.store.find(CRON_JOB, NAMESPACE, OBJECT) is not None)
        assert fake.status["instanceId"]
        await fake.settle()
        claim = fake.store.get(CLAIM, NAMESPACE, OBJECT)
        assert claim["metadata"].get("ownerReferences") in (None, [])
        assert told(fake) == (UNKNOWN, "NoBackupYet")
        await run(fake)
        assert told(fake) == (TRUE, "BackedUp")
        assert (backup(fake)["lastFile"], backup(fake)["lastLedgers"]) == ("/backups/metadata-x", 6)
        assert fake.condition("Ready") == TRUE


async def test_what_failed_is_told_with_its_reason_and_holds_up_nothing() -> None:
    async with settled_cluster(backup=BACKUP) as fake:
        await run(fake)
        first = backup(fake)
        fake.controllers.backup_ends = (1, "bookie: /backups/x: No space left on device")
        await run(fake)
        assert told(fake) == (FALSE, "BackupFailed")
        assert "No space left" in backup(fake)["lastFailureMessage"]
        kept = {key: backup(fake)[key] for key in ("lastSuccessfulTime", "lastFile", "lastLedgers")}
        assert kept == {key: first[key] for key in kept}
        assert (fake.condition("Ready"), fake.condition("Stalled")) == (TRUE, FALSE)
        fake.controllers.backup_ends = (0, "7 /backups/metadata-y")
        await run(fake)
        assert told(fake) == (TRUE, "BackedUp")
        assert backup(fake)["lastFailureTime"] < backup(fake)["lastSuccessfulTime"]


async def test_what_was_told_outlives_the_job_of_the_run() -> None:
    async with settled_cluster(backup=BACKUP) as fake:
        job = await run(fake)
        before = backup(fake)
        fake.store.delete(JOB, NAMESPACE, job)
        await fake.one_pass()
        assert backup(fake) == before
        assert told(fake) == (TRUE, "BackedUp")


async def test_the_next_one_follows_from_the_last_one_and_a_pass_without_news_writes_nothing() -> None:
    async with settled_cluster(backup=BACKUP) as fake:
        due = backup(fake)["nextScheduleTime"]
        await run(fake)
        assert backup(fake)["nextScheduleTime"] > due
        version = fake.resource["metadata"]["resourceVersion"]
        fake.time += 7200
        await fake.one_pass()
        assert fake.resource["metadata"]["resourceVersion"] == version
        at = fake.measured("backup_next_timestamp_seconds", cluster=NAME)
        last = cron_job(fake)["status"]["lastScheduleTime"]
        assert at < fake.time  # it is overdue
        assert at == next_time("0 * * * *", "Etc/UTC", _seconds(last))
        assert fake.measured("backup_last_success_timestamp_seconds", cluster=NAME) > 0


async def test_a_run_that_does_not_begin_is_neither_good_nor_bad() -> None:
    async with settled_cluster(backup=BACKUP) as fake:
        fake.controllers.backup_ends = None
        await run(fake)
        assert told(fake) == (UNKNOWN, "NoBackupYet")


async def test_a_suspended_one_is_told_so_and_has_no_next_time() -> None:
    async with settled_cluster(backup=BACKUP) as fake:
        await run(fake)
        fake.apply(backup={**BACKUP, "suspend": True})
        await fake.one_pass()
        await fake.settle()
        assert cron_job(fake)["spec"]["suspend"] is True
        assert told(fake) == (TRUE, "Suspended")
        assert not backup(fake).get("nextScheduleTime")


async def test_without_backups_any_more_the_files_stay() -> None:
    async with settled_cluster(backup=BACKUP) as fake:
        await run(fake)
        fake.apply(backup=None)
        await fake.until(lambda: fake.store.find(CRON_JOB, NAMESPACE, OBJECT) is None)
        assert fake.store.find(CLAIM, NAMESPACE, OBJECT) is not None
        assert fake.condition(CONDITION) == ""
        assert "backup" not in fake.status
        assert fake.measured("backup_last_success_timestamp_seconds", cluster=NAME) == 0


async def test_a_claim_of_the_user_is_used_and_none_is_made() -> None:
    async with settled_cluster(backup={**BACKUP, "claimName": "mine"}) as fake:
        assert fake.store.find(CLAIM, NAMESPACE, OBJECT) is None
        volumes = cron_job(fake)["spec"]["jobTemplate"]["spec"]["template"]["spec"]["volumes"]
        assert {"claimName": "mine"} in [each.get("persistentVolumeClaim") for each in volumes]


async def test_the_claim_is_made_once_and_never_changed() -> None:
    async with settled_cluster(backup=BACKUP) as fake:
        patch = {"spec": {"resources": {"requests": {"storage": "5Gi"}}}}
        fake.store.patch(CLAIM, NAMESPACE, OBJECT, patch)
        fake.apply(backup={**BACKUP, "size": "3Gi", "keep": 2})
        await fake.until(lambda: "2" in _command(cron_job(fake)))
        await fake.settle()
        size = fake.store.get(CLAIM, NAMESPACE, OBJECT)["spec"]["resources"]["requests"]["storage"]
        assert size == "5Gi"


async def test_a_claim_of_this_name_that_is_not_the_clusters_is_left_alone() -> None:
    async with settled_cluster() as fake:
        body = {"metadata": {"name": OBJECT}, "spec": {"resources": {"requests": {"storage": "1Gi"}}}}
        fake.store.create(CLAIM, NAMESPACE, body)
        fake.apply(backup=BACKUP)
        await fake.until(lambda: fake.reason("Stalled") == "NameTaken")
        assert fake.store.find(CRON_JOB, NAMESPACE, OBJECT) is None, "backups would go to a volume of somebody else"
        assert told(fake) == (UNKNOWN, "NotScheduled")
        assert "ownerReferences" not in fake.store.get(CLAIM, NAMESPACE, OBJECT)["metadata"]
        assert fake.store.get(CLAIM, NAMESPACE, OBJECT)["metadata"].get("labels") in (None, {})


async def test_no_backup_runs_while_the_metadata_are_removed() -> None:
    storage = {"journal": {"size": "10Gi"}, "ledger": {"size": "100Gi"}, "retention": {"whenDeleted": "Delete"}}
    async with settled_cluster(storage=storage, backup=BACKUP) as fake:
        fake.controllers.backup_ends = None
        job = await run(fake)
        fake.store.patch(JOB, NAMESPACE, job, {"metadata": {"finalizers": ["a/controller"]}})
        fake.annotate(names.CONFIRM_DELETE, NAME)
        fake.store.delete(CLUSTER, NAMESPACE, NAME)

        def removed() -> bool:
            return fake.store.find(JOB, NAMESPACE, f"{NAME}-metadata-destroy") is not None

        await fake.until(lambda: removed() or fake.store.find(CRON_JOB, NAMESPACE, OBJECT) is None)
        for _ in range(5):
            fake.run_controllers()
            await fake.one_pass()
            assert not removed()
        fake.store.patch(JOB, NAMESPACE, job, {"metadata": {"finalizers": []}})
        await fake.until(lambda: fake.store.find(CLUSTER, NAMESPACE, NAME) is None)


async def test_a_cron_job_that_something_keeps_delays_a_deletion_by_two_minutes() -> None:
    storage = {"journal": {"size": "10Gi"}, "ledger": {"size": "100Gi"}, "retention": {"whenDeleted": "Delete"}}
    async with settled_cluster(storage=storage, backup=BACKUP) as fake:
        fake.store.patch(CRON_JOB, NAMESPACE, OBJECT, {"metadata": {"finalizers": ["a/controller"]}})
        fake.annotate(names.CONFIRM_DELETE, NAME)
        fake.store.delete(CLUSTER, NAMESPACE, NAME)
        await fake.until(lambda: (fake.status.get("operation") or {}).get("step") == "StopBackups")
        assert "deletionTimestamp" not in fake.store.get(CRON_JOB, NAMESPACE, OBJECT)["metadata"]
        fake.time += 120  # the operator was away
        for _ in range(5):
            await fake.one_pass()
        assert "deletionTimestamp" in fake.store.get(CRON_JOB, NAMESPACE, OBJECT)["metadata"]
        assert fake.status["operation"]["step"] == "StopBackups"
        fake.time += 120
        await fake.until(lambda: fake.store.find(CLUSTER, NAMESPACE, NAME) is None)


async def test_a_cron_job_without_an_owner_is_not_the_clusters_whatever_its_labels_say() -> None:
    async with settled_cluster() as fake:
        labels = {names.NAME: "podkeeper", names.INSTANCE: NAME, names.MANAGED_BY: "podkeeper-operator"}
        spec = {"schedule": "@daily", "suspend": True, "jobTemplate": {"spec": {"template": {"spec": {}}}}}
        fake.store.create(CRON_JOB, NAMESPACE, {"metadata": {"name": OBJECT, "labels": labels}, "spec": spec})
        fake.apply(backup=BACKUP)
        await fake.until(lambda: fake.reason("Stalled") == "NameTaken")
        assert "ownerReferences" not in cron_job(fake)["metadata"]


@pytest.mark.parametrize("when_deleted", ["Retain", "Delete"])
async def test_backups_outlive_the_cluster_and_serve_the_next_one(when_deleted: str) -> None:
    storage = {"journal": {"size": "10Gi"}, "ledger": {"size": "100Gi"}, "retention": {"whenDeleted": when_deleted}}
    async with settled_cluster(storage=storage, backup=BACKUP) as fake:
        uid = fake.store.get(CLAIM, NAMESPACE, OBJECT)["metadata"]["uid"]
        fake.annotate(names.CONFIRM_DELETE, NAME)
        fake.store.delete(CLUSTER, NAMESPACE, NAME)
        await fake.until(lambda: fake.store.find(CLUSTER, NAMESPACE, NAME) is None)
        found = fake.store.get(CLAIM, NAMESPACE, OBJECT)["metadata"]
        assert (found["uid"], "deletionTimestamp" in found) == (uid, False)
        if when_deleted == "Delete":
            fake.bookkeeper.instance_id = ""  # as its Job has left it
            fake.bookkeeper.cookies.clear()
            fake.bookkeeper.ledgers.clear()
            fake.apply(backup=BACKUP)
            await fake.settle()
            assert fake.store.get(CLAIM, NAMESPACE, OBJECT)["metadata"]["uid"] == uid


async def test_backups_are_asked_for_while_an_operation_waits() -> None:
    async with settled_cluster(replicas=4) as fake:
        fake.fill(6, 4)
        fake.bookkeeper.work = lambda: None  # type: ignore[method-assign]
        fake.apply(replicas=3)
        await fake.until(lambda: bool(fake.bookkeeper.drains))
        fake.apply(replicas=3, backup=BACKUP)
        await fake.until(lambda: fake.store.find(CRON_JOB, NAMESPACE, OBJECT) is not None)
        assert fake.status["operation"]["type"] == "Decommission"


async def test_one_that_was_changed_by_hand_is_put_back() -> None:
    async with settled_cluster(backup=BACKUP) as fake:
        fake.store.patch(CRON_JOB, NAMESPACE, OBJECT, {"spec": {"suspend": True}})
        await fake.until(lambda: cron_job(fake)["spec"]["suspend"] is False)


async def test_what_was_stopped_for_a_restore_begins_again_once_the_pause_ends() -> None:
    """As docs/back-up.md says."""
    async with settled_cluster(backup=BACKUP, gateway={"enabled": True}) as fake:
        fake.annotate(names.PAUSED, "true")
        await fake.one_pass()
        fake.store.patch(CRON_JOB, NAMESPACE, OBJECT, {"spec": {"suspend": True}})
        stopped = {STATEFUL_SET: ("bookie",), DEPLOYMENT: ("autorecovery", "gateway")}
        for resource, parts in stopped.items():
            for part in parts:
                fake.store.patch(resource, NAMESPACE, f"{NAME}-{part}", {"spec": {"replicas": 0}})
        for _ in range(3):
            fake.run_controllers()
            await fake.one_pass()
        assert [fake.pods(part) for part in ("bookie", "autorecovery", "gateway")] == [[], [], []]
        assert cron_job(fake)["spec"]["suspend"] is True
        fake.annotate(names.PAUSED, None)
        await fake.settle()
        assert len(fake.pods()) == 3
        assert fake.pods("autorecovery")
        assert fake.pods("gateway")
        assert cron_job(fake)["spec"]["suspend"] is False


def _command(cron: dict[str, Any]) -> list[str]:
    pod = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    return list(pod["containers"][0]["command"])


def _seconds(text: str) -> float:
    from bookie_operator.observe.times import seconds

    found = seconds(text)
    assert found is not None
    return found
