"""The job `audit`: the driver plans pieces of work, tasks inspect them (`replicas`), the driver adds up findings.

It also audits what concerns no single copy: bookies without a cookie that ledgers name, bookies that are away for long,
and old marks of under-replication.

No registration shows since when a bookie is away, so audits note it: the record `unregistered` of kind `audit`, JSON,
`{"v": 1, "since_ms": {bookie id: ms since 1970}}`.

Invariants
- Bookies on which two readings of the registry do not agree are not reported.
- The note has the bookies with a cookie that the last audit saw registered nowhere, each since the first of the audits
  in a row that saw that. A note that cannot be read, or that another audit changes meanwhile, costs time and no
  finding.
- A mark without a time is counted, and its age never guessed.

Driver only.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from bookie_protocol.errors import UNREADABLE, MetadataDamaged
from bookie_protocol.metadata_service.interface import BookieGroup
from bookie_protocol.metadata_service.under_replication import UnderreplicatedLedger
from bookie_protocol.shown import time_text
from pyspark_bookie.common.access import AccessOptions
from pyspark_bookie.jobs.framework.arguments import DAY_S, DURATION, GENTLE_BYTES_PER_SECOND, SIZE, argument
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.ledgers import SelectionArguments
from pyspark_bookie.jobs.framework.records import JobRecords, TakenOver
from pyspark_bookie.jobs.framework.registry import job
from pyspark_bookie.jobs.framework.result import Counter as Value
from pyspark_bookie.jobs.framework.result import JobResult
from pyspark_bookie.jobs.replicas.absent import tell_absent
from pyspark_bookie.jobs.replicas.findings import NO_LEDGER, Finding, FindingsSpool, Verdict, of_bookie, of_ledger
from pyspark_bookie.jobs.replicas.inspection import InspectionOptions
from pyspark_bookie.jobs.replicas.placement import POLICIES
from pyspark_bookie.jobs.replicas.tasks import Totals, UnitOptions, inspect_unit
from pyspark_bookie.jobs.replicas.units import Planned, Unit, chosen, fair_count, groups, light_units, numbered, sized

if TYPE_CHECKING:
    from bookie_client.blocking import BlockingClient
    from bookie_client.client import Client

LIGHT_LEDGERS: Final = 1_000
"""Ledgers of one piece where no data is read."""
DEEP_LEDGERS: Final = 5_000
FINDINGS_AT_ONCE: Final = 1_000
KIND: Final = "audit"
NOTE: Final = "unregistered"
_VERSION: Final = 1


@dataclass(frozen=True, kw_only=True)
class AuditArguments(SelectionArguments):
    """The arguments of `audit`, by default about all ledgers."""

    slot_bytes_per_second = GENTLE_BYTES_PER_SECOND

    digests: bool = argument(False, help="Read every entry of every replica, too, and verify its digest.")
    placement: str | None = argument(
        None, help="Placement policy that ensembles are held against. Default: --option placement=.", choices=POLICIES
    )
    extra: bool = argument(False, help="List copies that no metadata ask for, too. They are harmless.")
    mark: bool = argument(False, help="Mark ledgers that lost copies, so that auto-recovery restores them.")
    recheck: float = argument(
        5.0, help="Pause before a suspected fault is inspected again; only confirmed ones are reported.", kind=DURATION
    )
    absent_after: float = argument(
        DAY_S, help="Report bookies that have a cookie but have not been registered for this long.", kind=DURATION
    )
    overdue_after: float = argument(
        DAY_S, help="Report ledgers that have been marked as under-replicated for this long.", kind=DURATION
    )
    piece_bytes: int = argument(256 << 20, help="Data of one piece of work, with --digests.", kind=SIZE)


@job("audit")
class AuditJob:
    """Find replicas that are missing, damaged or misplaced, and report bookies that do not answer separately.

    Every bookie of every ensemble is asked which entries it has (no data is read); with --digests everything is read
    and verified as well. Bookies without a cookie or a registration, and old marks of under-replication, are reported
    too. Every suspected fault is inspected twice. Exit code 2: there are findings.
    """

    Arguments = AuditArguments

    def run(self, context: JobContext[AuditArguments]) -> JobResult:
        """See the class."""
        return audit(context)


def audit(context: JobContext[AuditArguments]) -> JobResult:
    """Raises `UsageError`, `PodkeeperError`; what goes wrong with single ledgers is a finding."""
    args = context.args
    options = UnitOptions(
        inspection=InspectionOptions(digests=args.digests, extra=args.extra),
        recheck_seconds=args.recheck,
        mark=args.mark and not context.dry_run,
        placement=policy_held_against(args, context.access),
    )
    context.open_spark()
    choice = chosen(context)
    ids = choice.ids
    planned = Planned(units(context, ids))
    context.progress(0, len(ids), "ledgers")
    with FindingsSpool() as spool:
        totals, named = Totals(spool), NamedBookies()
        for outcome in context.run_tasks(partial(inspect_unit, options), planned):
            totals.take(context, outcome)
            if outcome.result is not None:
                named.add(outcome.result.findings)
            done = totals.sums["ledgers"] + totals.sums["deleted"]
            note = f"{totals.sums['nbytes'] / 1e6:,.0f} MB, {sum(spool.counts.values())} findings"
            context.progress(done, len(ids), "ledgers", note)
        # Pieces are taken in order, and all that were taken have ended.
        more: dict[str, Value] = {} if planned.ended else {"next_ledger": planned.next_ledger}
        more |= tell_absent(context, choice.missing, spool)
        more["marks_without_time"] = check_registry(context, ids, named, spool)
        return totals.result(complete=planned.ended, more=more)


def policy_held_against(args: AuditArguments, access: AccessOptions) -> str | None:
    """The policy by which new copies are placed, unless another one is named; None: no policy."""
    policy = args.placement or access.placement
    return None if policy == "none" else policy


def check_registry(
    context: JobContext[AuditArguments], ids: Sequence[int], named: NamedBookies, spool: FindingsSpool
) -> int:
    """Bookies and marks against the registry; bookies that are away only if the audit is of all ledgers. Returns how
    many marks have no time. Raises `MetadataUnavailable`."""
    args = context.args
    check = RegistryCheck(context.client(), context.log, pause=args.recheck, note=not context.dry_run)
    spool.add(check.bookies(named, None if args.is_narrowed else args.absent_after))
    marks = check.old_marks(lambda ledger_id: not args.is_narrowed or is_among(ids, ledger_id), args.overdue_after)
    while batch := list(islice(marks, FINDINGS_AT_ONCE)):
        spool.add(batch)
    return check.marks_without_time


def is_among(ids: Sequence[int], ledger_id: int) -> bool:
    """`ids` ascend."""
    at = bisect_left(ids, ledger_id)
    return at < len(ids) and ids[at] == ledger_id


def units(context: JobContext[AuditArguments], ids: Sequence[int]) -> Iterator[Unit]:
    """The pieces, in ascending order of ledgers."""
    args = context.args
    if not args.digests:
        return light_units(context, ids, LIGHT_LEDGERS)
    most = min(DEEP_LEDGERS, max(fair_count(context, ids), 16))
    return numbered(groups(sized(context, ids), args.piece_bytes, most))


@dataclass(frozen=True, slots=True)
class Absences:
    """The note; see the module."""

    since_ms: Mapping[str, int] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return NOTE

    def encode(self) -> bytes:
        return json.dumps({"v": _VERSION, "since_ms": dict(sorted(self.since_ms.items()))}).encode()

    @classmethod
    def decode(cls, data: bytes) -> Absences:
        """Raises `MetadataDamaged`."""
        try:
            document = json.loads(data)
            if document["v"] != _VERSION:
                raise ValueError(f"version {document['v']} is not known")
            return cls({str(bookie): int(since) for bookie, since in document["since_ms"].items()})
        except UNREADABLE as error:
            raise MetadataDamaged(f"the audits' note of absent bookies cannot be read: {error}") from error


@dataclass
class NamedBookies:
    """Bookies that ledgers name and that are registered nowhere, as the findings of copies tell: how many ledgers, and
    the last one of them."""

    ledgers: dict[str, tuple[int, int]] = field(default_factory=dict)

    def add(self, findings: Iterable[Finding]) -> None:
        """Add the findings of one piece, ledger by ledger."""
        for finding in findings:
            if finding.verdict is Verdict.LOST:
                count, last = self.ledgers.get(finding.bookie, (0, NO_LEDGER))
                self.ledgers[finding.bookie] = count + (last != finding.ledger_id), finding.ledger_id


@dataclass(frozen=True, slots=True)
class _Registry:
    registered: frozenset[str]
    cookies: frozenset[str]

    @property
    def unregistered(self) -> frozenset[str]:
        return self.cookies - self.registered

    def without_cookie(self, named: Iterable[str]) -> frozenset[str]:
        return self.registered.union(named) - self.cookies


class RegistryCheck:
    """`pause`: seconds between two readings. `note`: False changes nothing. `clock`: seconds since 1970."""

    def __init__(
        self,
        client: BlockingClient,
        log: Callable[[str], None],
        *,
        pause: float,
        note: bool,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._log = log
        self._pause = pause
        self._note = note
        self._now_ms = int(clock() * 1000)
        self._sleep = sleep
        self.marks_without_time = 0

    def bookies(self, named: NamedBookies, absent_after: float | None) -> list[Finding]:
        """NO_COOKIE, and UNREGISTERED unless `absent_after` (seconds) is None. Raises `MetadataUnavailable`."""
        registry = self._client.run(_read_registry)
        without = registry.without_cookie(named.ledgers)
        away = frozenset[str]() if absent_after is None else registry.unregistered
        if without or away:
            self._sleep(self._pause)
            registry = self._client.run(_read_registry)
            without &= registry.without_cookie(named.ledgers)
            away &= registry.unregistered
        found = [_no_cookie(bookie, named, bookie in registry.registered) for bookie in sorted(without)]
        if absent_after is not None:
            since = self._noted(away)
            found += [
                of_bookie(
                    bookie,
                    Verdict.UNREGISTERED,
                    f"it has a cookie, and since {time_text(since[bookie])} no audit has seen it registered",
                )
                for bookie in sorted(away)
                if self._now_ms - since[bookie] >= absent_after * 1000
            ]
        return found

    def old_marks(self, is_chosen: Callable[[int], bool], overdue_after: float) -> Iterator[Finding]:
        """OVERDUE, in the order of ledgers. `overdue_after`: seconds. Raises `MetadataUnavailable`."""
        locks = self._client.run(lambda client: client.metadata_service.under_replication.locks())
        try:
            for mark in self._client.iterate(lambda client: client.metadata_service.under_replication.list()):
                if not is_chosen(mark.ledger_id):
                    continue
                if mark.damage is not None:
                    yield of_ledger(mark.ledger_id, Verdict.UNKNOWN, f"its mark cannot be read: {mark.damage}")
                elif mark.ctime_ms is None:
                    self.marks_without_time += 1
                elif self._now_ms - mark.ctime_ms >= overdue_after * 1000:
                    yield of_ledger(mark.ledger_id, Verdict.OVERDUE, _overdue(mark, mark.ctime_ms, locks))
        except MetadataDamaged as error:
            yield of_ledger(NO_LEDGER, Verdict.UNKNOWN, f"marks of under-replication cannot be listed: {error}")

    def _noted(self, away: frozenset[str]) -> dict[str, int]:
        """Return the time since which each of these is away, in ms since 1970, and update the note."""
        records = JobRecords(self._client, KIND, self._decoded)
        stored = records.find(NOTE)
        before = {} if stored is None else stored.value.since_ms
        since = {bookie: min(before.get(bookie, self._now_ms), self._now_ms) for bookie in away}
        if self._note and since != before:
            try:
                records.create(Absences(since)) if stored is None else records.update(stored, Absences(since))
            except TakenOver:
                self._log("another audit notes which bookies are away; this one leaves it to that")
        return since

    def _decoded(self, data: bytes) -> Absences:
        try:
            return Absences.decode(data)
        except MetadataDamaged as error:
            self._log(f"{error}; a new one is begun")
            return Absences()


async def _read_registry(client: Client) -> _Registry:
    bookies = client.metadata_service.bookies
    registered = [(await bookies.list(group)).bookies for group in (BookieGroup.WRITABLE, BookieGroup.READ_ONLY)]
    # A bookie stamps its cookie before it registers, so cookies come last.
    return _Registry(frozenset().union(*registered), (await bookies.list(BookieGroup.ALL)).bookies)


def _no_cookie(bookie: str, named: NamedBookies, is_registered: bool) -> Finding:
    if is_registered:
        return of_bookie(bookie, Verdict.NO_COOKIE, "it is registered, and will not start again without a cookie")
    count, last = named.ledgers[bookie]
    return of_bookie(
        bookie, Verdict.NO_COOKIE, f"it is registered nowhere, and {count} ledgers name it, {last} the last"
    )


def _overdue(mark: UnderreplicatedLedger, ctime_ms: int, locks: Mapping[int, str]) -> str:
    missing = ", ".join(mark.replicas) or "a placement that the policy allows"
    holder = locks.get(mark.ledger_id)
    return f"marked since {time_text(ctime_ms)} for {missing}; " + (
        f"locked by {holder}" if holder else "nobody works on it"
    )
