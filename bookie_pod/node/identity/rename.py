"""The rename of a stopped bookie: in every ledger that names it, and in its cookie. No entry is copied or touched.

In this order, each step stored before the next: the new id gets a cookie that says the old one, and that of the old id
says the new one; the ledgers are changed; when none names the old id any more the cookie of the new id says so itself,
and the old one goes. Crosswise as they are meanwhile no bookie starts under either id: neither on its own directories,
of which it might take ledgers for surplus that name the other id, nor on empty ones, which would deny what ledgers
promise. And no other bookie takes the new id.

Invariants
- Both ids are registered nowhere, from the first step to the last: seen by a watch, and asked before every change. A
  bookie that starts meanwhile ends the rename where it is.
- A recovery that began while the bookie was up may have stored entries on it, and its last write names it; so may a
  re-replication. The old id stays as it is until those that are under way have come to their end.
- The metadata of a ledger are changed by compare-and-set, and only while it is closed: a client that writes or recovers
  one holds its ensembles in memory. Nothing but the name changes. It is written in the session of the looks before it,
  or not at all: a process that slept for longer knows nothing of what was taken back and started meanwhile.
- May be repeated from any point: the two cookies say what is under way, and no other bookie's look like them. With the
  ids the other way round it takes back what was done.
- Of several the last one that began goes on: it gives both cookies new versions, for which others look before every
  change. And no decommission begins on a bookie whose cookie says another id.

Threads: event loop.

Source: docs/internals/metadata-layout.md, sections 5 and 8.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from bookie_pod.autorecovery.decommission.presence import Presence, Vigil
from bookie_pod.autorecovery.decommission.proof import LOCKS_SECONDS
from bookie_pod.autorecovery.decommission.store import DecommissionStore
from bookie_pod.autorecovery.decommission.survey import all_ledgers, survey, survey_unclaimed
from bookie_pod.node.identity.cookies import Cookie, format_cookie, parse_cookie
from bookie_protocol.errors import (
    MetadataExists,
    MetadataNotFound,
    MetadataVersionConflict,
    NotThere,
    Refused,
    SessionEnded,
)
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.interface import Identity
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.pace import Pace

SETTLE_S: Final = 15.0
"""Seconds in which every client hears that the bookie is gone, and ends what it had begun on it."""
SHOWN: Final = 20
_ROUNDS: Final = 20

Check = Callable[[], Awaitable[None]]
_Stored = tuple[Cookie, Identity]


@dataclass(slots=True)
class Found:
    """Ledgers that name the old id: `ready` may be renamed; `blocked`, of which the first ones are shown, may not."""

    seen: int = 0
    ready: int = 0
    renamed: int = 0
    blocked: int = 0
    blockers: dict[int, str] = field(default_factory=dict)

    def block(self, ledger_id: int, why: str) -> None:
        self.blocked += 1
        if len(self.blockers) < SHOWN:
            self.blockers[ledger_id] = why


class Rename:
    """One rename of `old` to `new`. `rate`: ledgers a second, 0: no limit. `settle`: see `SETTLE_S`."""

    def __init__(
        self, service: MetadataService, old: str, new: str, *, rate: float = 0.0, settle: float | None = None
    ) -> None:
        self._service = service
        self._old = old
        self._new = new
        self._rate = Pace(rate, burst_s=1.0)
        self._settle = SETTLE_S if settle is None else settle
        self._claimed: dict[str, Identity] = {}
        """The cookies, as this one made them."""

    async def look(self) -> Found:
        """Return what is to be done; change nothing. Raises `Refused`, `NotThere`, `MetadataError`."""
        async with self._both_absent():
            await self._check()
            found = Found()
            async for metadata in all_ledgers(self._service):
                found.seen += 1
                if self._old in metadata.all_bookies():
                    self._sort(metadata, found)
            return found

    async def run(self, limit: int | None = None, progress: Callable[[Found], None] = lambda found: None) -> Found:
        """Go on to the end, or for `limit` ledgers. It is over when `blocked` and `ready` are 0: then the old cookie is
        gone. Raises as `look` does."""
        async with self._both_absent() as check:
            await self._claim()
            total = Found()
            while True:
                found = await self._pass(check, limit, total, progress)
                if found.ready or found.blocked:
                    total.ready, total.blocked, total.blockers = found.ready, found.blocked, found.blockers
                    return total
                if found.renamed:
                    continue  # until a listing finds nothing
                if await self._finish(check, total):
                    return total

    # --- steps ------------------------------------------------------------------------------------------------

    async def _check(self) -> tuple[_Stored | None, _Stored | None]:
        """Check that it may begin, or go on, and return the two cookies. Raises `Refused`, `NotThere`."""
        await self._check_stays()
        old, new = await self._cookie(self._old), await self._cookie(self._new)
        if old is None and new is not None and new[0].bookie_id == self._old:
            # An administrator deleted it, since no ledger names that id any more: the other one has to become its own.
            return None, new
        if old is None:
            raise NotThere(
                f"bookie {self._old} has no cookie: it was renamed already, or the owner of its directories is unknown"
            )
        if old[0].bookie_id not in (self._old, self._new):
            raise Refused(f"bookie {self._old} is being renamed to {old[0].bookie_id}: repeat that first")
        if old[0].bookie_id == self._new or (new is not None and new[0].bookie_id == self._old):
            return old, new
        if new is not None:
            raise Refused(f"there is a bookie {self._new}: it has a cookie")
        named = (await survey(self._service, self._new)).left()
        if named:
            raise Refused(f"there was a bookie {self._new}: {len(named)} ledgers name it, such as {min(named)}")
        return old, new

    async def _check_stays(self) -> None:
        drains = DecommissionStore(self._service)
        for bookie_id in (self._old, self._new):
            if await drains.active(bookie_id) is not None:
                raise Refused(f"bookie {bookie_id} is being decommissioned: finish that, or take it back")

    async def _claim(self) -> None:
        """The two cookies, crosswise."""
        (old, new), cookies = await self._check(), self._service.cookies
        try:
            if new is not None:
                data = format_cookie(new[0])
                self._claimed[self._new] = await cookies.update(self._new, data, new[1])
            elif old is not None:
                data = format_cookie(replace(old[0], bookie_id=self._old))
                self._claimed[self._new] = await cookies.create(self._new, data)
            if old is not None:
                data = format_cookie(replace(old[0], bookie_id=self._new))
                self._claimed[self._old] = await cookies.update(self._old, data, old[1])
        except (MetadataExists, MetadataVersionConflict, MetadataNotFound) as error:
            raise self._disturbed() from error
        await self._check_stays()  # whose coordinator looks at the cookie when it has begun

    async def _check_claimed(self) -> None:
        if not self._is_claimed(self._new, await self._cookie(self._new)):
            raise self._disturbed()

    def _is_claimed(self, bookie_id: str, stored: _Stored | None) -> bool:
        return stored is not None and stored[1] == self._claimed.get(bookie_id)

    def _disturbed(self) -> Refused:
        return Refused(
            f"the cookies of {self._old} and {self._new} were changed just now by another process: try again"
        )

    async def _pass(self, check: Check, limit: int | None, total: Found, progress: Callable[[Found], None]) -> Found:
        """Every ledger once."""
        found = Found()
        async for metadata in all_ledgers(self._service):
            found.seen += 1
            total.seen = max(total.seen, found.seen)
            if self._old not in metadata.all_bookies():
                continue
            if limit is not None and total.renamed >= limit:
                self._sort(metadata, found)
                continue
            await self._rate.turn()
            if await self._rename(metadata.ledger_id, check, found):
                found.renamed += 1
                total.renamed += 1
            progress(total)
        return found

    async def _rename(self, ledger_id: int, check: Check, found: Found) -> bool:
        for _ in range(_ROUNDS):
            try:
                stored = await self._service.ledgers.read(ledger_id, fresh=True)
            except MetadataNotFound:
                return False
            if self._old not in stored.value.all_bookies():
                return False
            before = found.blocked
            self._sort(stored.value, found)
            if found.blocked != before:
                return False
            found.ready -= 1
            await check()
            await self._check_claimed()
            looked = stored.identity
            try:
                await self._service.ledgers.write(self._renamed(stored.value), looked, session_id=looked.session_id)
            except SessionEnded as error:
                raise Refused(
                    f"the session with the metadata service ended while ledger {ledger_id} was renamed, so the bookie"
                    " may have been started meanwhile: repeat it"
                ) from error
            except MetadataVersionConflict:
                continue  # a replication worker was faster
            except MetadataNotFound:
                return False
            return True
        found.block(ledger_id, "its metadata change all the time")
        return False

    async def _finish(self, check: Check, total: Found) -> bool:
        """The old cookie goes, unless a ledger names it after all: then it is not over. One that may come to name it
        blocks."""
        await asyncio.sleep(self._settle)
        found, locked = await survey_unclaimed(self._service, self._old, LOCKS_SECONDS)
        if found.ledgers:
            return False
        for ledger_id in sorted(locked | found.in_recovery):
            may = f"and may come to name {self._old}"
            if ledger_id in locked:
                total.block(ledger_id, f"it is being re-replicated, {may}: repeat this when that is done")
            else:
                recover = f"`bookie ledger recover {ledger_id}`"
                total.block(ledger_id, f"IN_RECOVERY, {may}: if no client recovers it any more, {recover} ends that")
        if total.blocked:
            return True
        await check()
        old, new = await self._cookie(self._old), await self._cookie(self._new)
        is_claimed = self._is_claimed(self._new, new) and (old is None or self._is_claimed(self._old, old))
        if new is None or not is_claimed:
            raise self._disturbed()
        try:
            if new[0].bookie_id != self._new:
                data = format_cookie(replace(new[0], bookie_id=self._new))
                await self._service.cookies.update(self._new, data, new[1])
            if old is not None:
                await self._service.cookies.delete_this(self._old, old[1])
        except (MetadataVersionConflict, MetadataNotFound, SessionEnded) as error:
            raise self._disturbed() from error
        return True

    # --- parts ------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _both_absent(self) -> AsyncIterator[Check]:
        """`Refused` if either is registered; what is given raises it if one is, or was at any time since."""
        async with Vigil(self._service, self._old) as old, Vigil(self._service, self._new) as new:
            if await old.check() is not Presence.ABSENT:
                raise Refused(f"bookie {self._old} is registered: stop it first")
            if await new.check() is not Presence.ABSENT:
                raise Refused(f"there is a bookie {self._new}, and it is registered: nothing is renamed to it")

            async def check() -> None:
                for vigil, bookie_id in ((old, self._old), (new, self._new)):
                    await vigil.check()
                    if vigil.seen_registered:
                        raise Refused(f"bookie {bookie_id} was started meanwhile: stop it, and repeat")

            yield check

    async def _cookie(self, bookie_id: str) -> _Stored | None:
        """None: there is none. `InvalidCookie`: it cannot be read."""
        try:
            stored = await self._service.cookies.read(bookie_id)
        except MetadataNotFound:
            return None
        return parse_cookie(stored.value, f"the metadata service, of {bookie_id},"), stored.identity

    def _sort(self, metadata: LedgerMetadata, found: Found) -> None:
        if not metadata.is_closed:
            recover = f"`bookie ledger recover {metadata.ledger_id}`"
            found.block(metadata.ledger_id, f"{metadata.state.value}: close its writer, or end it with {recover}")
        elif any({self._old, self._new} <= set(ensemble) for ensemble in metadata.ensembles.values()):
            found.block(metadata.ledger_id, f"it names {self._new} too")
        else:
            found.ready += 1

    def _renamed(self, metadata: LedgerMetadata) -> LedgerMetadata:
        ensembles = {
            first: tuple(self._new if bookie == self._old else bookie for bookie in ensemble)
            for first, ensemble in metadata.ensembles.items()
        }
        return replace(metadata, ensembles=ensembles)
