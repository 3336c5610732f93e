"""One piece of an audit or a scrub, as a task: inspect, inspect suspected faults again, mark if asked to, report.

This module also adds up all pieces: counters of the result row, findings, and failed pieces.

The task's client is the process's; the results are findings and counts, never entries.

Marks of the under-replication tree report missing copies to auto-recovery.

Invariants
- Nothing is accused by one inspection.
- Nothing is changed unless `mark` is set.
- Only what was seen twice is marked, and only what the bookie itself said or gave: LOST copies are the auditor's, who
  waits for the delay that protects restarts; what is UNREACHABLE is never marked. NAMED is what a person asked for.
- A mark keeps what was found: the verdict and the entries.
- A ledger whose mark says so already is left as it is, unless it is locked: a worker may be at it, and have read the
  ledger too early. Then the mark is renewed, so that it outlives its round.
- No finding is dropped because the ledger is locked, as this job does not inspect it again: it is marked all the same,
  which costs a worker another check.
- An ensemble that breaks the placement policy is marked with no bookie named.

`inspect_unit` is called on an executor's thread; marking belongs to the event loop, and raises `MetadataUnavailable`.

Sources: docs/internals/metadata-layout.md, section 10.2; docs/internals/auto-recovery.md, sections 4 and 17.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from bookie_client.client import Client
from bookie_client.healing.rule import REASONS
from bookie_client.replication.check import FAULTS
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_protocol.errors import MetadataDamaged, MetadataUnavailable, PodkeeperError
from bookie_protocol.metadata_service import findings as marks
from bookie_protocol.metadata_service.findings import Reason
from bookie_protocol.metadata_service.tree.service import MetadataService
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
"""Ledgers inspected at once in the light form: an inspection is a few small requests."""
DEEP_LEDGERS_AT_ONCE: Final = 3
_SUMS: Final = ("ledgers", "open", "deleted", "replicas", "entries", "nbytes", "withdrawn", "misplaced_without_remedy")
_REASONS: Final = {Verdict.NAMED: Reason.UNKNOWN} | {Verdict[each.name]: REASONS[each] for each in FAULTS}
"""Reasons of marks by verdict. Every entry of a bookie that a person named is read."""
FINDER: Final = "Spark job"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitOptions:
    """The options that all pieces of a run share. `placement`: check against this policy (None: do not)."""

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
        """Add a piece that failed: the state of its ledgers is unknown."""
        self.failed += 1
        context.log(f"a piece of {len(unit.slices)} ledgers from {unit.slices[0].ledger_id} on failed: {error.message}")
        text = f"it was not inspected: {error.message}"
        ledgers = dict.fromkeys(each.ledger_id for each in unit.slices)
        self.spool.add(of_ledger(ledger_id, Verdict.UNKNOWN, text) for ledger_id in ledgers)

    def counters(self) -> dict[str, Value]:
        """Return the counters of the result row."""
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


class Marked(Enum):
    """The outcome of marking a ledger."""

    NEW = "marked"
    ALREADY = "marked before"
    UNREADABLE = "cannot be marked"


async def mark_findings(service: MetadataService, findings: Sequence[Finding]) -> dict[int, Marked]:
    """Mark the ledgers of these findings that want it; what became of each."""
    wanted: dict[int, list[marks.Finding]] = {}
    for finding in findings:
        if finding.verdict in _REASONS:
            wanted.setdefault(finding.ledger_id, []).append(reason_of(finding))
        elif finding.verdict is Verdict.MISPLACED:
            wanted.setdefault(finding.ledger_id, [])
    return {
        ledger_id: await mark(service, ledger_id, marks.joined(found)) for ledger_id, found in sorted(wanted.items())
    }


def reason_of(finding: Finding) -> marks.Finding:
    """Return the finding as a mark keeps it: with the exact entries."""
    reason = _REASONS[finding.verdict]
    runs = () if reason is Reason.UNKNOWN else ((finding.first_entry, finding.last_entry),)
    return marks.Finding(finding.bookie, reason, runs, FINDER)


async def mark(service: MetadataService, ledger_id: int, findings: Collection[marks.Finding]) -> Marked:
    """Mark what was found; nothing: the placement policy is not met."""
    tree = service.under_replication
    try:
        # The lock first: a worker that takes it from now on checks the ledger after this was found.
        is_locked = await tree.locked_by(ledger_id) is not None
        found = await tree.read(ledger_id)
        if (
            found is not None
            and marks.covers(found.doubts, findings)
            and (not is_locked or await tree.renew(ledger_id))
        ):
            return Marked.ALREADY
        await tree.mark(ledger_id, ctime_ms=int(time.time() * 1000), findings=findings)
    except MetadataUnavailable:
        raise
    except (MetadataDamaged, PodkeeperError):
        return Marked.UNREADABLE
    return Marked.NEW
