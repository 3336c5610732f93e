"""What is done about a BookieJob: tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie_operator.crds.job_spec import ActiveRun, BookieJobStatus, JobPhase, Run, RunOutcome
from bookie_operator.planner.jobs import Removal, Suspension, result_row
from bookie_operator.planner.operations import written
from bookie_operator.world.model import JobWorld, ObjectView, RunState, RunView
from tests.support.job_worlds import FINDINGS, NOW, ROW, after, applied, desired_of, planned, run, told, world
from tests.support.operator_clusters import MINIMAL, cluster
from tests.support.operator_jobs import ONCE, SCHEDULED, job

SUPPORT = ("ConfigMap/weekly-job", "NetworkPolicy/weekly-job")
EXECUTORS = {**SCHEDULED, "executors": {"instances": 2}}


def ended(name: str = "weekly-job", outcome: RunOutcome = RunOutcome.SUCCEEDED, age: float = 60) -> Run:
    return Run(job=name, uid=f"uid-of-{name}", finished_at=written(NOW - age), outcome=outcome)


def active(name: str = "weekly-job") -> ActiveRun:
    return ActiveRun(job=name, uid=f"uid-of-{name}", started_at=written(NOW - 600))


# --- once -------------------------------------------------------------------------------------------------------------


def test_what_runs_once_is_made_after_what_it_needs() -> None:
    plan = planned(world())
    assert plan.apply == (*SUPPORT, "Job/weekly-job")
    assert plan.seconds == 1.0
    assert after(world()).phase is JobPhase.PENDING


def test_only_what_is_missing_is_made() -> None:
    there = {key: view for key, view in applied(job(ONCE)).items() if key.startswith("ConfigMap/")}
    assert planned(world(objects=there)).apply == ("NetworkPolicy/weekly-job", "Job/weekly-job")


def test_it_is_not_made_twice() -> None:
    running = world(runs=[run()], objects=applied(job(ONCE)))
    assert planned(running).apply == ()
    status = after(running)
    assert (status.phase, [each.job for each in status.active]) == (JobPhase.RUNNING, ["weekly-job"])
    assert [event.reason for event in planned(running).events] == ["RunStarted"]
    assert told(status, "Ready") == ("False", "Running")
    assert told(status, "Reconciling")[0] == "True"


def test_a_change_of_what_it_was_made_of_is_told_and_does_nothing() -> None:
    inputs = planned_inputs()
    assert planned(world(runs=[run(inputs=inputs)])).blocker is None
    assert planned(world(runs=[run()])).blocker is None, "an earlier release wrote nothing down"
    plan = planned(world(runs=[run(inputs="other")]))
    assert plan.apply == ()
    assert plan.blocker is not None
    assert (plan.blocker.reason, plan.blocker.stalled) == ("SpecChanged", True)
    without = world(runs=[run(inputs="other")], without_cluster="there is none")
    assert planned(without).blocker is None, "nobody knows what would be made of it now"


def planned_inputs() -> str:
    found = desired_of(job(ONCE)).inputs
    assert found
    return found


def test_nor_after_it_ended_and_its_job_is_gone() -> None:
    status = BookieJobStatus(history=[ended()])
    assert planned(world(status=status)).apply == ()
    assert planned(world(status=status, without_cluster="there is none")).blocker is None
    assert after(world(status=status)).phase is JobPhase.SUCCEEDED


def test_nor_when_its_job_was_deleted_while_it_ran() -> None:
    lost = world(status=BookieJobStatus(active=[active()]))
    plan = planned(lost)
    assert plan.apply == ()
    assert [(each.outcome, each.message) for each in plan.ended] == [
        (RunOutcome.UNKNOWN, "its Job was deleted before anybody had seen how it ended")
    ]
    assert after(lost).phase is JobPhase.FAILED


@pytest.mark.parametrize(
    ("end", "phase", "outcome", "result", "ready"),
    [
        (run(state=RunState.COMPLETE), JobPhase.SUCCEEDED, "Succeeded", {"ledgers": 12}, ("True", "Succeeded")),
        (
            run(state=RunState.FAILED, exit_code=2, told=FINDINGS),
            JobPhase.FINDINGS,
            "Findings",
            {"missing": 3},
            ("True", "Findings"),
        ),
        (run(state=RunState.FAILED, exit_code=2, told="usage: no such option"), JobPhase.FAILED, "Failed", {}, None),
        (run(state=RunState.FAILED), JobPhase.FAILED, "Failed", {}, None),
    ],
    ids=["success", "findings", "usage", "failure"],
)
def test_its_end(end, phase: JobPhase, outcome: str, result: dict, ready: tuple[str, str] | None) -> None:
    over = world(runs=[end], objects=applied(job(ONCE)), status=BookieJobStatus(active=[active()]))
    status = after(over)
    assert (status.phase, status.last_outcome, status.active) == (phase, outcome, [])
    assert result.items() <= status.last_result.items()
    assert told(status, "Ready") == (ready or ("False", "RunFailed"))
    assert told(status, "Complete")[0] == str(phase is not JobPhase.FAILED)
    assert told(status, "Failed")[0] == str(phase is JobPhase.FAILED)
    assert told(status, "Stalled")[0] == str(phase is JobPhase.FAILED)
    assert told(status, "Reconciling")[0] == "False"
    assert told(status, "LastRunSucceeded")[0] == str(phase is JobPhase.SUCCEEDED)
    again = after(world(runs=[end], objects=applied(job(ONCE)), status=status))
    assert again == status, "it is counted once"
    assert len(status.history) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"told": '{"status": "error", "error": "no such ledger"}'}, "no such ledger"),
        ({"told": "a\nb: it broke\n"}, "b: it broke"),
        ({"told": "", "exit_code": 137}, "exit code 137"),
        ({"told": "", "exit_code": None, "message": "it took longer"}, "it took longer"),
        ({"told": "", "exit_code": None}, "its pod was deleted, and with it what it told"),
        ({"told": "half a row: {", "message": "it took longer"}, "it took longer; half a row: {"),
    ],
)
def test_why_a_run_failed(changes: dict, message: str) -> None:
    (over,) = planned(world(runs=[run(state=RunState.FAILED, **changes)])).ended
    assert over.message == message


def test_it_waits_while_it_is_suspended() -> None:
    spec = {**ONCE, "suspend": True}
    assert planned(world(spec)).apply == ()
    status = after(world(spec))
    assert status.phase is JobPhase.SUSPENDED
    assert told(status, "Reconciling")[0] == "False", "nothing is under way, so nobody waits for it"


def test_one_that_runs_is_stopped_and_goes_on() -> None:
    stop = planned(world({**ONCE, "suspend": True}, runs=[run()]))
    assert stop.suspension == Suspension("Job/weekly-job", "uid-of-weekly-job", True)
    stopped = world({**ONCE, "suspend": True}, runs=[run(suspended=True)])
    assert planned(stopped).suspension is None
    assert after(stopped).phase is JobPhase.SUSPENDED
    go_on = planned(world(runs=[run(suspended=True)]))
    assert go_on.suspension == Suspension("Job/weekly-job", "uid-of-weekly-job", False)


def test_a_job_is_removed_after_its_outcome_was_written() -> None:
    old = run(state=RunState.COMPLETE, finished_at=NOW - 86401)
    assert planned(world(runs=[old])).removals == (), "the status that was read does not have it yet"
    kept = world(runs=[replace(old, finished_at=NOW - 86390)], status=BookieJobStatus(history=[ended()]))
    assert planned(kept).removals == ()
    assert planned(kept).seconds == 10.0
    gone = world(runs=[old], status=BookieJobStatus(history=[ended()]))
    assert planned(gone).removals == (Removal("Job/weekly-job", "uid-of-weekly-job"),)
    going = world(runs=[replace(old, deleting=True)], status=BookieJobStatus(history=[ended()]))
    assert planned(going).removals == ()


# --- schedules --------------------------------------------------------------------------------------------------------


def test_a_schedule_is_put_in_place() -> None:
    assert planned(world(SCHEDULED)).apply == (*SUPPORT, "CronJob/weekly-job")
    there = world(SCHEDULED, objects=applied(job(SCHEDULED)))
    plan = planned(there)
    assert (plan.apply, plan.suspension, plan.removals, plan.seconds) == ((), None, (), 30.0)
    status = after(there)
    assert status.phase is JobPhase.SCHEDULED
    assert told(status, "Ready") == ("True", "Scheduled")
    assert told(status, "LastRunSucceeded") == ("Unknown", "NoRunYet")
    assert {each.type for each in status.conditions} == {"Ready", "Reconciling", "Stalled", "LastRunSucceeded"}


def test_a_change_reaches_it() -> None:
    before = applied(job(SCHEDULED))
    changed = {**SCHEDULED, "sparkConf": {"spark.log.level": "INFO"}, "backoffLimit": 0}
    assert planned(world(changed, objects=before)).apply == ("ConfigMap/weekly-job", "CronJob/weekly-job")


def test_a_schedule_that_somebody_stopped_is_put_back() -> None:
    stopped = applied(job(SCHEDULED), suspended=True)
    assert planned(world(SCHEDULED, objects=stopped)).apply == ("CronJob/weekly-job",)


def test_what_executors_needed_goes_with_them() -> None:
    with_service = applied(job(EXECUTORS))
    plan = planned(world(SCHEDULED, objects=with_service))
    assert plan.removals == (Removal("Service/weekly-job", "uid-of-Service/weekly-job"),)
    foreign = {key: replace(view, owner_uid="other") for key, view in with_service.items() if "Service" in key}
    assert planned(world(SCHEDULED, objects=foreign)).removals == ()


def test_runs_of_a_schedule() -> None:
    first, second = run("weekly-job-1", RunState.COMPLETE, finished_at=NOW - 900), run("weekly-job-2", RunState.FAILED)
    third = run("weekly-job-3")
    given = world(SCHEDULED, runs=[first, second, third], objects=applied(job(SCHEDULED)), last_schedule_at=NOW - 600)
    status = after(given)
    assert [(each.job, each.outcome.value) for each in status.history] == [
        ("weekly-job-1", "Succeeded"),
        ("weekly-job-2", "Failed"),
    ]
    assert status.phase is JobPhase.RUNNING
    assert status.last_successful_time == written(NOW - 900)
    assert status.last_schedule_time == written(NOW - 600)
    assert status.last_result["ledgers"] == 12, "the last one that gave a row"
    assert told(status, "Ready")[0] == "True", "a run that failed does not make the schedule unready"
    assert told(status, "LastRunSucceeded") == ("False", "Failed")
    assert [event.reason for event in planned(given).events] == [*["RunStarted"] * 3, "RunSucceeded", "RunFailed"]
    assert planned(replace(given, job=replace(given.job, status=status))).events == ()


def test_a_run_that_was_replaced() -> None:
    spec = {**SCHEDULED, "concurrencyPolicy": "Replace"}
    given = world(spec, status=BookieJobStatus(active=[active("weekly-job-1")]), runs=[run("weekly-job-2")])
    (over,) = planned(given).ended
    assert (over.job, over.message) == (
        "weekly-job-1",
        "its Job was deleted, maybe by the next run, before anybody had seen how it ended",
    )


# --- what stands in the way -------------------------------------------------------------------------------------------

_WAYS = {
    "ClusterNotFound": world(SCHEDULED, without_cluster="there is no BookieCluster demo"),
    "ClusterDeleting": world(SCHEDULED, of=replace(cluster(), deleting=True)),
    "ClusterPaused": world(SCHEDULED, of=cluster(annotations={"podkeeper.dev/paused": "true"})),
    "ClusterNotReady": world(SCHEDULED, of=cluster(instance_id="")),
    "InvalidSpec": world(SCHEDULED, spec_errors=("spec.args[0]: the operator sets it",)),
}


@pytest.mark.parametrize(("reason", "given"), _WAYS.items(), ids=_WAYS)
def test_no_run_begins(reason: str, given: JobWorld) -> None:
    plan = planned(given)
    assert plan.apply == ()
    assert plan.blocker is not None
    assert plan.blocker.reason == reason
    assert [event.reason for event in plan.events] == [reason]
    status = after(given)
    assert (status.phase, told(status, "Ready")) == (JobPhase.PENDING, ("False", reason))
    stalled = reason in ("ClusterDeleting", "InvalidSpec")
    assert told(status, "Stalled")[0] == str(stalled)
    assert told(status, "Reconciling")[0] == str(not stalled)
    assert planned(replace(given, job=replace(given.job, status=status))).events == (), "it is told once"


@pytest.mark.parametrize(("reason", "given"), _WAYS.items(), ids=_WAYS)
def test_a_schedule_rests_meanwhile_and_what_runs_goes_on(reason: str, given: JobWorld) -> None:
    there = replace(given, objects=applied(job(SCHEDULED)), runs=(run("weekly-job-1"),))
    plan = planned(there)
    assert plan.suspension == Suspension("CronJob/weekly-job", "uid-of-CronJob/weekly-job", True)
    assert plan.removals == ()
    assert after(there).phase is JobPhase.RUNNING
    back = world(SCHEDULED, objects=applied(job(SCHEDULED), suspended=True))
    assert planned(back).apply == ("CronJob/weekly-job",)


def test_an_object_of_somebody_else_is_left_alone() -> None:
    key = "ConfigMap/weekly-job"
    for digest, stalled in (("", True), ("older", False)):
        given = world(SCHEDULED, objects={key: ObjectView("uid", digest, "another")})
        plan = planned(given)
        assert (plan.apply, plan.removals) == ((), ())
        assert plan.blocker is not None
        assert (plan.blocker.reason, plan.blocker.stalled) == ("NameTaken", stalled)
    assert (
        "delete it, or give the BookieJob another name"
        in planned(world(SCHEDULED, objects={key: ObjectView("uid", "", "another")})).blocker.message
    )
    assert key in planned(world(SCHEDULED)).apply, "it was deleted"


def test_one_that_goes_is_left_to_the_garbage_collector() -> None:
    given = world(SCHEDULED, objects=applied(job(SCHEDULED)), runs=[run()])
    plan = planned(replace(given, job=replace(given.job, deleting=True)))
    assert (plan.apply, plan.removals, plan.suspension, plan.ended) == ((), (), None, ())


def test_what_the_pods_tell_is_shown() -> None:
    stuck = world(runs=[run(message="driver weekly-job-x: container job: ImagePullBackOff: no such image")])
    status = after(stuck)
    assert "no such image" in next(each.message for each in status.conditions if each.type == "Ready")
    assert "no such image" in status.active[0].message


@pytest.mark.parametrize(
    ("of", "runs", "whole"),
    [
        (ONCE, [run(message="x" * 900)], "Reconciling"),
        (ONCE, [run(state=RunState.FAILED, told="x" * 900)], "Stalled"),
        (ONCE, [run(state=RunState.FAILED, exit_code=2, told=f'{{"error": "{"x" * 900}"}}')], "LastRunSucceeded"),
        (SCHEDULED, [run(state=RunState.FAILED, told="x" * 900)], "LastRunSucceeded"),
    ],
)
def test_one_condition_says_why_in_full(of: dict, runs: list[RunView], whole: str) -> None:
    seen = world(of, runs=runs, objects=applied(job(of)))
    seen = replace(seen, job=replace(seen.job, generation=7))
    status = after(seen)
    assert [each.type for each in status.conditions if len(each.message) > 800] == [whole]
    assert all(each.reason for each in status.conditions)
    assert {each.observed_generation for each in status.conditions} == {status.observed_generation} == {7}
    (ready,) = [each for each in status.conditions if each.type == "Ready"]
    assert len(ready.message) <= 240


def test_a_row_is_the_last_line() -> None:
    noisy = run(state=RunState.COMPLETE, told=f"WARN something\n{ROW}\n")
    assert after(world(runs=[noisy])).last_result == {"job": "audit", "status": "ok", "exit_code": 0, "ledgers": 12}


def test_a_cluster_without_network_policies_has_none_for_jobs() -> None:
    plain = cluster({**MINIMAL, "networkPolicy": {"enabled": False}})
    left = world(SCHEDULED, objects=applied(job(SCHEDULED)), of=plain)
    assert planned(left).removals == (Removal("NetworkPolicy/weekly-job", "uid-of-NetworkPolicy/weekly-job"),)


@pytest.mark.parametrize("last", ["", "no row", "{", '{"a": ' + "[" * 4000, '{"\\ud800', "[]"])
def test_last_words_that_are_no_row_are_none(last: str) -> None:
    """A container says what it likes."""
    assert result_row(f"before\n{last}") is None
