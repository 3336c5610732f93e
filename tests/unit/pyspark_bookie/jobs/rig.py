"""Whole jobs on a shelf of ledgers, without Spark: the driver plans and adds up, and no piece of work is run."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

from bookie_client import BlockingClient
from pyspark_bookie.jobs.framework.arguments import parse
from pyspark_bookie.jobs.framework.context import JobContext, Progress
from pyspark_bookie.jobs.framework.registry import find_job
from pyspark_bookie.jobs.framework.result import JobResult
from tests.support.ledger_shelf import LedgerShelf


class DriverContext(JobContext[Any]):
    """As where the time is up before the first piece has begun. `shown`: the progress so far."""

    def __init__(self, shelf: LedgerShelf, name: str, *words: str) -> None:
        given = ["--metadata", "embedded://shelf", "--max-concurrent", "1", *words]
        self.shown = io.StringIO()
        super().__init__(name, parse(find_job(name).Arguments, name, "", given), progress=Progress(name, self.shown))
        self._shelf = shelf

    def client(self, access: object = None) -> BlockingClient:
        return self._shelf

    def open_spark(self) -> None:
        pass

    def run_tasks(self, function: object, items: object, access: object = None) -> Iterator[Any]:
        return iter(())


def drive(context: DriverContext) -> JobResult:
    """Run the job."""
    result: JobResult = find_job(context.name)().run(context)
    return result
