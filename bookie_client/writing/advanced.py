"""The advanced writer's handle: the caller chooses the entry ids.

Entries whose ids were chosen wait until all entries in front of them have come, and are sent in the order of their ids:
so the LAC and the length in each header are exact, and recovery finds no hole that was only a matter of time. An entry
behind a gap could not be acknowledged before the gap is closed anyway.

Invariants
- An id is taken once: from `claim` until the entry was sent, and for ever after that.
- What is held is bounded in entries and bytes; the next entry in order never waits for room here.

Event loop only.

Source: docs/internals/client-protocol.md, sections 3 and 6.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from heapq import nsmallest
from typing import NamedTuple

from bookie_client.context import ClientContext
from bookie_client.writing.writer import WriteHandle
from bookie_protocol.digest import Buffer, DigestManager
from bookie_protocol.errors import BadRequest, DuplicateEntry, LedgerClosed, PodkeeperError
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.interface import Versioned


class HeldEntry(NamedTuple):
    """An entry behind a gap, and who waits for it."""

    body: bytes
    waiter: asyncio.Future[int]


class ReorderBuffer:
    """`next` is the lowest id that was not sent yet."""

    def __init__(self, ledger_id: int, max_entries: int, max_bytes: int) -> None:
        self.ledger_id = ledger_id
        self.next = 0
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._nbytes = 0
        self._claimed: set[int] = set()
        self._held: dict[int, HeldEntry] = {}

    def __len__(self) -> int:
        """Entries that came and were not sent, those that wait for room included."""
        return len(self._claimed)

    def claim(self, entry_id: int) -> None:
        """Take an id. Raises `BadRequest` (negative), `DuplicateEntry`."""
        if entry_id < 0:
            raise BadRequest(f"ledger {self.ledger_id}: entry id {entry_id} is negative; ids begin at 0")
        if entry_id < self.next or entry_id in self._claimed:
            raise DuplicateEntry(f"ledger {self.ledger_id}: entry {entry_id} was appended before")
        self._claimed.add(entry_id)

    def release(self, entry_id: int) -> None:
        """Give a claimed id back: its entry was not sent."""
        self._claimed.discard(entry_id)

    def has_room(self, nbytes: int) -> bool:
        """Return True if an entry behind a gap can be held."""
        if not self._held:
            return True
        return len(self._held) < self._max_entries and self._nbytes + nbytes <= self._max_bytes

    def hold(self, entry_id: int, entry: HeldEntry) -> None:
        """Keep a claimed entry until its turn."""
        self._held[entry_id] = entry
        self._nbytes += len(entry.body)

    def sent(self, entry_id: int) -> None:
        """The next entry was sent."""
        assert entry_id == self.next
        self._claimed.discard(entry_id)
        self.next += 1

    def ready(self) -> Iterator[tuple[int, HeldEntry]]:
        """Take out the held entries whose turn it is; call `sent` for each."""
        while (entry := self._held.pop(self.next, None)) is not None:
            self._nbytes -= len(entry.body)
            yield self.next, entry

    def drain(self) -> list[tuple[int, HeldEntry]]:
        """Take out everything that is held, in the order of ids."""
        held = sorted(self._held.items())
        self._held.clear()
        self._nbytes = 0
        self._claimed.difference_update(entry_id for entry_id, _ in held)
        return held


class AdvancedLedgerWriter(WriteHandle):
    """Appends entries whose ids the caller gives, in any order. Made by `Client.create_advanced`.

    Ids begin at 0 and leave no gap: acknowledgement is in their order, and an entry is sent only when all in
    front of it were. As many entries and bytes as the window has may wait behind a gap; further calls wait
    until it closes. Entries that still wait behind a gap when the handle is closed fail with `LedgerClosed`.
    """

    def __init__(
        self,
        context: ClientContext,
        metadata: Versioned[LedgerMetadata],
        digest: DigestManager,
        master_key: bytes,
        *,
        connections: int,
        deferred_sync: bool = False,
        restored: bool = False,
        may_be_used_again: bool = False,
    ) -> None:
        super().__init__(
            context,
            metadata,
            digest,
            master_key,
            connections=connections,
            deferred_sync=deferred_sync,
            restored=restored,
            may_be_used_again=may_be_used_again,
        )
        options = context.options
        self._order = ReorderBuffer(self.ledger_id, options.write_window_entries, options.write_window_bytes)
        self._turns: dict[int, asyncio.Future[None]] = {}

    @property
    def pending(self) -> int:
        """Appends that are neither acknowledged nor failed, those behind a gap included."""
        return self._state.pending + len(self._order)

    async def append(self, entry_id: int, payload: Buffer) -> int:
        """Append an entry and return its id once it and all in front of it are acknowledged.

        Raises as `LedgerWriter.append`, and `DuplicateEntry`: this id was appended before.
        """
        return await (await self.submit(entry_id, payload))

    async def submit(self, entry_id: int, payload: Buffer) -> asyncio.Future[int]:
        """Send an entry, or keep it until those in front of it have come; the future resolves as `append` does.

        Waits while the window is full, or too much waits behind a gap. Raises `DuplicateEntry`, `BadRequest`,
        `LedgerClosed`.
        """
        body = self._pipeline.intake.body(payload)
        self._check_open()
        order = self._order
        order.claim(entry_id)
        try:
            while entry_id != order.next and not order.has_room(len(body)):
                await self._turn(entry_id)
                # It may have closed or failed since the turn came; an entry that is held after that is not refused.
                self._check_open()
            if entry_id == order.next:
                waiter = await self._pipeline.intake.submit(body)
                order.sent(entry_id)
            else:
                waiter = asyncio.get_running_loop().create_future()
                order.hold(entry_id, HeldEntry(body, waiter))
                return waiter
        except BaseException:
            order.release(entry_id)
            raise
        self._send_ready()
        return waiter

    def _send_ready(self) -> None:
        """The gap in front of these entries is closed."""
        freed = 0
        for entry_id, entry in self._order.ready():
            freed += 1
            try:
                self._pipeline.intake.submit_overdrawn(entry.body, entry.waiter)
            except PodkeeperError as error:
                self._order.release(entry_id)
                _fail(entry.waiter, error)
                return
            self._order.sent(entry_id)
        self._wake(freed)

    def _check_open(self) -> None:
        failure = self._state.failure
        if failure is not None or self._state.closing:
            reason = f"failed before: {failure}" if failure is not None else "is closed"
            raise LedgerClosed(f"ledger {self.ledger_id}: this handle {reason}") from failure

    async def _turn(self, entry_id: int) -> None:
        """Wait until this entry is next, or others behind the gap were sent."""
        turn = self._turns[entry_id] = asyncio.get_running_loop().create_future()
        try:
            await turn
        finally:
            del self._turns[entry_id]

    def _wake(self, freed: int) -> None:
        """Wake the entry whose turn it is, and as many as there is room for behind the gap. Others are woken when
        their turn comes."""
        for entry_id in (self._order.next, *nsmallest(freed, self._turns)):
            turn = self._turns.get(entry_id)
            if turn is not None and not turn.done():
                turn.set_result(None)

    def _refuse_held(self, error: PodkeeperError) -> None:
        for entry_id, entry in self._order.drain():
            own = type(error)(f"ledger {self.ledger_id}, entry {entry_id} was not sent: {error}")
            own.__cause__ = error
            _fail(entry.waiter, own)
        for turn in self._turns.values():
            if not turn.done():
                turn.set_exception(LedgerClosed(f"ledger {self.ledger_id}: this handle takes no entries: {error}"))


def _fail(waiter: asyncio.Future[int], error: PodkeeperError) -> None:
    if not waiter.done():
        waiter.set_exception(error)
        # A caller that does not wait for it gets the error from `flush` or the end of the context.
        waiter.exception()
