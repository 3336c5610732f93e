"""The outcome of a check: a verdict on each replica of each fragment.

Immutable; any thread.

Source: reference auto-recovery, section 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from bookie_client.replication.fragments import Fragment
from bookie_protocol.errors import PodkeeperError
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.interface import Versioned


class ReplicaVerdict(Enum):
    """What a bookie's copies at one position of a fragment are worth."""

    GOOD = "good"
    """Every entry that was looked at is there, and undamaged."""
    EMPTY = "empty"
    """Striping puts no entry of the fragment there, and the bookie is registered."""
    MISSING = "missing"
    """The bookie itself says that it does not have an entry."""
    DAMAGED = "damaged"
    """An entry fails its digest, or the bookie cannot read it from its disk."""
    LOST = "lost"
    """The bookie is registered nowhere. Also where it stores nothing, so that the metadata drop dead bookies."""
    UNREACHABLE = "unreachable"
    """Registered, and does not answer, or answers that it cannot tell: never counted as missing."""

    @property
    def is_bad(self) -> bool:
        """A new copy is wanted."""
        return self in (ReplicaVerdict.MISSING, ReplicaVerdict.DAMAGED, ReplicaVerdict.LOST)


@dataclass(frozen=True, slots=True)
class ReplicaFinding:
    """The verdict on one position. `entry_id`: the entry that showed it; None where none was asked for."""

    position: int
    bookie: str
    verdict: ReplicaVerdict
    entry_id: int | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class FragmentReport:
    """The findings on a fragment, one for each position, in order."""

    fragment: Fragment
    findings: tuple[ReplicaFinding, ...]

    @property
    def bad(self) -> Mapping[int, str]:
        """Positions that need a new copy, and their bookies: what `FragmentReplicator.replicate` takes."""
        return {found.position: found.bookie for found in self.findings if found.verdict.is_bad}

    @property
    def unknown(self) -> Mapping[int, str]:
        """Positions about which nobody can tell, and their bookies."""
        unreachable = ReplicaVerdict.UNREACHABLE
        return {found.position: found.bookie for found in self.findings if found.verdict is unreachable}


@dataclass(frozen=True, slots=True)
class LedgerReport:
    """A ledger's fragments and what they are worth.

    `lac`: the last entry that was looked at (of a closed ledger its last). `lac_error`: why the last add confirmed of
    an open ledger is not known; then its last segment counts as empty.
    """

    ledger_id: int
    metadata: Versioned[LedgerMetadata]
    lac: int
    fragments: tuple[FragmentReport, ...]
    lac_error: PodkeeperError | None = None

    @property
    def bad_fragments(self) -> tuple[FragmentReport, ...]:
        """Fragments with at least one position that needs a new copy."""
        return tuple(report for report in self.fragments if report.bad)

    @property
    def cannot_tell(self) -> bool:
        """Some replica, or the end of an open ledger, could not be looked at: the ledger may be worse than it seems."""
        return self.lac_error is not None or any(report.unknown for report in self.fragments)

    @property
    def is_healthy(self) -> bool:
        """Everything that was looked at is good, and everything could be looked at."""
        return not self.cannot_tell and not self.bad_fragments
