"""Jobs of Spark on the ledgers of a cluster, run by the operator."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
import yaml

from tests.e2e.support.bookie_job import BookieJob
from tests.e2e.support.environment import Environment
from tests.e2e.support.kube import Kube, Object, condition_of
from tests.support.chart_files import CLUSTER

MakeJob = Callable[[str, str], BookieJob]


def sound(job: BookieJob) -> Object:
    """The status after an audit that worked, of ledgers that are sound. Where a bookie was slow its writers went on
    without it: what they did not store there is missing, and no loss."""
    status = job.wait_phase("Succeeded", "Findings", "Failed")
    row = status["lastResult"]
    assert status["phase"] == {"ok": "Succeeded", "findings": "Findings"}[row["status"]], status
    assert status["phase"] == "Succeeded" or row["missing"], row
    for counter in ("lost", "damaged", "divergent", "unknown", "unreachable", "pieces_failed"):
        assert row[counter] == 0, row
    return status


def terminated(pod: Object) -> Object | None:
    """How the only container of a pod ended."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or [{}]
    return (statuses[0].get("state") or {}).get("terminated")


@pytest.fixture
def make_job(kube: Kube, settings: Environment) -> Iterator[MakeJob]:
    """`make_job(name, cluster)`: not applied yet; deleted at the end."""
    made: list[BookieJob] = []

    def make(name: str, cluster: str) -> BookieJob:
        made.append(BookieJob(kube, name, cluster, settings.spark_image))
        return made[-1]

    yield make
    for job in made:
        with contextlib.suppress(AssertionError):
            job.clear()


@pytest.fixture
def spark_account(kube: Kube) -> Iterator[Callable[[str], None]]:
    """`spark_account(cluster)`: the one that the chart makes, with its rules."""
    made: list[tuple[str, str]] = []
    rules = yaml.safe_load((CLUSTER / "files" / "rbac" / "spark-driver.yaml").read_text(encoding="utf-8"))

    def make(cluster: str) -> None:
        name = f"{cluster}-spark"
        group, metadata = "rbac.authorization.k8s.io", {"name": name}
        subject = {"kind": "ServiceAccount", "name": name, "namespace": kube.namespace}
        role = {"apiGroup": group, "kind": "Role", "name": name}
        objects: list[Object] = [
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
            {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": rules},
            {
                "apiVersion": f"{group}/v1",
                "kind": "RoleBinding",
                "metadata": metadata,
                "roleRef": role,
                "subjects": [subject],
            },
        ]
        for each in objects:
            kube.apply(each)
            made.append((each["kind"], name))

    yield make
    for kind, name in reversed(made):
        kube.delete(kind, name)


def test_an_audit_once(make_cluster, make_workload, make_job, kube):
    """Of ledgers that are being written: its counters stand in the status, and it is not run again."""
    cluster = make_cluster()
    cluster.wait_ready(240)
    with make_workload(cluster.name) as workload:
        workload.progress()
        job = make_job("audit-once", cluster.name)
        job.apply("audit", ttlSecondsAfterFinished=15)
        status = sound(job)
        workload.progress()
    assert status["lastResult"]["job"] == "audit"
    assert status["lastResult"]["ledgers"] > 0
    found = kube.get("BookieJob", job.name)
    assert condition_of(found, "Complete")["status"] == "True"
    assert condition_of(found, "Ready")["status"] == "True"
    kube.wait_for("Job", lambda jobs: not jobs, 120, "the Job to be removed", selector=job.selector)
    assert job.status()["history"] == status["history"]
    assert cluster.status()["readyReplicas"] == 3
    assert cluster.status().get("operation") is None


def test_wrong_arguments_are_told(make_cluster, make_job):
    cluster = make_cluster()
    cluster.wait_ready(240)
    job = make_job("audit-wrong", cluster.name)
    job.apply("audit", args=["--no-such-argument"], backoffLimit=0)
    status = job.wait_phase("Failed")
    assert "--no-such-argument" in status["history"][0]["message"]
    assert status["lastOutcome"] == "Failed"


def test_a_schedule_and_its_end(make_cluster, make_job, kube):
    """Runs come every minute; a suspended one rests, and everything goes with the BookieJob."""
    cluster = make_cluster()
    cluster.wait_ready(240)
    job = make_job("audit-often", cluster.name)
    job.apply("replication-check", args=["--placement", "zone-aware", "--dry-run"], schedule="* * * * *")
    runs = job.wait_runs(2, 400)
    assert {run["outcome"] for run in runs} == {"Succeeded"}
    assert len({run["uid"] for run in runs}) == len(runs)
    assert job.status()["lastScheduleTime"]
    job.change(suspend=True)
    status = job.wait_phase("Suspended")
    assert status["active"] == []
    cron_job = kube.get("CronJob", f"{job.name}-job")
    assert cron_job is not None
    assert cron_job["spec"]["suspend"] is True
    kube.delete("BookieJob", job.name)
    job.wait_gone()
    for kind in ("CronJob", "ConfigMap", "NetworkPolicy"):
        kube.wait_gone(kind, f"{job.name}-job", 60)


def test_executors(make_cluster, make_workload, make_job, spark_account, kube):
    """Pods of their own, in a namespace that enforces the restricted standard; the result is the same."""
    cluster = make_cluster()
    cluster.wait_ready(240)
    spark_account(cluster.name)
    with make_workload(cluster.name) as workload:
        workload.progress()
        alone = make_job("audit-alone", cluster.name)
        alone.apply("audit")
        sound(alone)
        job = make_job("audit-many", cluster.name)
        job.apply("audit", executors={"instances": 2, "memory": "1Gi"})
        executors = kube.wait_for(
            "Pod",
            lambda pods: pods if len(pods) == 2 else None,
            180,
            "two executors",
            selector=f"{job.selector},app.kubernetes.io/component=job-executor",
        )
        (driver,) = job.pods()
        for pod in executors.values():
            assert pod["metadata"]["ownerReferences"][0]["uid"] == driver["metadata"]["uid"]
            assert pod["spec"]["automountServiceAccountToken"] is False
        status = sound(job)
    assert status["lastResult"]["ledgers"] >= alone.status()["lastResult"]["ledgers"]
    components = f"{job.selector},app.kubernetes.io/component=job-executor"
    kube.wait_for("Pod", lambda pods: not pods, 120, "the end of the executors", selector=components)


def test_a_deleted_pod_ends_in_good_order(make_cluster, make_workload, make_job, kube):
    """The job hears of it, and says so, long before it would be killed."""
    cluster = make_cluster()
    cluster.wait_ready(240)
    with make_workload(cluster.name) as workload:
        workload.progress()
        job = make_job("scrub-slowly", cluster.name)
        job.apply("scrub", args=["--max-bytes-per-second", "1k"], backoffLimit=0)
        name = job.wait_log("Spark log level")
        kube.delete("Pod", name)
        ended = kube.wait_for("Pod", lambda pods: terminated(pods.get(name, {})), 120, "the job's end", name=name)
        assert ended["exitCode"] == 143
        assert '"status": "interrupted"' in ended["message"]
        (run,) = job.wait_runs(1)
        assert run["outcome"] == "Failed"
        assert run["message"]
        workload.progress()


def test_an_account_that_is_missing_is_told(make_cluster, make_job):
    cluster = make_cluster()
    cluster.wait_ready(240)
    job = make_job("audit-homeless", cluster.name)
    job.apply("audit", executors={"instances": 1, "serviceAccountName": "nobody-made-it"})
    job.wait_phase("Running")

    def told(jobs: dict[str, Object]) -> bool:
        return "nobody-made-it" in condition_of(jobs[job.name], "Ready").get("message", "")

    job.kube.wait_for("BookieJob", told, 120, "what keeps it from beginning", name=job.name)


def test_a_job_waits_for_its_cluster(make_cluster, make_job):
    job = make_job("audit-early", "e2e-later")
    job.apply("space")
    job.wait_phase("Pending")
    assert condition_of({"status": job.status()}, "Ready")["reason"] == "ClusterNotFound"
    make_cluster(name="e2e-later").wait_ready(240)
    status = job.wait_phase("Succeeded", "Findings", "Failed")
    assert (status["phase"], status["lastResult"]["bookies_not_told"]) == ("Succeeded", 0)
