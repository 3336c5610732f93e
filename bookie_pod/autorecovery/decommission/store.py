"""The stored records of decommissions, and the one coordinator that may change each.

Records of kind `decommission` are those under way: their names are the bookies that are being drained. A finished one
moves to kind `decommissioned`, so that a new bookie of the same id is not taken for one that leaves.

Invariants
- Every change is a compare-and-set. A coordinator whose record was changed by another process ends with `TakenOver` and
  has no further effect on the record.
- A coordinator that starts a decommission that is under way takes it over: the last one counts, so that a crashed
  coordinator needs no waiting. One that was only suspended, just before it deleted the cookie, finds another version
  there.
- One that is DONE answers for its own bookie and proof: the start of another moves it away, and begins with a new
  record. The next bookie of the id may be there by then.
- Versions of records begin at the start with each record, so before each change the stored one is compared by content.

Threads: event loop.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from bookie_pod.autorecovery.decommission.proof import fence_cookie
from bookie_pod.autorecovery.decommission.state import (
    CookieGone,
    DecommissionRecord,
    DrainProgress,
    Event,
    Phase,
    Resumed,
    advance,
    decode_record,
    encode_record,
)
from bookie_protocol.errors import MetadataDamaged, MetadataExists, MetadataNotFound, MetadataVersionConflict, Refused
from bookie_protocol.metadata_service.interface import Identity, Versioned
from bookie_protocol.metadata_service.records import DECOMMISSION
from bookie_protocol.metadata_service.tree.service import MetadataService

FINISHED: Final = "decommissioned"


class TakenOver(Refused):
    """Another coordinator works on this decommission now, or it is being undone."""


def now_ms() -> int:
    """Milliseconds since the epoch, for people: nothing is decided by it."""
    return int(time.time() * 1000)


def coordinator_name() -> str:
    """A name for one coordinator that no other has: host, process and a random end."""
    return f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(3)}"


@dataclass(frozen=True, slots=True)
class DecommissionRequest:
    """A request for a decommission.

    One that is under way gets its losses, and its cookie goes if any of the requests wants that.
    """

    bookie_id: str
    coordinator: str
    delete_cookie: bool = True
    accepted_losses: frozenset[int] = frozenset()
    was_writable: bool = False
    """True if the bookie was writable before there was a record of it.

    A bookie that restarts and finds a record is read-only by itself, so a later look cannot show any more that an undo
    has to make it writable.
    """


class DecommissionStore:
    """Reads and begins decommissions."""

    def __init__(self, service: MetadataService, clock_ms: Callable[[], int] = now_ms) -> None:
        self._active = service.records(DECOMMISSION)
        self._finished = service.records(FINISHED)
        self._cookies = service.cookies
        self._clock_ms = clock_ms

    async def bookies(self) -> frozenset[str]:
        """The bookies whose decommission is under way."""
        return await self._active.names()

    async def active(self, bookie_id: str) -> Versioned[DecommissionRecord] | None:
        """The decommission under way; None: there is none. `MetadataDamaged`."""
        try:
            found = await self._active.read(bookie_id)
        except MetadataNotFound:
            return None
        return Versioned(decode_record(found.value, bookie_id), found.identity)

    async def finished(self, bookie_id: str) -> DecommissionRecord | None:
        """Return the last decommission of this id that was finished."""
        try:
            return decode_record((await self._finished.read(bookie_id)).value, bookie_id)
        except MetadataNotFound:
            return None

    async def begin(self, request: DecommissionRequest) -> HeldRecord:
        """Write a new record, or take over the one that there is. `TakenOver`: it is being undone."""
        while True:
            found = await self.active(request.bookie_id)
            if found is not None and found.value.phase is Phase.DONE:
                await self.archive(found.value)  # its coordinator did not live to do so
                continue
            try:
                return await (self._create(request) if found is None else self._take_over(request, found))
            except (MetadataExists, MetadataNotFound, MetadataVersionConflict, TakenOver):
                # A coordinator before wrote how far it is: the last one who begins has the record all the same.
                if not await self._changed(request.bookie_id, found):
                    raise

    async def _create(self, request: DecommissionRequest) -> HeldRecord:
        now = self._clock_ms()
        record = DecommissionRecord(
            request.bookie_id,
            request.coordinator,
            started_ms=now,
            updated_ms=now,
            delete_cookie=request.delete_cookie,
            accepted_losses=tuple(sorted(request.accepted_losses)),
            read_only_by_us=request.was_writable,
        )
        identity = await self._active.create(record.bookie_id, encode_record(record))
        return HeldRecord(self, record, identity, owner=request.coordinator)

    async def _take_over(self, request: DecommissionRequest, found: Versioned[DecommissionRecord]) -> HeldRecord:
        if found.value.phase is Phase.UNDOING:
            raise TakenOver(f"the decommission of {request.bookie_id} is being undone: repeat the undo first")
        losses = tuple(sorted({*found.value.accepted_losses, *request.accepted_losses}))
        held = HeldRecord(self, found.value, found.identity)
        removing, version = found.value.phase is Phase.REMOVING, found.value.cookie_version
        if removing and not await fence_cookie(self._cookies, request.bookie_id, version):
            await held.advance(CookieGone())  # by its coordinator, which did not live to say so
            await held.archive()
            return await self._create(request)
        delete_cookie = found.value.delete_cookie or request.delete_cookie
        wanted = replace(found.value, accepted_losses=losses, delete_cookie=delete_cookie)
        await held.store(wanted, Resumed(request.coordinator))
        held.owner = request.coordinator
        return held

    async def _changed(self, bookie_id: str, before: Versioned[DecommissionRecord] | None) -> bool:
        return await self.active(bookie_id) != before

    async def write(self, record: DecommissionRecord, replaced: Identity) -> Identity:
        return await self._active.update(record.bookie_id, encode_record(record), replaced)

    async def remove(self, record: DecommissionRecord) -> None:
        """Remove the record under way, if it is exactly this one: any other is another coordinator's, or a later
        one's."""
        with suppress(MetadataNotFound, MetadataVersionConflict):
            found = await self._active.read(record.bookie_id)
            if decode_record(found.value, record.bookie_id) == record:
                await self._active.delete_this(record.bookie_id, found.identity)

    async def archive(self, record: DecommissionRecord) -> None:
        """Move a record that is DONE; may be repeated. One that repeats a finished decommission finds nothing to copy:
        the numbers of that one stay. Others who find it DONE may do the same at the same time."""
        try:
            await self._finished.create(record.bookie_id, encode_record(record))
        except MetadataExists:
            await self._archive_over(record)
        await self.remove(record)

    async def _archive_over(self, record: DecommissionRecord) -> None:
        """Archive the record in the place of an earlier one.

        A later one stays: it began only after this one was archived, so a late coordinator finds another record under
        way than this, or none.
        """
        while True:
            known = await self._finished.read(record.bookie_id)
            active = await self.active(record.bookie_id)  # only now: who archives from here on changes the version
            if active is None or active.value != record:
                return
            data = encode_record(_with_earlier_numbers(record, known.value))
            with suppress(MetadataVersionConflict):
                await self._finished.update(record.bookie_id, data, known.identity)
                return

    def clock_ms(self) -> int:
        return self._clock_ms()


def _with_earlier_numbers(record: DecommissionRecord, earlier: bytes) -> DecommissionRecord:
    if record.progress.ledgers_total > 0:
        return record
    try:
        known = decode_record(earlier, record.bookie_id)
    except MetadataDamaged:
        return record
    # A bookie that came back as a new one since has a cookie again; its numbers are its own.
    kept = not known.delete_cookie and known.cookie_version == record.cookie_version
    return replace(record, progress=known.progress) if kept or record.cookie_version is None else record


class HeldRecord:
    """A record that this coordinator works on; `record` is what is stored."""

    def __init__(
        self, store: DecommissionStore, record: DecommissionRecord, identity: Identity, *, owner: str | None = None
    ) -> None:
        """Hold the record for `owner`, the coordinator that has it alone; None: if the record was changed, read it
        again."""
        self.owner = owner
        self._store = store
        self._identity = identity
        self._turn = asyncio.Lock()
        self.record = record

    @property
    def phase(self) -> Phase:
        return self.record.phase

    async def advance(self, event: Event) -> None:
        """Store what follows from an event. `TakenOver`; `Refused` if it cannot happen now."""
        async with self._turn:
            await self._write(advance(self.record, event, self._store.clock_ms()))

    async def store(self, record: DecommissionRecord, event: Event) -> None:
        """Do as `advance`, from a changed record."""
        async with self._turn:
            await self._write(advance(record, event, self._store.clock_ms()))

    async def note(self, progress: DrainProgress) -> None:
        """Store the progress of the work, unless it is DONE: that record stays as it is. `TakenOver`."""
        async with self._turn:
            if self.phase is Phase.DONE:
                return
            await self._write(replace(self.record, progress=progress, updated_ms=self._store.clock_ms()))

    async def archive(self) -> None:
        """The end of a decommission that is DONE."""
        async with self._turn:
            await self._store.archive(self.record)

    async def remove(self) -> None:
        """The end of one that is undone."""
        if await self._store.active(self.record.bookie_id) is not None:
            await self._store.remove((await self._ours()).value)

    async def _write(self, record: DecommissionRecord) -> None:
        found = await self._ours()
        try:
            self._identity = await self._store.write(record, found.identity)
        except (MetadataVersionConflict, MetadataNotFound) as error:
            raise TakenOver(self._who(record, await self._store.active(record.bookie_id))) from error
        self.record = record

    async def _ours(self) -> Versioned[DecommissionRecord]:
        """Return the stored record, if no other process wrote since: a write of ours whose answer was lost may have.
        `TakenOver`."""
        found = await self._store.active(self.record.bookie_id)
        if found is None or not self._is_ours(found):
            raise TakenOver(self._who(self.record, found))
        return found

    def _is_ours(self, stored: Versioned[DecommissionRecord]) -> bool:
        if self.owner is None:
            return stored == Versioned(self.record, self._identity)
        same_life = stored.value.started_ms == self.record.started_ms
        return same_life and stored.value.coordinator == self.owner and stored.value.phase is not Phase.UNDOING

    @staticmethod
    def _who(record: DecommissionRecord, found: Versioned[DecommissionRecord] | None) -> str:
        if found is None:
            return f"the decommission of {record.bookie_id} was undone or finished by another coordinator"
        if found.value.phase is Phase.UNDOING:
            return f"the decommission of {record.bookie_id} is being undone"
        return f"the decommission of {record.bookie_id} was taken over by {found.value.coordinator}"
