"""`copy`: ledgers of one cluster become ledgers of another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark_bookie.archive.places import PlacedLedger, StreamPlace
from pyspark_bookie.jobs.framework.arguments import UsageError, access_options, argument
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.ledgers import LedgerRow, SelectionArguments, select_ledgers
from pyspark_bookie.jobs.framework.places import placed_ledgers
from pyspark_bookie.jobs.framework.registry import job
from pyspark_bookie.jobs.framework.result import JobResult, missing_findings
from pyspark_bookie.jobs.transfer.running import TransferArguments, TransferPlan, run_transfer
from pyspark_bookie.jobs.transfer.sources import ClusterSource

if TYPE_CHECKING:
    from bookie_client import Client
    from bookie_client.streams import StreamPosition


@dataclass(frozen=True, kw_only=True)
class CopyArguments(SelectionArguments, TransferArguments):
    """The arguments of `copy`; `--metadata` is the cluster that is read."""

    to_metadata: str = argument(help="URI of the metadata service of the cluster that gets the ledgers.", metavar="URI")
    to_option: tuple[str, ...] = argument(
        (), help="As --option, for that cluster; may be given several times.", metavar="NAME=VALUE"
    )


@job("copy")
class CopyJob:
    """Copy closed ledgers from one cluster to another, with their custom metadata, digest type and password.

    Ledgers are read again before they count. A run that was interrupted is resumed by the next one.
    """

    Arguments = CopyArguments

    def run(self, context: JobContext[CopyArguments]) -> JobResult:
        """Select, then transfer."""
        args = context.args
        if args.to_metadata == args.metadata and args.keep_ids:
            raise UsageError("--to-metadata is the cluster that is read: there the ids are taken; leave --keep-ids out")
        selected = select_ledgers(context)
        rows = [row for row in selected.rows if row.is_closed]
        if len(rows) < len(selected.rows):
            context.log(f"{len(selected.rows) - len(rows)} ledgers are not closed and are left out")
        target = access_options(args.to_metadata, args.to_option, None)
        settings = args.settings("copy", args.metadata)
        missing = context.client().run(lambda client: missing_findings(client, selected.missing))
        source = ClusterSource(context.access)
        several = len(set(args.stream)) > 1  # the places of one have nothing to do with those of another
        if args.to_stream is not None and not several:
            rows = _placed(context, rows)
        return run_transfer(
            context, TransferPlan(source, rows, missing, settings, target, cut=_cut(context), is_ordered=several)
        )


def _placed(context: JobContext[CopyArguments], rows: Sequence[LedgerRow]) -> list[LedgerRow]:
    """Return the ledgers with their places in the streams that they name, or that the arguments do."""
    named = {row.stream for row in rows if row.stream is not None}.union(context.args.stream)
    listed = placed_ledgers(context.client(), named, context.log)
    return [replace(row, place=_place(row, listed.get(row.ledger_id))) for row in rows]


def _place(row: LedgerRow, listed: PlacedLedger | None) -> StreamPlace | None:
    """Return the place of a closed ledger. A list that does not know yet how its writer ended tells no size."""
    if listed is None or (listed.entries is not None and (listed.entries, listed.nbytes) != (row.entries, row.nbytes)):
        return None
    return listed.place


def _cut(context: JobContext[CopyArguments]) -> tuple[int, int] | None:
    """Return where the copied stream begins, if that is within a ledger. Raises `UsageError` if a stream could not
    be copied as it is."""
    from bookie_client.streams import Streams

    async def read(client: Client) -> list[StreamPosition | None]:
        return [(await Streams(client).manifest(name)).truncated_before for name in context.args.stream]

    cuts = context.client().run(read)
    if context.args.to_stream is not None and any(cuts[1:]):
        raise UsageError("of streams that become one, only the first may begin within a ledger: copy the others alone")
    return (cuts[0].ledger_id, cuts[0].entry_id) if cuts and cuts[0] is not None else None
