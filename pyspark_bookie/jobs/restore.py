"""`restore`: ledgers of an archive become ledgers of a cluster again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bookie_protocol.errors import MetadataDamaged
from pyspark_bookie.archive.files import Files, absolute_uri
from pyspark_bookie.archive.manifest import Manifest
from pyspark_bookie.archive.reading import archived_ledgers, manifest_at
from pyspark_bookie.common.ledger_ids import LedgerIds
from pyspark_bookie.jobs.framework.arguments import LEDGERS, argument
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.ledgers import narrowed
from pyspark_bookie.jobs.framework.registry import job
from pyspark_bookie.jobs.framework.result import JobResult, not_at_source, readable
from pyspark_bookie.jobs.transfer.running import TransferArguments, TransferPlan, run_transfer
from pyspark_bookie.jobs.transfer.sources import ArchiveSource, closed_row


@dataclass(frozen=True, kw_only=True)
class RestoreArguments(TransferArguments):
    """The arguments of `restore`."""

    source: str = argument(help="The archive that offload has written.", metavar="URI")
    ledgers: LedgerIds | None = argument(  # noqa: RUF009 - it makes a field
        None, help="These ledgers, such as 5,7,100-200. Default: all in the archive.", kind=LEDGERS, metavar="IDS"
    )
    uuid: tuple[str, ...] = argument(
        (),
        help="Of a ledger whose number was used again: the one with this uuid in its manifest's name; may be given"
        " several times. Default: the one that was archived last.",
        metavar="UUID",
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
        settings = args.settings("restore", source)
        files = Files(source, "--source")
        files.check_there()
        attempts = archived_ledgers(files)
        ids = [each for each in attempts if args.ledgers is None or each in args.ledgers]
        manifests, unreadable = readable(ids, lambda each: _manifest(context, files, each, attempts[each]))
        rows = narrowed(
            context,
            [
                closed_row(each.ledger_id, each.counts.entries, each.counts.nbytes, each.shape, each.uuid)
                for each in manifests
            ],
        )
        missing = not_at_source(set(args.ledgers.singles()) - set(ids)) if args.ledgers is not None else []
        return run_transfer(
            context, TransferPlan(ArchiveSource(source), rows, missing, settings, context.access, unreadable)
        )


def _manifest(
    context: JobContext[RestoreArguments], files: Files, ledger_id: int, attempts: Sequence[str | None]
) -> Manifest:
    """The one that is wanted of those of a ledger number."""
    found = [manifest for each in attempts if (manifest := manifest_at(files, ledger_id, each)) is not None]
    if not found:
        raise MetadataDamaged(
            f"the manifest of ledger {ledger_id} went away while the archive was listed: run it again"
        )
    wanted = [each for each in found if each.uuid in context.args.uuid] or found
    chosen = max(wanted, key=lambda each: (each.archived, each.uuid))
    for each in found:
        if each is not chosen:
            what = f"{each.counts.entries} entries, archived {each.archived}"
            context.log(f"another ledger {ledger_id} is in the archive, too ({what}): --uuid {each.uuid} restores that")
    return chosen
