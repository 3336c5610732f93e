"""Decommissions and cookies, without a cluster behind it: a test sets what it says and sees what it was told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bookie_pod.roles import NOBODY, Caller
from bookie_protocol.admin_api.decommission import (
    DecommissionOutlook,
    DecommissionState,
    HeldReplicas,
    LedgerHoldings,
    LedgerReason,
    RecoverState,
    RiskyLedger,
    Runs,
    Safety,
)
from bookie_protocol.errors import NoCookie, NotDecommissioned, Refused

STATE = DecommissionState(
    bookie_id="b:1",
    phase="draining",
    form="live",
    coordinator="host/7",
    running_here=True,
    problem="",
    started_time=1,
    updated_time=2,
    delete_cookie=True,
    ledgers_total=10,
    ledgers_left=4,
    bytes_total=1000,
    bytes_left=400,
    bytes_copied=600,
    seconds_left=12.5,
    blocked=1,
    blockers=[LedgerReason(7, "why")],
    proven_ledgers=None,
)
OUTLOOK = DecommissionOutlook(
    bookie_id="b:1",
    presence="writable",
    form="live",
    has_cookie=True,
    ledgers=10,
    open_ledgers=1,
    bytes=1000,
    targets=3,
    free_bytes=5000,
    largest_ensemble=3,
    auto_recovery_enabled=True,
    auditor=None,
    under_replicated=0,
    under_replicated_here=0,
    refusals=[],
    warnings=["no auditor is elected"],
)


@dataclass
class FakeDecommission:
    """`refusal`: raised by whatever begins something. `cookies` by bookie id."""

    begun: list[tuple[str, bool]] = field(default_factory=list)
    recovered: list[tuple[tuple[str, ...], bool]] = field(default_factory=list)
    losses: list[frozenset[int]] = field(default_factory=list)
    undone: list[str] = field(default_factory=list)
    cookies: dict[str, bytes] = field(default_factory=lambda: {"b:1": b"5\nbookieHost: ..."})
    refusal: str = ""
    recovery: RecoverState | None = None

    def check(self) -> None:
        if self.refusal:
            raise Refused(self.refusal)

    async def decommission(
        self, bookie_id: str, *, delete_cookie: bool, accepted_losses: frozenset[int] = frozenset()
    ) -> None:
        self.check()
        self.losses.append(accepted_losses)
        self.begun.append((bookie_id, delete_cookie))

    async def decommission_state(self, bookie_id: str) -> DecommissionState:
        if bookie_id != STATE.bookie_id:
            raise NotDecommissioned(f"bookie {bookie_id} is not being decommissioned")
        return STATE

    async def decommission_outlook(self, bookie_id: str, caller: Caller = NOBODY) -> DecommissionOutlook:
        return OUTLOOK

    async def undo_decommission(self, bookie_id: str) -> bool:
        self.check()
        self.undone.append(bookie_id)
        return True

    async def recover(self, bookie_ids: Sequence[str], *, delete_cookies: bool) -> None:
        self.check()
        self.recovered.append((tuple(bookie_ids), delete_cookies))

    def recover_state(self) -> RecoverState | None:
        return self.recovery

    async def safety(self, bookie_ids: Sequence[str], caller: Caller = NOBODY) -> Safety:
        risky = [RiskyLedger(7, "no copy", 0, 0, 2, "its only bookie goes")]
        return Safety(False, sorted(bookie_ids), 100, 10, 1, 0, 0, risky)

    async def holdings(self, ledger_id: int, caller: Caller = NOBODY) -> LedgerHoldings:
        held = Runs(2, [[0, 1]])
        bookie = HeldReplicas("b:1", "writable", Runs(3, [[0, 2]]), held, Runs(1, [[2, 2]]), Runs(0, []), None)
        return LedgerHoldings(ledger_id, "CLOSED", 2, [bookie])

    @property
    def room_of_cookies(self) -> FakeCookies:
        return FakeCookies(self)


@dataclass
class FakeCookies:
    """Stored with the decommissions, whose refusal counts."""

    of: FakeDecommission

    async def read(self, bookie_id: str) -> bytes:
        if bookie_id not in self.of.cookies:
            raise NoCookie(f"bookie {bookie_id} has no cookie")
        return self.of.cookies[bookie_id]

    async def create(self, bookie_id: str, data: bytes) -> None:
        self.of.check()
        self.of.cookies[bookie_id] = data

    async def update(self, bookie_id: str, data: bytes) -> None:
        await self.read(bookie_id)
        self.of.cookies[bookie_id] = data

    async def delete(self, bookie_id: str, accepted_losses: frozenset[int] = frozenset()) -> None:
        self.of.check()
        self.of.losses.append(accepted_losses)
        await self.read(bookie_id)
        del self.of.cookies[bookie_id]
