"""Round-robin striping: which positions of an ensemble hold an entry.

Invariants
- All bookkeeping is per *position* (index in the ensemble); the bookie at a position may be exchanged.
- The schedule depends on the entry id only and does not restart at a segment boundary.
- `MAX_ENSEMBLE` >= E >= Qw >= Qa >= 1: the schedule, and what placement looks at, grow with the square of it.

Pure and immutable; any thread may use it.

Source: reference client protocol, sections 1 and 4.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from bookie_protocol.errors import BadRequest

MAX_ENSEMBLE: Final = 200


@dataclass(frozen=True, slots=True)
class Quorums:
    """Ensemble size, write quorum and ack quorum of a ledger, and the striping that follows from them."""

    ensemble: int
    write: int
    ack: int
    _write_sets: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.ensemble >= self.write >= self.ack >= 1:
            raise BadRequest(
                f"quorums do not fit: ensemble {self.ensemble}, write quorum {self.write}, ack quorum {self.ack}; "
                "needed is ensemble >= write quorum >= ack quorum >= 1"
            )
        if self.ensemble > MAX_ENSEMBLE:
            raise BadRequest(
                f"an ensemble of {self.ensemble} bookies is too large: at most {MAX_ENSEMBLE} are possible"
            )
        sets = tuple(tuple((start + i) % self.ensemble for i in range(self.write)) for start in range(self.ensemble))
        object.__setattr__(self, "_write_sets", sets)

    def write_set(self, entry_id: int) -> tuple[int, ...]:
        """Positions that hold the entry, in the order in which they are asked."""
        return self._write_sets[entry_id % self.ensemble]

    def holds(self, position: int, entry_id: int) -> bool:
        """Whether the bookie at `position` stores the entry."""
        return (position - entry_id) % self.ensemble < self.write

    @property
    def tolerated(self) -> int:
        """Positions of a write set that may fail while the ack quorum can still be reached."""
        return self.write - self.ack
