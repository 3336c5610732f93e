"""Findings: what is wrong with one bookie's copies of a run of entries, with a ledger, or with a bookie.

Invariants
- A copy is called MISSING or DAMAGED only by its bookie's own word or bytes; a bookie that does not answer is
  UNREACHABLE, and nothing is said of its copies.
- A run never crosses the border of a fragment, and all its entries have one verdict at one bookie.

Format: `COLUMNS`, the columns of the detail report. `fragment` is the first entry of the segment; `position` the place
in its ensemble; both -1 (and entries 0 to -1) where the finding is of the whole ledger, or of a bookie: `ledger_id` is
-1 then, too.

Pure; any thread.

Source: docs/internals/auto-recovery.md, sections 4 and 5.
"""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from bookie_client.replication.check import ReplicaVerdict
from bookie_protocol.shown import one_line

if TYPE_CHECKING:
    import pyarrow as pa

NO_FRAGMENT: Final = -1
NO_LEDGER: Final = -1
COLUMNS: Final[tuple[tuple[str, str], ...]] = (
    ("ledger_id", "long"),
    ("fragment", "long"),
    ("first_entry", "long"),
    ("last_entry", "long"),
    ("entries", "long"),
    ("bookie", "string"),
    ("position", "int"),
    ("verdict", "string"),
    ("detail", "string"),
)
"""Names and Spark types, in order."""
LONGEST_DETAIL: Final = 400


class Verdict(Enum):
    """The verdict on copies (`ReplicaVerdict`), a ledger or a bookie. Reports contain the value."""

    MISSING = "MISSING"
    """The bookie itself says that it does not have them."""
    DAMAGED = "DAMAGED"
    """They fail their digest, are other entries, or the bookie cannot read them from its disk."""
    LOST = "LOST"
    """The bookie is registered nowhere. It may come back with them: auto-recovery waits for its delay."""
    DIVERGENT = "DIVERGENT"
    """Undamaged, and not what the other replicas hold under the same ids."""
    MISPLACED = "MISPLACED"
    """The ensemble breaks the placement policy."""
    NAMED = "NAMED"
    """The metadata place them on a bookie that was asked about."""
    UNREACHABLE = "UNREACHABLE"
    """Registered, and does not answer, or cannot tell: never counted as missing."""
    UNKNOWN = "UNKNOWN"
    """The state of the ledger is unknown: its metadata cannot be read, or its end is unknown."""
    NO_SUCH_LEDGER = "NO_SUCH_LEDGER"
    """A stream lists the ledger, it does not exist, and no archive is known to have it."""
    NO_COOKIE = "NO_COOKIE"
    """A bookie that ledgers name or that is registered has no cookie: it never starts again under this id."""
    UNREGISTERED = "UNREGISTERED"
    """A bookie has a cookie and has been registered nowhere for long."""
    OVERDUE = "OVERDUE"
    """The ledger has been marked as under-replicated for long."""
    EXTRA = "EXTRA"
    """Copies that the metadata do not ask for: harmless, and removed by garbage collection."""

    @property
    def is_copy_lost(self) -> bool:
        """A new copy is wanted."""
        return self in _COPY_LOST

    @property
    def counts(self) -> bool:
        """It makes the outcome of a run a finding."""
        return self is not Verdict.EXTRA


_COPY_LOST: Final = frozenset(Verdict[each.name] for each in ReplicaVerdict if each.is_bad)


@dataclass(frozen=True, slots=True)
class Finding:
    """One row of a report; see the module."""

    ledger_id: int
    fragment: int
    first_entry: int
    last_entry: int
    entries: int
    """Entries between the two that striping puts at this position, and that the verdict is of."""
    bookie: str
    position: int
    verdict: Verdict
    detail: str = ""

    @property
    def key(self) -> tuple[int, str, Verdict]:
        """Return the place of the finding, for comparing two inspections."""
        return self.fragment, self.bookie, self.verdict


assert [name for name, _ in COLUMNS] == [field.name for field in fields(Finding)]


def row_of(finding: Finding) -> dict[str, Any]:
    """A row of `COLUMNS`."""
    row = asdict(finding)
    row["verdict"] = finding.verdict.value
    row["detail"] = one_line(finding.detail, LONGEST_DETAIL)
    return row


def finding_of(row: dict[str, Any]) -> Finding:
    """Back from a row of `COLUMNS`; others are left out."""
    values = {name: row[name] for name, _ in COLUMNS}
    values["verdict"] = Verdict(values["verdict"])
    return Finding(**values)


def of_ledger(ledger_id: int, verdict: Verdict, detail: str) -> Finding:
    """A finding of a whole ledger."""
    return Finding(ledger_id, NO_FRAGMENT, 0, -1, 0, "", -1, verdict, detail)


def of_bookie(bookie: str, verdict: Verdict, detail: str) -> Finding:
    """A finding of a bookie, whatever its copies."""
    return Finding(NO_LEDGER, NO_FRAGMENT, 0, -1, 0, bookie, -1, verdict, detail)


def confirmed(first: Iterable[Finding], second: Sequence[Finding]) -> list[Finding]:
    """Return the findings of two inspections of the same copies, as the second one saw them.

    A bookie is accused only if it has the same fault twice in a fragment; a fault that one inspection alone saw leaves
    it in doubt.
    """
    before = {finding.key for finding in first}
    return [
        finding
        if finding.key in before or not finding.verdict.is_copy_lost
        else replace(finding, verdict=Verdict.UNREACHABLE, detail=f"seen once only: {finding.detail}")
        for finding in second
    ]


def clusters(findings: Iterable[Finding], gap: int = 10_000) -> list[tuple[int, int]]:
    """Runs of entries that cover those of the findings of copies, a few and no wider than need be."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted((each.first_entry, each.last_entry) for each in findings if each.bookie):
        if joined and first <= joined[-1][1] + gap:
            joined[-1] = joined[-1][0], max(last, joined[-1][1])
        else:
            joined.append((first, last))
    return joined


class FindingsSpool:
    """`counts`: findings by verdict."""

    def __init__(self) -> None:
        import pyarrow as pa

        types = {"long": pa.int64(), "int": pa.int32(), "string": pa.string()}
        self._schema = pa.schema([(name, types[kind]) for name, kind in COLUMNS])
        handle, self._path = tempfile.mkstemp(prefix="findings-", suffix=".arrow")
        os.close(handle)
        self._writer: pa.ipc.RecordBatchFileWriter | None = pa.ipc.new_file(self._path, self._schema)
        self.counts: Counter[Verdict] = Counter()
        self.ledgers: Counter[Verdict] = Counter()
        """Ledgers with such a finding, if all findings of a ledger come in one call."""

    def add(self, findings: Iterable[Finding]) -> None:
        """Keep these."""
        import pyarrow as pa

        rows = list(findings)
        if not rows or self._writer is None:
            return
        self.counts.update(each.verdict for each in rows)
        self.ledgers.update(verdict for _, verdict in {(each.ledger_id, each.verdict) for each in rows})
        self._writer.write_batch(pa.RecordBatch.from_pylist([row_of(each) for each in rows], schema=self._schema))

    @property
    def has_faults(self) -> bool:
        """Something was found that counts."""
        return any(count and verdict.counts for verdict, count in self.counts.items())

    def table(self) -> pa.Table:
        """All of them; nothing can be added any more."""
        import pyarrow as pa

        if self._writer is not None:
            self._writer.close()
            self._writer = None
        with pa.memory_map(self._path) as file:
            return pa.ipc.open_file(file).read_all()

    def close(self) -> None:
        """Remove the file; a table that was read stays good."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if os.path.exists(self._path):
            os.unlink(self._path)

    def __enter__(self) -> FindingsSpool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
