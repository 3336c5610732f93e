"""The job `replication-check`: arguments, the part of the driver, and the task, which reads nothing but metadata."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from bookie_client.client import Client
from bookie_client.replication.fragments import Fragment, fragments
from bookie_protocol.errors import MetadataDamaged, NoSuchLedger
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.together import bounded
from pyspark_bookie.jobs.framework.arguments import UsageError, argument
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.ledgers import SelectionArguments
from pyspark_bookie.jobs.framework.registry import job
from pyspark_bookie.jobs.framework.result import JobResult
from pyspark_bookie.jobs.framework.tasks import TaskEnvironment
from pyspark_bookie.jobs.replicas.absent import tell_absent
from pyspark_bookie.jobs.replicas.findings import Finding, FindingsSpool, Verdict, of_ledger
from pyspark_bookie.jobs.replicas.placement import POLICIES, PlacementCheck, placement_check
from pyspark_bookie.jobs.replicas.tasks import Totals, UnitResult, mark_findings
from pyspark_bookie.jobs.replicas.units import Planned, Slice, Unit, chosen, light_units, size_of

LEDGERS: Final = 2_000
"""Ledgers of one piece."""
READ_AT_ONCE: Final = 64


@dataclass(frozen=True, kw_only=True)
class ReplicationCheckArguments(SelectionArguments):
    """The arguments of `replication-check`, by default about all ledgers."""

    bookies: tuple[str, ...] = argument(
        (), help="Tell what names this bookie; may be given several times.", metavar="ID"
    )
    placement: str = argument("none", help="Placement policy that ensembles are held against.", choices=POLICIES)
    mark: bool = argument(
        False, help="Mark what was found as under-replicated, so that auto-recovery copies it elsewhere."
    )


@job("replication-check")
class ReplicationCheckJob:
    """Tell from metadata alone what would have to be copied if some bookies went, or another placement policy counted.

    No bookie is asked for anything. Exit code 2: there is something to copy.
    """

    Arguments = ReplicationCheckArguments

    def run(self, context: JobContext[ReplicationCheckArguments]) -> JobResult:
        """See the class."""
        return check(context)


@dataclass(frozen=True, slots=True)
class Question:
    """The options that all pieces of a run share. `placement` None: no policy."""

    bookies: frozenset[str]
    placement: str | None
    mark: bool


def check(context: JobContext[ReplicationCheckArguments]) -> JobResult:
    """Raises `UsageError`, `PodkeeperError`."""
    args = context.args
    if not args.bookies and args.placement == "none":
        raise UsageError("replication-check: say what is asked for: --bookies ID, or --placement POLICY")
    context.open_spark()
    policy = None if args.placement == "none" else args.placement
    question = Question(frozenset(args.bookies), policy, args.mark and not context.dry_run)
    choice = chosen(context)
    ids = choice.ids
    planned = Planned(light_units(context, ids, LEDGERS))
    context.progress(0, len(ids), "ledgers")
    with FindingsSpool() as spool:
        totals = Totals(spool)
        for outcome in context.run_tasks(partial(check_unit, question), planned):
            totals.take(context, outcome)
            context.progress(totals.sums["ledgers"] + totals.sums["deleted"], len(ids), "ledgers")
        return totals.result(complete=planned.ended, more=tell_absent(context, choice.missing, spool))


def check_unit(question: Question, unit: Unit, environment: TaskEnvironment) -> UnitResult:
    """The task."""

    async def run(client: Client) -> UnitResult:
        async with placement_check(client, question.placement, environment.access) as placement:
            return await check_ledgers(client, question, unit, placement)

    return environment.client().run(run)


async def check_ledgers(
    client: Client, question: Question, unit: Unit, placement: PlacementCheck | None = None
) -> UnitResult:
    """The same on a client's event loop. `nbytes` of the result: what would have to be copied."""
    registered = await client.bookies.writable() | await client.bookies.read_only()
    result = UnitResult(unit.number)

    async def check_ledger(each: Slice) -> None:
        try:
            metadata = await client.metadata(each.ledger_id)
        except NoSuchLedger:
            result.deleted += 1
            return
        except MetadataDamaged as error:
            result.ledgers += 1
            result.findings.append(of_ledger(each.ledger_id, Verdict.UNKNOWN, str(error)))
            return
        result.ledgers += 1
        result.open += not metadata.is_closed
        named = list(naming(metadata, question.bookies, registered))
        if named:
            held = dict(size_of(metadata).by_bookie)
            result.nbytes += sum(held.get(bookie, 0) for bookie in {found.bookie for found in named})
            result.findings.extend(named)
        if placement is not None:
            result.findings.extend(placement.findings(metadata))

    await bounded(unit.slices, check_ledger, READ_AT_ONCE)
    result.findings.sort(key=lambda found: (found.ledger_id, found.fragment, found.position))
    result.misplaced_without_remedy = 0 if placement is None else placement.without_remedy
    if question.mark:
        marked = await mark_findings(client.metadata_service, result.findings)
        result.marks.update(outcome.value for outcome in marked.values())
    return result


def naming(metadata: LedgerMetadata, bookies: Collection[str], registered: Collection[str]) -> Iterator[Finding]:
    """The segments that store entries on these bookies, or may at any time, with how many copies are left without
    them."""
    for part in fragments(metadata.ledger_id, metadata, -1):
        for position, bookie in enumerate(part.ensemble):
            if bookie not in bookies:
                continue
            entries = part.entries_of(position)
            if part.is_closed and not len(entries):
                continue
            span = (part.first_entry, part.last_entry, len(entries))
            left = copies_left(part, bookies, registered)
            detail = f"{left} of {part.quorums.write} copies of its worst entry are on other registered bookies"
            if not part.is_closed:
                detail = f"{metadata.state.value}, it may grow; {detail}"
            yield Finding(metadata.ledger_id, part.first_entry, *span, bookie, position, Verdict.NAMED, detail)


def copies_left(part: Fragment, without: Collection[str], registered: Collection[str]) -> int:
    """Return the copies left of the entry that would have the fewest."""
    size = part.quorums.ensemble
    count = min(size, part.count) if part.is_closed else size
    stays = [bookie in registered and bookie not in without for bookie in part.ensemble]
    return min(sum(stays[at] for at in part.write_set(part.first_entry + place)) for place in range(count))
