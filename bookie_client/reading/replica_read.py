"""Reads of one named replica, without fall-over: for audits, scrubbing and re-replication.

Invariants
- The answer of a bookie is returned as it is: an error here concerns this replica only.
- Nothing is handed out as an entry that failed verification.
- A scan is bounded in bytes as a range is, and nothing of it is under way once the iteration has ended.

Event loop only.

Source: docs/internals/client-protocol.md, sections 4 and 11; docs/internals/auto-recovery.md.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Sequence
from itertools import chain, islice
from operator import attrgetter
from typing import Final, NamedTuple

from bookie_client.distribution import columns_of
from bookie_client.reading.entry import LedgerEntry
from bookie_client.reading.plan import ENTRY_COST, LARGEST_SINGLES_PIECE
from bookie_client.reading.sources import EntrySources
from bookie_client.reading.verified import verify_packed, verify_run
from bookie_protocol.errors import BookieUnavailable, PodkeeperError, fresh
from bookie_protocol.ledger_metadata.model import holds_entry
from bookie_protocol.wire.v2 import PackedEntries

CHUNKS_AHEAD: Final = 4


class ReplicaAnswer(NamedTuple):
    """The answer of one bookie about one entry: the entry or an error."""

    bookie: str
    entry_id: int
    entry: LedgerEntry | None
    error: PodkeeperError | None
    seconds: float | None = None
    """Seconds from the request to its answer; a batch counts as a whole. Set by scans only."""


class ReplicaReader:
    """Reads the replicas of one ledger one by one; `EntryReader.replicas` makes it."""

    def __init__(self, sources: EntrySources) -> None:
        self._sources = sources
        context = sources.context
        self._operations, self._support = context.operations, sources.choice.support
        options = context.options
        batch_bytes = min(options.batch_read_bytes, options.max_frame_size, options.read_window_bytes // CHUNKS_AHEAD)
        self._batch_bytes = max(1, batch_bytes)
        self._batch_entries = options.batch_read_entries if options.batch_reads else 1

    async def read(self, bookie: str, entry_id: int) -> LedgerEntry:
        """Return the entry as this bookie has it, whether or not the metadata says that it should.

        Raises `NoSuchEntry`, `NoSuchLedger`, `DigestMismatch`, `BookieUnavailable`, `StorageFault` ... as the
        bookie answered.
        """
        return (await self._read(bookie, entry_id))[0]

    async def read_stored(self, bookie: str, entry_id: int) -> bytes:
        """Return the entry as it is stored: header, digest, payload, to make another copy. Raises as `read`."""
        return (await self._read(bookie, entry_id))[1]

    async def _read(self, bookie: str, entry_id: int) -> tuple[LedgerEntry, bytes]:
        sources = self._sources
        answer = await self._operations.read_entry(bookie, sources.ledger_id, entry_id)
        verified = verify_run(sources.digest, sources.ledger_id, entry_id, [answer.entry])
        for error in verified.damaged.values():
            sources.choice.damaged(bookie, entry_id, error)
            raise fresh(error)
        return verified.entries[0], bytes(answer.entry)

    async def read_all(self, entry_id: int) -> list[ReplicaAnswer]:
        """Return the answer of each bookie of the entry's write set, in the order of the write set."""
        replicas = self._sources.metadata().bookies_for(entry_id)
        return list(await asyncio.gather(*(self._answer(bookie, entry_id) for bookie in replicas)))

    def held_by(self, bookie: str, first: int, last: int) -> Iterator[int]:
        """The ids from `first` to `last` of which the metadata says that this bookie holds a copy, ascending."""
        metadata, start = self._sources.metadata(), first
        while start <= last:
            stop = min(self._sources.segment_end(start), last + 1)
            ensemble = metadata.ensemble_for(start)
            if bookie in ensemble:
                position = ensemble.index(bookie)
                sizes = metadata.ensemble_size, metadata.write_quorum_size
                yield from (entry for entry in range(start, stop) if holds_entry(position, entry, *sizes))
            start = stop

    async def scan(self, bookie: str, first: int, last: int) -> AsyncGenerator[ReplicaAnswer, None]:
        """Yield this bookie's answer for each entry that it should hold, in order. Never raises for an entry.

        A bookie that cannot be reached costs one time-out for every few entries: a caller that does not need its other
        entries stops at the first `BookieUnavailable`.
        """
        held = self.held_by(bookie, first, last)
        size = self._chunk_size()
        chunks: deque[asyncio.Task[list[ReplicaAnswer]]] = deque()
        try:
            while True:
                while len(chunks) < CHUNKS_AHEAD and (ids := list(islice(held, size))):
                    chunks.append(asyncio.create_task(self._chunk(bookie, ids), name=f"scan of {bookie}"))
                if not chunks:
                    return
                for answer in await chunks[0]:
                    yield answer
                chunks.popleft()
        finally:
            for chunk in chunks:
                chunk.cancel()
            if chunks:
                await asyncio.wait(chunks)

    # --- inside ---------------------------------------------------------------------------------------------

    def _chunk_size(self) -> int:
        average = self._sources.average()
        most = self._batch_entries if self._batch_entries > 1 else LARGEST_SINGLES_PIECE
        return max(1, min(most, self._batch_bytes // ((average or ENTRY_COST) + ENTRY_COST)))

    async def _answer(self, bookie: str, entry_id: int) -> ReplicaAnswer:
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            entry = await self.read(bookie, entry_id)
        except PodkeeperError as error:
            return ReplicaAnswer(bookie, entry_id, None, fresh(error), loop.time() - started)
        return ReplicaAnswer(bookie, entry_id, entry, None, loop.time() - started)

    async def _chunk(self, bookie: str, ids: Sequence[int]) -> list[ReplicaAnswer]:
        columns = columns_of(ids, self._sources.step)
        if len(columns) == 1:
            return await self._column(bookie, ids)
        answers = await asyncio.gather(*(self._column(bookie, column) for column in columns))
        return sorted(chain.from_iterable(answers), key=attrgetter("entry_id"))

    async def _column(self, bookie: str, ids: Sequence[int]) -> list[ReplicaAnswer]:
        step = self._sources.step
        answers: list[ReplicaAnswer] = []
        while len(answers) < len(ids) and self._may_batch(bookie, ids[len(answers) :]):
            first, count = ids[len(answers)], len(ids) - len(answers)
            started = asyncio.get_running_loop().time()
            try:
                entries = await self._operations.batch_read(
                    bookie, self._sources.ledger_id, first, count, self._batch_bytes, step=step
                )
                took = asyncio.get_running_loop().time() - started
                found = self._verified(bookie, first, entries, count)
            except PodkeeperError as error:
                self._support.judge(bookie, error, asyncio.get_running_loop().time())
                break
            self._support.served(bookie)
            answers += [answer._replace(seconds=took) for answer in found]
        return answers + await self._singly(bookie, ids[len(answers) :])

    def _may_batch(self, bookie: str, ids: Sequence[int]) -> bool:
        # A segment that the bookie does not belong to leaves a gap.
        is_run = len(ids) > 1 and ids[-1] - ids[0] == (len(ids) - 1) * self._sources.step
        return is_run and self._batch_entries > 1 and self._support.may_ask(bookie, asyncio.get_running_loop().time())

    def _verified(self, bookie: str, first: int, entries: PackedEntries, count: int) -> list[ReplicaAnswer]:
        sources = self._sources
        step = sources.step
        verified = verify_packed(sources.digest, sources.ledger_id, first, entries, count, step)
        answers = [ReplicaAnswer(bookie, entry.entry_id, entry, None) for entry in verified.entries]
        for place, error in verified.damaged.items():
            sources.choice.damaged(bookie, first + place * step, error)
            answers[place] = ReplicaAnswer(bookie, first + place * step, None, error)
        return answers

    async def _singly(self, bookie: str, ids: Sequence[int]) -> list[ReplicaAnswer]:
        """One request per entry; once the bookie is unreachable the rest is not asked for."""
        answers: list[ReplicaAnswer] = []
        for start in range(0, len(ids), LARGEST_SINGLES_PIECE):
            some = ids[start : start + LARGEST_SINGLES_PIECE]
            answers += await asyncio.gather(*(self._answer(bookie, entry_id) for entry_id in some))
            if isinstance(answers[-1].error, BookieUnavailable):
                error = answers[-1].error
                answers += [ReplicaAnswer(bookie, entry_id, None, error) for entry_id in ids[len(answers) :]]
                break
        return answers
