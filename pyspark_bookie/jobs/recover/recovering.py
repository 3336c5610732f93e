"""The recovery of many ledgers: the driver's plan, the tasks, and what it comes to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from bookie_client.client import Client
from bookie_client.replication.replicator import FragmentReplicator, ReplicationOptions
from bookie_client.replication.throttle import ReplicationThrottle
from pyspark_bookie.common.together import bounded
from pyspark_bookie.jobs.framework.arguments import UsageError
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.result import Counter as Value
from pyspark_bookie.jobs.framework.result import JobExit, JobResult
from pyspark_bookie.jobs.framework.tasks import TaskEnvironment
from pyspark_bookie.jobs.recover.job import RecoverArguments
from pyspark_bookie.jobs.recover.ledger_recovery import LedgerRecovery, LedgerWork, RecoveryOptions
from pyspark_bookie.jobs.recover.outcomes import LedgerOutcome, State, table_of
from pyspark_bookie.jobs.recover.plan import Piece, of_bookies, of_findings, pieces, read_findings
from pyspark_bookie.jobs.replicas.deep import ScanLimits
from pyspark_bookie.jobs.replicas.look import Looker
from pyspark_bookie.jobs.replicas.looks import LookOptions
from pyspark_bookie.jobs.replicas.planning import LEAST_PIECES, chosen_ids

LEDGERS_AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What all pieces of a run share."""

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
    looker = Looker(client, LookOptions(digests=True, password=given), limits)
    verifier = Looker(client, LookOptions(digests=recovery.verify_digests, password=given), limits)
    one = LedgerRecovery(client, replicator, looker, verifier, replace(recovery.options, password=password))
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
