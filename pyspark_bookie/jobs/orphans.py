"""The job `orphans`: ledgers are searched by tasks, segments of manifests and files of offloads by the driver.

Orphaned ledgers are found by their owners' lists, and removed under a guard. Invariants
- Only a ledger that its owner does not list, and that is old enough by its own metadata, is an orphan; one of unknown
  age is left alone.
- Before a ledger is removed its metadata say so, then the owner's list is read once more, and it is removed only in the
  version that was judged (`bookie_client.streams.publishing`).

Format of the detail report: `table_of`; `thing` is a ledger id, a segment's name or a path.

The job belongs to the driver, `search_ledgers` to an event loop.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Final

from bookie_client.client import Client
from bookie_client.streams.publishing import going, staying
from bookie_client.streams.store import ManifestStore
from bookie_protocol.errors import MetadataDamaged, MetadataError, NoSuchLedger, NotThere, PodkeeperError
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.records import STREAM_SEGMENT
from bookie_protocol.shown import moment, one_line, shown_uri
from bookie_protocol.versioned import Versioned
from pyspark_bookie.jobs.framework.arguments import DAY_S, DURATION, UsageError, argument
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.ledgers import SelectionArguments
from pyspark_bookie.jobs.framework.owners import OwnerKind, Owners, Ownership, Standing
from pyspark_bookie.jobs.framework.registry import job
from pyspark_bookie.jobs.framework.result import Counter as Value
from pyspark_bookie.jobs.framework.result import JobExit, JobResult
from pyspark_bookie.jobs.framework.tasks import TaskEnvironment
from pyspark_bookie.jobs.replicas.units import Planned, Unit, chosen_ids, light_units, size_of

if TYPE_CHECKING:
    import pyarrow as pa

SINK_ATTEMPTS: Final = "sink-attempts"
STREAM_LEDGERS: Final = "stream-ledgers"
STREAM_SEGMENTS: Final = "stream-segments"
OFFLOADS: Final = "offload-files"
GONE_STREAMS: Final = "gone-streams"
MANAGED_LEDGERS: Final = "managed-ledgers"
KINDS: Final = (SINK_ATTEMPTS, STREAM_LEDGERS, STREAM_SEGMENTS, OFFLOADS, GONE_STREAMS, MANAGED_LEDGERS)
DEFAULT_KINDS: Final = (SINK_ATTEMPTS, STREAM_LEDGERS, STREAM_SEGMENTS, OFFLOADS)
OF_LEDGERS: Final = frozenset({SINK_ATTEMPTS, STREAM_LEDGERS, GONE_STREAMS, MANAGED_LEDGERS})
READ_AT_ONCE: Final = 32
LEDGERS: Final = 1_000
"""Maximum ledgers of one piece."""


class Fate(Enum):
    """The outcome for an orphan."""

    FOUND = "FOUND"
    REMOVED = "REMOVED"
    KEPT = "KEPT"
    """It was to be removed, and something spoke against it at the last moment, or it failed."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """An orphan. `nbytes`: of all copies; 0 if unknown. `created_ms`: since 1970; None: unknown."""

    kind: str
    thing: str
    owner: str
    nbytes: int
    created_ms: int | None
    fate: Fate
    detail: str


def table_of(orphans: Iterable[Orphan]) -> pa.Table:
    """The detail report."""
    import pyarrow as pa

    schema = pa.schema(
        [
            ("kind", pa.string()),
            ("thing", pa.string()),
            ("owner", pa.string()),
            ("bytes", pa.int64()),
            ("created", pa.timestamp("ms", "UTC")),
            ("fate", pa.string()),
            ("detail", pa.string()),
        ]
    )
    rows = [
        {
            "kind": each.kind,
            "thing": each.thing,
            "owner": each.owner,
            "bytes": each.nbytes,
            "created": moment(each.created_ms),
            "fate": each.fate.value,
            "detail": each.detail,
        }
        for each in orphans
    ]
    return pa.Table.from_pylist(rows, schema=schema)


@dataclass(frozen=True, slots=True)
class Search:
    """The options that all pieces share. `before_ms`: only ledgers made until then."""

    kinds: frozenset[str]
    before_ms: int
    remove: bool
    managed_ledgers: str


@dataclass(slots=True)
class Searched:
    """`standings`: how many ledgers of each were looked at."""

    ledgers: int = 0
    young: int = 0
    standings: Counter[str] = field(default_factory=Counter)
    orphans: list[Orphan] = field(default_factory=list)


def search_unit(search: Search, unit: Unit, environment: TaskEnvironment) -> Searched:
    """The task."""
    return environment.client().run(lambda client: search_ledgers(client, search, unit))


async def search_ledgers(client: Client, search: Search, unit: Unit) -> Searched:
    """The same on a client's event loop. Raises `MetadataUnavailable`."""
    owners = Owners(client, search.managed_ledgers, among=[each.ledger_id for each in unit.slices])
    result = Searched()
    for each in unit.slices:
        try:
            stored = await client.stored_metadata(each.ledger_id)
        except (NoSuchLedger, MetadataDamaged):
            continue  # an audit tells of damaged metadata
        metadata = stored.value
        result.ledgers += 1
        ownership = await owners.of(metadata)
        result.standings[ownership.standing.value] += 1
        kind = kind_of(ownership)
        if ownership.standing is not Standing.ORPHAN or kind not in search.kinds:
            continue
        if metadata.ctime is None or metadata.ctime > search.before_ms:
            result.young += 1
            continue
        fate, detail = Fate.FOUND, ownership.detail
        if search.remove:
            fate, detail = await _remove(client, owners, stored, detail)
        nbytes = size_of(metadata).replica_bytes
        result.orphans.append(
            Orphan(kind, str(metadata.ledger_id), ownership.name, nbytes, metadata.ctime, fate, detail)
        )
    return result


def kind_of(ownership: Ownership) -> str:
    """Return the kind of orphan that a ledger would be."""
    if ownership.kind is OwnerKind.MANAGED_LEDGER:
        return MANAGED_LEDGERS
    if ownership.is_gone:
        return GONE_STREAMS
    return SINK_ATTEMPTS if ownership.by_sink else STREAM_LEDGERS


async def _remove(client: Client, owners: Owners, stored: Versioned[LedgerMetadata], detail: str) -> tuple[Fate, str]:
    metadata = stored.value
    try:
        marked = await going(client, stored)
        await owners.forget(metadata)
        now = await owners.of(metadata)
        if now.standing is not Standing.ORPHAN:
            await staying(client, marked)
            return Fate.KEPT, f"its owner lists it by now: {now.detail or now.standing.value}"
        await client.metadata_service.ledgers.delete_this(marked)
    except MetadataError as error:
        return Fate.KEPT, f"it was not removed: {error}"
    return Fate.REMOVED, detail


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

    Ledgers of Spark's sink and of streams that no manifest lists, segments that no manifest names, files of offloads
    that were given up. Removes nothing without --no-dry-run, and nothing that is younger than --older-than. Exit code
    2: something was found and not removed.
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
    from pyspark_bookie.jobs.offload.cleaning import OffloadStore, find_orphans, remove_orphans

    target = context.args.target or ""
    files, records = Files(target, "--target"), OffloadStore(context.client())
    files.check_there()
    instance_id = context.client().run(lambda client: client.metadata_service.cluster.instance_id())
    if instance_id is None:
        raise UsageError("the cluster has no instance id, which identifies its archive")
    if (other := other_owner(files, instance_id)) is not None:
        raise UsageError(
            f"--target {shown_uri(target)}: the archive belongs to another cluster, with instance id {one_line(other)}"
        )
    found = find_orphans(files, datetime.fromtimestamp(before, UTC), records.current_uuid)
    fate = Fate.FOUND
    if not context.dry_run:
        remove_orphans(files, found)
        fate = Fate.REMOVED
    for listed in found.files:
        modified = None if listed.modified is None else int(listed.modified.timestamp() * 1000)
        detail = "no record and no manifest names its attempt"
        yield Orphan(OFFLOADS, listed.path, shown_uri(target), listed.nbytes, modified, fate, detail)


def _result(orphans: list[Orphan], counters: dict[str, Value], failed: int, *, complete: bool) -> JobResult:
    for kind in KINDS:
        counters[kind.replace("-", "_")] = sum(each.kind == kind for each in orphans)
    for fate in Fate:
        counters[fate.value.lower()] = sum(each.fate is fate for each in orphans)
    counters["bytes"] = sum(each.nbytes for each in orphans)
    counters["pieces_failed"] = failed
    left = any(each.fate is not Fate.REMOVED for each in orphans) or failed
    return JobResult(counters, table_of(orphans), JobExit.FINDINGS if left else JobExit.OK, complete)
