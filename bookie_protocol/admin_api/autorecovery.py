"""Auto-recovery: on and off, the auditor and its checks, what one process does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, field

from bookie_protocol.admin_api.bodies import API, NOTHING, Body, Query, Route
from bookie_protocol.admin_api.decommission import BookieId

CheckName = Literal["bookies", "ledgers", "placement", "replicas"]
Forcible = Literal["ledgers", "placement", "replicas"]
"""Checks that can be asked for; the audit of bookies has a path of its own."""
DELAY_MAX: Final = 2**31 - 1
_MARKED: Final[Any] = list[int] | dict[str, list[str]]
AUDITOR: Final = Route("GET", f"{API}/autorecovery/who_is_auditor", NOTHING)
TRIGGER_AUDIT: Final = Route("PUT", f"{API}/autorecovery/trigger_audit", NOTHING)
DELAY: Final = Route("GET", f"{API}/autorecovery/lost_bookie_recovery_delay", NOTHING)


class Enabled(Body):
    """The switch of auto-recovery in this cluster."""

    enabled: bool
    """It may."""


class EnabledQuery(Query):
    """The wanted state of the switch."""

    enabled: bool
    """true or false."""


class MarksQuery(Query):
    """Which marks to list, and what to tell of them."""

    missingreplica: str | None = None
    """List only marks that miss this bookie's copies."""
    excludingmissingreplica: str | None = None
    """List only marks that do not miss this bookie's copies."""
    printmissingreplica: str | None = None
    """Include the bookies whose copies are missing, with any value."""


class DelayBody(Body):
    """The delay to set; it counts at once, also for who is absent already."""

    delay_seconds: Annotated[int, Meta(ge=0, le=DELAY_MAX)] = field(name="delay_seconds")
    """Seconds. The present value, or 0, asks for an audit now."""


class ChecksBody(Body):
    """Checks to run now, whatever their intervals."""

    checks: Annotated[list[Forcible], Meta(min_length=1)]
    """One or more of `ledgers`, `placement`, `replicas`."""


class ReturnedBody(Body):
    """Bookies that were away, and whose copies the auditor is to look at now."""

    bookies: Annotated[list[BookieId], Meta(min_length=1, max_length=5_000)]
    """Their ids."""


class CheckRun(Body):
    """One run of a check."""

    started_time: int
    """Time at which it began, in ms since 1970."""
    finished_time: int | None
    """Time at which it was complete, in ms since 1970; null: it is not."""
    active_ms: int
    """Time spent on it, in ms, by all auditors that worked on it."""
    next_ledger: int | None
    """Next ledger to check: all ledgers below are done; null: it is complete."""
    counts: Mapping[str, int]
    """Number of ledgers by finding."""


class CheckSummary(Body):
    """A periodic check, as the auditors of this cluster record it, wherever they run."""

    check: CheckName
    """`bookies`: whether ledgers name lost bookies. `ledgers`: reads from every replica. `placement`: whether ensembles
    obey the policy. `replicas`: whether bookies store what they should."""
    auditor: str
    """The auditor that worked on it last; empty: none, or an auditor of Apache's."""
    running: CheckRun | None
    """The run that is not complete: under way, or to be taken up by the next auditor."""
    last: CheckRun | None
    """The last complete run."""
    last_complete_time: int | None
    """Time at which it was last complete, in ms since 1970, by Apache's auditors too; null: never."""
    requested_time: int | None
    """Time at which a run was last asked for, in ms since 1970; null: never."""
    failure: str | None
    """Reason why the last attempt was broken off; null: it was not."""
    failure_time: int | None
    """Time of that, in ms since 1970."""


class AbsentBookieState(Body):
    """A bookie that is registered nowhere."""

    bookie_id: str
    """Its id."""
    since_time: int
    """Start of the absence, in ms since 1970."""
    lost_at_time: int
    """Time from which its copies count, or counted, as missing, in ms since 1970."""
    lost: bool
    """They do."""
    audited: bool
    """The ledgers that name it are marked."""


class LedgerRepairState(Body):
    """A ledger that the worker of this process has in hand."""

    ledger_id: int
    """Which one."""
    phase: str
    """Current step of its repair, or the reason why there is none."""
    seconds: float
    """Seconds in this phase."""
    bad_fragments: int
    """Fragments that lack copies."""
    done_fragments: int
    """Number of these fragments that are restored."""
    entries_copied: int
    """Entries copied in this round."""
    entries_to_copy: int
    """Entries to copy in this round, altogether."""
    bytes_copied: int
    """Bytes copied in this round."""
    attempts: int
    """Rounds that failed before this one."""
    reason: str
    """Last error, or what it waits for; may be empty."""
    lost_entries: list[int]
    """Entries of which no copy can be read, the first few."""
    retry_in_seconds: float | None
    """Seconds until it is tried again; null: it is at work."""


class WorkerState(Body):
    """The replication worker of this process. Counts are since it started."""

    running: bool
    """It takes ledgers."""
    ledgers: list[LedgerRepairState]
    """Ledgers that it works on, also those whose repair is deferred."""
    ledgers_repaired: int
    """Ledgers whose mark it took away."""
    ledgers_failed: int
    """Rounds that ended without success."""
    ledgers_recovered: int
    """Open ledgers that it closed."""
    entries_copied: int
    """Copies made."""
    bytes_copied: int
    """Bytes of these."""
    bytes_per_second: float
    """Over the last half minute or so."""


class AutoRecoveryProcessState(Body):
    """Auto-recovery in this process."""

    auditor_id: str | None
    """The auditor, as last seen; null: none, or unknown."""
    is_auditor: bool
    """It is this process."""
    elected_time: int | None
    """Time of its election, in ms since 1970."""
    enabled: bool | None
    """Auto-recovery may run; null: not known."""
    complaint: str | None
    """Current problem, in one line; null: none."""
    lost_bookie_recovery_delay_seconds: int | None
    """The delay that the auditor goes by; null: this is not the auditor."""
    marked_ledgers: int | None
    """Number that the auditor counted last; null: this is not the auditor, or it has not counted yet."""
    deferred_marks: int
    """Ledgers that the auditor marks once they are unlocked."""
    withdrawn_marks: int
    """Marks that the auditor took back because bookies returned."""
    absent_bookies: list[AbsentBookieState]
    """Known to the auditor."""
    running_checks: list[CheckName]
    """Checks that the auditor runs now."""
    next_checks: Mapping[str, int | None]
    """Time of the next run of each, in ms since 1970; null: only by request, or not known yet."""
    worker: WorkerState
    """The other half."""


STATUS: Final = Route("GET", f"{API}/autorecovery/status", Enabled)
SET_STATUS: Final = Route("PUT", STATUS.path, Enabled, EnabledQuery)
MARKS: Final = Route("GET", f"{API}/autorecovery/list_under_replicated_ledger", _MARKED, MarksQuery)
SET_DELAY: Final = Route("PUT", DELAY.path, NOTHING, body=DelayBody)
CHECKS: Final = Route("GET", f"{API}/autorecovery/checks", list[CheckSummary])
FORCE_CHECKS: Final = Route("PUT", CHECKS.path, list[CheckName], body=ChecksBody)
LOOK_AT_RETURNED: Final = Route("PUT", f"{API}/autorecovery/returned_bookies", NOTHING, body=ReturnedBody)
PROCESS: Final = Route("GET", f"{API}/autorecovery/process", AutoRecoveryProcessState)
