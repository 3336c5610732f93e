"""Entries whose ids the caller chose, until all entries in front of them have come.

Entries are sent in the order of their ids: so the LAC and the length in each header are exact, and recovery
finds no hole that was only a matter of time. An entry behind a gap could not be acknowledged before the gap is
closed anyway.

Invariants
- An id is taken once: from `claim` until the entry was sent, and for ever after that.
- What is held is bounded in entries and bytes; the next entry in order never waits for room here.

Pure; event loop only.

Source: reference client protocol, section 3 (advanced handles).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

from bookie_protocol.errors import BadRequest, DuplicateEntry


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
        """Whether an entry behind a gap can be held."""
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
