"""What the admin API asks of the node about bookies that leave: the port, and the facts it hands over.

Threads: event loop. Any method may raise what the error taxonomy knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class LedgerReason:
    """A ledger, and what is said of it."""

    ledger_id: int
    """The ledger."""
    reason: str
    """One line."""


@dataclass(frozen=True, slots=True)
class DecommissionState:
    """How far a decommission is, as it is stored; numbers are a few seconds old."""

    bookie_id: str
    """The bookie that leaves."""
    phase: str
    """requested, draining, proving, removing, done or undoing."""
    form: str | None
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
    proven_ledgers: int | None
    """Ledgers that were looked at for the proof that nothing names it; null: not proven."""


@dataclass(frozen=True, slots=True)
class DecommissionOutlook:
    """What a decommission would have to do, and what speaks against it."""

    bookie_id: str
    """The bookie."""
    presence: str
    """writable, read-only or not registered."""
    form: str
    """live or stopped."""
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
    largest_ensemble: int
    """Of any ledger of the cluster: so many bookies it takes to make one like it."""
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


@dataclass(frozen=True, slots=True)
class RecoverState:
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


@dataclass(frozen=True, slots=True)
class RiskyLedger:
    """A ledger that would suffer."""

    ledger_id: int
    """The ledger."""
    risk: str
    """no copy, below ack quorum, no slack or unknown."""
    first_entry: int
    """Of the segment that is worst."""
    copies_left: int
    """Of its worst entry, those that can be told for sure."""
    ack_quorum: int
    """How many it should have at least."""
    detail: str
    """One line."""


@dataclass(frozen=True, slots=True)
class Safety:
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
    no_slack: int
    """The same, but whichever of their bookies goes, as the write quorum is no larger; all other copies stay."""
    unknown: int
    """Nobody can tell, which is unsafe."""
    ledgers: list[RiskyLedger]
    """The first ones at risk."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Entries of a ledger, as runs from first to last."""

    count: int
    """How many entries."""
    runs: list[list[int]]
    """The first runs: pairs of the first and the last entry."""


@dataclass(frozen=True, slots=True)
class HeldReplicas:
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


@dataclass(frozen=True, slots=True)
class LedgerHoldings:
    """What each bookie holds of a ledger."""

    ledger_id: int
    """The ledger."""
    state: str
    """OPEN, IN_RECOVERY or CLOSED."""
    last_entry: int
    """The last known one."""
    bookies: list[HeldReplicas]
    """Each bookie that the metadata name."""


class DecommissionPort(Protocol):
    """Decommissions, recoveries of lost bookies, their cookies, and what ledgers would suffer."""

    async def decommission(
        self, bookie_id: str, *, delete_cookie: bool, accepted_losses: frozenset[int] = frozenset()
    ) -> None:
        """Begin or resume in the background. `Refused`: the plan speaks against it, or too many are under way here."""
        ...

    async def decommission_state(self, bookie_id: str) -> DecommissionState:
        """`NotThere`: there is none, and never was."""
        ...

    async def decommission_outlook(self, bookie_id: str) -> DecommissionOutlook: ...
    async def undo_decommission(self, bookie_id: str) -> bool:
        """Whether the bookie was made writable again. `NotThere`, `Refused`."""
        ...

    async def recover(self, bookie_ids: Sequence[str], *, delete_cookies: bool) -> None:
        """Begin in the background. `Refused`: one is under way here."""
        ...

    def recover_state(self) -> RecoverState | None:
        """Of the last recovery; None: this bookie was asked for none."""
        ...

    async def safety(self, bookie_ids: Sequence[str]) -> Safety: ...
    async def holdings(self, ledger_id: int) -> LedgerHoldings:
        """`NotThere` if the ledger does not exist."""
        ...

    async def cookie(self, bookie_id: str) -> bytes:
        """`NotThere`: it has none."""
        ...

    async def create_cookie(self, bookie_id: str, data: bytes) -> None:
        """`Refused`: it has one. `BadRequest`: this is no cookie of it."""
        ...

    async def update_cookie(self, bookie_id: str, data: bytes) -> None:
        """`NotThere`: it has none. `BadRequest`: this is no cookie of it."""
        ...

    async def delete_cookie(self, bookie_id: str, *, accepted_losses: frozenset[int] = frozenset()) -> None:
        """`NotThere`: it has none. `Refused`: the bookie is registered, or ledgers name it."""
        ...
