"""The job `compact-report`: the bookies' part of `space`, without looking at ledgers."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_bookie.jobs.framework.arguments import argument
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.registry import job
from pyspark_bookie.jobs.framework.result import JobExit, JobResult
from pyspark_bookie.jobs.space import (
    AdminArguments,
    bookie_counters,
    bookie_rows,
    bookies_of,
    log_rows,
    table_of,
)


@dataclass(frozen=True, kw_only=True)
class CompactReportArguments(AdminArguments):
    """Arguments of the job, which inspects no ledgers."""

    entry_logs: int = argument(100, help="Look at so many entry logs of each bookie one by one.", metavar="N")


@job("compact-report")
class CompactReportJob:
    """Tell what compaction would give back, bookie by bookie and entry log by entry log.

    From the bookies' admin API alone. Changes nothing. Exit code 2: bookies could not be asked, or have damaged logs.
    """

    Arguments = CompactReportArguments

    def run(self, context: JobContext[CompactReportArguments]) -> JobResult:
        """See the class."""
        bookies = bookies_of(context, context.args.entry_logs)
        found = any(each.problem or each.quarantined_logs for each in bookies)
        table = table_of([*bookie_rows(bookies, {}), *log_rows(bookies)])
        return JobResult(bookie_counters(bookies), table, JobExit.FINDINGS if found else JobExit.OK)
