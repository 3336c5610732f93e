"""The recovery of many ledgers: the driver's plan, the tasks, and what it comes to."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from bookie_client.client import Client
from bookie_client.replication.replicator import FragmentReplicator, ReplicationOptions
from bookie_client.replication.throttle import ReplicationThrottle
from pyspark_bookie.common.secrets import read_secret
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
from pyspark_bookie.jobs.replicas.planning import chosen_ids

LEDGERS_AT_ONCE: Final = 4
LEAST_PIECES: Final = 4
"""For each slot."""


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
        _ = context.spark  # before the client: a process with many threads is no good parent of the Java process
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
    for outcome in context.run_tasks(partial(recover_piece, recovery), planned):
        if outcome.error is not None:
            context.log(f"a piece of {len(outcome.item.works)} ledgers failed: {outcome.error.message}")
            failed = [
                LedgerOutcome(w.ledger_id, State.FAILED, detail=outcome.error.message) for w in outcome.item.works
            ]
        for done in outcome.result if outcome.result is not None else failed:
            outcomes.append(done)
            left.pop(done.ledger_id, None)
        note = f"{sum(each.nbytes for each in outcomes) / 1e6:,.0f} MB copied"
        context.progress(len(outcomes), len(works), "ledgers", note)
    outcomes.extend(LedgerOutcome(work.ledger_id, State.NOT_BEGUN, nbytes=0) for work in left.values())
    return _result(outcomes, complete=not left)


def recover_piece(recovery: Recovery, piece: Piece, environment: TaskEnvironment) -> list[LedgerOutcome]:
    """The task."""
    path = environment.access.password_file
    password = None if path is None else read_secret("passwordFile", path)
    rate = environment.bytes_per_second
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
    options = RecoveryOptions(
        include_open=recovery.options.include_open, lock_wait=recovery.options.lock_wait, password=password
    )
    one = LedgerRecovery(client, replicator, looker, verifier, options)
    waiting: Iterator[LedgerWork] = iter(works)
    outcomes: list[LedgerOutcome] = []

    async def work() -> None:
        for each in waiting:
            outcomes.append(await one.recover(each))  # noqa: PERF401 - several share the iterator

    async with asyncio.TaskGroup() as group:
        for _ in range(min(LEDGERS_AT_ONCE, len(works))):
            group.create_task(work())
    return outcomes


def _works(context: JobContext[RecoverArguments]) -> Iterator[LedgerWork]:
    args = context.args
    if args.bookies:
        return of_bookies(context, chosen_ids(context), frozenset(args.bookies))
    assert args.findings is not None
    narrowed = any((args.ledgers, args.stream, args.ledger_pattern, args.where, args.older_than))
    return of_findings(read_findings(args.findings), chosen_ids(context) if narrowed else None)


def _result(outcomes: list[LedgerOutcome], *, complete: bool) -> JobResult:
    counts = Counter(outcome.state for outcome in outcomes)
    counters: dict[str, Value] = {"ledgers": len(outcomes)}
    counters.update({state.value.lower(): counts[state] for state in State})
    counters["entries"] = sum(outcome.entries for outcome in outcomes)
    counters["bytes"] = sum(outcome.nbytes for outcome in outcomes)
    outcomes.sort(key=lambda each: (not each.state.is_left_over, each.ledger_id))
    found = any(outcome.state.is_left_over for outcome in outcomes)
    return JobResult(counters, table_of(outcomes), JobExit.FINDINGS if found else JobExit.OK, complete)
