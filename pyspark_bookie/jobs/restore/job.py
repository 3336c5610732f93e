"""`restore`: ledgers of an archive become ledgers of a cluster again."""

from __future__ import annotations

from dataclasses import dataclass

from bookie_protocol.errors import MetadataDamaged
from pyspark_bookie.archive.files import Files, absolute_uri
from pyspark_bookie.archive.manifest import Manifest
from pyspark_bookie.archive.reading import archived_ledgers, read_manifest
from pyspark_bookie.common.ledger_ids import LedgerIds
from pyspark_bookie.jobs.framework.arguments import LEDGERS, argument
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.findings import not_at_source, readable
from pyspark_bookie.jobs.framework.ledgers import narrowed
from pyspark_bookie.jobs.framework.registry import job
from pyspark_bookie.jobs.framework.result import JobResult
from pyspark_bookie.jobs.transfer.arguments import TransferArguments
from pyspark_bookie.jobs.transfer.running import TransferPlan, run_transfer
from pyspark_bookie.jobs.transfer.sources import ArchiveSource, closed_row


@dataclass(frozen=True, kw_only=True)
class RestoreArguments(TransferArguments):
    """Of `restore`."""

    source: str = argument(help="The archive that offload has written.", metavar="URI")
    ledgers: LedgerIds | None = argument(  # noqa: RUF009 - it makes a field
        None, help="These ledgers, such as 5,7,100-200. Default: all in the archive.", kind=LEDGERS, metavar="IDS"
    )


@job("restore")
class RestoreJob:
    """Write archived ledgers back into a cluster, as new ledgers, under their old ids, or as a stream.

    Files are verified while they are read, and ledgers are read again before they count. A run that was interrupted is
    resumed by the next one.
    """

    Arguments = RestoreArguments

    def run(self, context: JobContext[RestoreArguments]) -> JobResult:
        """Plan by the manifests, then transfer."""
        args = context.args
        source = absolute_uri(args.source)
        files = Files(source, "--source")
        ids = [each for each in archived_ledgers(files) if args.ledgers is None or each in args.ledgers]
        manifests, unreadable = readable(ids, lambda each: _manifest(files, each))
        rows = narrowed(
            context,
            [closed_row(each.ledger_id, each.counts.entries, each.counts.nbytes, each.shape) for each in manifests],
        )
        missing = not_at_source(set(args.ledgers.singles()) - set(ids)) if args.ledgers is not None else []
        settings = args.settings("restore", source)
        return run_transfer(
            context, TransferPlan(ArchiveSource(source), rows, missing, settings, context.access, unreadable)
        )


def _manifest(files: Files, ledger_id: int) -> Manifest:
    manifest = read_manifest(files, ledger_id)
    if manifest is None:
        raise MetadataDamaged(
            f"the manifest of ledger {ledger_id} went away while the archive was listed: run it again"
        )
    return manifest
