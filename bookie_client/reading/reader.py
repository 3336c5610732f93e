"""Pipelined reads of a range of entries, in order.

Invariants
- Nothing above the bound given by the handle is asked for, and nothing is handed out that failed
  verification.
- Entries come in order; the first that no replica can serve ends the range with its error.
- What is under way or waits to be consumed is bounded in entries, and in bytes as far as the sizes seen so
  far tell.

Event loop only.

Source: reference client protocol, section 11.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Final

from bookie_client.context import ClientContext
from bookie_client.reading.entry import LedgerEntry
from bookie_client.reading.entry_read import EntryRead
from bookie_client.reading.replicas import read_order
from bookie_protocol.digest import DigestManager
from bookie_protocol.entry import ENTRY_HEADER
from bookie_protocol.errors import BadRequest, DigestMismatch, PodkeeperError
from bookie_protocol.ledger_metadata.model import Ensemble, LedgerMetadata

FIRST_WINDOW: Final = 16
"""Entries under way before any size is known."""


class EntryReader:
    """Reads entries of one ledger. `metadata` gives the segments as the handle knows them at that moment."""

    def __init__(self, context: ClientContext, metadata: Callable[[], LedgerMetadata], digest: DigestManager) -> None:
        self.context = context
        self.metadata = metadata
        self.digest = digest
        self.served_by: Counter[str] = Counter()
        self.damaged_at: Counter[str] = Counter()

    def entries(self, first: int, last: int, *, bound: int) -> AsyncIterator[LedgerEntry]:
        """Iterate from `first` to `last`, both included; `last` = `first` - 1 is an empty range.

        Raises `BadRequest` for a range that is none or that ends above `bound` (the last add confirmed). The
        iteration raises `DigestMismatch`, `BookieUnavailable`, `NoSuchEntry` ... as the replicas' answers
        tell.
        """
        ledger_id = self.metadata().ledger_id
        if first < 0 or last < first - 1:
            raise BadRequest(f"ledger {ledger_id}: entries {first} to {last} are no range")
        if last > bound:
            raise BadRequest(f"ledger {ledger_id}: entry {last} is above the last add confirmed, {bound}")
        return _RangeRead(self, first, last).run()

    # --- ReadObserver ---------------------------------------------------------------------------------------

    def served(self, bookie: str, entry_id: int) -> None:
        """A replica served an entry."""
        self.served_by[bookie] += 1

    def damaged(self, bookie: str, entry_id: int, error: DigestMismatch) -> None:
        """A replica served bytes that are not the entry."""
        self.damaged_at[bookie] += 1


class _RangeRead:
    """One range under way."""

    def __init__(self, reader: EntryReader, first: int, last: int) -> None:
        options = reader.context.options
        self._reader = reader
        self._ledger_id = reader.metadata().ledger_id
        self._next = first
        self._issued = first
        self._last = last
        self._max_entries = options.read_window_entries
        self._max_bytes = options.read_window_bytes
        self._window = min(FIRST_WINDOW, self._max_entries)
        self._done: dict[int, tuple[bytes | None, bytes, PodkeeperError | None]] = {}
        self._seen = 0
        self._seen_bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._stopped = False

    async def run(self) -> AsyncIterator[LedgerEntry]:
        loop = asyncio.get_running_loop()
        done = self._done
        length_of = ENTRY_HEADER.unpack_from
        try:
            while self._next <= self._last:
                self._issue()
                entry_id = self._next
                if entry_id not in done:
                    self._waiter = loop.create_future()
                    await self._waiter
                    self._waiter = None
                payload, entry, error = done.pop(entry_id)
                if error is not None:
                    raise error
                assert payload is not None
                self._next = entry_id + 1
                yield LedgerEntry(self._ledger_id, entry_id, length_of(entry)[3], payload)
        finally:
            self._stopped = True

    def _issue(self) -> None:
        """Ask for as many entries as the window has room for, once half of it is free."""
        if self._issued - self._next > self._window // 2:
            return
        end = min(self._next + self._window, self._last + 1)
        if self._issued >= end:
            return
        reader = self._reader
        context = reader.context
        metadata = reader.metadata()
        failed_lately = context.pool.down()
        read = context.pool.dialect.read
        orders: dict[tuple[Ensemble, int], list[str]] = {}
        for entry_id in range(self._issued, end):
            # Entries of one segment with the same place in the striping are asked in the same order.
            place = metadata.ensemble_for(entry_id), entry_id % metadata.ensemble_size
            order = orders.get(place)
            if order is None:
                order = orders[place] = read_order(metadata, entry_id, failed_lately)
            EntryRead(
                (self._ledger_id, entry_id),
                order,
                read(next(context.transactions), self._ledger_id, entry_id),
                context.pool,
                reader.digest,
                reader,
                self._took,
            ).send()
        self._issued = end

    def _took(self, entry_id: int, payload: bytes | None, entry: bytes, error: PodkeeperError | None) -> None:
        if self._stopped:
            return
        self._done[entry_id] = (payload, entry, error)
        if payload is not None:
            self._seen += 1
            self._seen_bytes += len(payload)
            average = self._seen_bytes // self._seen + 1
            self._window = max(1, min(self._max_entries, self._max_bytes // average))
        if self._waiter is not None and not self._waiter.done() and entry_id == self._next:
            self._waiter.set_result(None)
