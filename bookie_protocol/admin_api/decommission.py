"""Bookies that leave: decommission, recovery of lost ones, what needs them, and their cookies."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, field

from bookie_protocol.admin_api.bodies import API, NOTHING, Body, Query, Route
from bookie_protocol.admin_api.cluster import LedgerQuery
from bookie_protocol.metadata_service.service_info import READABLE_BOOKIE_ID

Phase = Literal["requested", "draining", "proving", "removing", "done", "undoing"]
Form = Literal["live", "stopped"]
Risk = Literal["no copy", "below ack quorum", "no slack", "unknown"]
BOOKIE_PATTERN: Final = rf"^(?!\.{{1,2}}$){READABLE_BOOKIE_ID}$"
_ONE_BOOKIE: Final = rf"(?!\.{{1,2}}(,|$)){READABLE_BOOKIE_ID}"
BOOKIES_PATTERN: Final = f"^{_ONE_BOOKIE}(,{_ONE_BOOKIE})*$"
LOSSES_PATTERN: Final = "^ *([0-9]{1,19} *(, *[0-9]{1,19} *)*)?$"
"""Pattern of a list of ids. No id is above 2^63 - 1: not every number of 19 digits is one, and none is described."""
# Described, not enforced: the parser reports the fault in words, not by a regular expression.
BookieId = Annotated[str, Meta(extra_json_schema={"pattern": BOOKIE_PATTERN})]
Bookies = Annotated[str, Meta(extra_json_schema={"pattern": BOOKIES_PATTERN})]
Losses = Annotated[str, Meta(extra_json_schema={"pattern": LOSSES_PATTERN.replace("19", "18")})]
RECOVER: Final = Route("PUT", f"{API}/autorecovery/bookie", NOTHING, body=dict[str, list[str] | bool])


class LedgerReason(Body):
    """A ledger, and what is said of it."""

    ledger_id: int
    """The ledger."""
    reason: str
    """One line."""


class DecommissionState(Body):
    """The stored progress of a decommission; numbers are a few seconds old."""

    bookie_id: str
    """The bookie that leaves."""
    phase: Phase
    """`done` and `undoing` are no drain any more."""
    form: Form | None
    """live: it serves reads meanwhile; stopped: it is registered nowhere; null: not known yet."""
    coordinator: str
    """The process that works on it, or did last: host, process and a random end."""
    running_here: bool
    """This bookie works on it, until it is stopped; then any bookie goes on that is asked for the same decommission."""
    problem: str
    """Reason why the work of this bookie on it ended; empty: it did not, or was not begun here."""
    started_time: int
    """Time of its start, in ms since 1970."""
    updated_time: int
    """Time of the last update, in ms since 1970."""
    delete_cookie: bool
    """Its cookie is deleted in the end."""
    ledgers_total: int
    """Ledgers that named it."""
    ledgers_left: int
    """Number of these that still do."""
    bytes_total: int
    """An estimate, of closed ledgers."""
    bytes_left: int
    """Bytes of these."""
    bytes_copied: int
    """Bytes that the present coordinator copied, over all copies."""
    seconds_left: float | None
    """Estimated seconds; null: unknown."""
    blocked: int
    """Ledgers that cannot be drained at present."""
    blockers: list[LedgerReason]
    """The first ones, and why."""
    proven_ledgers: int | None = None
    """Ledgers that were looked at for the proof that nothing names it; null: not proven."""


class DecommissionOutlook(Body):
    """The work of a decommission, and what prevents it."""

    bookie_id: str
    """The bookie."""
    presence: str
    """writable, read-only or not registered."""
    form: Form
    """live: it serves reads meanwhile; stopped: it is registered nowhere."""
    has_cookie: bool
    """It has a cookie."""
    ledgers: int
    """Ledgers that name it."""
    open_ledgers: int
    """Number of these that are not closed."""
    bytes: int
    """Estimated bytes to copy, of closed ledgers."""
    targets: int
    """Writable bookies that could take copies."""
    free_bytes: int
    """Free space of these."""
    auto_recovery_enabled: bool
    """Auto-recovery may run."""
    auditor: str | None
    """The bookie that is the auditor; null: none."""
    under_replicated: int
    """Ledgers that are marked as under-replicated."""
    under_replicated_here: int
    """Number of these that name this bookie, so that it may hold their last copies."""
    refusals: list[str]
    """Reasons why it would be refused."""
    warnings: list[str]
    """Further points to consider."""
    largest_ensemble: int = 0
    """Largest ensemble of any ledger in the cluster: a ledger like it needs this number of bookies."""


class RecoverState(Body):
    """The progress of the recovery of lost bookies that this bookie was asked for."""

    bookies: list[str]
    """The lost ones."""
    running: bool
    """It goes on."""
    problem: str
    """Reason why it ended early; empty: it did not."""
    ledgers_restored: int
    """Ledgers that name them no more."""
    ledgers_left: int
    """Ledgers that do."""
    bytes_copied: int
    """Over all copies."""
    failed: list[LedgerReason]
    """Ledgers that could not be restored; the first ones."""
    cookies_deleted: list[str]
    """Whose cookies were deleted."""


class RiskyLedger(Body):
    """A ledger that would suffer."""

    ledger_id: int
    """The ledger."""
    risk: Risk
    """The risk to the ledger."""
    first_entry: int
    """First entry of the worst segment."""
    copies_left: int
    """Number of certain copies of its worst entry."""
    ack_quorum: int
    """Minimum number of copies."""
    detail: str
    """One line."""


class Safety(Body):
    """The risk to ledgers if some bookies went now."""

    safe: bool
    """True if no ledger is at risk and none is unknown."""
    going: list[str]
    """Ids of these bookies."""
    ledgers_seen: int
    """All ledgers."""
    ledgers_concerned: int
    """Number of ledgers with entries on one of them."""
    no_copy: int
    """Would have no copy of some entry."""
    below_ack_quorum: int
    """Would have fewer copies than their ack quorum, and need not."""
    unknown: int
    """Number of ledgers whose risk is unknown, which is unsafe."""
    ledgers: list[RiskyLedger]
    """The first ones at risk."""
    no_slack: int = 0
    """The same, but whichever of their bookies goes, as the write quorum is no larger; all other copies stay."""


class Runs(Body):
    """Entries of a ledger, as runs from first to last."""

    count: int
    """Number of entries."""
    runs: list[list[int]]
    """The first runs: pairs of the first and the last entry."""


class HeldReplicas(Body):
    """The entries of a ledger on one bookie."""

    bookie_id: str
    """The bookie."""
    registration: str
    """writable, read-only or nowhere."""
    expected: Runs
    """Entries that it should hold by the metadata."""
    held: Runs | None
    """Really; null: it could not tell."""
    missing: Runs | None
    """Expected and not held."""
    surplus: Runs | None
    """Held and not expected."""
    problem: str | None
    """Reason why it could not answer."""


class LedgerHoldings(Body):
    """The entries of a ledger on each bookie."""

    ledger_id: int
    """The ledger."""
    state: str
    """OPEN, IN_RECOVERY or CLOSED."""
    last_entry: int
    """The last known one."""
    bookies: list[HeldReplicas]
    """Holdings of each bookie that the metadata name."""


class DecommissionBody(Body, rename={}, omit_defaults=True):
    """Which bookie is to leave."""

    bookie_src: BookieId
    """The bookie."""
    delete_cookie: bool | Literal["true", "false"] = False
    """Delete its cookie in the end, on a proof that nothing names it."""
    accept_loss: Losses = ""
    """Ids of ledgers, with commas, whose data is given up."""


class UndoBody(Body, rename={}):
    """Which bookie is to stay."""

    bookie_src: BookieId
    """The bookie."""


class BookieQuery(Query):
    """One bookie."""

    bookie_id: BookieId
    """The bookie."""


class ProofQuery(BookieQuery):
    """One bookie, and what is not asked of it. A request line does not hold many ledgers: they may be in a body."""

    accept_loss: Losses = ""
    """Ids of ledgers, with commas, whose data is given up: that they name it does not count."""


class LossesBody(Body, rename={}):
    """The parameter of the same name: a request line does not hold many."""

    accept_loss: Losses = ""
    """Ids of ledgers, with commas, whose data is given up."""


class SafetyQuery(Query):
    """Bookies that would go."""

    bookies: Bookies
    """Ids, with commas."""


class UndoAnswer(Body):
    """The outcome for the bookie."""

    made_writable: bool
    """false: it is stopped, or was read-only before."""


class DrainProof(Body):
    """The proof that nothing needs a bookie: a full listing of the ledgers and marks, made for this answer."""

    bookie_id: str
    """The bookie."""
    ledgers: int
    """Ledgers that name it, without those that were given up."""
    open_ledgers: int
    """Number of these that are not closed."""
    marks: int
    """Under-replicated ledgers whose mark names it, without those that were given up."""
    accepted_losses: int
    """Ledgers of either kind that were given up, and name it still."""
    first_ledgers: list[int]
    """The first ones of either kind."""
    registered: bool
    """It is registered, writable or read-only: before the listing or after it."""
    auditor: str | None
    """Id of the auditor; null: none."""
    last_audit_ms: int | None
    """Time at which the last complete audit of the bookies began, in ms since 1970; null: there was none, or its
    auditor is one of Java's, which do not record it."""
    instance_id: str
    """Instance id of the cluster that was listed."""
    ledgers_seen: int
    """Ledgers of the cluster that were looked at."""
    begun_ms: int
    """Time at which the listing began, in ms since 1970."""
    claims: int = 0
    """Ledgers that are being re-replicated or recovered, and may come to name it, without those that were given up."""
    first_claims: list[int] = field(default_factory=list)
    """The first of these."""


DECOMMISSION: Final = Route("PUT", f"{API}/autorecovery/decommission", NOTHING, body=DecommissionBody)
OUTLOOK: Final = Route("GET", f"{DECOMMISSION.path}/plan", DecommissionOutlook, BookieQuery)
PROGRESS: Final = Route("GET", f"{DECOMMISSION.path}/progress", DecommissionState, BookieQuery)
"""Progress of a decommission. `NotDecommissioned`: there is none, and there was none."""
UNDO: Final = Route("PUT", f"{DECOMMISSION.path}/undo", UndoAnswer, body=UndoBody)
PROOF: Final = Route("GET", f"{DECOMMISSION.path}/proof", DrainProof, ProofQuery)
LONG_PROOF: Final = Route("POST", PROOF.path, DrainProof, body=ProofQuery)
RECOVER_PROGRESS: Final = Route("GET", f"{RECOVER.path}/progress", RecoverState)
SAFETY: Final = Route("GET", f"{API}/autorecovery/safety_check", Safety, SafetyQuery)
REPLICAS: Final = Route("GET", f"{API}/ledger/replicas", LedgerHoldings, LedgerQuery)
COOKIE: Final = Route("GET", f"{API}/bookie/cookie", NOTHING, BookieQuery)
"""`NoCookie`: it has none."""
CREATE_COOKIE: Final = Route("POST", COOKIE.path, NOTHING, BookieQuery, str)
SET_COOKIE: Final = Route("PUT", COOKIE.path, NOTHING, BookieQuery, str)
DELETE_COOKIE: Final = Route("DELETE", COOKIE.path, NOTHING, ProofQuery, LossesBody)
