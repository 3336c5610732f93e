"""How far the decommissions under way are, for metrics: the auditor reads their records now and then.

Event loop only; the values may be read on any thread.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

from bookie_client.logs import get_logger
from bookie_pod.autorecovery.decommission.state import DecommissionRecord
from bookie_pod.autorecovery.decommission.store import DecommissionStore
from bookie_protocol.errors import MetadataDamaged, MetadataError
from bookie_protocol.metadata_service.interface import MetadataService

LOOK_SECONDS: Final = 15.0

_log = get_logger(__name__)


class DecommissionLevels:
    """`run` until cancelled. All levels are NaN where `is_auditor` is false, and while nobody can tell."""

    def __init__(self, service: MetadataService, is_auditor: Callable[[], bool]) -> None:
        self._store = DecommissionStore(service)
        self._is_auditor = is_auditor
        self._damaged: frozenset[str] = frozenset()
        self._forget()

    def _forget(self) -> None:
        self.under_way = math.nan
        """Bookies that are being decommissioned."""
        self.ledgers_left = math.nan
        """Ledgers that still name them, as far as they have been listed."""
        self.bytes_left = math.nan
        """Bytes to be copied of these; an estimate."""
        self.blocked = math.nan
        """Ledgers that cannot be drained at present."""
        self.updated_ms = math.nan
        """When the record was stored last that nobody has stored for longest, in ms since the epoch."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """One look."""
        if not self._is_auditor():
            self._forget()
            return
        try:
            names = await self._store.bookies()
            records = [record for name in sorted(names) if (record := await self._read(name)) is not None]
        except MetadataError:
            self._forget()
            return
        self._damaged &= names
        progress = [record.progress for record in records]
        self.under_way = float(len(records) + len(self._damaged))
        self.ledgers_left = float(sum(each.ledgers_left for each in progress))
        self.bytes_left = float(sum(each.bytes_left for each in progress))
        self.blocked = float(sum(each.blocked for each in progress))
        self.updated_ms = min((float(record.updated_ms) for record in records), default=math.nan)

    async def _read(self, name: str) -> DecommissionRecord | None:
        try:
            found = await self._store.active(name)
        except MetadataDamaged as error:
            if name not in self._damaged:
                _log.warning("decommission record", reason=str(error))
            self._damaged |= {name}
            return None
        self._damaged -= {name}
        return found.value if found is not None else None
