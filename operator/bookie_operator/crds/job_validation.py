"""What is wrong with a `BookieJob`, as far as its spec tells: see `validation`, whose invariants hold here too.

Threads: pure functions, any thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from bookie_operator.crds.job_rules import (
    OWN_ARGUMENT_PATTERN,
    OWN_SPARK_CONF,
    SCHEDULE_PATTERN,
    SMALLEST_EXECUTOR,
    TIME_ZONE_PATTERN,
)
from bookie_operator.crds.job_spec import BookieJobSpec, BookieJobStatus
from bookie_operator.crds.quantity import bytes_of, known_bytes
from bookie_operator.crds.reading import bounded, parsed_spec, parsed_status

OWN_VOLUMES: Final = "podkeeper-"
"""Begins the names of the operator's own volumes."""
OWN_PATHS: Final = ("/etc/podkeeper", "/tmp")
"""Where the operator mounts, and what Spark writes to."""
OWN_VARIABLES: Final = frozenset({"BK_metadataServiceUri", "HOME", "JOB_NAME", "POD_NAME", "PYSPARK_SUBMIT_ARGS"})
_RESOURCES: Final = frozenset({"requests", "limits", "claims"})
_PAGE: Final = "docs/bookiejob.md"


def parse_job_spec(spec: Mapping[str, Any]) -> tuple[BookieJobSpec | None, tuple[str, ...]]:
    """The typed spec; or None, and why it cannot be read."""
    return parsed_spec(BookieJobSpec, spec, _PAGE)


def parse_job_status(status: Mapping[str, Any]) -> BookieJobStatus:
    """The typed status; an empty one stands for one that does not exist. Raises ValueError with one line for one that
    this operator cannot read: runs may stand in it that must not be made again."""
    return parsed_status(BookieJobStatus, status)


def validate_job(spec: BookieJobSpec) -> tuple[str, ...]:
    """Everything that is wrong; empty: nothing is."""
    return bounded([*_arguments(spec), *_times(spec), *_spark(spec), *_environment(spec.env), *_volumes(spec)])


def _arguments(spec: BookieJobSpec) -> Iterator[str]:
    for position, argument in enumerate(spec.args):
        if re.match(OWN_ARGUMENT_PATTERN, argument):
            yield f"spec.args[{position}]: the operator sets {argument.partition('=')[0]} itself; remove it"


def _times(spec: BookieJobSpec) -> Iterator[str]:
    if spec.schedule and not re.fullmatch(SCHEDULE_PATTERN, spec.schedule):
        yield "spec.schedule: must be five fields as in a CronJob, as 0 3 * * 0, or one such as @daily"
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
