"""The requests by which the replicas of one ledger are asked: for one entry, for groups and for batches.

Event loop only.

Source: docs/internals/client-protocol.md, sections 11.2 to 11.5 and 17.3.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from bookie_client.connection.channel import Channel
from bookie_client.connection.pool import ChannelPool
from bookie_client.context import ClientContext
from bookie_client.reading.batch_read import BatchAnswer, BatchParts, BatchQuestion, BatchRead
from bookie_client.reading.choice import NOTHING_KNOWN, ReplicaChoice
from bookie_client.reading.entry import LedgerEntry, payload_bytes
from bookie_client.reading.entry_read import EntryGroup, ReadPath, read_failure
from bookie_client.reading.speculation import SpeculationPolicy, Speculator
from bookie_protocol.digest import DigestManager
from bookie_protocol.errors import DigestMismatch, PodkeeperError, fresh
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.trace_context import marked

LEAST_BATCH_SECONDS: Final = 0.05
"""Minimum seconds for a batch read before others are asked too, if nothing else is known; half of the delay."""
BATCH_DECAY: Final = 0.9
"""Factor per batch by which the slowest batch is forgotten."""


class Fetched(NamedTuple):
    """Consecutive entries, and what the one behind them met; `nbytes` of payload."""

    entries: Sequence[LedgerEntry]
    nbytes: int
    error: PodkeeperError | None


def interleaved(columns: Sequence[Fetched], count: int) -> Fetched:
    """Put together what came of `count` entries at each place modulo the number of columns: up to the first that is
    missing."""
    if len(columns) == 1:
        return columns[0]
    step = len(columns)
    stop = min(count, *(place + len(column.entries) * step for place, column in enumerate(columns)))
    entries: list[LedgerEntry] = [None] * stop  # type: ignore[list-item]
    nbytes = 0
    for place, column in enumerate(columns):
        taken = column.entries[: len(range(place, stop, step))]
        entries[place::step] = taken
        nbytes += column.nbytes if len(taken) == len(column.entries) else payload_bytes(taken)
    return Fetched(entries, nbytes, columns[stop % step].error if stop < count else None)


def fetched(answers: Iterable[LedgerEntry | PodkeeperError]) -> Fetched:
    """Return the entries in front of the first error."""
    entries: list[LedgerEntry] = []
    nbytes = 0
    for answer in answers:
        if not isinstance(answer, LedgerEntry):
            return Fetched(entries, nbytes, answer)
        entries.append(answer)
        nbytes += len(answer.payload)
    return Fetched(entries, nbytes, None)


class Channels(dict[str, Channel]):
    """The channels that one ledger's reads use, by bookie: looked up once for each bookie, not for each entry."""

    def __init__(self, pool: ChannelPool, ledger_id: int) -> None:
        super().__init__()
        self._pool = pool
        self._ledger_id = ledger_id

    def __missing__(self, bookie: str) -> Channel:
        channel = self[bookie] = self._pool.channel(bookie, self._ledger_id)
        return channel


class EntrySources:
    """The sources of one handle.

    `metadata` gives the segments as the handle knows them at that moment; `on_lac` gets the last add confirmed that
    bookies report (v3 reads).
    """

    def __init__(
        self,
        context: ClientContext,
        metadata: Callable[[], LedgerMetadata],
        digest: DigestManager,
        on_lac: Callable[[int], None] | None,
    ) -> None:
        options, value = context.options, metadata()
        self.context = context
        self.metadata = metadata
        self.digest = digest
        self.ledger_id = value.ledger_id
        self.choice = ReplicaChoice(context, metadata, on_lac)
        self.step = value.ensemble_size if self.choice.is_striped else 1
        """Distance between two entries of a batch read: no bookie has all entries of a striped ledger."""
        self.policy = SpeculationPolicy.of(options)
        fan_out = value.write_quorum_size if options.parallel_reads else 1
        self.path = ReadPath(Channels(context.pool, self.ledger_id), digest, self.choice, fan_out)
        self._clock = asyncio.get_running_loop().time
        self._batch_parts = BatchParts(
            context.operations, self.choice.support, digest, self.choice, self.policy, fan_out, self._clock
        )
        self._slowest_batch = LEAST_BATCH_SECONDS
        self._batch_class = options.reads_are_batch

    def segment_end(self, entry_id: int) -> int:
        """Return the first entry of the segment behind the one that holds this entry; far away if there is none."""
        starts = self.metadata().first_entry_ids
        behind = bisect_right(starts, entry_id)
        return starts[behind] if behind < len(starts) else 1 << 63

    def average(self) -> int | None:
        """Payload bytes of an entry, if the metadata tells."""
        metadata = self.metadata()
        count = metadata.last_entry_id + 1
        return metadata.length // count if metadata.is_closed and count else None

    def group(
        self, done: Callable[[EntryGroup], None], known: Mapping[str, PodkeeperError] | None = None
    ) -> EntryGroup:
        """Return a group to `send`."""
        return EntryGroup(self.ledger_id, self.path, self.policy, done, known, self.choice.origins)

    def send(
        self, group: EntryGroup, entry_ids: Sequence[int], order: Sequence[str] | None = None, mark: bytes = b""
    ) -> None:
        """Ask for entries of ascending ids one by one; `order` instead of that of each entry's write set. `mark`: of
        the trace that the first request carries (`trace_context`)."""
        context, metadata, ledger_id = self.context, self.metadata(), self.ledger_id
        transactions, size = context.transactions, metadata.ensemble_size
        read = partial(context.pool.dialect.read, batch_class=True) if self._batch_class else context.pool.dialect.read
        view, chosen = NOTHING_KNOWN, dict[int, Sequence[str]]()
        firsts: set[str] = set()
        requests, end = [], -1
        for entry_id in entry_ids:
            if entry_id >= end:
                chosen, end = {}, self.segment_end(entry_id)
                view = self.choice.view(metadata.ensemble_for(entry_id))
            # Entries of one segment with the same place in the striping are asked in the same order.
            replicas = chosen.get(entry_id % size)
            if replicas is None:
                replicas = order or self.choice.order(entry_id, view)
                chosen[entry_id % size] = replicas
                firsts.add(replicas[0])
            requests.append((entry_id, replicas, read(next(transactions), ledger_id, entry_id)))
        if mark:
            entry_id, replicas, (key, frame) = requests[0]
            requests[0] = entry_id, replicas, (key, marked(frame, mark))
        expected = max(map(context.health.expected_read_seconds, firsts))
        group.send(requests, self._clock(), self.policy.first_delay(expected))

    async def read_one(
        self,
        entry_id: int,
        order: Sequence[str] | None = None,
        known: Mapping[str, PodkeeperError] | None = None,
        mark: bytes = b"",
    ) -> LedgerEntry:
        """One entry from the first replica that serves it; `mark` as in `send`. Raises what counts when none does."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        group = self.group(lambda _: ended.set(), known)
        speculator = Speculator(loop, self.choice.served_by)
        try:
            self.send(group, [entry_id], order, mark)
            speculator.watch(group)
            await ended.wait()
        finally:
            group.abandon()
            speculator.stop()
        answer = group.answers[entry_id]
        if isinstance(answer, LedgerEntry):
            return answer
        raise fresh(answer)

    def read_batch(
        self,
        first: int,
        count: int,
        max_bytes: int,
        order: Sequence[str],
        done: Callable[[BatchRead, BatchAnswer | Exception], None],
    ) -> BatchRead:
        """Ask for up to `count` entries from `first` on, one step apart; `done` gets the outcome later."""
        question = BatchQuestion(self.ledger_id, first, count, max_bytes, self.step)
        read = BatchRead(self._batch_parts, question, order, done)
        expected = self._slowest_batch
        if len(order) > 1:
            expected = max(self.context.health.expected_read_seconds(order[0]), expected)
        read.send(self.policy.first_delay(expected))
        return read

    def took_batch(self, read: BatchRead, answer: BatchAnswer) -> Fetched:
        """Learn from it. Its entries, unless some are damaged: then `mended` has them."""
        bookie, first, verified, step = answer
        took = self._clock() - read.started
        self._slowest_batch = max(LEAST_BATCH_SECONDS, BATCH_DECAY * self._slowest_batch, took)
        if self.choice.origins is not None:
            self.choice.origins.batch(bookie, range(first, first + len(verified.entries) * step, step), took)
        self.choice.served_by[bookie] += len(verified.entries) - len(verified.damaged)
        return Fetched(verified.entries, verified.nbytes, None)

    async def mended(self, answer: BatchAnswer) -> Fetched:
        """Return the entries of a batch, with the damaged ones read elsewhere; up to the first that no replica
        serves."""
        bookie, first, verified, step = answer
        answers: list[LedgerEntry | PodkeeperError] = list(verified.entries)
        for place, error in verified.damaged.items():
            self.choice.damaged(bookie, first + place * step, error)
            self.choice.failed(bookie, error)
        reads = (self._read_elsewhere(first + place * step, bookie, error) for place, error in verified.damaged.items())
        for place, got in zip(verified.damaged, await asyncio.gather(*reads), strict=True):
            answers[place] = got
        return fetched(answers)

    async def _read_elsewhere(self, entry_id: int, bookie: str, error: DigestMismatch) -> LedgerEntry | PodkeeperError:
        others = [other for other in self.choice.order(entry_id) if other != bookie]
        if not others:
            return read_failure(self.ledger_id, entry_id, {bookie: error})
        try:
            return await self.read_one(entry_id, others, {bookie: error})
        except PodkeeperError as problem:
            return fresh(problem)
