"""The job `replication-check`; see `checking`."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_bookie.jobs.audit.job import POLICIES
from pyspark_bookie.jobs.framework.arguments import argument
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.ledgers import SelectionArguments
from pyspark_bookie.jobs.framework.registry import job
from pyspark_bookie.jobs.framework.result import JobResult


@dataclass(frozen=True, kw_only=True)
class ReplicationCheckArguments(SelectionArguments):
    """By default all ledgers."""

    bookies: tuple[str, ...] = argument(
        (), help="Tell what names this bookie; may be given several times.", metavar="ID"
    )
    placement: str = argument("none", help="Placement policy that ensembles are held against.", choices=POLICIES)
    mark: bool = argument(
        False, help="Mark what was found as under-replicated, so that auto-recovery copies it elsewhere."
    )


@job("replication-check")
class ReplicationCheckJob:
    """Tell from metadata alone what would have to be copied if some bookies went, or another placement policy counted.

    No bookie is asked for anything. Exit code 2: there is something to copy.
    """

    Arguments = ReplicationCheckArguments

    def run(self, context: JobContext[ReplicationCheckArguments]) -> JobResult:
        """See the class."""
        from pyspark_bookie.jobs.replication_check.checking import check

        return check(context)
