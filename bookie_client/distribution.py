"""Round-robin striping: which positions of an ensemble hold an entry.

Invariants
- All bookkeeping is per *position* (index in the ensemble); the bookie at a position may be exchanged.
- The schedule depends on the entry id only and does not restart at a segment boundary.
- E >= Qw >= Qa >= 1. New ledgers have ensembles of at most `MAX_ENSEMBLE`: the schedule, and what placement looks at,
  grow with the square of it. Larger ones that other clients made are read and repaired like all others.

Pure and immutable; any thread may use it.

Source: docs/internals/client-protocol.md, sections 1 and 4.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from bookie_protocol.errors import BadRequest
from bookie_protocol.ledger_metadata.model import LedgerMetadata

MAX_ENSEMBLE: Final = 200


def check_ensemble_size(size: int) -> None:
    """`BadRequest`: a new ledger may not have so many bookies."""
    if size > MAX_ENSEMBLE:
        raise BadRequest(f"an ensemble of {size} bookies is too large: at most {MAX_ENSEMBLE} are possible")


def columns_of(entry_ids: Sequence[int], step: int) -> list[Sequence[int]]:
    """The ids by their place modulo the step, in the order in which they come: of those of a ledger that one bookie
    holds, what batch reads with a step can be asked for."""
    if step == 1:
        return [entry_ids]
    columns: dict[int, list[int]] = defaultdict(list)
    for entry_id in entry_ids:
        columns[entry_id % step].append(entry_id)
    return list(columns.values())


class _LongSchedule:
    """Write sets that are made when they are asked for; all of a large ensemble would fill the memory."""

    __slots__ = ("_ensemble", "_write")

    def __init__(self, ensemble: int, write: int) -> None:
        self._ensemble = ensemble
        self._write = write

    def __getitem__(self, start: int) -> tuple[int, ...]:
        return tuple((start + i) % self._ensemble for i in range(self._write))


@dataclass(frozen=True, slots=True)
class Quorums:
    """Ensemble size, write quorum and ack quorum of a ledger, and the striping that follows from them."""

    ensemble: int
    write: int
    ack: int
    _write_sets: tuple[tuple[int, ...], ...] | _LongSchedule = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.ensemble >= self.write >= self.ack >= 1:
            raise BadRequest(
                f"quorums do not fit: ensemble {self.ensemble}, write quorum {self.write}, ack quorum {self.ack}; "
                "needed is ensemble >= write quorum >= ack quorum >= 1"
            )
        schedule = _LongSchedule(self.ensemble, self.write)
        short = self.ensemble <= MAX_ENSEMBLE
        object.__setattr__(
            self, "_write_sets", tuple(map(schedule.__getitem__, range(self.ensemble))) if short else schedule
        )

    @classmethod
    def of(cls, metadata: LedgerMetadata) -> Quorums:
        """Return a ledger's quorums. An ack quorum of 0, which Java allows, counts as 1: an entry is acknowledged to
        its writer when the first bookie has it."""
        return cls(metadata.ensemble_size, metadata.write_quorum_size, max(1, metadata.ack_quorum_size))

    def write_set(self, entry_id: int) -> tuple[int, ...]:
        """Positions that hold the entry, in the order in which they are asked."""
        return self._write_sets[entry_id % self.ensemble]

    def holds(self, position: int, entry_id: int) -> bool:
        """Return True if the bookie at `position` stores the entry."""
        return (position - entry_id) % self.ensemble < self.write

    @property
    def tolerated(self) -> int:
        """Positions of a write set that may fail while the ack quorum can still be reached."""
        return self.write - self.ack
