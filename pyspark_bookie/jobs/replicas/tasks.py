"""One piece of an audit or a scrub, as a task: look, look again at what seemed wrong, mark if asked to, report.

The task's client is the process's; the results are findings and counts, never entries.

Invariants
- Nothing is accused by one look.
- Nothing is changed unless `mark` is set.

`inspect_unit` is called on an executor's thread.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Final

from bookie_client.client import Client
from bookie_client.replication.throttle import ReplicationThrottle
from pyspark_bookie.common.together import bounded
from pyspark_bookie.jobs.framework.tasks import TaskEnvironment
from pyspark_bookie.jobs.replicas.deep import ScanLimits
from pyspark_bookie.jobs.replicas.findings import Finding
from pyspark_bookie.jobs.replicas.inspection import Looker
from pyspark_bookie.jobs.replicas.looks import BlockSum, Look, LookOptions
from pyspark_bookie.jobs.replicas.marking import mark_findings
from pyspark_bookie.jobs.replicas.placement import PlacementCheck, placement_check
from pyspark_bookie.jobs.replicas.second_look import second_look
from pyspark_bookie.jobs.replicas.units import Slice, Unit

LEDGERS_AT_ONCE: Final = 32
"""In the light form: a look is a few small requests."""
DEEP_LEDGERS_AT_ONCE: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What all pieces of a run share. `placement`: check against this policy (None: do not)."""

    look: LookOptions = field(default_factory=LookOptions)
    recheck_seconds: float = 5.0
    mark: bool = False
    placement: str | None = None


@dataclass(slots=True)
class UnitResult:
    """`ledgers` were looked at; `deleted` ones existed when the run was planned. `blocks`: for comparing replicas."""

    number: int
    ledgers: int = 0
    deleted: int = 0
    open: int = 0
    replicas: int = 0
    entries: int = 0
    nbytes: int = 0
    withdrawn: int = 0
    """Ledgers that seemed faulty at the first look, and were not at the second."""
    misplaced_without_remedy: int = 0
    marks: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    blocks: list[BlockSum] = field(default_factory=list)


def inspect_unit(inspection: Inspection, unit: Unit, environment: TaskEnvironment) -> UnitResult:
    """The task. Raises `PodkeeperError`, `PodkeeperSparkError`."""
    password = environment.access.password.read()
    if password is not None:
        inspection = replace(inspection, look=replace(inspection.look, password=password))
    rate = environment.bytes_per_second

    async def run(client: Client) -> UnitResult:
        async with placement_check(client, inspection.placement, environment.access) as check:
            return await inspect(client, inspection, unit, rate, check)

    return environment.client().run(run)


async def inspect(
    client: Client, inspection: Inspection, unit: Unit, rate: float | None, check: PlacementCheck | None = None
) -> UnitResult:
    """The same on a client's event loop. `check`: of placements, too."""
    looker = Looker(client, inspection.look, ScanLimits(ReplicationThrottle(rate)))
    at_once = DEEP_LEDGERS_AT_ONCE if inspection.look.digests else LEDGERS_AT_ONCE
    looks = await _looks(looker, unit, at_once)
    doubtful = {look.ledger_id for look in looks if look.findings}
    looks = await second_look(looker, looks, inspection.recheck_seconds)
    result = UnitResult(unit.number)
    result.withdrawn = sum(not look.findings for look in looks if look.ledger_id in doubtful)
    for each, look in zip(unit.slices, looks, strict=True):
        _count(result, look, begins=each.first == 0)
        if check is not None and look.metadata is not None and each.first == 0:
            result.findings.extend(check.findings(look.metadata))
    if check is not None:
        result.misplaced_without_remedy = check.without_remedy
    if inspection.mark:
        marked = await mark_findings(client.metadata_service, result.findings)
        result.marks.update(outcome.value for outcome in marked.values())
    return result


async def _looks(looker: Looker, unit: Unit, at_once: int) -> list[Look]:
    bookies = None if unit.bookie is None else {unit.bookie}

    async def look(each: Slice) -> Look:
        return await looker.look(each.ledger_id, bookies=bookies, first=each.first, last=each.last)

    return await bounded(unit.slices, look, at_once)


def _count(result: UnitResult, look: Look, *, begins: bool) -> None:
    if look.is_deleted:
        result.deleted += begins
        return
    result.ledgers += begins
    result.open += begins and look.metadata is not None and not look.metadata.is_closed
    result.replicas += look.replicas
    result.entries += look.entries
    result.nbytes += look.nbytes
    result.findings.extend(look.findings)
    result.blocks.extend(look.blocks)
