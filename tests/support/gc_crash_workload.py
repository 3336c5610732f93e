"""The steps that `gc_crash_rig` has a bookie run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bookie_pod.storage.gc.schedule import Force
from tests.support.gc_rig import MAJOR, MINOR
from tests.support.storage_engine import entry


@dataclass(frozen=True)
class Put:
    ledger_id: int
    entry_id: int
    life: int = 0

    @property
    def data(self) -> bytes:
        return entry(self.ledger_id, self.entry_id, (60, 90, 300)[self.entry_id % 3], b"%d" % self.life)


@dataclass(frozen=True)
class Delete:
    """By a client, in the metadata service."""

    ledger_ids: tuple[int, ...]


@dataclass(frozen=True)
class Checkpoint:
    """All that was put is in logs that are closed."""


@dataclass(frozen=True)
class Flush:
    """All that was put is in logs, which stay open."""


@dataclass(frozen=True)
class Pass:
    force: Force | None = None


Step = Put | Delete | Checkpoint | Flush | Pass


def _puts(ledger_ids: Sequence[int], entry_ids: range, life: int = 0) -> list[Step]:
    return [Put(ledger_id, entry_id, life) for entry_id in entry_ids for ledger_id in ledger_ids]


CURRENT_LOGS: list[Step] = [
    *_puts((1, 2), range(3)),
    Flush(),
    Delete((1, 2)),
    Pass(),  # closes the logs that are written at present, and removes them
    Checkpoint(),
    *_puts((3, 4), range(2)),
    Flush(),
    Delete((3,)),
    Pass(MAJOR),  # of one log for all a part lives
    *_puts((1, 5), range(2), life=1),  # an id again
    Flush(),
    Delete((4, 5)),
    Pass(),
    Checkpoint(),
    Delete((1,)),
    *_puts((6,), range(2)),
    Pass(),
    Put(6, 2),
]
"""Logs are closed by passes."""

WORKLOAD: list[Step] = [
    *_puts(range(1, 9), range(5)),
    Checkpoint(),
    Delete((5, 6)),
    Pass(),  # forgets them; their bytes stay beside what lives
    Checkpoint(),
    *_puts((5, 6), range(2), life=1),  # the same ids again
    *_puts((7, 8), range(5, 8)),
    Checkpoint(),
    Delete((1, 2, 3)),
    Put(4, 5),
    Pass(MAJOR),  # rewrites the logs that hold the earlier lives
    *_puts((4, 7, 8, 9, 10), range(8, 12)),
    Put(7, 0),  # once more
    Checkpoint(),
    Delete((9, 10, 4)),
    Pass(MINOR),
    Pass(MAJOR),
    Put(8, 12),
]
