"""The job `recover`; see `recovering`."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_bookie.jobs.framework.arguments import DURATION, SIZE, argument
from pyspark_bookie.jobs.framework.common import GENTLE_BYTES_PER_SECOND
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.ledgers import SelectionArguments
from pyspark_bookie.jobs.framework.registry import job
from pyspark_bookie.jobs.framework.result import JobResult


@dataclass(frozen=True, kw_only=True)
class RecoverArguments(SelectionArguments):
    """What to copy: of `--bookies` everything, of `--findings` what they say is lost. By default in all ledgers."""

    slot_bytes_per_second = GENTLE_BYTES_PER_SECOND

    bookies: tuple[str, ...] = argument(
        (), help="Replace this bookie wherever a ledger names it; may be given several times.", metavar="ID"
    )
    findings: str | None = argument(
        None, help="Restore what the report of an audit or a scrub lists (the newest run there).", metavar="URI"
    )
    include_open: bool = argument(
        False, help="Close ledgers that are still open, too, where that is needed. Their writers are fenced."
    )
    verify: str = argument(
        "lists", help="How new copies are verified afterwards, besides their last entry.", choices=("lists", "digests")
    )
    lock_wait: float = argument(
        60.0, help="How long to wait for a ledger that a replication worker has locked.", kind=DURATION
    )
    piece_bytes: int = argument(1 << 30, help="Data of one piece of work.", kind=SIZE)


@job("recover")
class RecoverJob:
    """Make new copies of what bookies lost, or of all that some bookies hold, and exchange them in the metadata.

    Each ledger is worked on under its lock, so auto-recovery and this job do not meet. What was done stays done: after
    an interruption the same command goes on. Ledgers that cannot be restored are listed, and hold up nobody. Exit code
    2: there are some.
    """

    Arguments = RecoverArguments

    def run(self, context: JobContext[RecoverArguments]) -> JobResult:
        """See the class."""
        from pyspark_bookie.jobs.recover.recovering import recover

        return recover(context)
