"""What the API server refuses of a BookieJob, and what it takes. A part of `admission_cases`."""

from __future__ import annotations

from typing import Any

from tests.support.admission_case import Case, Object


def _spec(**changes: Any) -> Object:
    return {"spec": changes}


def _job(name: str, changes: Object, message: str, before: Object | None = None) -> Case:
    return Case(name, changes, message, before, kind="BookieJob")


JOBS_CREATED = (
    _job("job-long-name", {"metadata": {"name": "a" * 41}}, "at most 40 characters, because names of pods are made"),
    _job("job-dotted-name", {"metadata": {"name": "a.b"}}, "because a Service is named after it; choose another name"),
    _job("job-kind", _spec(kind="dance"), "Unsupported value"),
    _job("job-without-cluster", _spec(clusterRef=None), "spec.clusterRef: Required value"),
    _job("job-schedule", _spec(schedule="every day"), "must be five fields as in a CronJob"),
    _job("job-schedule-with-zone", _spec(schedule="TZ=UTC 0 3 * * *"), "must be five fields as in a CronJob"),
    _job("job-time-zone", _spec(timeZone="here and now"), "must be a name of the time zone database"),
    _job(
        "job-argument", _spec(args=["--dry-run", "--master=yarn"]), "the operator sets --metadata, --result, --master"
    ),
    _job(
        "job-password", _spec(args=["--password_file", "/x"]), "clusterRef, executors and passwordSecret are for that"
    ),
    _job("job-spark-key", _spec(sparkConf={"hadoop.a": "b"}), "keys begin with spark., such as spark.sql.shuffle"),
    _job(
        "job-own-spark-key",
        _spec(sparkConf={"spark.sql.shuffle.partitions": "4", "spark.master": "yarn"}),
        " itself: remove it; docs/bookiejob.md tells what to use instead",
    ),
    _job("job-executor-memory", _spec(executors={"memory": "512Mi"}), "at least 1Gi: for example 4Gi"),
    _job("job-executor-memory-words", _spec(executors={"memory": "much"}), "spec.executors.memory: Invalid value"),
    _job("job-history", _spec(failedJobsHistoryLimit=0), "spec.failedJobsHistoryLimit"),
)
JOBS_CHANGED = (
    _job("job-of-another-cluster", _spec(clusterRef={"name": "other"}), "for another cluster", before={}),
    _job("job-of-another-kind", _spec(kind="scrub"), "for another kind of job", before=_spec(schedule="@daily")),
    _job("job-scheduled", _spec(schedule="@daily"), "cannot get a schedule, nor lose one", before={}),
    _job("job-unscheduled", _spec(), "cannot get a schedule, nor lose one", before=_spec(schedule="@daily")),
    _job("job-arguments", _spec(args=["--dry-run"]), "a job that runs once cannot be changed", before={}),
    *(
        _job(f"job-{field}", _spec(**{field: value}), "a job that runs once cannot be changed", before={})
        for field, value in (
            ("activeDeadlineSeconds", 60),
            ("passwordSecret", {"name": "ledgers"}),
            ("nodeSelector", {"disk": "fast"}),
            ("priorityClassName", "batch"),
        )
    ),
    _job("job-executors", _spec(executors={"instances": 2}), "a job that runs once cannot be changed", before={}),
)
JOBS_ALLOWED = (
    _job("job-suspended", _spec(suspend=True, ttlSecondsAfterFinished=60), "", before={}),
    _job(
        "job-rescheduled",
        _spec(schedule="*/5 1-3,7 * jan-MAR 0", args=["--where", "bytes > 1e9"], executors={"instances": 3}),
        "",
        before=_spec(schedule="@daily"),
    ),
)
