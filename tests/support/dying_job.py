"""A job whose processes, the driver's and Java, die right after one of its records has reached a state, or before.

    python -m tests.support.dying_job KIND STATE NAME [arguments of the job]

KIND is that of the records; STATE a state of theirs, or `before-` and a state that a record is to be changed to. The
worker that writes the state kills the driver's process group and itself, as the loss of a machine would.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from bookie_protocol.quiet import quiet_grpc
from bookie_protocol.versioned import Versioned
from pyspark_bookie.jobs.framework.records import JobRecords
from pyspark_bookie.jobs.framework.tasks import TaskEnvironment
from pyspark_bookie.jobs.offload import job as offload_job
from pyspark_bookie.jobs.offload.job import DeletionBundle, OffloadBundle, delete_bundle, offload_bundle
from pyspark_bookie.jobs.transfer import running
from pyspark_bookie.jobs.transfer.running import TransferBundle, transfer_bundle

BEFORE = "before-"
_STATE = "TEST_DYING_STATE"
_KIND = "TEST_DYING_KIND"
_GROUP = "TEST_DYING_GROUP"


def dying_offload_bundle(bundle: OffloadBundle, environment: TaskEnvironment) -> Any:
    _arm()
    return offload_bundle(bundle, environment)


def dying_delete_bundle(bundle: DeletionBundle, environment: TaskEnvironment) -> Any:
    _arm()
    return delete_bundle(bundle, environment)


def dying_transfer_bundle(bundle: TransferBundle, environment: TaskEnvironment) -> Any:
    _arm()
    return transfer_bundle(bundle, environment)


def _arm() -> None:
    """In the worker: die when the state is reached."""
    create, update = JobRecords.create, JobRecords.update

    def created(self: JobRecords[Any], record: Any) -> Versioned[Any]:
        return _die(create(self, record), self)

    def updated(self: JobRecords[Any], stored: Versioned[Any], record: Any) -> Versioned[Any]:
        _die_at(f"{BEFORE}{record.state.value}", self)
        return _die(update(self, stored, record), self)

    JobRecords.create, JobRecords.update = created, updated  # type: ignore[method-assign,assignment]


def _die(stored: Versioned[Any], records: JobRecords[Any]) -> Versioned[Any]:
    _die_at(stored.value.state.value, records)
    return stored


def _die_at(state: str, records: JobRecords[Any]) -> None:
    if (records._kind, state) == (os.environ[_KIND], os.environ[_STATE]):
        os.killpg(int(os.environ[_GROUP]), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def main(arguments: Sequence[str]) -> int:
    from pyspark_bookie.jobs.framework.command import main as run

    quiet_grpc()
    os.environ[_KIND], os.environ[_STATE], os.environ[_GROUP] = arguments[0], arguments[1], str(os.getpgrp())
    offload_job.offload_bundle = dying_offload_bundle  # type: ignore[assignment]
    offload_job.delete_bundle = dying_delete_bundle  # type: ignore[assignment]
    running.transfer_bundle = dying_transfer_bundle  # type: ignore[assignment]
    return run(arguments[2:])


if __name__ == "__main__":
    # Under its own name, so that workers find the functions.
    from tests.support.dying_job import main as named

    sys.exit(named(sys.argv[1:]))
