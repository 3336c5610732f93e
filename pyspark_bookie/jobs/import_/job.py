"""`import`: dumps become ledgers."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_bookie.archive.files import Files, absolute_uri
from pyspark_bookie.common.ledger_ids import LedgerIds
from pyspark_bookie.jobs.dumps.files import Dumps
from pyspark_bookie.jobs.framework.arguments import LEDGERS, argument
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.findings import not_at_source, readable
from pyspark_bookie.jobs.framework.ledgers import narrowed
from pyspark_bookie.jobs.framework.registry import job
from pyspark_bookie.jobs.framework.result import JobResult
from pyspark_bookie.jobs.import_.source import DumpSource
from pyspark_bookie.jobs.transfer.arguments import TransferArguments
from pyspark_bookie.jobs.transfer.running import TransferPlan, run_transfer
from pyspark_bookie.jobs.transfer.sources import closed_row


@dataclass(frozen=True, kw_only=True)
class ImportArguments(TransferArguments):
    """Of `import`."""

    source: str = argument(help="The folder that export has written.", metavar="URI")
    ledgers: LedgerIds | None = argument(  # noqa: RUF009 - it makes a field
        None, help="These ledgers, such as 5,7,100-200. Default: all in the folder.", kind=LEDGERS, metavar="IDS"
    )


@job("import")
class ImportJob:
    """Write what `export` has made into a cluster, as new ledgers, under their old ids, or as a stream.

    Entries keep their ids. Dumps are verified while they are read, and ledgers are read again before they count. A run
    that was interrupted is resumed by the next one.
    """

    Arguments = ImportArguments

    def run(self, context: JobContext[ImportArguments]) -> JobResult:
        """Plan by the headers, then transfer."""
        args = context.args
        source = absolute_uri(args.source)
        dumps = Dumps(Files(source, "--source"))
        names = {each: name for each, name in dumps.names().items() if args.ledgers is None or each in args.ledgers}
        headers, unreadable = readable(sorted(names), lambda each: dumps.header(names[each]))
        rows = narrowed(
            context, [closed_row(each.ledger_id, each.entries, each.nbytes, each.shape) for each in headers]
        )
        missing = not_at_source(set(args.ledgers.singles()) - set(names)) if args.ledgers is not None else []
        settings = args.settings("import", source)
        return run_transfer(
            context, TransferPlan(DumpSource(source), rows, missing, settings, context.access, unreadable)
        )
