"""What the pieces of an inspection come to: counters of the result row, findings, and what could not be done.

Driver only.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.result import Counter as Value
from pyspark_bookie.jobs.framework.result import JobExit, JobResult
from pyspark_bookie.jobs.framework.tasks import Outcome, TaskError
from pyspark_bookie.jobs.replicas.findings import Verdict, of_ledger
from pyspark_bookie.jobs.replicas.marking import Marked
from pyspark_bookie.jobs.replicas.spool import FindingsSpool
from pyspark_bookie.jobs.replicas.tasks import UnitResult
from pyspark_bookie.jobs.replicas.units import Unit

if TYPE_CHECKING:
    import pyarrow as pa

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
        text = f"it was not looked at: {error.message}"
        ledgers = dict.fromkeys(each.ledger_id for each in unit.slices)
        self.spool.add(of_ledger(ledger_id, Verdict.UNKNOWN, text) for ledger_id in ledgers)

    def counters(self) -> dict[str, Value]:
        """For the result row."""
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
