"""The job `audit`: the driver plans pieces of work, has them inspected (`replicas`) and adds up what they found.

Driver only.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

from pyspark_bookie.common.access import AccessOptions
from pyspark_bookie.jobs.audit.registry import NamedBookies, RegistryCheck
from pyspark_bookie.jobs.framework.arguments import DAY_S, DURATION, SIZE, argument
from pyspark_bookie.jobs.framework.common import GENTLE_BYTES_PER_SECOND
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.ledgers import SelectionArguments
from pyspark_bookie.jobs.framework.registry import job
from pyspark_bookie.jobs.framework.result import Counter as Value
from pyspark_bookie.jobs.framework.result import JobResult
from pyspark_bookie.jobs.replicas.absent import tell_absent
from pyspark_bookie.jobs.replicas.findings import FindingsSpool
from pyspark_bookie.jobs.replicas.inspection import InspectionOptions
from pyspark_bookie.jobs.replicas.placement import POLICIES
from pyspark_bookie.jobs.replicas.tasks import Totals, UnitOptions, inspect_unit
from pyspark_bookie.jobs.replicas.units import Planned, Unit, chosen, fair_count, groups, light_units, numbered, sized

LIGHT_LEDGERS: Final = 1_000
"""Ledgers of one piece where no data is read."""
DEEP_LEDGERS: Final = 5_000


@dataclass(frozen=True, kw_only=True)
class AuditArguments(SelectionArguments):
    """The arguments of `audit`, by default about all ledgers."""

    slot_bytes_per_second = GENTLE_BYTES_PER_SECOND

    digests: bool = argument(False, help="Read every entry of every replica, too, and verify its digest.")
    placement: str | None = argument(
        None, help="Placement policy that ensembles are held against. Default: --option placement=.", choices=POLICIES
    )
    extra: bool = argument(False, help="List copies that no metadata ask for, too. They are harmless.")
    mark: bool = argument(False, help="Mark ledgers that lost copies, so that auto-recovery restores them.")
    recheck: float = argument(
        5.0, help="Pause before what seems wrong is inspected again; nothing is told without that.", kind=DURATION
    )
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
    Whatever seems wrong is inspected twice. Exit code 2: there are findings.
    """

    Arguments = AuditArguments

    def run(self, context: JobContext[AuditArguments]) -> JobResult:
        """See the class."""
        return audit(context)


FINDINGS_AT_ONCE: Final = 1_000


def audit(context: JobContext[AuditArguments]) -> JobResult:
    """Raises `UsageError`, `PodkeeperError`; what goes wrong with single ledgers is a finding."""
    args = context.args
    options = UnitOptions(
        inspection=InspectionOptions(digests=args.digests, extra=args.extra),
        recheck_seconds=args.recheck,
        mark=args.mark and not context.dry_run,
        placement=policy_held_against(args, context.access),
    )
    context.open_spark()
    choice = chosen(context)
    ids = choice.ids
    planned = Planned(units(context, ids))
    context.progress(0, len(ids), "ledgers")
    with FindingsSpool() as spool:
        totals, named = Totals(spool), NamedBookies()
        for outcome in context.run_tasks(partial(inspect_unit, options), planned):
            totals.take(context, outcome)
            if outcome.result is not None:
                named.add(outcome.result.findings)
            done = totals.sums["ledgers"] + totals.sums["deleted"]
            note = f"{totals.sums['nbytes'] / 1e6:,.0f} MB, {sum(spool.counts.values())} findings"
            context.progress(done, len(ids), "ledgers", note)
        # Pieces are taken in order, and all that were taken have ended.
        more: dict[str, Value] = {} if planned.ended else {"next_ledger": planned.next_ledger}
        more |= tell_absent(context, choice.missing, spool)
        more["marks_without_time"] = check_registry(context, ids, named, spool)
        return totals.result(complete=planned.ended, more=more)


def policy_held_against(args: AuditArguments, access: AccessOptions) -> str | None:
    """The policy by which new copies are placed, unless another one is named; None: no policy."""
    policy = args.placement or access.placement
    return None if policy == "none" else policy


def check_registry(
    context: JobContext[AuditArguments], ids: Sequence[int], named: NamedBookies, spool: FindingsSpool
) -> int:
    """Bookies and marks against the registry; bookies that are away only if the audit is of all ledgers. Returns how
    many marks have no time. Raises `MetadataUnavailable`."""
    args = context.args
    check = RegistryCheck(context.client(), context.log, pause=args.recheck, note=not context.dry_run)
    spool.add(check.bookies(named, None if args.is_narrowed else args.absent_after))
    marks = check.old_marks(lambda ledger_id: not args.is_narrowed or is_among(ids, ledger_id), args.overdue_after)
    while batch := list(islice(marks, FINDINGS_AT_ONCE)):
        spool.add(batch)
    return check.marks_without_time


def is_among(ids: Sequence[int], ledger_id: int) -> bool:
    """`ids` ascend."""
    at = bisect_left(ids, ledger_id)
    return at < len(ids) and ids[at] == ledger_id


def units(context: JobContext[AuditArguments], ids: Sequence[int]) -> Iterator[Unit]:
    """The pieces, in ascending order of ledgers."""
    args = context.args
    if not args.digests:
        return light_units(context, ids, LIGHT_LEDGERS)
    most = min(DEEP_LEDGERS, max(fair_count(context, ids), 16))
    return numbered(groups(sized(context, ids), args.piece_bytes, most))
