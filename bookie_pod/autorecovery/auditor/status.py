"""What an auditor, or a candidate, shows of itself. Snapshots; times in ms since the epoch.

Any thread may read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bookie_pod.autorecovery.auditor.runs import Check, Runs


@dataclass(frozen=True, slots=True)
class AbsentBookie:
    """A bookie that is registered nowhere."""

    bookie_id: str
    since_ms: int
    lost_at_ms: int
    """When its copies count, or counted, as missing."""
    is_lost: bool
    is_audited: bool
    """The ledgers that name it are marked."""


@dataclass(frozen=True, slots=True)
class CheckStatus:
    """A periodic check, or the audit of bookies. `runs`: what is recorded of it."""

    check: Check
    interval_s: int
    """0 or less: only when somebody asks."""
    is_running: bool
    next_ms: int | None
    """When it is due; None: not known yet, or only when somebody asks."""
    runs: Runs
    next_ledger: int | None = None
    """Of the pass that runs: every ledger below is done."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Of the pass that runs."""


@dataclass(frozen=True, slots=True)
class AuditorStatus:
    """This process as a candidate, and as the auditor if it is elected."""

    bookie_id: str
    is_auditor: bool
    auditor_id: str | None
    """Who is auditor, as last seen."""
    elected_ms: int | None
    """Since when this one is."""
    is_enabled: bool | None
    """Whether auto-recovery is enabled; None: not known."""
    lost_bookie_recovery_delay_s: int | None
    absent: tuple[AbsentBookie, ...] = ()
    checks: tuple[CheckStatus, ...] = ()
    marked_ledgers: int | None = None
    """As last counted; None on everybody but the auditor."""
    deferred_marks: int = 0
    """Ledgers that are to be marked once their lock is gone."""
    withdrawn_marks: int = 0
    """Marks taken back since this auditor was elected."""
