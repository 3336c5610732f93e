"""Reading the entries of one ledger: single ones, ranges, and what each replica holds.

Invariants
- Nothing above the bound given by the handle is asked for, and nothing is handed out that failed
  verification.
- Entries come in order; the first that no replica can serve ends the range with its error.
- What cannot be read is tried again for as long as the metadata have news (`Refresh`): a writer may have begun a new
  segment, or a copy may have moved, since the handle learnt of it last.
- What is under way or waits to be consumed is bounded in entries and bytes (`read_window_entries`,
  `read_window_bytes`), and ends with the iteration.

Event loop only.

Source: docs/internals/client-protocol.md, section 11.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from bookie_client.context import ClientContext
from bookie_client.reading.batch_read import BatchAnswer
from bookie_client.reading.choice import ReplicaChoice
from bookie_client.reading.entry import LedgerEntry
from bookie_client.reading.origins import Origins
from bookie_client.reading.plan import ReadLimits, ReadPlan
from bookie_client.reading.range_read import RangeRead, TracedRange, read_one_batch
from bookie_client.reading.replica_read import ReplicaReader
from bookie_client.reading.sources import EntrySources
from bookie_protocol.digest import DigestManager
from bookie_protocol.errors import BadRequest, PodkeeperError
from bookie_protocol.ledger_metadata.model import LedgerMetadata

if TYPE_CHECKING:
    from bookie_client.tracing import CallTrace

T = TypeVar("T")
Refresh = Callable[[], Awaitable[bool]]
"""Read the metadata that the reader uses again, and return True if they changed. Does not raise if the stored
state is unknown.
"""


class EntryReader:
    """A reader of entries of one ledger.

    `metadata` gives the segments as the handle knows them at that moment; `on_lac` gets every last add confirmed that a
    bookie's answer carries.
    """

    def __init__(
        self,
        context: ClientContext,
        metadata: Callable[[], LedgerMetadata],
        digest: DigestManager,
        *,
        on_lac: Callable[[int], None] | None = None,
    ) -> None:
        self._sources = EntrySources(context, metadata, digest, on_lac)
        self._limits = _limits(self._sources)
        self._most = 0
        self._traces = context.traces

    @property
    def served_by(self) -> Counter[str]:
        """Return the number of entries that each bookie served."""
        return self._sources.choice.served_by

    @property
    def damaged_at(self) -> Counter[str]:
        """Return the number of damaged replicas that each bookie returned."""
        return self._sources.choice.damaged_at

    def read_ahead(self, nbytes: int) -> None:
        """Ranges that begin from now on have at most so many bytes under way or waiting to be consumed."""
        self._limits = replace(self._limits, max_bytes=min(nbytes, self._limits.max_bytes))

    def batches(self, first: int, last: int, *, bound: int) -> AsyncGenerator[Sequence[LedgerEntry], None]:
        """Iterate from `first` to `last`, both included, some entries at a time; `last` = `first` - 1 is no entry.

        A caller that ends the iteration early closes it (`contextlib.aclosing`), or leaves that to the event loop.

        Raises `BadRequest` for an invalid range or one that ends above `bound` (the last add confirmed). The iteration
        raises `DigestMismatch`, `BookieUnavailable`, `NoSuchEntry` ... by the replicas' answers.
        """
        return self.range(first, last, bound=bound).batches()

    def range(self, first: int, last: int, *, bound: int) -> RangeRead:
        """Return the range of `batches` for callers that iterate without a generator, which costs less."""
        self._check(first, last, bound)
        sources, plan, traces = self._sources, self._plan(first, last), self._traces
        if traces is None:
            return RangeRead(sources, plan)
        return TracedRange(sources, plan, lambda: traces.read(sources.ledger_id, first, last))

    def read_into(
        self,
        found: list[T],
        first: int,
        last: int,
        part: Callable[[Sequence[LedgerEntry]], Iterable[T]],
        *,
        bound: int,
    ) -> Coroutine[Any, Any, None]:
        """Append what `part` returns for each batch to `found`, which costs less than iterating.

        The results of the entries before an error are in `found` when it is raised. Checks and raises as `batches`.
        """
        self._check(first, last, bound)
        if self._traces is None:
            return self._read_into(found, first, last, part)
        trace = self._traces.read(self._sources.ledger_id, first, last)
        return _ended(trace, self._read_into(found, first, last, part, trace.take_mark()))

    async def read_entry(self, entry_id: int) -> LedgerEntry:
        """One entry, whatever the last add confirmed is. Raises as iterating over `batches` does."""
        if entry_id < 0:
            raise BadRequest(f"ledger {self._sources.ledger_id}: {entry_id} is not an entry id")
        if self._traces is None:
            return await self._sources.read_one(entry_id)
        trace = self._traces.read(self._sources.ledger_id, entry_id, entry_id)
        return await _ended(trace, self._sources.read_one(entry_id, mark=trace.take_mark()))

    @property
    def observer(self) -> ReplicaChoice:
        """Return the object that is notified of entries of this ledger that were not read through this reader."""
        return self._sources.choice

    @property
    def replicas(self) -> ReplicaReader:
        """Reads of one named bookie, for maintenance."""
        return ReplicaReader(self._sources)

    def note_origins(self) -> Origins:
        """Note from now on where entries come from; the consumer takes the notes."""
        if self._sources.choice.origins is None:
            self._sources.choice.origins = Origins()
        return self._sources.choice.origins

    # --- inside ---------------------------------------------------------------------------------------------

    def _check(self, first: int, last: int, bound: int) -> None:
        ledger_id = self._sources.ledger_id
        if first < 0 or last < first - 1:
            raise BadRequest(f"ledger {ledger_id}: entries {first} to {last} are not a range")
        if last > bound:
            raise BadRequest(f"ledger {ledger_id}: entry {last} is above the last add confirmed, {bound}")

    async def _read_into(
        self,
        found: list[T],
        first: int,
        last: int,
        part: Callable[[Sequence[LedgerEntry]], Iterable[T]],
        mark: bytes = b"",
    ) -> None:
        sources, count = self._sources, last + 1 - first
        most = self._most_in_a_batch()
        is_one_batch = 1 < count <= most and not sources.choice.is_striped and sources.segment_end(first) > last
        order = sources.choice.batch_order(first, first // most) if is_one_batch else []
        if not order:
            await RangeRead(sources, self._plan(first, last), mark).read_into(found, part)
            return
        read, outcome = await read_one_batch(sources, first, count, self._limits.frame_bytes(count), order)
        if isinstance(outcome, BatchAnswer) and outcome.has_all(count):
            found += part(sources.took_batch(read, outcome).entries)
            return
        reading = RangeRead(sources, self._plan(first, last), mark)
        reading.go_on(read, outcome, last + 1)
        await reading.read_into(found, part)

    def _most_in_a_batch(self) -> int:
        """0 as long as nothing tells the size of entries: of an open ledger."""
        if not self._most and (average := self._sources.average()) is not None:
            self._most = self._limits.batch_count(average)
        return self._most

    def _plan(self, first: int, last: int) -> ReadPlan:
        sources = self._sources
        plan = ReadPlan(first, last, self._limits, sources.average(), sources.segment_end)
        plan.head_only = not any(map(sources.choice.support.is_proven, sources.metadata().last_ensemble))
        return plan


async def _ended(trace: CallTrace, reading: Coroutine[Any, Any, T]) -> T:
    try:
        found = await reading
    except BaseException as error:
        trace.end(error)
        raise
    trace.end()
    return found


def _limits(sources: EntrySources) -> ReadLimits:
    options = sources.context.options
    columns = sources.step
    return ReadLimits(
        max_entries=options.read_window_entries,
        max_bytes=options.read_window_bytes,
        batch_entries=options.batch_read_entries * columns if options.batch_reads else 1,
        batch_bytes=min(options.batch_read_bytes, options.max_frame_size),
        columns=columns,
    )


async def one_by_one(batches: AsyncGenerator[Sequence[LedgerEntry], None]) -> AsyncGenerator[LedgerEntry, None]:
    """The entries of batches, one at a time."""
    async with aclosing(batches):
        async for batch in batches:
            for entry in batch:
                yield entry


def batches_with_refresh(
    reader: EntryReader, first: int, last: int, *, bound: int, refresh: Refresh
) -> AsyncGenerator[Sequence[LedgerEntry], None]:
    """Iterate as `EntryReader.batches` does. Entries that cannot be read are tried again for as long as the
    metadata change."""
    return _batches(reader, first, last, reader.range(first, last, bound=bound), refresh)


async def read_with_refresh(
    reader: EntryReader,
    first: int,
    last: int,
    part: Callable[[Sequence[LedgerEntry]], Iterable[T]],
    *,
    bound: int,
    refresh: Refresh,
) -> list[T]:
    """Return what `part` returns for all entries; one bad entry fails the whole range. It costs less than iterating."""
    found: list[T] = []
    reading = reader.read_into(found, first, last, part, bound=bound)
    while True:
        try:
            await reading
            return found
        except PodkeeperError:
            if not await refresh():
                raise
        reading = reader.read_into(found, first + len(found), last, part, bound=last)


def whole(entries: Sequence[LedgerEntry]) -> Sequence[LedgerEntry]:
    """Return the part that is everything."""
    return entries


async def _batches(
    reader: EntryReader, first: int, last: int, reading: RangeRead, refresh: Refresh
) -> AsyncGenerator[Sequence[LedgerEntry], None]:
    while True:
        try:
            try:
                while (batch := await reading.next()) is not None:
                    first += len(batch)
                    yield batch
            finally:
                await reading.stop()
            return
        except PodkeeperError:
            if not await refresh():
                raise
        reading = reader.range(first, last, bound=last)
