"""Three things about auto-recovery that every dashboard needs: marked ledgers, whether it is disabled, who is auditor.

Every process that runs auto-recovery looks now and then; only the auditor counts marks, because that means listing
them, and the longer it takes the rarer it is done.

Event loop only; the values may be read on any thread.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

from bookie_protocol.errors import MetadataError
from bookie_protocol.metadata_service.interface import MetadataService

LOOK_SECONDS: Final = 15.0
SHARE: Final = 20
"""A count that took a second is repeated after this many seconds at the earliest."""


class Levels:
    """`run` until cancelled. A level that nobody can tell is NaN."""

    def __init__(self, service: MetadataService, is_auditor: Callable[[], bool]) -> None:
        self._service = service
        self._is_auditor = is_auditor
        self._count_at = 0.0
        self.marked = math.nan
        """Ledgers marked now; NaN on everybody but the auditor."""
        self.disabled = math.nan
        """1 while auto-recovery is disabled, else 0."""
        self.no_auditor = math.nan
        """1 while nobody is auditor, else 0."""
        self.auditor_id: str | None = None

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """One look."""
        try:
            self.disabled = float(not await self._service.under_replication.is_enabled())
            self.auditor_id = await self._service.auditor_election.current_auditor()
            self.no_auditor = float(self.auditor_id is None)
        except MetadataError:
            self.disabled = self.no_auditor = self.marked = math.nan
            return
        try:
            await self._count()
        except MetadataError:
            self.marked = math.nan

    async def _count(self) -> None:
        if not self._is_auditor():
            self.marked = math.nan
            return
        loop = asyncio.get_running_loop()
        began = loop.time()
        if began < self._count_at:
            return
        self.marked = float(await self._service.under_replication.count())
        self._count_at = loop.time() + SHARE * (loop.time() - began)
