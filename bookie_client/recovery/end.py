"""Finding the end of a ledger: fence, read forward, store again what is found, stop at the first entry that was
never acknowledged.

Invariants
- The end found is at or above every entry that a writer saw acknowledged, and every entry up to it has its ack
  quorum.
- Reading ahead never decides anything: entries are taken in order, and what was read behind the end is dropped.
- Entries read ahead or on their way to the ack quorum are bounded in number and bytes.
- Once the ledger is fenced the old writer can never again collect Qa acknowledgements in any write set: the vote was
  covered, by bookies that made their fence durable before they answered. The LAC that comes out was confirmed by the
  writer, or by a recovery before this one: it is a start, not the end.
- When it returns or raises, nothing is under way any more.

Event loop only.

Source: reference client protocol, sections 14.2 to 14.7 and 14.10.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bookie_client.logs import get_logger
from bookie_client.reading.ballot import Ballot
from bookie_client.reading.lac import least_lac, vote_failure
from bookie_client.reading.lac_vote import LacVote, LastEntry, VoteOutcome
from bookie_client.reading.reader import EntryReader
from bookie_client.recovery.forward_read import FoundEntry, read_forward
from bookie_client.recovery.parts import RecoveryParts
from bookie_client.recovery.rewrite import Rewriter
from bookie_protocol.entry import LAST_ENTRY
from bookie_protocol.errors import DigestMismatch, PodkeeperError
from bookie_protocol.ledger_metadata.model import Ensemble

_log = get_logger(__name__)

FIRST_WINDOW: Final = 4
"""Entries under way at first; as many more as were found, because most ledgers have very few to recover."""


@dataclass(frozen=True, slots=True)
class LedgerEnd:
    """What is to be stored."""

    last_entry_id: int
    length: int
    """Payload bytes of all entries."""
    segments: Mapping[int, Ensemble]
    """Ensembles that recovered entries were stored on, by first entry; in addition to the stored ones."""
    recovered: int
    """How many entries were stored again."""


async def find_end(parts: RecoveryParts) -> LedgerEnd:
    """Raises `Unauthorized`, and the errors of bookies when nobody can tell the end; a later call may."""
    fencing = Fencing(parts)
    try:
        start = await fencing.run()
        forward = _Forward(parts, start)
        try:
            last = await forward.run()
        finally:
            await forward.close()
        if last is None:
            return LedgerEnd(start, await _length_at(parts, start, fencing), {}, 0)
        return LedgerEnd(last.entry_id, last.length, forward.segments(last.entry_id), last.entry_id - start)
    finally:
        await fencing.close()


async def _length_at(parts: RecoveryParts, entry_id: int, fencing: Fencing) -> int:
    length = fencing.exact_length(entry_id)
    if length is not None:
        return length
    reader = EntryReader(parts.context, lambda: parts.metadata, parts.digest, recovering=True)
    try:
        return (await reader.read_entry(entry_id)).length
    except PodkeeperError as error:
        # That entry is confirmed and needs no recovery: not being able to read it must not keep the ledger open.
        length = fencing.length_heard
        _log.warning("length is not exact", ledger=parts.ledger_id, entry=entry_id, length=length, error=str(error))
        return length


class _Forward:
    """Reads ahead and stores again, from the entry behind `start` on."""

    def __init__(self, parts: RecoveryParts, start: int) -> None:
        options = parts.context.options
        self._parts = parts
        self._rewriter = Rewriter(parts, start)
        self._reads: deque[asyncio.Task[FoundEntry | None]] = deque()
        self._start = start
        self._next = start + 1
        self._largest = 0
        self._max_entries = options.recovery_window_entries
        self._max_bytes = options.recovery_window_bytes

    async def run(self) -> FoundEntry | None:
        """The last entry, once all are stored again; None when there was none behind the start."""
        last: FoundEntry | None = None
        while True:
            self._read_ahead()
            if not self._reads:
                await self._rewriter.progress()
                continue
            found = await self._reads[0]
            self._reads.popleft()
            if found is None:
                await self._rewriter.drain()
                return last
            self._largest = max(self._largest, len(found.payload))
            self._rewriter.store(found)
            last = found

    def segments(self, last_entry_id: int) -> dict[int, Ensemble]:
        """The new ensembles; one that was reached behind the last entry holds nothing."""
        return {first: ensemble for first, ensemble in self._rewriter.segments.items() if first <= last_entry_id}

    async def close(self) -> None:
        """End what is under way."""
        reads, self._reads = self._reads, deque()
        for read in reads:
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)
        await self._rewriter.close()

    def _read_ahead(self) -> None:
        while self._next <= self._rewriter.lac + self._window():
            self._reads.append(asyncio.get_running_loop().create_task(read_forward(self._parts, self._next)))
            self._next += 1

    def _window(self) -> int:
        if not self._largest:
            return min(FIRST_WINDOW, self._max_entries)
        found = self._rewriter.lac - self._start
        return max(1, min(FIRST_WINDOW + found, self._max_entries, self._max_bytes // self._largest))


class Fencing:
    """One round; `close` it when the recovery ends, because bookies that answer late are fenced all the same."""

    def __init__(self, parts: RecoveryParts) -> None:
        self._parts = parts
        self._vote = LacVote(parts.quorums)
        self._ballot = Ballot(
            {position: self._fence(bookie) for position, bookie in enumerate(parts.metadata.last_ensemble)}
        )

    async def run(self) -> int:
        """Fence; returns the highest LAC that is known then.

        Raises `Unauthorized` at once; else, when too few bookies could be fenced, the last error.
        """
        async for position, answer in self._ballot:
            self._count(position, answer)
            if self._vote.outcome is not VoteOutcome.OPEN:
                break
        if self._vote.outcome is not VoteOutcome.COVERED:
            raise vote_failure(self._parts.metadata, self._vote, "it cannot be fenced")
        return max(self._vote.lac, least_lac(self._parts.metadata))

    def exact_length(self, lac: int) -> int | None:
        """Payload bytes of entries 0 to `lac`, if one of the last entries told."""
        return self._vote.exact_length(lac)

    @property
    def length_heard(self) -> int:
        """What the reference would take for the length, when nothing exact can be had."""
        return self._vote.length_heard

    async def close(self) -> None:
        """Give up what is not answered."""
        await self._ballot.close()

    def _count(self, position: int, answer: LastEntry | PodkeeperError) -> None:
        if isinstance(answer, DigestMismatch):
            self._vote.damaged(position, answer)
        elif isinstance(answer, PodkeeperError):
            self._vote.failed(position, answer)
        else:
            self._vote.served(position, answer)

    async def _fence(self, bookie: str) -> LastEntry:
        parts = self._parts
        answer = await parts.context.operations.read_entry(
            bookie, parts.ledger_id, LAST_ENTRY, fence_key=parts.master_key, high_priority=True
        )
        return LastEntry.of(parts.digest, parts.ledger_id, answer.entry)
