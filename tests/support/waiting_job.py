"""A job that never ends by itself.

    python -m tests.support.waiting_job wait --metadata m --begun FILE

Its task makes FILE, with Spark's master and the partitions of a shuffle in it, as soon as it runs.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bookie_protocol.quiet import quiet_grpc
from pyspark_bookie.jobs.framework import command
from pyspark_bookie.jobs.framework.arguments import CommonArguments, argument
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.result import JobResult
from pyspark_bookie.jobs.framework.tasks import TaskEnvironment

_SECONDS = 600


@dataclass(frozen=True, kw_only=True)
class WaitingArguments(CommonArguments):
    begun: str = argument("", help="What the task makes.")


class WaitingJob:
    """Waits."""

    Arguments = WaitingArguments

    def run(self, context: JobContext[WaitingArguments]) -> JobResult:
        conf = context.spark.conf
        text = f"{context.spark.sparkContext.master} {conf.get('spark.sql.shuffle.partitions')}"
        outcomes = list(context.run_tasks(wait, [(context.args.begun, text)]))
        return JobResult({"tasks": len(outcomes)})


def wait(item: tuple[str, str], _environment: TaskEnvironment) -> None:
    """In the worker."""
    path, text = item
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        file.write(text)
    os.rename(f"{path}.new", path)
    time.sleep(_SECONDS)


def main(arguments: Sequence[str]) -> int:
    quiet_grpc()
    command.find_job = lambda _name: WaitingJob  # type: ignore[assignment,attr-defined]
    return command.main(arguments, own_process=True)


if __name__ == "__main__":
    # Under its own name, so that workers find the function.
    from tests.support.waiting_job import main as named

    sys.exit(named(sys.argv[1:]))
