"""Rules of a `BookieJob`, which the API server judges before it stores one: see `rules`.

Invariants
- A job that runs once is its own record: what was asked for does not change after it was asked for.
- What the operator sets for Spark and for the job cannot be given; the names stand here once, for the rules and for
  the validation in the loop.

Threads: values, any thread.
"""

from __future__ import annotations

from typing import Final

from bookie_operator.crds.rules import MAX_NAME, NAME_PATTERN, Rule

OWN_ARGUMENT_PATTERN: Final = "^--(metadata|result|master|password[-_]file)(=.*)?$"
SCHEDULE_PATTERN: Final = (
    "^(@(yearly|annually|monthly|weekly|daily|midnight|hourly)|[0-9A-Za-z*/,?-]+( +[0-9A-Za-z*/,?-]+){4})$"
)
TIME_ZONE_PATTERN: Final = "^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$"
SMALLEST_EXECUTOR: Final = "1Gi"
"""Of half of it Java needs 450 MiB to start at all."""
OWN_SPARK_CONF: Final = (
    "spark.driver.bindAddress",
    "spark.driver.blockManager.port",
    "spark.driver.host",
    "spark.driver.port",
    "spark.blockManager.port",
    "spark.executor.cores",
    "spark.executor.instances",
    "spark.executor.memory",
    "spark.executor.memoryOverhead",
    "spark.kubernetes.authenticate.executor.serviceAccountName",
    "spark.kubernetes.container.image",
    "spark.kubernetes.driver.pod.name",
    "spark.kubernetes.executor.podTemplateFile",
    "spark.kubernetes.executor.useDriverPodIP",
    "spark.kubernetes.namespace",
    "spark.master",
    "spark.submit.deployMode",
)
"""Keys of Spark that follow from other parts of `spec`."""
_KEYS: Final = "[" + ", ".join(f"'{key}'" for key in OWN_SPARK_CONF) + "]"
_ONCE: Final = (
    "args",
    "sparkConf",
    "image",
    "executors",
    "concurrencyPolicy",
    "backoffLimit",
    "nodeSelector",
    "priorityClassName",
)
_ONCE_IF_GIVEN: Final = ("activeDeadlineSeconds", "passwordSecret", "startingDeadlineSeconds")
"""What no rule sees into, because a shape of Kubernetes' own is handed through, is told in the loop (`SpecChanged`)."""


def _same(field: str) -> str:
    return f"self.{field} == oldSelf.{field}"


def _same_if_given(field: str) -> str:
    return f"has(self.{field}) == has(oldSelf.{field}) && (!has(self.{field}) || {_same(field)})"


JOB_RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "",
        f"size(self.metadata.name) <= {MAX_NAME}",
        f"metadata.name: at most {MAX_NAME} characters, because names of pods are made of it; choose a shorter name",
    ),
    Rule(
        "",
        f"self.metadata.name.matches('{NAME_PATTERN}')",
        "metadata.name: must begin with a letter and hold lower-case letters, digits and dashes only, because a "
        "Service is named after it; choose another name",
    ),
    Rule(
        "spec",
        _same("clusterRef.name"),
        "cannot be changed: make another BookieJob for another cluster",
        field="clusterRef.name",
    ),
    Rule("spec", _same("kind"), "cannot be changed: make another BookieJob for another kind of job", field="kind"),
    Rule(
        "spec",
        "(self.schedule == '') == (oldSelf.schedule == '')",
        "a job that runs once cannot get a schedule, nor lose one: put it back, or make another BookieJob; to stop a "
        "schedule set suspend: true",
        field="schedule",
    ),
    Rule(
        "spec",
        "self.schedule != '' || ("
        + " && ".join([*map(_same, _ONCE), *(f"({_same_if_given(field)})" for field in _ONCE_IF_GIVEN)])
        + ")",
        "a job that runs once cannot be changed, but for suspend and ttlSecondsAfterFinished: make another BookieJob",
    ),
    Rule(
        "spec",
        f"self.schedule == '' || self.schedule.matches('{SCHEDULE_PATTERN}')",
        "must be five fields as in a CronJob (minute, hour, day of month, month, day of week) such as 0 3 * * 0, or "
        "one of @hourly, @daily, @weekly, @monthly and @yearly",
        field="schedule",
    ),
    Rule(
        "spec",
        f"self.timeZone.matches('{TIME_ZONE_PATTERN}')",
        "must be a name of the time zone database: for example Europe/Berlin or Etc/UTC",
        field="timeZone",
    ),
    Rule(
        "spec",
        f"!self.args.exists(a, a.matches('{OWN_ARGUMENT_PATTERN}'))",
        "the operator sets --metadata, --result, --master and --password-file itself: remove them; clusterRef, "
        "executors and passwordSecret are for that",
        field="args",
    ),
    Rule(
        "spec",
        "self.sparkConf.all(k, k.startsWith('spark.'))",
        "keys begin with spark., such as spark.sql.shuffle.partitions; others Spark would leave out without a word",
        field="sparkConf",
    ),
    Rule(
        "spec",
        f"!{_KEYS}.exists(k, k in self.sparkConf)",
        "the operator sets some of these keys itself: remove them; docs/bookiejob.md tells what to use instead",
        field="sparkConf",
        expression=f"'the operator sets ' + {_KEYS}.filter(k, k in self.sparkConf)[0] + ' itself: remove it; "
        "docs/bookiejob.md tells what to use instead'",
    ),
    Rule(
        "spec.executors",
        f"isQuantity(self.memory) && quantity(self.memory).compareTo(quantity('{SMALLEST_EXECUTOR}')) >= 0",
        f"must be an amount of bytes as Kubernetes writes it, at least {SMALLEST_EXECUTOR}: for example 4Gi",
        field="memory",
    ),
)
