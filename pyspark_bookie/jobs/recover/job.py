"""The job `recover`: what is to be recovered, in which pieces, the task that recovers one, and what it all comes to.

Invariants
- A ledger is in one piece only: two tasks never wait for the same lock.
- The largest pieces come first, and pieces are about equally large, so that no slot works alone in the end.

Everything belongs to the driver, except the task `recover_piece`; `pieces` is pure.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from bookie_client.client import Client
from bookie_client.replication.replicator import FragmentReplicator, ReplicationOptions
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_protocol.errors import NoSuchLedger
from bookie_protocol.shown import one_line
from bookie_protocol.together import bounded
from pyspark_bookie.jobs.framework.arguments import DURATION, GENTLE_BYTES_PER_SECOND, SIZE, UsageError, argument
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.ledgers import SelectionArguments
from pyspark_bookie.jobs.framework.registry import job
from pyspark_bookie.jobs.framework.result import Counter as Value
from pyspark_bookie.jobs.framework.result import JobExit, JobResult
from pyspark_bookie.jobs.framework.tasks import TaskEnvironment
from pyspark_bookie.jobs.recover.ledger_recovery import (
    LedgerOutcome,
    LedgerRecovery,
    LedgerWork,
    RecoveryOptions,
    State,
    table_of,
)
from pyspark_bookie.jobs.replicas.deep import ScanLimits
from pyspark_bookie.jobs.replicas.findings import COLUMNS, Finding, Verdict, finding_of
from pyspark_bookie.jobs.replicas.inspection import InspectionOptions, Inspector
from pyspark_bookie.jobs.replicas.units import LEAST_PIECES, chosen_ids, size_of

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_bookie.archive.files import Files

LEDGERS_AT_ONCE: Final = 4
LEDGER_COST: Final = 256 * 1024
"""Bytes that the locks and metadata of a ledger count as, besides its own bytes."""
MAX_LEDGERS: Final = 1_000
READ_AT_ONCE: Final = 64


@dataclass(frozen=True, kw_only=True)
class RecoverArguments(SelectionArguments):
    """The selection of copies: of `--bookies` everything, of `--findings` what they say is lost. By default in all
    ledgers."""

    slot_bytes_per_second = GENTLE_BYTES_PER_SECOND

    bookies: tuple[str, ...] = argument(
        (), help="Replace this bookie wherever a ledger names it; may be given several times.", metavar="ID"
    )
    findings: str | None = argument(
        None, help="Restore what the report of an audit or a scrub lists (the newest run there).", metavar="URI"
    )
    include_open: bool = argument(
        False, help="Close ledgers that are still open, too, where that is needed. Their writers are fenced."
    )
    verify: str = argument(
        "lists", help="How new copies are verified afterwards, besides their last entry.", choices=("lists", "digests")
    )
    lock_wait: float = argument(
        60.0, help="How long to wait for a ledger that a replication worker has locked.", kind=DURATION
    )
    piece_bytes: int = argument(1 << 30, help="Data of one piece of work.", kind=SIZE)


@job("recover")
class RecoverJob:
    """Make new copies of what bookies lost, or of all that some bookies hold, and exchange them in the metadata.

    Each ledger is worked on under its lock, so auto-recovery and this job do not meet. What was done stays done: after
    an interruption the same command continues. Ledgers that cannot be restored are listed, and do not hold up the
    others. Exit code 2: there are some.
    """

    Arguments = RecoverArguments

    def run(self, context: JobContext[RecoverArguments]) -> JobResult:
        """See the class."""
        return recover(context)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """The options that all pieces of a run share."""

    options: RecoveryOptions
    verify_digests: bool


def recover(context: JobContext[RecoverArguments]) -> JobResult:
    """Raises `UsageError`, `PodkeeperError`; what goes wrong with single ledgers is their outcome."""
    args = context.args
    if bool(args.bookies) == (args.findings is not None):
        raise UsageError("recover: say what by either --bookies ID or --findings URI")
    if not context.dry_run:
        context.open_spark()
    works = list(_works(context))
    if context.dry_run:
        outcomes = [LedgerOutcome(work.ledger_id, State.PLANNED, nbytes=work.nbytes) for work in works]
        return _result(outcomes, complete=True)
    recovery = Recovery(
        options=RecoveryOptions(include_open=args.include_open, lock_wait=args.lock_wait),
        verify_digests=args.verify == "digests",
    )
    planned = pieces(works, args.piece_bytes, LEAST_PIECES * context.concurrent)
    left = {work.ledger_id: work for work in works}
    outcomes = []
    context.progress(0, len(works), "ledgers")
    for outcome in context.run_tasks(partial(recover_piece, recovery), planned):
        ended = outcome.result
        if ended is None:
            why = outcome.failure.message
            context.log(f"a piece of {len(outcome.item.works)} ledgers failed: {why}")
            ended = [LedgerOutcome(work.ledger_id, State.FAILED, detail=why) for work in outcome.item.works]
        outcomes.extend(ended)
        for done in ended:
            left.pop(done.ledger_id, None)
        note = f"{sum(each.nbytes for each in outcomes) / 1e6:,.0f} MB copied"
        context.progress(len(outcomes), len(works), "ledgers", note)
    outcomes.extend(LedgerOutcome(work.ledger_id, State.NOT_BEGUN, nbytes=0) for work in left.values())
    return _result(outcomes, complete=not left)


def recover_piece(recovery: Recovery, piece: Piece, environment: TaskEnvironment) -> list[LedgerOutcome]:
    """The task."""
    password, rate = environment.access.password.read(), environment.bytes_per_second
    return environment.client().run(lambda client: recover_ledgers(client, recovery, piece.works, rate, password))


async def recover_ledgers(
    client: Client,
    recovery: Recovery,
    works: tuple[LedgerWork, ...],
    rate: float | None,
    password: bytes | None = None,
) -> list[LedgerOutcome]:
    """The same on a client's event loop."""
    throttle = ReplicationThrottle(rate)
    limits = ScanLimits(throttle)
    given = password or b""
    replicator = FragmentReplicator(client, ReplicationOptions(throttle=throttle, password=given))
    inspector = Inspector(client, InspectionOptions(digests=True, password=given), limits)
    verifier = Inspector(client, InspectionOptions(digests=recovery.verify_digests, password=given), limits)
    one = LedgerRecovery(client, replicator, inspector, verifier, replace(recovery.options, password=password))
    return await bounded(works, one.recover, LEDGERS_AT_ONCE)


def _works(context: JobContext[RecoverArguments]) -> Iterator[LedgerWork]:
    args = context.args
    if args.bookies:
        return of_bookies(context, chosen_ids(context), frozenset(args.bookies))
    assert args.findings is not None
    return of_findings(read_findings(args.findings), chosen_ids(context) if args.is_narrowed else None)


def _result(outcomes: list[LedgerOutcome], *, complete: bool) -> JobResult:
    counts = Counter(outcome.state for outcome in outcomes)
    counters: dict[str, Value] = {"ledgers": len(outcomes)}
    counters.update({state.value.lower(): counts[state] for state in State})
    counters["entries"] = sum(outcome.entries for outcome in outcomes)
    counters["bytes"] = sum(outcome.nbytes for outcome in outcomes)
    outcomes.sort(key=lambda each: (not each.state.is_left_over, each.ledger_id))
    found = any(outcome.state.is_left_over for outcome in outcomes)
    return JobResult(counters, table_of(outcomes), JobExit.FINDINGS if found else JobExit.OK, complete)


@dataclass(frozen=True, slots=True)
class Piece:
    """One task."""

    works: tuple[LedgerWork, ...]

    @property
    def nbytes(self) -> int:
        return sum(work.nbytes for work in self.works)


def pieces(works: Iterable[LedgerWork], max_bytes: int, least: int) -> list[Piece]:
    """Ledgers by size, each to the lightest of as many pieces as their bytes make, but at least `least`; largest
    pieces first."""
    ordered = sorted(works, key=lambda work: (-work.nbytes, work.ledger_id))
    total = sum(work.nbytes + LEDGER_COST for work in ordered)
    count = min(len(ordered), max(least, -(-total // max(1, max_bytes)), -(-len(ordered) // MAX_LEDGERS)))
    if not count:
        return []
    loads = [(0, place) for place in range(count)]
    parts: list[list[LedgerWork]] = [[] for _ in range(count)]
    for work in ordered:
        load, place = heapq.heappop(loads)
        parts[place].append(work)
        heapq.heappush(loads, (load + work.nbytes + LEDGER_COST, place))
    found = [Piece(tuple(sorted(part, key=lambda work: work.ledger_id))) for part in parts]
    return sorted(found, key=lambda piece: -piece.nbytes)


def of_findings(findings: Iterable[Finding], within: Sequence[int] | None) -> Iterator[LedgerWork]:
    """The lost copies of a report, ledger by ledger. `within`: only these ledgers."""
    chosen = None if within is None else set(within)
    by_ledger: dict[int, list[Finding]] = {}
    for finding in findings:
        if finding.verdict.is_copy_lost and (chosen is None or finding.ledger_id in chosen):
            by_ledger.setdefault(finding.ledger_id, []).append(finding)
    for ledger_id, mine in sorted(by_ledger.items()):
        yield LedgerWork(ledger_id, 0, findings=tuple(mine))


def read_findings(uri: str) -> list[Finding]:
    """The lost copies that the newest run below the URI found, or the one run that it names. Raises `UsageError`,
    `ArchiveUnavailable`."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    from pyspark_bookie.archive.files import Files

    files = Files(uri, "--findings")
    with files.requests(""):
        folder = _newest(files)
    names = [name for name, _ in COLUMNS]
    wanted = ds.field("verdict").isin([verdict.value for verdict in Verdict if verdict.is_copy_lost])
    try:
        table: pa.Table = ds.dataset(folder, filesystem=files.system, format="parquet").to_table(
            columns=names, filter=wanted
        )
        return [finding_of(row) for batch in table.to_batches() for row in batch.to_pylist()]
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(
            f"--findings {files.shown('')}: cannot be read as the report of an audit or a scrub: {one_line(error)}"
        ) from None


def of_bookies(context: JobContext[Any], ids: Sequence[int], bookies: frozenset[str]) -> Iterator[LedgerWork]:
    """The ledgers that name one of these bookies, also where it stores nothing, so that metadata drop it. Raises
    `MetadataError`."""
    client = context.client()
    for start in range(0, len(ids), READ_AT_ONCE):
        part = ids[start : start + READ_AT_ONCE]
        yield from client.run(lambda each, part=part: _naming(each, part, bookies))  # type: ignore[misc]


# --- inside -------------------------------------------------------------------------------------------------------


def _newest(files: Files) -> str:
    import pyarrow.fs as pafs

    found, path = files.system, files.path("")
    info = found.get_file_info(path)
    if info.type is pafs.FileType.NotFound:
        raise UsageError(f"--findings {files.shown('')}: there is nothing")
    if info.type is not pafs.FileType.Directory:
        return path
    folders = [each for each in found.get_file_info(pafs.FileSelector(path)) if each.type is pafs.FileType.Directory]
    return max((each.path for each in folders if each.base_name.startswith("run=")), default=path)


async def _naming(client: Client, ids: Sequence[int], bookies: frozenset[str]) -> list[LedgerWork]:
    async def one(ledger_id: int) -> LedgerWork | None:
        try:
            metadata = await client.metadata(ledger_id)
        except NoSuchLedger:
            return None
        if bookies.isdisjoint(metadata.all_bookies()):
            return None
        nbytes = sum(held for bookie, held in size_of(metadata).by_bookie if bookie in bookies)
        return LedgerWork(ledger_id, nbytes, bookies=bookies)

    return [work for work in await asyncio.gather(*map(one, ids)) if work is not None]
