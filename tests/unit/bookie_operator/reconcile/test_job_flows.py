"""BookieJobs against an API server and controllers in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bookie_operator.api.errors import KubernetesError
from bookie_operator.api.kinds import BOOKIE_JOB, CLUSTER, CONFIG_MAP, CRON_JOB, JOB, NETWORK_POLICY, POD, SERVICE
from bookie_operator.crds.job_spec import BookieJobStatus
from bookie_operator.planner.operations import read_time
from bookie_operator.reconcile.carrying_out import NotLeading
from bookie_operator.reconcile.job_passing import run_job_pass
from tests.support.fake_kubernetes.cluster import NAME, NAMESPACE, fake_cluster, settled_cluster
from tests.support.fake_kubernetes.faults import Fault
from tests.support.fake_kubernetes.jobs import FakeJobs
from tests.support.fake_kubernetes.statuses import judge_status
from tests.support.fake_kubernetes.store import Refused

ROW = '{"job": "audit", "status": "ok", "exit_code": 0, "ledgers": 12}'
FINDINGS = '{"job": "audit", "status": "findings", "exit_code": 2, "missing": 3}'


@asynccontextmanager
async def ready_for_jobs(name: str = "weekly", operators: int = 1) -> AsyncIterator[FakeJobs]:
    """Over a cluster that is ready."""
    async with settled_cluster(operators) as fake:
        yield FakeJobs(fake, name)


async def test_a_job_runs_once() -> None:
    async with ready_for_jobs() as jobs:
        jobs.apply(args=["--dry-run"])
        await jobs.until(lambda: jobs.phase == "Running")
        assert jobs.jobs() == ["weekly-job"]
        (pod,) = [
            each for each in jobs.fake.store.list(POD, NAMESPACE) if "podkeeper.dev/job" in each["metadata"]["labels"]
        ]
        assert "--dry-run" in pod["spec"]["containers"][0]["args"]
        assert jobs.condition("Ready") == ("False", "Running")
        jobs.ends(0, f"some words\n{ROW}\n")
        await jobs.until(lambda: jobs.phase == "Succeeded")
        assert jobs.status["lastResult"]["ledgers"] == 12
        assert jobs.condition("Complete") == ("True", "Succeeded")
        assert jobs.status["active"] == []
        assert sorted(jobs.events()) == ["RunStarted", "RunSucceeded"]
        BookieJobStatus.model_validate(jobs.status)


@pytest.mark.parametrize(
    "change",
    [
        {"resources": {"requests": {"memory": "1Gi"}}},
        {"env": [{"name": "A", "value": "b"}]},
        {"tolerations": [{"operator": "Exists"}]},
        {"affinity": {"podAffinity": {}}},
        {"volumes": [{"name": "jars", "emptyDir": {}}]},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_a_change_that_one_run_does_not_follow_is_told(change: dict[str, Any]) -> None:
    """What Kubernetes' own shape is handed through for no rule of the API server sees into."""
    async with ready_for_jobs() as jobs:
        jobs.apply()
        await jobs.until(lambda: jobs.phase == "Running")
        jobs.apply(**change)
        await jobs.until(lambda: jobs.condition("Stalled") == ("True", "SpecChanged"))
        assert jobs.condition("Ready") == ("False", "SpecChanged")
        assert jobs.jobs() == ["weekly-job"], "it goes on as it was"
        (key,) = change
        jobs.apply(**{key: None})
        await jobs.until(lambda: jobs.condition("Stalled")[0] == "False")
        jobs.apply(suspend=True, ttlSecondsAfterFinished=60)
        await jobs.until(lambda: jobs.phase == "Suspended")
        assert jobs.condition("Stalled")[0] == "False"


async def test_its_pods_go_after_a_while_and_it_stays() -> None:
    async with ready_for_jobs() as jobs:
        jobs.apply(ttlSecondsAfterFinished=100)
        jobs.ends(0, ROW)
        await jobs.until(lambda: jobs.phase == "Succeeded")
        finished = read_time(jobs.status["history"][0]["finishedAt"])
        await jobs.until(lambda: not jobs.jobs())
        assert 100 <= jobs.fake.time - finished <= 135
        assert not [each for each in jobs.fake.store.list(POD, NAMESPACE) if "weekly" in each["metadata"]["name"]]
        for _ in range(20):
            await jobs.one_pass()
        assert jobs.jobs() == [], "it runs once"
        assert jobs.phase == "Succeeded"


async def test_findings_are_no_failure() -> None:
    async with ready_for_jobs() as jobs:
        jobs.apply()
        jobs.ends(2, FINDINGS)
        await jobs.until(lambda: jobs.phase == "Findings")
        assert jobs.condition("Complete") == ("True", "Findings")
        assert jobs.condition("LastRunSucceeded") == ("False", "Findings")
        assert jobs.status["lastResult"]["missing"] == 3
        assert "RunFoundSomething" in jobs.events()


async def test_a_schedule_makes_runs_which_are_counted_once() -> None:
    async with ready_for_jobs() as jobs:
        jobs.apply(schedule="0 3 * * 0", timeZone="Europe/Berlin")
        await jobs.until(lambda: jobs.phase == "Scheduled")
        assert jobs.condition("Ready") == ("True", "Scheduled")
        assert jobs.jobs() == []
        first = jobs.fire()
        await jobs.until(lambda: jobs.phase == "Running")
        jobs.ends(1, "Traceback\nit broke")
        await jobs.until(lambda: jobs.phase == "Scheduled")
        jobs.fake.controllers.ends[jobs.name] = (0, ROW)
        second = jobs.fire()
        jobs.fake.run_controllers()
        await jobs.until(lambda: len(jobs.status["history"]) == 2)
        assert [(each["job"], each["outcome"]) for each in jobs.status["history"]] == [
            (first, "Failed"),
            (second, "Succeeded"),
        ]
        assert jobs.status["history"][0]["message"] == "it broke"
        assert jobs.status["lastScheduleTime"]
        assert sorted(jobs.events()) == ["RunFailed", "RunStarted", "RunStarted", "RunSucceeded"]
        metrics = jobs.fake.operators[0].metrics.render().decode()
        assert f'job_runs_total{{job="{jobs.name}",kind="audit",namespace="storage",outcome="Failed"}} 1.0' in metrics
        assert 'job_last_outcome{job="weekly",kind="audit",namespace="storage",outcome="Succeeded"} 1.0' in metrics


async def test_nothing_is_written_at_rest() -> None:
    async with ready_for_jobs() as jobs:
        jobs.apply(schedule="@daily", executors={"instances": 2})
        await jobs.until(lambda: jobs.phase == "Scheduled")
        before = len(jobs.fake.server.writes())
        for _ in range(20):
            assert await jobs.one_pass() == 30.0
        assert jobs.fake.server.writes()[before:] == []


async def test_a_change_of_the_schedule_and_of_executors() -> None:
    async with ready_for_jobs() as jobs:
        jobs.apply(schedule="@daily", executors={"instances": 2})
        await jobs.until(lambda: jobs.phase == "Scheduled")
        assert jobs.fake.store.find(SERVICE, NAMESPACE, "weekly-job") is not None
        jobs.apply(schedule="@hourly", executors={"instances": 0})
        await jobs.until(lambda: jobs.fake.store.find(SERVICE, NAMESPACE, "weekly-job") is None)
        found = jobs.cron_job()
        assert found is not None
        assert found["spec"]["schedule"] == "@hourly"
        assert "completionMode" not in found["spec"]["jobTemplate"]["spec"]


async def test_it_waits_for_its_cluster() -> None:
    async with fake_cluster() as fake:
        jobs = FakeJobs(fake)
        jobs.apply()
        await jobs.one_pass()
        assert jobs.condition("Ready") == ("False", "ClusterNotFound")
        fake.apply()
        await jobs.one_pass()
        assert jobs.condition("Ready") == ("False", "ClusterNotReady")
        assert jobs.jobs() == []
        await fake.settle()
        await jobs.until(lambda: jobs.phase == "Running")
        assert jobs.events().count("ClusterNotFound") == 1


async def test_a_paused_cluster_and_one_that_is_gone_hold_the_schedule() -> None:
    async with ready_for_jobs() as jobs:
        jobs.apply(schedule="@daily")
        await jobs.until(lambda: jobs.phase == "Scheduled")
        jobs.fake.annotate("podkeeper.dev/paused", "true")
        await jobs.until(lambda: jobs.fire() == "")
        assert jobs.condition("Ready") == ("False", "ClusterPaused")
        jobs.fake.annotate("podkeeper.dev/paused", None)
        await jobs.until(lambda: jobs.condition("Ready")[0] == "True")
        assert jobs.fire() != ""
        jobs.fake.store.patch(CLUSTER, NAMESPACE, NAME, {"metadata": {"finalizers": []}})
        jobs.fake.store.delete(CLUSTER, NAMESPACE, NAME)
        await jobs.until(lambda: jobs.fire() == "")
        assert jobs.condition("Ready") == ("False", "ClusterNotFound")


async def test_suspended_and_resumed() -> None:
    async with ready_for_jobs() as jobs:
        jobs.apply(suspend=True)
        await jobs.one_pass()
        assert (jobs.phase, jobs.jobs()) == ("Suspended", [])
        jobs.apply(suspend=False)
        await jobs.until(lambda: jobs.phase == "Running")
        jobs.apply(suspend=True)
        await jobs.until(lambda: jobs.phase == "Suspended")
        assert jobs.fake.store.get(JOB, NAMESPACE, "weekly-job")["spec"]["suspend"] is True
        jobs.apply(suspend=False)
        await jobs.until(lambda: jobs.phase == "Running")


async def test_everything_goes_with_it() -> None:
    async with ready_for_jobs() as jobs:
        jobs.apply(schedule="@daily", executors={"instances": 2})
        await jobs.until(lambda: jobs.phase == "Scheduled")
        jobs.fire()
        await jobs.until(lambda: jobs.phase == "Running")
        jobs.delete()
        assert await jobs.one_pass() is None
        for kind in (CONFIG_MAP, SERVICE, NETWORK_POLICY, CRON_JOB, JOB, POD):
            assert not [
                each for each in jobs.fake.store.list(kind, NAMESPACE) if "weekly" in each["metadata"]["name"]
            ], kind
        assert 'job="weekly"' not in jobs.fake.operators[0].metrics.render().decode()


async def test_passes_over_the_cluster_do_not_see_it() -> None:
    """Also when it is called as its cluster is: neither left-overs nor bookies are its objects and pods."""
    async with ready_for_jobs(NAME) as jobs:
        jobs.apply(schedule="@daily", executors={"instances": 1})
        await jobs.until(lambda: jobs.phase == "Scheduled")
        jobs.fire()
        await jobs.until(lambda: jobs.phase == "Running")
        before = len(jobs.fake.server.writes())
        for _ in range(5):
            await jobs.fake.one_pass()
        assert jobs.fake.condition("Ready") == "True"
        assert jobs.fake.server.writes()[before:] == []


async def test_somebody_elses_object_is_left_alone() -> None:
    async with ready_for_jobs() as jobs:
        theirs = {"metadata": {"name": "weekly-job"}, "data": {"a": "b"}}
        jobs.fake.store.create(CONFIG_MAP, NAMESPACE, theirs)
        jobs.apply()
        await jobs.one_pass()
        assert jobs.condition("Stalled") == ("True", "NameTaken")
        assert jobs.fake.store.get(CONFIG_MAP, NAMESPACE, "weekly-job")["data"] == {"a": "b"}
        jobs.fake.store.delete(CONFIG_MAP, NAMESPACE, "weekly-job")
        await jobs.until(lambda: jobs.phase == "Running")


async def test_what_kubernetes_refuses_is_told() -> None:
    async with ready_for_jobs() as jobs:

        def judge(resource: object, new: object, old: object) -> None:
            if resource is JOB:
                raise Refused(422, "Invalid", "spec.template.spec.containers[0].resources: must be an amount")

        jobs.fake.store.admission.append(judge)
        jobs.apply(resources={"limits": {"cpu": "much"}})
        assert await jobs.one_pass() == 30.0
        assert jobs.condition("Stalled") == ("True", "Refused")
        assert "must be an amount" in str(jobs.status["conditions"])
        jobs.fake.store.admission.remove(judge)
        await jobs.until(lambda: jobs.phase == "Running")


@pytest.mark.parametrize("done", [False, True])
async def test_an_answer_that_is_lost_makes_no_second_run(done: bool) -> None:
    async with ready_for_jobs() as jobs:
        jobs.apply()
        jobs.fake.server.faults.append(Fault("PATCH .*/jobs/weekly-job", status=500, done=done))
        with pytest.raises(KubernetesError):
            await jobs.one_pass()
        await jobs.until(lambda: jobs.phase == "Running")
        assert jobs.jobs() == ["weekly-job"]


async def test_a_spec_that_cannot_be_read_is_told() -> None:
    async with fake_cluster() as fake:
        fake.apply()
        jobs = FakeJobs(fake)
        jobs.apply(kinds="audit")
        assert await jobs.one_pass() == 60.0
        assert jobs.condition("Stalled") == ("True", "InvalidSpec")
        assert "did you mean kind?" in str(jobs.status["conditions"])
        assert jobs.events() == ["InvalidSpec"]


async def test_a_status_of_a_newer_operator_is_left_alone() -> None:
    async with ready_for_jobs() as jobs:
        jobs.apply()
        jobs.fake.store.admission.remove(judge_status)  # its definition is newer, too
        newer = {"metadata": {"resourceVersion": ""}, "status": {"phase": "Elsewhere"}}
        jobs.fake.store.replace(BOOKIE_JOB, NAMESPACE, jobs.name, newer, "status")
        before = len(jobs.fake.server.writes())
        assert await jobs.one_pass() == 60.0
        assert jobs.fake.server.writes()[before:] == []


async def test_who_does_not_lead_writes_nothing() -> None:
    async with ready_for_jobs() as jobs:
        jobs.apply()
        before = len(jobs.fake.server.writes())
        jobs.fake.operators[0].leading = lambda: False
        with pytest.raises(NotLeading):
            await jobs.one_pass()
        assert jobs.fake.server.writes()[before:] == []


async def test_two_operators_make_one_run() -> None:
    """Another one that still believes that it leads."""
    async with ready_for_jobs(operators=2) as jobs:
        jobs.apply()
        passes = (run_job_pass(operator, jobs.name, NAMESPACE) for operator in jobs.fake.operators)
        await asyncio.gather(*passes)
        assert jobs.jobs() == ["weekly-job"]
        jobs.ends(0, ROW)
        await asyncio.gather(*(run_job_pass(operator, jobs.name, NAMESPACE) for operator in jobs.fake.operators))
        await jobs.until(lambda: jobs.phase == "Succeeded")
        assert len(jobs.status["history"]) == 1
