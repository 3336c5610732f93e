"""Which ledgers need what: pure.

Any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bookie_protocol.archive.record import OffloadRecord, OffloadState
from pyspark_bookie.jobs.framework.ledgers import LedgerRow
from pyspark_bookie.jobs.offload.deletion import DeletionSettings, is_due


@dataclass(frozen=True, slots=True)
class OffloadPlan:
    """`begun`: of `work`, those that an earlier run has begun. `already`: in this archive. `elsewhere`: in another."""

    work: tuple[LedgerRow, ...]
    begun: int
    already: int
    elsewhere: tuple[int, ...]
    not_closed: int
    empty: int


def plan_offload(rows: Iterable[LedgerRow], records: Mapping[int, OffloadRecord], target: str) -> OffloadPlan:
    """What is to be offloaded of these ledgers."""
    work: list[LedgerRow] = []
    elsewhere: list[int] = []
    begun = already = not_closed = empty = 0
    for row in rows:
        record = records.get(row.ledger_id)
        if not row.is_closed:
            not_closed += 1
        elif row.entries == 0:
            empty += 1
        elif record is not None and record.state is OffloadState.COMPLETE and record.ledger.is_surely(row.identity):
            if record.target != target:
                elsewhere.append(row.ledger_id)
            elif record.abandoned:
                work.append(row)  # its run died before it had cleaned up
            else:
                already += 1
        else:
            work.append(row)
            begun += record is not None
    return OffloadPlan(tuple(work), begun, already, tuple(elsewhere), not_closed, empty)


def due(records: Mapping[int, OffloadRecord], settings: DeletionSettings, now: float) -> tuple[list[int], int]:
    """Ledgers whose lag has passed, ascending, and how many wait for it."""
    going = sorted(ledger_id for ledger_id, record in records.items() if is_due(record, settings, now))
    complete = sum(
        record.state is OffloadState.COMPLETE and record.target == settings.target for record in records.values()
    )
    return going, complete - len(going)
