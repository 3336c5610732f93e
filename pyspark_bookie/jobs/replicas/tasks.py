"""One piece of an audit or a scrub, as a task: inspect, inspect again what seemed wrong, mark if asked to, report;
and what all pieces come to: counters of the result row, findings, and what could not be done.

The task's client is the process's; the results are findings and counts, never entries.

Marks of the under-replication tree tell auto-recovery of copies that are missing.

Invariants
- Nothing is accused by one inspection.
- Nothing is changed unless `mark` is set.
- Only what was seen twice is marked, and only what the bookie itself said or gave: LOST copies are the auditor's, who
  waits for the delay that protects restarts; what is UNREACHABLE is never marked. NAMED is what a person asked for.
- A ledger whose mark names the bookies already is left as it is, unless somebody has locked it: a worker may be at it,
  and have read the ledger too early. Then the mark is renewed, so that it outlives its round.
- Nothing that was found is dropped because somebody has the ledger's lock, as nobody inspects it again after this job:
  it is marked all the same, which costs a worker another check.
- An ensemble that breaks the placement policy is marked with no bookie named.

`inspect_unit` is called on an executor's thread; marking belongs to the event loop, and raises `MetadataUnavailable`.

Sources: reference metadata layout, section 10.2; reference auto-recovery, sections 4 and 17.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from bookie_client.client import Client
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_protocol.errors import MetadataDamaged, MetadataUnavailable, PodkeeperError
from bookie_protocol.metadata_service.interface import MetadataService
from bookie_protocol.together import bounded
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.result import Counter as Value
from pyspark_bookie.jobs.framework.result import JobExit, JobResult
from pyspark_bookie.jobs.framework.tasks import Outcome, TaskEnvironment, TaskError
from pyspark_bookie.jobs.replicas.deep import ScanLimits
from pyspark_bookie.jobs.replicas.findings import Finding, FindingsSpool, Verdict, of_ledger
from pyspark_bookie.jobs.replicas.inspection import BlockSum, Inspection, InspectionOptions, Inspector, inspect_again
from pyspark_bookie.jobs.replicas.placement import PlacementCheck, placement_check
from pyspark_bookie.jobs.replicas.units import Slice, Unit

if TYPE_CHECKING:
    import pyarrow as pa

LEDGERS_AT_ONCE: Final = 32
"""In the light form: an inspection is a few small requests."""
DEEP_LEDGERS_AT_ONCE: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitOptions:
    """What all pieces of a run share. `placement`: check against this policy (None: do not)."""

    inspection: InspectionOptions = field(default_factory=InspectionOptions)
    recheck_seconds: float = 5.0
    mark: bool = False
    placement: str | None = None


@dataclass(slots=True)
class UnitResult:
    """`ledgers` were inspected; `deleted` ones existed when the run was planned. `blocks`: for comparing replicas."""

    number: int
    ledgers: int = 0
    deleted: int = 0
    open: int = 0
    replicas: int = 0
    entries: int = 0
    nbytes: int = 0
    withdrawn: int = 0
    """Ledgers that seemed faulty at the first inspection, and were not at the second."""
    misplaced_without_remedy: int = 0
    marks: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    blocks: list[BlockSum] = field(default_factory=list)


def inspect_unit(options: UnitOptions, unit: Unit, environment: TaskEnvironment) -> UnitResult:
    """The task. Raises `PodkeeperError`, `PodkeeperSparkError`."""
    password = environment.access.password.read()
    if password is not None:
        options = replace(options, inspection=replace(options.inspection, password=password))
    rate = environment.bytes_per_second

    async def run(client: Client) -> UnitResult:
        async with placement_check(client, options.placement, environment.access) as check:
            return await inspect_ledgers(client, options, unit, rate, check)

    return environment.client().run(run)


async def inspect_ledgers(
    client: Client, options: UnitOptions, unit: Unit, rate: float | None, check: PlacementCheck | None = None
) -> UnitResult:
    """The same on a client's event loop. `check`: of placements, too."""
    inspector = Inspector(client, options.inspection, ScanLimits(ReplicationThrottle(rate)))
    at_once = DEEP_LEDGERS_AT_ONCE if options.inspection.digests else LEDGERS_AT_ONCE
    inspections = await _inspect_slices(inspector, unit, at_once)
    doubtful = {inspection.ledger_id for inspection in inspections if inspection.findings}
    inspections = await inspect_again(inspector, inspections, options.recheck_seconds)
    result = UnitResult(unit.number)
    result.withdrawn = sum(not inspection.findings for inspection in inspections if inspection.ledger_id in doubtful)
    for each, inspection in zip(unit.slices, inspections, strict=True):
        _count(result, inspection, begins=each.first == 0)
        if check is not None and inspection.metadata is not None and each.first == 0:
            result.findings.extend(check.findings(inspection.metadata))
    if check is not None:
        result.misplaced_without_remedy = check.without_remedy
    if options.mark:
        marked = await mark_findings(client.metadata_service, result.findings)
        result.marks.update(outcome.value for outcome in marked.values())
    return result


async def _inspect_slices(inspector: Inspector, unit: Unit, at_once: int) -> list[Inspection]:
    bookies = None if unit.bookie is None else {unit.bookie}

    async def inspected(each: Slice) -> Inspection:
        return await inspector.inspect(each.ledger_id, bookies=bookies, first=each.first, last=each.last)

    return await bounded(unit.slices, inspected, at_once)


def _count(result: UnitResult, inspection: Inspection, *, begins: bool) -> None:
    if inspection.is_deleted:
        result.deleted += begins
        return
    result.ledgers += begins
    result.open += begins and inspection.metadata is not None and not inspection.metadata.is_closed
    result.replicas += inspection.replicas
    result.entries += inspection.entries
    result.nbytes += inspection.nbytes
    result.findings.extend(inspection.findings)
    result.blocks.extend(inspection.blocks)


_SUMS: Final = ("ledgers", "open", "deleted", "replicas", "entries", "nbytes", "withdrawn", "misplaced_without_remedy")


@dataclass
class Totals:
    """Sums over pieces."""

    spool: FindingsSpool
    sums: Counter[str] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)
    failed: int = 0

    def add(self, result: UnitResult) -> None:
        """A piece that was done."""
        self.sums.update({name: getattr(result, name) for name in _SUMS})
        self.marks.update(result.marks)
        self.spool.add(result.findings)

    def take(self, context: JobContext[Any], outcome: Outcome[Unit, UnitResult]) -> None:
        """A piece that has ended."""
        if outcome.result is not None:
            self.add(outcome.result)
        else:
            self.add_failed(context, outcome.item, outcome.failure)

    def add_failed(self, context: JobContext[Any], unit: Unit, error: TaskError) -> None:
        """A piece that was not: of its ledgers nobody can tell."""
        self.failed += 1
        context.log(f"a piece of {len(unit.slices)} ledgers from {unit.slices[0].ledger_id} on failed: {error.message}")
        text = f"it was not inspected: {error.message}"
        ledgers = dict.fromkeys(each.ledger_id for each in unit.slices)
        self.spool.add(of_ledger(ledger_id, Verdict.UNKNOWN, text) for ledger_id in ledgers)

    def counters(self) -> dict[str, Value]:
        """The counters of the result row."""
        names = {"open": "open_ledgers", "deleted": "deleted_meanwhile", "nbytes": "bytes"}
        counters: dict[str, Value] = {names.get(name, name): self.sums[name] for name in _SUMS}
        counters.update({verdict.value.lower(): self.spool.counts[verdict] for verdict in Verdict})
        counters.update(
            {outcome.value.replace(" ", "_"): self.marks[outcome.value] for outcome in Marked if self.marks}
        )
        counters["pieces_failed"] = self.failed
        return counters

    def result(self, *, complete: bool, more: dict[str, Value] | None = None) -> JobResult:
        """The outcome; ends the spool."""
        table: pa.Table = self.spool.table()
        found = JobExit.FINDINGS if self.spool.has_faults or self.failed else JobExit.OK
        return JobResult({**self.counters(), **(more or {})}, table, found, complete and not self.failed)


MARKED_VERDICTS = frozenset({Verdict.MISSING, Verdict.DAMAGED, Verdict.DIVERGENT, Verdict.NAMED})


class Marked(Enum):
    """What became of a mark."""

    NEW = "marked"
    ALREADY = "marked before"
    UNREADABLE = "cannot be marked"


async def mark_findings(service: MetadataService, findings: Sequence[Finding]) -> dict[int, Marked]:
    """Mark the ledgers of these findings that want it; what became of each."""
    bookies: dict[int, set[str]] = {}
    for finding in findings:
        if finding.verdict in MARKED_VERDICTS:
            bookies.setdefault(finding.ledger_id, set()).add(finding.bookie)
        elif finding.verdict is Verdict.MISPLACED:
            bookies.setdefault(finding.ledger_id, set())
    return {ledger_id: await mark(service, ledger_id, missing) for ledger_id, missing in sorted(bookies.items())}


async def mark(service: MetadataService, ledger_id: int, missing: Collection[str]) -> Marked:
    """Mark these bookies' copies as missing; none: the placement policy is not met."""
    marks = service.under_replication
    try:
        # The lock first: whoever takes it from now on checks the ledger after this was found.
        is_locked = await marks.locked_by(ledger_id) is not None
        found = await marks.read(ledger_id)
        if (
            found is not None
            and set(missing) <= set(found.replicas)
            and (not is_locked or await marks.renew(ledger_id))
        ):
            return Marked.ALREADY
        await marks.mark(ledger_id, sorted(missing), ctime_ms=int(time.time() * 1000))
    except MetadataUnavailable:
        raise
    except (MetadataDamaged, PodkeeperError):
        return Marked.UNREADABLE
    return Marked.NEW
