"""The driver's part of an audit: plan pieces, have them looked at, add up.

Driver only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from pyspark_bookie.jobs.audit.job import DEEP_LEDGERS, LEAST_PIECES, LIGHT_LEDGERS, AuditArguments
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.result import Counter as Value
from pyspark_bookie.jobs.framework.result import JobResult
from pyspark_bookie.jobs.replicas.inspecting import Inspection, inspect_unit
from pyspark_bookie.jobs.replicas.looks import LookOptions
from pyspark_bookie.jobs.replicas.planning import chosen_ids, sized, unsized
from pyspark_bookie.jobs.replicas.spool import FindingsSpool
from pyspark_bookie.jobs.replicas.totals import Totals
from pyspark_bookie.jobs.replicas.units import Planned, Unit, groups


def audit(context: JobContext[AuditArguments]) -> JobResult:
    """Raises `UsageError`, `PodkeeperError`; what goes wrong with single ledgers is a finding."""
    args = context.args
    inspection = Inspection(
        look=LookOptions(digests=args.digests, extra=args.extra),
        recheck_seconds=args.recheck,
        mark=args.mark and not context.dry_run,
        placement=None if args.placement == "none" else args.placement,
    )
    _ = context.spark  # before the client: a process with many threads is no good parent of the Java process
    ids = chosen_ids(context)
    planned = Planned(units(context, ids))
    with FindingsSpool() as spool:
        totals = Totals(spool)
        for outcome in context.run_tasks(partial(inspect_unit, inspection), planned):
            if outcome.result is not None:
                totals.add(outcome.result)
            elif outcome.error is not None:
                totals.add_failed(context, outcome.item, outcome.error)
            done = totals.sums["ledgers"] + totals.sums["deleted"]
            note = f"{totals.sums['nbytes'] / 1e6:,.0f} MB, {sum(spool.counts.values())} findings"
            context.progress(done, len(ids), "ledgers", note)
        # Pieces are taken in order, and all that were taken have ended.
        more: dict[str, Value] = {} if planned.ended else {"next_ledger": planned.next_ledger}
        return totals.result(complete=planned.ended, more=more)


def units(context: JobContext[AuditArguments], ids: Sequence[int]) -> Iterator[Unit]:
    """The pieces, in ascending order of ledgers."""
    args = context.args
    fair = max(1, len(ids) // (LEAST_PIECES * context.concurrent))
    if args.digests:
        cut = groups(sized(context, ids), args.piece_bytes, min(DEEP_LEDGERS, max(fair, 16)))
    else:
        cut = groups(unsized(ids), 1, min(LIGHT_LEDGERS, fair))
    return (Unit(number, group) for number, group in enumerate(cut))
