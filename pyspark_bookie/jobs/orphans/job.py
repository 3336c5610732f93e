"""The job `orphans`: ledgers are searched by tasks, segments of manifests and files of offloads by the driver.

Driver only.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from bookie_client.streams.store import ManifestStore
from bookie_protocol.errors import NotThere, PodkeeperError
from bookie_protocol.metadata_service.records import STREAM_SEGMENT
from pyspark_bookie.jobs.framework.arguments import DAY_S, DURATION, UsageError, argument
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.ledgers import SelectionArguments
from pyspark_bookie.jobs.framework.registry import job
from pyspark_bookie.jobs.framework.result import Counter as Value
from pyspark_bookie.jobs.framework.result import JobExit, JobResult
from pyspark_bookie.jobs.orphans.finding import (
    DEFAULT_KINDS,
    KINDS,
    OF_LEDGERS,
    OFFLOADS,
    STREAM_SEGMENTS,
    Fate,
    Orphan,
    table_of,
)
from pyspark_bookie.jobs.orphans.ledgers import Search, search_unit
from pyspark_bookie.jobs.replicas.units import Planned, Unit, chosen_ids, light_units

if TYPE_CHECKING:
    from bookie_client.client import Client

LEDGERS: Final = 1_000
"""Of one piece."""


@dataclass(frozen=True, kw_only=True)
class OrphansArguments(SelectionArguments):
    """The arguments of `orphans`: by default about all ledgers, older than three days, and nothing is removed."""

    dry_run: bool = argument(True, help="List what is left behind, and remove nothing. --no-dry-run removes it.")
    older_than: float | None = argument(
        3 * DAY_S, help="Only what was made at least so long ago: until then its writer may live.", kind=DURATION
    )
    kind: tuple[str, ...] = argument(
        (),
        help=f"What to look for; may be given several times: {', '.join(KINDS)}. Default: all but the last"
        " two: ledgers of a stream that was deleted may have been kept, and Pulsar removes its own.",
        metavar="KIND",
    )
    target: str | None = argument(None, help="Archive of the job offload, for offload-files.", metavar="URI")
    managed_ledgers: str = argument("/managed-ledgers", help="Where Pulsar keeps its lists.", metavar="PATH")


@job("orphans")
class OrphansJob:
    """List, and on demand remove, what failed attempts and dead writers left behind.

    Ledgers of Spark's sink and of streams that no manifest lists, segments of manifests that nobody names, files of
    offloads that were given up. Removes nothing without --no-dry-run, and nothing that is younger than --older-than.
    Exit code 2: something was found and not removed.
    """

    Arguments = OrphansArguments

    def run(self, context: JobContext[OrphansArguments]) -> JobResult:
        """See the class."""
        return search(context)


def search(context: JobContext[OrphansArguments]) -> JobResult:
    """Raises `UsageError`, `PodkeeperError`."""
    args = context.args
    kinds = _kinds(args)
    before = time.time() - (args.older_than or 0.0)
    counters: dict[str, Value] = {}
    orphans: list[Orphan] = []
    failed, complete = 0, True
    if kinds & OF_LEDGERS:
        context.open_spark()
        planned = Planned(_units(context))
        question = Search(kinds & OF_LEDGERS, int(before * 1000), not context.dry_run, args.managed_ledgers)
        standings: Counter[str] = Counter()
        seen = young = 0
        for outcome in context.run_tasks(partial(search_unit, question), planned):
            if outcome.result is None:
                failed += 1
                context.log(f"a piece of {len(outcome.item.slices)} ledgers failed: {outcome.failure.message}")
                continue
            seen += outcome.result.ledgers
            young += outcome.result.young
            standings.update(outcome.result.standings)
            orphans.extend(outcome.result.orphans)
            context.progress(seen, None, "ledgers", f"{len(orphans)} orphans")
        complete = planned.ended and not failed
        counters |= {"ledgers": seen, "owned": standings["owned"], "owner_unknown": standings["unknown"]}
        counters["too_young"] = young
    if STREAM_SEGMENTS in kinds:
        orphans.extend(context.client().run(partial(stream_segments, remove=not context.dry_run)))
    if OFFLOADS in kinds and args.target is not None:
        orphans.extend(_offload_files(context, before))
    return _result(orphans, counters, failed, complete=complete)


async def stream_segments(client: Client, *, remove: bool) -> list[Orphan]:
    """Segments that no manifest names. Age plays no part: the manifest is changed before they are removed, so that a
    change under way, which may have just written them, fails and is made again with segments of its own."""
    store, segments = ManifestStore(client.metadata_service), client.metadata_service.records(STREAM_SEGMENT)
    found: list[Orphan] = []
    for name in sorted({each.rpartition(":")[0] for each in await segments.names()}):
        listed = await store.segment_ids(name)
        try:
            unnamed = listed - (await store.read(name, even_deleting=True)).head.segment_ids
            detail = f"the manifest of stream {name} does not name it"
            gone = False
        except NotThere:
            unnamed, detail, gone = listed, f"there is no stream {name}", True
        except PodkeeperError as error:
            unnamed, detail, gone = frozenset(), str(error), False
        if not unnamed:
            continue
        fate = Fate.FOUND
        if remove:
            fate, detail = await _drop(store, name, unnamed, detail, gone=gone)
        found.extend(Orphan(STREAM_SEGMENTS, f"{name}:{each}", name, 0, None, fate, detail) for each in sorted(unnamed))
    return found


# --- inside -------------------------------------------------------------------------------------------------------


async def _drop(
    store: ManifestStore, name: str, unnamed: frozenset[str], detail: str, *, gone: bool
) -> tuple[Fate, str]:
    try:
        if gone:
            await store.drop(name, unnamed)
        else:
            await store.update(name, lambda manifest: replace(manifest, epoch=manifest.epoch + 1))
            await store.drop_unnamed(name, unnamed)
    except PodkeeperError as error:
        return Fate.KEPT, f"it was not removed: {error}"
    return Fate.REMOVED, detail


def _kinds(args: OrphansArguments) -> frozenset[str]:
    unknown = sorted(set(args.kind) - set(KINDS))
    if unknown:
        raise UsageError(f"orphans: there is no kind {unknown[0]!r}: there are {', '.join(KINDS)}")
    if OFFLOADS in args.kind and args.target is None:
        raise UsageError(f"orphans: --kind {OFFLOADS} needs the archive's URI: --target URI")
    return frozenset(args.kind or DEFAULT_KINDS)


def _units(context: JobContext[OrphansArguments]) -> Iterator[Unit]:
    # The age is judged by each task, so that what is too young can be counted.
    args, context.args = context.args, replace(context.args, older_than=None)
    try:
        ids = chosen_ids(context)
    finally:
        context.args = args
    return light_units(context, ids, LEDGERS)


def _offload_files(context: JobContext[OrphansArguments], before: float) -> Iterator[Orphan]:
    from pyspark_bookie.archive.files import Files
    from pyspark_bookie.archive.instance import other_owner
    from pyspark_bookie.jobs.offload.cleaning import find_orphans, remove_orphans
    from pyspark_bookie.jobs.offload.store import OffloadStore

    target = context.args.target or ""
    files, records = Files(target, "--target"), OffloadStore(context.client())
    instance_id = context.client().run(lambda client: client.metadata_service.cluster.instance_id())
    if instance_id is None or (other := other_owner(files, instance_id)) is not None:
        raise UsageError(f"--target {target}: the archive belongs to another cluster, with instance id {other}")
    found = find_orphans(files, datetime.fromtimestamp(before, UTC), records.current_uuid)
    fate = Fate.FOUND
    if not context.dry_run:
        remove_orphans(files, found)
        fate = Fate.REMOVED
    for listed in found.files:
        modified = None if listed.modified is None else int(listed.modified.timestamp() * 1000)
        detail = "no record and no manifest names its attempt"
        yield Orphan(OFFLOADS, listed.path, target, listed.nbytes, modified, fate, detail)


def _result(orphans: list[Orphan], counters: dict[str, Value], failed: int, *, complete: bool) -> JobResult:
    for kind in KINDS:
        counters[kind.replace("-", "_")] = sum(each.kind == kind for each in orphans)
    for fate in Fate:
        counters[fate.value.lower()] = sum(each.fate is fate for each in orphans)
    counters["bytes"] = sum(each.nbytes for each in orphans)
    counters["pieces_failed"] = failed
    left = any(each.fate is not Fate.REMOVED for each in orphans) or failed
    return JobResult(counters, table_of(orphans), JobExit.FINDINGS if left else JobExit.OK, complete)
