"""Safety check: which ledgers would fall below their ack quorum, or have no copy left, if these bookies went now.

Answered from ledger metadata, marks of the under-replication tree and the live state of bookies; nothing is read from
ledgers and nothing is changed.

Invariants
- A copy counts only if its bookie is registered, answers, is not one of those going, and no mark names it.
- What cannot be told is unsafe: metadata that cannot be read, a bookie that is registered and does not answer.
- Memory is bounded: ledgers stream by, and at most `max_listed` are kept by name.

Event loop only.

Source: reference auto-recovery, section 13.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from typing import Final

from bookie_client.client import Client

MAX_LISTED: Final = 1_000


class Risk(Enum):
    """What would become of a ledger. UNKNOWN: nobody can tell, which is unsafe."""

    NO_COPY = "no copy"
    BELOW_ACK_QUORUM = "below ack quorum"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class LedgerAtRisk:
    """The worst of a ledger's segments. `copies_left`: of its worst entry, those that can be told for sure."""

    ledger_id: int
    risk: Risk
    first_entry: int
    copies_left: int
    ack_quorum: int
    detail: str


@dataclass(frozen=True, slots=True)
class SafetyReport:
    """`listed`: the first `max_listed` ledgers at risk; the counts are of all."""

    going: frozenset[str]
    ledgers_seen: int
    ledgers_concerned: int
    """Ledgers that store entries on one of the bookies."""
    no_copy: int
    below_ack_quorum: int
    unknown: int
    listed: tuple[LedgerAtRisk, ...]

    @property
    def is_safe(self) -> bool:
        """No ledger is at risk, and everything could be told."""
        return not self.no_copy and not self.below_ack_quorum and not self.unknown


SafetyProgress = Callable[[int, int], None]
"""(ledgers seen, ledgers at risk so far)."""


async def safety_check(
    client: Client,
    going: Collection[str],
    *,
    progress: SafetyProgress | None = None,
    max_listed: int = MAX_LISTED,
) -> SafetyReport:
    """Judge the loss of `going`, all at once. Raises `MetadataUnavailable` when ledgers cannot be listed."""
    raise AssertionError("committed for its signature")
