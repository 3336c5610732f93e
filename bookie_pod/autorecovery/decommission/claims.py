"""Who may still be about to name a bookie that takes no new data: a listing shows what names it, not what is under way.

- A re-replication chose its target before, and exchanges when everything is copied: hours later, maybe. It holds the
  ledger's lock all the while, and names nobody after that has ended. So the locks that were held when the bookie had
  stopped being a target are waited for, and the ledgers are listed after them.
- A recovery stores entries on other bookies, and its last write names them. Whatever was IN_RECOVERY then is brought to
  its end, and looked at again.

What begins later does not choose the bookie any more.

Invariant: memory is a few numbers for each lock and each ledger in recovery of that moment.

Threads: event loop.

Source: reference auto-recovery, sections 7 and 8; reference client protocol, section 9.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final

from bookie_pod.autorecovery.decommission.survey import Survey, survey
from bookie_protocol.errors import MetadataNotFound
from bookie_protocol.metadata_service.interface import MetadataService
from bookie_protocol.metadata_service.under_replication import LockHolder

SHOWN: Final = 5
_LOOK_SECONDS: Final = 0.5

Wait = Callable[[str], Awaitable[None]]
"""Called with what is waited for, again and again; returns when it is time to look."""
EndRecovery = Callable[[int], Awaitable[str | None]]
"""`LedgerDrain.end_recovery`."""


class _TooLong(Exception):
    pass


class Claims:
    """Since one moment. `reset` when the bookie may have been chosen since."""

    def __init__(self, service: MetadataService) -> None:
        self._service = service
        self._locks: dict[int, LockHolder] | None = None
        self._recoveries: set[int] | None = None

    def reset(self) -> None:
        self._locks = self._recoveries = None

    @property
    def locked(self) -> frozenset[int]:
        """Ledgers whose locks have not ended yet."""
        return frozenset(self._locks or ())

    async def locks_end(self, wait: Wait) -> None:
        """Until every lock that was held at the first call was given back, or has ended. Raises `MetadataError`."""
        if self._locks is None:
            self._locks = dict(await self._service.under_replication.holders())
        while self._locks:
            now = await self._service.under_replication.holders()
            self._locks = {ledger: holder for ledger, holder in self._locks.items() if now.get(ledger) == holder}
            if self._locks:
                hosts = sorted({holder.host for holder in self._locks.values()})[:SHOWN]
                await wait(
                    f"ledgers {_some(self._locks)} are being re-replicated, since the bookie was a target still: waits "
                    f"for {', '.join(hosts)}"
                )

    async def recoveries_end(self, bookie_id: str, in_recovery: Collection[int], end: EndRecovery, wait: Wait) -> bool:
        """Until every ledger that was IN_RECOVERY at the first call has its end; whether one of them names the bookie.
        Raises `MetadataError`."""
        if self._recoveries is None:
            self._recoveries = set(in_recovery)
        while self._recoveries:
            reasons = {}
            for ledger_id in sorted(self._recoveries):
                reason = await end(ledger_id)
                if reason is not None:
                    reasons[ledger_id] = reason
                    continue
                if await names(self._service, ledger_id, bookie_id):
                    return True
                self._recoveries.discard(ledger_id)
            if reasons:
                ledger_id, reason = min(reasons.items())
                await wait(
                    f"ledgers {_some(reasons)} are IN_RECOVERY, which may name the bookie: {ledger_id}: {reason}"
                )
        return False


async def survey_unclaimed(service: MetadataService, bookie_id: str, seconds: float) -> tuple[Survey, frozenset[int]]:
    """What names a bookie that takes no new data, listed when the re-replications of this moment have ended; and the
    ledgers of those that have not after so long: these may come to name it, and so may `Survey.in_recovery`. Raises
    `MetadataError`."""
    loop, claims = asyncio.get_running_loop(), Claims(service)
    deadline = loop.time() + seconds

    async def wait(reason: str) -> None:
        if loop.time() >= deadline:
            raise _TooLong
        await asyncio.sleep(_LOOK_SECONDS)

    with contextlib.suppress(_TooLong):
        await claims.locks_end(wait)
    return await survey(service, bookie_id), claims.locked


async def names(service: MetadataService, ledger_id: int, bookie_id: str) -> bool:
    """Whether the metadata of a ledger name the bookie now. Raises `MetadataError`."""
    try:
        return bookie_id in (await service.ledgers.read(ledger_id)).value.all_bookies()
    except MetadataNotFound:
        return False


def _some(ledgers: Iterable[int]) -> str:
    ids = sorted(ledgers)
    shown = ", ".join(map(str, ids[:SHOWN]))
    return shown if len(ids) <= SHOWN else f"{shown} and {len(ids) - SHOWN} more"
