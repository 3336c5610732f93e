"""The job `audit`; the work is that of `replicas`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark_bookie.jobs.framework.arguments import DAY_S, DURATION, SIZE, argument
from pyspark_bookie.jobs.framework.common import GENTLE_BYTES_PER_SECOND
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.ledgers import SelectionArguments
from pyspark_bookie.jobs.framework.registry import job
from pyspark_bookie.jobs.framework.result import JobResult

POLICIES: Final = ("none", "random", "rack-aware", "region-aware", "zone-aware")
LIGHT_LEDGERS: Final = 1_000
"""Ledgers of one piece where no data is read."""
DEEP_LEDGERS: Final = 5_000


@dataclass(frozen=True, kw_only=True)
class AuditArguments(SelectionArguments):
    """By default all ledgers."""

    slot_bytes_per_second = GENTLE_BYTES_PER_SECOND

    digests: bool = argument(False, help="Read every entry of every replica, too, and verify its digest.")
    placement: str | None = argument(
        None, help="Placement policy that ensembles are held against. Default: --option placement=.", choices=POLICIES
    )
    extra: bool = argument(False, help="List copies that no metadata ask for, too. They are harmless.")
    mark: bool = argument(False, help="Mark ledgers that lost copies, so that auto-recovery restores them.")
    recheck: float = argument(5.0, help="Pause before the second look, without which nothing is told.", kind=DURATION)
    absent_after: float = argument(
        DAY_S, help="A bookie that has a cookie and that no audit saw registered for so long is told.", kind=DURATION
    )
    overdue_after: float = argument(
        DAY_S, help="A ledger that has been marked as under-replicated for so long is told.", kind=DURATION
    )
    piece_bytes: int = argument(256 << 20, help="Data of one piece of work, with --digests.", kind=SIZE)


@job("audit")
class AuditJob:
    """Look for replicas that are missing, damaged or misplaced, and tell them from those of bookies that do not answer.

    Every bookie of every ensemble is asked which entries it has (no data is read); with --digests everything is read
    and verified as well. Bookies without a cookie or a registration, and old marks of under-replication, are told, too.
    Whatever seems wrong is looked at twice. Exit code 2: there are findings.
    """

    Arguments = AuditArguments

    def run(self, context: JobContext[AuditArguments]) -> JobResult:
        """See the class."""
        from pyspark_bookie.jobs.audit.auditing import audit

        return audit(context)
