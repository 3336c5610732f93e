"""The job `scrub`; see `scrubbing`."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_bookie.jobs.framework.arguments import DURATION, SIZE, argument
from pyspark_bookie.jobs.framework.common import GENTLE_BYTES_PER_SECOND
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.ledgers import SelectionArguments
from pyspark_bookie.jobs.framework.registry import job
from pyspark_bookie.jobs.framework.result import JobResult


@dataclass(frozen=True, kw_only=True)
class ScrubArguments(SelectionArguments):
    """By default all ledgers."""

    slot_bytes_per_second = GENTLE_BYTES_PER_SECOND

    sample: int = argument(100, help="Percent of the data to read, another part in each pass.", metavar="PERCENT")
    pass_name: str | None = argument(
        None,
        help="Name under which is remembered how far a pass is; runs of one name go on with it. Default: 'all' where"
        " all ledgers are read; a choice of ledgers is remembered only under a name.",
        metavar="NAME",
    )
    restart: bool = argument(False, help="Begin a new pass, whatever the last run of this name left.")
    mark: bool = argument(False, help="Mark ledgers that lost copies, so that auto-recovery restores them.")
    recheck: float = argument(5.0, help="Pause before the second look, without which nothing is told.", kind=DURATION)
    piece_bytes: int = argument(256 << 20, help="Data of one bookie in one piece of work.", kind=SIZE)


@job("scrub")
class ScrubJob:
    """Read every copy of every entry, verify its digest, and compare the copies with each other.

    Each bookie is read in the order of ledger ids, about the order in which its disk has them. With --time-limit the
    next run goes on where this one ended; a pass that was interrupted loses little. Exit code 2: there are findings.
    """

    Arguments = ScrubArguments

    def run(self, context: JobContext[ScrubArguments]) -> JobResult:
        """See the class."""
        from pyspark_bookie.jobs.scrub.scrubbing import scrub

        return scrub(context)
