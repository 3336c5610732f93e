"""A full listing of the ledgers and marks that name a bookie, and of the work that may still name it.

A listing shows what names the bookie and not what is under way. After a bookie stopped taking new data, two kinds of
work may still be about to name it:
- A re-replication chose its target before, and exchanges when everything is copied: hours later, maybe. It holds the
  ledger's lock all the while, and names no bookie after that has ended. So the locks that were held when the bookie had
  stopped being a target are waited for, and the ledgers are listed after them.
- A recovery stores entries on other bookies, and its last write names them. Every ledger that was IN_RECOVERY then is
  brought to its end, and looked at again.

Work that begins later does not choose the bookie any more.

Invariants
- A listing is complete, or it raises: a ledger whose metadata cannot be read is an error that names it and what helps,
  or is in `Survey.unreadable`, for callers that can go on with the others; it is never left out.
- Nothing comes from a cache: the listing is in step with everything written before it began.
- Memory: a few numbers for each ledger that names the bookie, and for each lock and each ledger in recovery of that
  moment; `WINDOW` ledgers are being read at once.

Threads: event loop; ledgers with more than `STEPS` places in their ensembles are looked at on a thread, one at a time.

Source: docs/internals/auto-recovery.md, sections 7 and 8; docs/internals/client-protocol.md, section 9.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Final

from bookie_protocol.aside import STEPS, Aside, Slices
from bookie_protocol.errors import MetadataDamaged, MetadataNotFound
from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.under_replication import LockHolder
from bookie_protocol.together import read_ahead

WINDOW: Final = 16
SHOWN: Final = 5
_LOOK_SECONDS: Final = 0.5
Wait = Callable[[str], Awaitable[None]]
"""Called with what is waited for, again and again; returns when it is time to look."""
EndRecovery = Callable[[int], Awaitable[str | None]]
"""`LedgerDrain.end_recovery`."""


@dataclass(frozen=True, slots=True)
class NamingLedger:
    """A ledger that names the bookie. `nbytes`: an estimate of what is to be copied; 0 for one that is not closed."""

    ledger_id: int
    nbytes: int
    is_closed: bool


@dataclass(slots=True)
class Survey:
    """The answer. `ledgers_seen` and `marks_seen` count everything that was looked at."""

    ledgers: dict[int, NamingLedger] = field(default_factory=dict)
    marks: set[int] = field(default_factory=set)
    """Ledgers whose mark names the bookie as missing."""
    unreadable: dict[int, str] = field(default_factory=dict)
    """Ledgers whose metadata cannot be read, and why: they may name the bookie."""
    in_recovery: set[int] = field(default_factory=set)
    """Ledgers that are being recovered, whichever bookies they name: the end of a recovery may name others."""
    ledgers_seen: int = 0
    marks_seen: int = 0
    largest_ensemble: int = 0

    @property
    def nbytes(self) -> int:
        return sum(ledger.nbytes for ledger in self.ledgers.values())

    @property
    def open_ledgers(self) -> int:
        return sum(not ledger.is_closed for ledger in self.ledgers.values())

    def left(self, accepted: Collection[int] = ()) -> set[int]:
        """Ledgers that name the bookie themselves or by their mark, without those that were given up."""
        return (self.ledgers.keys() | self.marks) - set(accepted)


async def survey(
    service: MetadataService,
    bookie_id: str,
    *,
    look: Callable[[LedgerMetadata], None] | None = None,
    progress: Callable[[int], None] | None = None,
    keep_unreadable: bool = False,
) -> Survey:
    """List what names the bookie. `look` gets the metadata of every ledger that does; `progress` how many ledgers were
    read so far. `keep_unreadable`: list ledgers that cannot be read, rather than raise. Raises `MetadataError`."""
    found, slices, aside = Survey(), Slices(), Aside()

    def see(metadata: LedgerMetadata) -> None:
        found.largest_ensemble = max(found.largest_ensemble, metadata.ensemble_size)
        if metadata.state is LedgerState.IN_RECOVERY:
            found.in_recovery.add(metadata.ledger_id)
        if bookie_id in metadata.all_bookies():
            nbytes = bytes_held(metadata, bookie_id)
            found.ledgers[metadata.ledger_id] = NamingLedger(metadata.ledger_id, nbytes, metadata.is_closed)
            if look is not None:
                look(metadata)

    async with aclosing(all_ledgers(service, found.unreadable if keep_unreadable else None)) as ledgers:
        async for metadata in ledgers:
            found.ledgers_seen += 1
            steps = len(metadata.ensembles) * metadata.ensemble_size
            if steps > STEPS:
                await aside.run(partial(see, metadata))
            else:
                see(metadata)
                await slices.took(steps)
            if progress is not None:
                progress(found.ledgers_seen)
    async for mark in service.under_replication.list():
        found.marks_seen += 1
        if bookie_id in mark.replicas or mark.damage is not None:
            found.marks.add(mark.ledger_id)
    return found


async def all_ledgers(
    service: MetadataService, unreadable: dict[int, str] | None = None
) -> AsyncGenerator[LedgerMetadata, None]:
    """The metadata of every ledger, ascending; one that is deleted meanwhile is left out. Those that cannot be read are
    noted in `unreadable`, with the reason; None: they raise. Raises `MetadataError`."""

    async def ids() -> AsyncGenerator[int, None]:
        async for span in service.ledgers.ranges():
            for ledger_id in span.ids:
                yield ledger_id

    async def read(ledger_id: int) -> LedgerMetadata | None:
        try:
            return (await service.ledgers.read(ledger_id)).value
        except MetadataNotFound:
            return None
        except MetadataDamaged as error:
            if unreadable is None:
                raise MetadataDamaged(remedy_of(ledger_id, str(error))) from error
            unreadable[ledger_id] = str(error)
            return None

    async with aclosing(read_ahead(ids(), read, WINDOW)) as found:
        async for metadata in found:
            if metadata is not None:
                yield metadata


def remedy_of(ledger_id: int, reason: str) -> str:
    """Say what helps against a ledger that cannot be read."""
    return (
        f"the metadata of ledger {ledger_id} cannot be read, so the bookies that it names are unknown ({reason}):"
        f" bring them back, or delete the ledger (`bookie ledger delete {ledger_id} --force`)"
    )


def bytes_held(metadata: LedgerMetadata, bookie_id: str) -> int:
    """Estimate the payload bytes that a bookie holds of a closed ledger, from its length and striping.

    0 for one that is not closed, whose length is unknown.
    """
    if not metadata.is_closed or metadata.last_entry_id < 0:
        return 0
    starts = (*metadata.first_entry_ids, metadata.last_entry_id + 1)
    held = 0.0
    for first, after in pairwise(starts):
        after = min(after, metadata.last_entry_id + 1)  # segments may begin behind the last entry
        if after > first and bookie_id in metadata.ensembles[first]:
            held += (after - first) * metadata.write_quorum_size / metadata.ensemble_size
    return round(metadata.length * held / (metadata.last_entry_id + 1))


class _TooLong(Exception):
    pass


class Claims:
    """The work of one moment that may still name the bookie. `reset` when the bookie may have been chosen since."""

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
        """Wait until every lock that was held at the first call was given back, or has ended. Raises
        `MetadataError`."""
        if self._locks is None:
            self._locks = dict(await self._service.under_replication.holders())
        while self._locks:
            now = await self._service.under_replication.holders()
            self._locks = {ledger: now[ledger] for ledger, then in self._locks.items() if then.may_be(now.get(ledger))}
            if self._locks:
                hosts = sorted({holder.host for holder in self._locks.values()})[:SHOWN]
                await wait(
                    f"ledgers {_some(self._locks)} are being re-replicated, since the bookie was a target still: waits "
                    f"for {', '.join(hosts)}"
                )

    async def recoveries_end(self, bookie_id: str, in_recovery: Collection[int], end: EndRecovery, wait: Wait) -> bool:
        """Wait until every ledger that was IN_RECOVERY at the first call has its end; return whether one of them names
        the bookie.

        Raises `MetadataError`.
        """
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
    """List what names a bookie that takes no new data, when the re-replications of this moment have ended.

    The second value is the ledgers of those that have not ended after `seconds`: these may come to name it, and so may
    `Survey.in_recovery`. Raises `MetadataError`.
    """
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
    """Return whether the metadata of a ledger name the bookie now. Raises `MetadataError`."""
    try:
        return bookie_id in (await service.ledgers.read(ledger_id)).value.all_bookies()
    except MetadataNotFound:
        return False


def _some(ledgers: Iterable[int]) -> str:
    ids = sorted(ledgers)
    shown = ", ".join(map(str, ids[:SHOWN]))
    return shown if len(ids) <= SHOWN else f"{shown} and {len(ids) - SHOWN} more"
