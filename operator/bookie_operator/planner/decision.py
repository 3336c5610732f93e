"""The decision of a pass: at most one side effect, and why.

Invariants
- An operation is recorded in `status` by a decision of its own, before the decision with its first side effect.
- Nothing here sleeps: who has to wait says for what, and is asked again.

Threads: values without I/O, for any thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from bookie_operator.crds.cluster_status import Operation
from bookie_operator.planner.actions import Action
from bookie_operator.planner.desired import ONE_BOOKIE, Evictions


class EventType(StrEnum):
    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True)
class Event:
    """An event that `kubectl describe` shows: a stable reason in camel case, and one line."""

    reason: str
    message: str
    type: EventType = EventType.NORMAL


@dataclass(frozen=True)
class Act:
    """Carry this out now. `operation`: as it is once that is done (written to `status` afterwards)."""

    action: Action
    reason: str
    """One sentence: what is done, and why now."""
    operation: Operation | None = None
    event: Event | None = None


@dataclass(frozen=True)
class Record:
    """Write the operation to `status`, and do nothing else: it begins, or goes on to its next step."""

    operation: Operation
    reason: str
    event: Event | None = None


@dataclass(frozen=True)
class Finish:
    """The operation is over: it goes to the history."""

    operation: Operation
    outcome: str
    message: str
    event: Event | None = None


@dataclass(frozen=True)
class Wait:
    """The decision to do nothing at the moment but to look again."""

    reason: str
    """Reason of a condition, in camel case."""
    message: str
    seconds: float = 5.0
    operation: Operation | None = None
    """Operation with progress or message changed; None: as it was."""
    stalled: bool = False
    """It goes on only when a person does something; `message` says what."""
    event: Event | None = None


@dataclass(frozen=True)
class Rest:
    """The decision that all is as it should be."""


Decision = Act | Record | Finish | Wait | Rest


@dataclass(frozen=True)
class Plan:
    """The decision of a pass, with what else a pass says."""

    decision: Decision
    notes: tuple[Wait, ...] = ()
    """Decisions that their gates block: the rest of the pass went on."""
    evictions: Evictions = ONE_BOOKIE
    """Evictions that the PodDisruptionBudget allows from now on."""


@dataclass(frozen=True)
class Needs:
    """Facts that the next pass has to know beside what it always reads."""

    proofs: frozenset[str] = frozenset()
    """Bookie ids whose proofs are needed."""
    drains: frozenset[str] = frozenset()
    outlooks: frozenset[str] = frozenset()
    """Bookie ids for which a drain's work is needed."""
    safety: frozenset[frozenset[str]] = field(default_factory=frozenset)
    accepted_losses: tuple[int, ...] = ()
    """Ledgers that do not count in these proofs: people gave up what is lost of them."""
