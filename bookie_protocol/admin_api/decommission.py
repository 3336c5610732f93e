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
LOSSES_PATTERN: Final = "^ *([0-9]{1,19} *(, *[0-9]{1,19} *)*)?$"
"""No id is above 2^63 - 1: not every number of 19 digits is one, and none is described."""
# Described, not enforced: whoever reads them says what is wrong in words, and not by a regular expression.
BookieId = Annotated[str, Meta(extra_json_schema={"pattern": BOOKIE_PATTERN})]
Bookies = Annotated[str, Meta(extra_json_schema={"pattern": f"^{READABLE_BOOKIE_ID}(,{READABLE_BOOKIE_ID})*$"})]
Losses = Annotated[str, Meta(extra_json_schema={"pattern": LOSSES_PATTERN.replace("19", "18")})]


class LedgerReason(Body):
    """A ledger, and what is said of it."""

    ledger_id: int
    """The ledger."""
    reason: str
    """One line."""


class DecommissionState(Body):
    """How far a decommission is, as it is stored; numbers are a few seconds old."""

    bookie_id: str
    """The bookie that leaves."""
    phase: Phase
    """`done` and `undoing` are no drain any more."""
    form: Form | None
    """live: it serves reads meanwhile; stopped: it is registered nowhere; null: not known yet."""
    coordinator: str
    """Who works on it, or did last: host, process and a random end."""
    running_here: bool
    """This bookie works on it, until it is stopped; then any bookie goes on that is asked for the same decommission."""
    problem: str
    """Why the work of this bookie on it ended; empty: it did not, or was not begun here."""
    started_time: int
    """In ms since 1970."""
    updated_time: int
    """In ms since 1970."""
    delete_cookie: bool
    """Its cookie is deleted in the end."""
    ledgers_total: int
    """Ledgers that named it."""
    ledgers_left: int
    """Of these, those that still do."""
    bytes_total: int
    """An estimate, of closed ledgers."""
    bytes_left: int
    """Of these."""
    bytes_copied: int
    """By the present coordinator, over all copies."""
    seconds_left: float | None
    """An estimate; null: nobody can tell."""
    blocked: int
    """Ledgers that cannot be drained at present."""
    blockers: list[LedgerReason]
    """The first ones, and why."""
    proven_ledgers: int | None = None
    """Ledgers that were looked at for the proof that nothing names it; null: not proven."""


class DecommissionOutlook(Body):
    """What a decommission would have to do, and what speaks against it."""

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
    """Of these, those that are not closed."""
    bytes: int
    """To copy; an estimate, of closed ledgers."""
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
    """Of these, those that name this bookie, so that it may hold their last copies."""
    refusals: list[str]
    """Why it would not be begun."""
    warnings: list[str]
    """What else to think of."""
    largest_ensemble: int = 0
    """Of any ledger of the cluster: so many bookies it takes to make one like it."""


class RecoverState(Body):
    """How far the recovery of lost bookies is that this bookie was asked for."""

    bookies: list[str]
    """The lost ones."""
    running: bool
    """It goes on."""
    problem: str
    """Why it ended early; empty: it did not."""
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
    """What would become of it."""
    first_entry: int
    """Of the segment that is worst."""
    copies_left: int
    """Of its worst entry, those that can be told for sure."""
    ack_quorum: int
    """How many it should have at least."""
    detail: str
    """One line."""


class Safety(Body):
    """What would become of ledgers if some bookies went now."""

    safe: bool
    """No ledger is at risk, and everything could be told."""
    going: list[str]
    """These bookies."""
    ledgers_seen: int
    """All ledgers."""
    ledgers_concerned: int
    """Those with entries on one of them."""
    no_copy: int
    """Would have no copy of some entry."""
    below_ack_quorum: int
    """Would have fewer copies than their ack quorum, and need not."""
    unknown: int
    """Nobody can tell, which is unsafe."""
    ledgers: list[RiskyLedger]
    """The first ones at risk."""
    no_slack: int = 0
    """The same, but whichever of their bookies goes, as the write quorum is no larger; all other copies stay."""


class Runs(Body):
    """Entries of a ledger, as runs from first to last."""

    count: int
    """How many entries."""
    runs: list[list[int]]
    """The first runs: pairs of the first and the last entry."""


class HeldReplicas(Body):
    """What one bookie holds of a ledger."""

    bookie_id: str
    """The bookie."""
    registration: str
    """writable, read-only or nowhere."""
    expected: Runs
    """By the metadata."""
    held: Runs | None
    """Really; null: it could not tell."""
    missing: Runs | None
    """Expected and not held."""
    surplus: Runs | None
    """Held and not expected."""
    problem: str | None
    """Why it could not tell."""


class LedgerHoldings(Body):
    """What each bookie holds of a ledger."""

    ledger_id: int
    """The ledger."""
    state: str
    """OPEN, IN_RECOVERY or CLOSED."""
    last_entry: int
    """The last known one."""
    bookies: list[HeldReplicas]
    """Each bookie that the metadata name."""


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
    """What became of the bookie."""

    made_writable: bool
    """false: it is stopped, or was read-only before."""


class DrainProof(Body):
    """Whether anything needs a bookie: a full listing of the ledgers and marks, made for this answer."""

    bookie_id: str
    """The bookie."""
    ledgers: int
    """Ledgers that name it, without those that were given up."""
    open_ledgers: int
    """Of these, those that are not closed."""
    marks: int
    """Under-replicated ledgers whose mark names it, without those that were given up."""
    accepted_losses: int
    """Ledgers of either kind that were given up, and name it still."""
    first_ledgers: list[int]
    """The first ones of either kind."""
    registered: bool
    """It is registered, writable or read-only: before the listing or after it."""
    auditor: str | None
    """Who is the auditor; null: nobody."""
    last_audit_ms: int | None
    """When the last complete audit of the bookies began, in ms since 1970; null: there was none, or its auditor is one
    of Java's, which do not tell."""
    instance_id: str
    """Of the cluster that was listed."""
    ledgers_seen: int
    """Ledgers of the cluster that were looked at."""
    begun_ms: int
    """When the listing began, in ms since 1970."""
    claims: int = 0
    """Ledgers that are being re-replicated or recovered, and may come to name it, without those that were given up."""
    first_claims: list[int] = field(default_factory=list)
    """The first of these."""


DECOMMISSION: Final = Route("PUT", f"{API}/autorecovery/decommission", NOTHING, body=DecommissionBody)
OUTLOOK: Final = Route("GET", f"{DECOMMISSION.path}/plan", DecommissionOutlook, BookieQuery)
PROGRESS: Final = Route("GET", f"{DECOMMISSION.path}/progress", DecommissionState, BookieQuery)
"""`NotDecommissioned`: nobody works on it, and nobody did."""
UNDO: Final = Route("PUT", f"{DECOMMISSION.path}/undo", UndoAnswer, body=UndoBody)
PROOF: Final = Route("GET", f"{DECOMMISSION.path}/proof", DrainProof, ProofQuery)
LONG_PROOF: Final = Route("POST", PROOF.path, DrainProof, body=ProofQuery)
RECOVER: Final = Route("PUT", f"{API}/autorecovery/bookie", NOTHING, body=dict[str, list[str] | bool])
RECOVER_PROGRESS: Final = Route("GET", f"{RECOVER.path}/progress", RecoverState)
SAFETY: Final = Route("GET", f"{API}/autorecovery/safety_check", Safety, SafetyQuery)
REPLICAS: Final = Route("GET", f"{API}/ledger/replicas", LedgerHoldings, LedgerQuery)
COOKIE: Final = Route("GET", f"{API}/bookie/cookie", NOTHING, BookieQuery)
"""`NoCookie`: it has none."""
CREATE_COOKIE: Final = Route("POST", COOKIE.path, NOTHING, BookieQuery, str)
SET_COOKIE: Final = Route("PUT", COOKIE.path, NOTHING, BookieQuery, str)
DELETE_COOKIE: Final = Route("DELETE", COOKIE.path, NOTHING, ProofQuery, LossesBody)
