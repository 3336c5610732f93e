"""`restore`: ledgers of an archive become ledgers of a cluster again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bookie_protocol.errors import MetadataDamaged, Refused
from pyspark_bookie.archive.files import Files, absolute_uri
from pyspark_bookie.archive.manifest import Manifest, manifest_file
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

    source: tuple[str, ...] = argument(
        help="An archive that offload has written; may be given several times.", metavar="URI"
    )
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
        sources = tuple(sorted({absolute_uri(each) for each in args.source}))
        settings = args.settings("restore", " ".join(sources))
        archives = [Files(each, "--source") for each in sources]
        attempts: defaultdict[int, list[_Attempt]] = defaultdict(list)
        for files in archives:
            files.check_there()
            for ledger_id, uuids in archived_ledgers(files).items():
                attempts[ledger_id] += [_Attempt(files, uuid) for uuid in uuids]
        ids = [each for each in sorted(attempts) if args.ledgers is None or each in args.ledgers]
        _check_once(ids, attempts, args.uuid)
        manifests, unreadable = readable(ids, lambda each: _manifest(context, each, attempts[each]))
        rows = narrowed(
            context,
            [
                closed_row(
                    each.ledger_id, each.counts.entries, each.counts.nbytes, each.shape, each.uuid, place=each.place
                )
                for each in manifests
            ],
        )
        missing = not_at_source(set(args.ledgers.singles()) - set(ids)) if args.ledgers is not None else []
        return run_transfer(
            context, TransferPlan(ArchiveSource(sources), rows, missing, settings, context.access, unreadable)
        )


@dataclass(frozen=True, slots=True)
class _Attempt:
    """The archive and the name of a manifest, as `archived_ledgers` returns it."""

    files: Files
    uuid: str | None


def _check_once(ledger_ids: Sequence[int], attempts: Mapping[int, Sequence[_Attempt]], uuids: Sequence[str]) -> None:
    """Raises `Refused` if archives have a ledger of one number, and no uuid tells which of them is wanted."""
    for ledger_id in ledger_ids:
        there = attempts[ledger_id]
        if len({attempt.files for attempt in there}) < 2 or any(attempt.uuid in uuids for attempt in there):
            continue
        named = {attempt: attempt.uuid or _uuid_within(attempt, ledger_id) for attempt in there}
        if any(uuid in uuids for uuid in named.values()):
            continue
        told = " and ".join(
            f"{attempt.files.shown(manifest_file(ledger_id, attempt.uuid))} of uuid {uuid}"
            for attempt, uuid in named.items()
        )
        raise Refused(
            f"ledger {ledger_id} is in more than one archive ({told}): leave out an archive, or choose by --uuid or by"
            " --ledgers"
        )


def _uuid_within(attempt: _Attempt, ledger_id: int) -> str | None:
    """Return the uuid that a manifest has where its name has none, as older versions named it."""
    manifest = manifest_at(attempt.files, ledger_id, None)
    return None if manifest is None else manifest.uuid


def _manifest(context: JobContext[RestoreArguments], ledger_id: int, attempts: Sequence[_Attempt]) -> Manifest:
    """Return the one that is wanted of those of a ledger number."""
    read = (manifest_at(each.files, ledger_id, each.uuid) for each in attempts)
    found = [manifest for manifest in read if manifest is not None]
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
