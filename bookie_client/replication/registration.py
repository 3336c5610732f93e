"""Whether a bookie is registered: as fresh as a verdict on its copies needs.

Invariants
- "Registered nowhere" is said only after the metadata service was asked anew, in an order that a bookie which just
  changes between writable and read-only cannot slip through.
- Nothing is said when the metadata service does not answer: the error goes to the caller.

Event loop only.

Source: reference metadata layout, section 4; reference auto-recovery, section 2 ("available").
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import TYPE_CHECKING, Final

from bookie_client.bookies import Bookies
from bookie_protocol.metadata_service.interface import BookieGroup

if TYPE_CHECKING:
    from bookie_protocol.metadata_service.tree.bookies import BookieRegistry

REMEMBERED_SECONDS: Final = 1.0
"""For how long an answer of the metadata service counts: a ledger names a lost bookie many times."""


class Registration(Enum):
    """WRITABLE or READ_ONLY: it serves what it has. NOWHERE: it is down, or gone for good."""

    WRITABLE = "writable"
    READ_ONLY = "read-only"
    NOWHERE = "nowhere"


class Registrations:
    """Asks for one client. Bounded by the number of bookies that ledgers name."""

    def __init__(self, bookies: Bookies, registry: BookieRegistry) -> None:
        self._bookies = bookies
        self._registry = registry
        self._nowhere_until: dict[str, float] = {}

    async def of(self, bookie: str, *, asked_now: bool = False) -> Registration:
        """Where the bookie is registered, as far as is known here; `asked_now`: not by what was known before, which
        still names a bookie that has gone a moment ago. Raises `MetadataUnavailable`."""
        if not asked_now and bookie in await self._bookies.writable():
            return Registration.WRITABLE
        if not asked_now and bookie in await self._bookies.read_only():
            return Registration.READ_ONLY
        now = asyncio.get_running_loop().time()
        if now < self._nowhere_until.get(bookie, now):
            return Registration.NOWHERE
        # Writable is asked twice: it may leave the read-only ones for the writable ones between two questions.
        for group in (BookieGroup.WRITABLE, BookieGroup.READ_ONLY, BookieGroup.WRITABLE):
            if await self._registry.is_registered(bookie, group):
                return Registration.WRITABLE if group is BookieGroup.WRITABLE else Registration.READ_ONLY
        self._nowhere_until[bookie] = asyncio.get_running_loop().time() + REMEMBERED_SECONDS
        return Registration.NOWHERE
