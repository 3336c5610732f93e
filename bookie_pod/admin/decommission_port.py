"""What the admin API asks of the node about bookies that leave: the port, and the facts it hands over.

Threads: event loop. Any method may raise what the error taxonomy knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bookie_protocol.admin_api.decommission import (
    DecommissionOutlook,
    DecommissionState,
    LedgerHoldings,
    RecoverState,
    Safety,
)


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
