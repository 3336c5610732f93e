"""What becomes of each ledger that is to be recovered.

Format of the detail report: `table_of`.

Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa


class State(Enum):
    """The value stands in reports."""

    RECOVERED = "RECOVERED"
    """New copies were made and verified, and the metadata name them."""
    NOTHING_TO_DO = "NOTHING_TO_DO"
    """Somebody else did it before, or a bookie came back with its copies."""
    DELETED = "DELETED"
    PLANNED = "PLANNED"
    """It would be worked on (dry run)."""
    NOT_BEGUN = "NOT_BEGUN"
    """The time was up; the next run goes on here."""
    LOCKED = "LOCKED"
    """A replication worker works on it."""
    OPEN = "OPEN"
    """What is left of it is in the segment that its writer may still change; `--include-open` closes it."""
    NO_SPARE = "NO_SPARE"
    """There is no bookie for the new copies."""
    UNRECOVERABLE = "UNRECOVERABLE"
    """Entries that no bookie can give; nothing of their segment was changed."""
    FAILED = "FAILED"
    """For another reason; another run tries again."""

    @property
    def is_left_over(self) -> bool:
        """A person, or another run, has to see to it."""
        return self not in (State.RECOVERED, State.NOTHING_TO_DO, State.DELETED)


_WORST_FIRST: Final = (
    State.UNRECOVERABLE,
    State.FAILED,
    State.NO_SPARE,
    State.OPEN,
    State.LOCKED,
    State.RECOVERED,
    State.NOTHING_TO_DO,
)


@dataclass(frozen=True, slots=True)
class LedgerOutcome:
    """One row. `segments` were restored, with `entries` different entries and `nbytes` of all copies."""

    ledger_id: int
    state: State
    segments: int = 0
    entries: int = 0
    nbytes: int = 0
    detail: str = ""


def worst(states: Iterable[State]) -> State:
    """The state of a ledger whose segments came to these."""
    found = set(states)
    return next((state for state in _WORST_FIRST if state in found), State.NOTHING_TO_DO)


def table_of(outcomes: Iterable[LedgerOutcome]) -> pa.Table:
    """The detail report."""
    import pyarrow as pa

    schema = pa.schema(
        [
            ("ledger_id", pa.int64()),
            ("state", pa.string()),
            ("segments", pa.int32()),
            ("entries", pa.int64()),
            ("bytes", pa.int64()),
            ("detail", pa.string()),
        ]
    )
    return pa.Table.from_pylist([_row(outcome) for outcome in outcomes], schema=schema)


def _row(outcome: LedgerOutcome) -> dict[str, Any]:
    row = asdict(outcome)
    row["state"] = outcome.state.value
    row["bytes"] = row.pop("nbytes")
    return row
