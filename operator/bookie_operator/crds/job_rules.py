"""The rules of a `BookieJob`, before and after the API server stores it.

The API server judges some before it stores a job (see `rules`); the others are judged in the loop, as far as the spec
shows (see `validation`, whose invariants hold here too).

Invariants
- A job that runs once is its own record: what was asked for does not change after it was asked for.
- What the operator sets for Spark and for the job cannot be given; the names are here once, for the rules and for the
  validation in the loop.

Threads: values, any thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from bookie_operator.crds.cron import schedule_fault
from bookie_operator.crds.job_spec import BookieJobSpec, BookieJobStatus
from bookie_operator.crds.quantity import bytes_of, known_bytes
from bookie_operator.crds.reading import bounded, parsed_spec, parsed_status
from bookie_operator.crds.rules import (
    MAX_NAME,
    NAME_PATTERN,
    TIME_ZONE_PATTERN,
    Rule,
    same_if_given,
    schedule_rules,
)

OWN_ARGUMENT_PATTERN: Final = "^--(metadata|result|master|password[-_]file)(=.*)?$"
SMALLEST_EXECUTOR: Final = "1Gi"
"""Smallest memory of an executor: of half of it Java needs 450 MiB to start at all."""
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
"""Fields that a job that runs once may not change, if they are given.

No rule sees into fields with a shape of Kubernetes' own, so the loop reports those (`SpecChanged`).
"""


def _same(field: str) -> str:
    return f"self.{field} == oldSelf.{field}"


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
        + " && ".join([*map(_same, _ONCE), *(f"({same_if_given(field)})" for field in _ONCE_IF_GIVEN)])
        + ")",
        "a job that runs once cannot be changed, but for suspend and ttlSecondsAfterFinished: make another BookieJob",
    ),
    *schedule_rules("spec", "self.schedule == '' || "),
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


OWN_VOLUMES: Final = "podkeeper-"
"""Begins the names of the operator's own volumes."""
OWN_PATHS: Final = ("/etc/podkeeper", "/tmp")
"""Paths at which the operator mounts, and to which Spark writes."""
OWN_VARIABLES: Final = frozenset({"BK_metadataServiceUri", "HOME", "JOB_NAME", "POD_NAME", "PYSPARK_SUBMIT_ARGS"})
_RESOURCES: Final = frozenset({"requests", "limits", "claims"})
_PAGE: Final = "docs/bookiejob.md"


def parse_job_spec(spec: Mapping[str, Any]) -> tuple[BookieJobSpec | None, tuple[str, ...]]:
    """The typed spec; or None, and why it cannot be read."""
    return parsed_spec(BookieJobSpec, spec, _PAGE)


def parse_job_status(status: Mapping[str, Any]) -> BookieJobStatus:
    """The typed status; an empty one stands for one that does not exist. Raises ValueError with one line for one that
    this operator cannot read: it may list runs that must not be made again."""
    return parsed_status(BookieJobStatus, status)


def validate_job(spec: BookieJobSpec) -> tuple[str, ...]:
    """Return all faults; empty: there are none."""
    return bounded([*_arguments(spec), *_times(spec), *_spark(spec), *_environment(spec.env), *_volumes(spec)])


def _arguments(spec: BookieJobSpec) -> Iterator[str]:
    for position, argument in enumerate(spec.args):
        if re.match(OWN_ARGUMENT_PATTERN, argument):
            yield f"spec.args[{position}]: the operator sets {argument.partition('=')[0]} itself; remove it"


def _times(spec: BookieJobSpec) -> Iterator[str]:
    if spec.schedule and (fault := schedule_fault(spec.schedule)):
        yield f"spec.schedule: {fault}; write it as in a CronJob, as 0 3 * * 0, or one such as @daily"
    if not re.fullmatch(TIME_ZONE_PATTERN, spec.time_zone):
        yield "spec.timeZone: must be a name of the time zone database, as Europe/Berlin"


def _spark(spec: BookieJobSpec) -> Iterator[str]:
    for key in sorted(spec.spark_conf):
        if key in OWN_SPARK_CONF:
            yield f"spec.sparkConf.{key}: the operator sets it; remove it: {_PAGE} tells what to use instead"
        elif not key.startswith("spark."):
            yield f"spec.sparkConf.{key}: keys begin with spark.; Spark would leave it out"
        elif "\n" in spec.spark_conf[key]:
            yield f"spec.sparkConf.{key}: has more than one line; write it in one"
    if (known_bytes(spec.executors.memory) or 0) < bytes_of(SMALLEST_EXECUTOR):
        yield f"spec.executors.memory: must be an amount of bytes, at least {SMALLEST_EXECUTOR}, as 4Gi"
    for key in sorted(set(spec.resources) - _RESOURCES):
        yield f"spec.resources.{key}: there is no such part; write it below requests or limits"


def _environment(env: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for position, variable in enumerate(env):
        name = _name(variable)
        if not name:
            yield f"spec.env[{position}].name: is required; give it"
        elif name in OWN_VARIABLES:
            yield f"spec.env[{position}].name: the operator sets {name} itself; remove it"


def _volumes(spec: BookieJobSpec) -> Iterator[str]:
    known = {_name(volume) for volume in spec.volumes}
    for position, volume in enumerate(spec.volumes):
        if not _name(volume) or _name(volume).startswith(OWN_VOLUMES):
            yield f"spec.volumes[{position}].name: must be given, and not begin with {OWN_VOLUMES}; give another"
    for position, mount in enumerate(spec.volume_mounts):
        path = mount.get("mountPath")
        if _name(mount) not in known:
            yield f"spec.volumeMounts[{position}].name: no such volume in spec.volumes; add it there"
        elif not isinstance(path, str) or not path.startswith("/"):
            yield f"spec.volumeMounts[{position}].mountPath: must be a path that begins with /; give it"
        elif path.rstrip("/") in ("", *OWN_PATHS) or path.startswith(f"{OWN_PATHS[0]}/"):
            yield f"spec.volumeMounts[{position}].mountPath: {path} is the operator's; mount it elsewhere"


def _name(part: Mapping[str, Any]) -> str:
    name = part.get("name", "")
    return name if isinstance(name, str) else ""
