"""What bookies say that they store of a ledger, with an end to the patience for those that never say.

Invariants
- "It has nothing" is a bookie's own word; silence, and any other error, is "nobody can tell".
- A bookie that was silent `LISTS_TO_GIVE_UP` times in a row is not asked for `SILENT_SECONDS`: Java's with
  DbLedgerStorage never answer. All pieces of work that share a client know of it.

Event loop only.

Source: reference wire protocol, section 8.8.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Final
from weakref import WeakKeyDictionary

from bookie_client.bookies import Registration, Registrations
from bookie_client.client import Client
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_protocol.errors import BadRequest, BadVersion, BookieTimeout, NotThere, PodkeeperError, ProtocolViolation
from bookie_protocol.wire.availability import Availability
from pyspark_bookie.jobs.replicas.coverage import NOTHING

LISTS_TO_GIVE_UP: Final = 3
SILENT_SECONDS: Final = 600.0
MAX_HELD: Final = 1 << 40
"""Entries that one bookie can hold of one ledger, at most; who claims more is not believed."""


@dataclass(frozen=True, slots=True)
class Listed:
    """`stored` None: nobody can tell, and `reason` says why. `is_lost`: the bookie is registered nowhere. `is_silent`:
    it answers, but gives no lists."""

    stored: Availability | None
    reason: str = ""
    is_lost: bool = False
    is_silent: bool = False


class Silences:
    """Who gave no list, how often in a row, and when last. No more than there are bookies."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._until: dict[str, float] = {}

    def is_silent(self, bookie: str) -> bool:
        """It need not be asked now."""
        return asyncio.get_running_loop().time() < self._until.get(bookie, 0.0)

    def add(self, bookie: str) -> None:
        self._counts[bookie] += 1
        if self._counts[bookie] >= LISTS_TO_GIVE_UP:
            self._until[bookie] = asyncio.get_running_loop().time() + SILENT_SECONDS

    def forget(self, bookie: str) -> None:
        self._counts.pop(bookie, None)
        self._until.pop(bookie, None)


_SILENCES: Final[WeakKeyDictionary[Client, Silences]] = WeakKeyDictionary()


class Listings:
    """Asks the bookies of one client."""

    def __init__(self, client: Client, throttle: ReplicationThrottle) -> None:
        self._client = client
        self._throttle = throttle
        self._registrations = Registrations(client.bookies, client.metadata_service.bookies)
        self._silences = _SILENCES.setdefault(client, Silences())

    async def of(self, bookie: str, ledger_id: int) -> Listed:
        """Raises `MetadataUnavailable`."""
        if await self._registrations.of(bookie) is Registration.NOWHERE:
            return Listed(None, "registered nowhere", is_lost=True)
        if self._silences.is_silent(bookie):
            return Listed(None, "it gives no lists of entries", is_silent=True)
        await self._throttle.read(0)
        try:
            stored = await self._client.operations.entries_of_ledger(bookie, ledger_id)
        except NotThere:
            stored = NOTHING
        except BookieTimeout as error:
            self._silences.add(bookie)
            return Listed(None, str(error), is_silent=True)
        except (BadRequest, BadVersion, ProtocolViolation) as error:
            return Listed(None, f"it gives no lists of entries: {error}", is_silent=True)
        except PodkeeperError as error:
            return await self._not_told(bookie, str(error))
        self._silences.forget(bookie)
        if stored.count > MAX_HELD:
            return Listed(None, f"it claims to have {stored.count} entries")
        return Listed(stored)

    async def _not_told(self, bookie: str, reason: str) -> Listed:
        # Asked anew: what was known may name a bookie that has gone a moment ago.
        if await self._registrations.of(bookie, asked_now=True) is Registration.NOWHERE:
            return Listed(None, "registered nowhere", is_lost=True)
        return Listed(None, reason)
