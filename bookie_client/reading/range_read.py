"""One range of entries under way: pieces fetched ahead, handed out in order.

A range that one batch read brings, as most ranges do that are read as a whole, is asked for without a plan and its
pieces, which would cost as much as verifying what comes (`read_one_batch`). Its outcome is returned as it is:
`RangeRead.go_on` continues from an answer that is not the whole range, and from any other unusual one.

Invariants
- Entries come in order and verified; the first that no replica can serve ends the range with its error, after
  the entries in front of it.
- What is under way or waits to be consumed is bounded by the plan (`plan`).
- A piece that is read by batch is read by as many as there are columns: one, or of a striped ledger one for each place
  in the ensemble, since a bookie has only some of the entries.
- When the iteration ends, however it ends, nothing of it is under way any more.

Event loop only.

Source: docs/internals/client-protocol.md, sections 11.2 to 11.5.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from math import inf
from typing import TYPE_CHECKING, TypeVar, cast

from bookie_client.reading.batch_read import BatchAnswer, BatchRead, BatchRefused
from bookie_client.reading.entry import LedgerEntry
from bookie_client.reading.entry_read import EntryGroup
from bookie_client.reading.plan import Piece, ReadPlan
from bookie_client.reading.sources import EntrySources, Fetched, fetched, interleaved
from bookie_client.reading.speculation import Speculator
from bookie_protocol.errors import PodkeeperError, fresh

if TYPE_CHECKING:
    from bookie_client.tracing import CallTrace

T = TypeVar("T")


class Columns:
    """The batch reads of one piece. That at place k has every entry whose place in the piece is k modulo their number:
    what came of each, so far."""

    __slots__ = ("fetched", "is_given_up", "piece")

    def __init__(self, piece: Piece, number: int) -> None:
        self.piece = piece
        self.fetched: list[Fetched | None] = [None] * number
        self.is_given_up = False


class RangeRead:
    """Made by `EntryReader`; used once, by `batches`, by `read_into`, or by `next` until it has no more or raises, and
    `stop` then or at any time before."""

    def __init__(self, sources: EntrySources, plan: ReadPlan, mark: bytes = b"") -> None:
        """`mark`: of the trace that the first request for a single entry carries."""
        self._sources = sources
        self._mark = mark
        self._plan = plan
        self._loop = asyncio.get_running_loop()
        self._speculator = Speculator(self._loop, sources.choice.served_by)
        self._groups: dict[EntryGroup, Piece] = {}
        self._batches: dict[BatchRead, tuple[Columns, int]] = {}
        """The batch reads under way, whose piece each is of, and its place there."""
        self._mending: set[asyncio.Task[None]] = set()
        self._handed_out: Piece | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._broken: Exception | None = None

    async def batches(self) -> AsyncGenerator[Sequence[LedgerEntry], None]:
        """The entries, some at a time. A batch stays in the window until the next one is asked for."""
        try:
            while (batch := await self.next()) is not None:
                yield batch
        finally:
            await self.stop()

    async def read_into(self, found: list[T], part: Callable[[Sequence[LedgerEntry]], Iterable[T]]) -> None:
        """Append what `part` returns for all entries to `found`; for the entries before an error it is there when
        that is raised."""
        try:
            while (batch := await self.next()) is not None:
                found += part(batch)
        finally:
            await self.stop()

    def go_on(self, read: BatchRead, outcome: BatchAnswer | Exception, stop: int) -> None:
        """Continue from the outcome of a batch read, made by the caller, of the entries before `stop`."""
        self._batches[read] = Columns(self._plan.begin_with(stop), 1), 0
        self._batch_done(read, outcome)

    async def next(self) -> Sequence[LedgerEntry] | None:
        """Return the next entries; they stay in the window until more are asked for. None: that was all."""
        plan = self._plan
        while True:
            if (head := self._handed_out) is not None:
                if head.error is not None:
                    raise fresh(head.error)
                plan.consumed()
            if plan.is_finished:
                return None
            self._issue()
            self._handed_out = head = plan.pieces[0]
            while not head.is_done:
                await self._wait()
            if head.entries:
                return head.entries

    async def stop(self) -> None:
        """End the range: when this returns, no request is under way any more."""
        self._speculator.stop()
        for group in self._groups:
            group.abandon()
        for read in self._batches:
            read.abandon()
        self._groups.clear()
        self._batches.clear()
        if self._mending:
            for task in self._mending:
                task.cancel()
            await asyncio.wait(self._mending)

    def _issue(self) -> None:
        while (piece := self._plan.ask()) is not None:
            if piece.by_batch:
                self._read_batch(piece)
            else:
                self._read_singly(piece)

    async def _wait(self) -> None:
        if self._broken is None:
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._broken is not None:
            raise fresh(self._broken)

    def _piece_done(self) -> None:
        """Wake the consumer if the next piece is done, and ask for more if there is room."""
        if self._plan.pieces[0].is_done:
            self._wake()
        self._issue()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _break(self, defect: Exception) -> None:
        """End the range with a defect, which the consumer must see: it is not an answer of a bookie."""
        self._broken = defect
        self._wake()

    def _took(self, piece: Piece, got: Fetched) -> None:
        self._plan.took(piece, *got)
        self._piece_done()

    # --- one request per entry ------------------------------------------------------------------------------

    def _read_singly(self, piece: Piece) -> None:
        group = self._sources.group(self._group_done)
        self._groups[group] = piece
        mark, self._mark = self._mark, b""
        self._sources.send(group, range(piece.start, piece.stop), mark=mark)
        self._speculator.watch(group)

    def _group_done(self, group: EntryGroup) -> None:
        try:
            piece = self._groups.pop(group)
            self._speculator.forget(group)
            self._took(piece, fetched(group.answers[entry_id] for entry_id in range(piece.start, piece.stop)))
        except Exception as defect:  # a connection called: it would end with it
            self._break(defect)

    # --- batches --------------------------------------------------------------------------------------------

    def _read_batch(self, piece: Piece) -> None:
        sources, step = self._sources, self._sources.step
        starts = range(piece.start, piece.start + step)
        orders = [sources.choice.batch_order(start, piece.ordinal) for start in starts]
        if not all(orders):
            self._fall_back(piece)
            return
        columns = Columns(piece, step)
        for place, (start, order) in enumerate(zip(starts, orders, strict=True)):
            count = len(range(start, piece.stop, step))
            read = sources.read_batch(start, count, piece.max_bytes // step, order, self._batch_done)
            self._batches[read] = columns, place
            self._speculator.watch(read)

    def _batch_done(self, read: BatchRead, outcome: BatchAnswer | Exception) -> None:
        try:
            self._speculator.forget(read)
            self._take_batch(*self._batches.pop(read), read, outcome)
        except Exception as defect:
            self._break(defect)

    def _take_batch(self, columns: Columns, place: int, read: BatchRead, outcome: BatchAnswer | Exception) -> None:
        if isinstance(outcome, BatchAnswer):
            self._plan.head_only = False
            got = self._sources.took_batch(read, outcome)
            if outcome.verified.damaged:
                self._mend(columns, place, outcome)
            else:
                self._took_column(columns, place, got)
        elif isinstance(outcome, BatchRefused):
            self._give_up(columns)
            self._fall_back(columns.piece)
            self._issue()
        elif isinstance(outcome, PodkeeperError):
            self._took_column(columns, place, Fetched([], 0, outcome))
        else:
            self._break(outcome)

    def _took_column(self, columns: Columns, place: int, got: Fetched) -> None:
        columns.fetched[place] = got
        if not columns.is_given_up and None not in columns.fetched:
            self._took(columns.piece, interleaved(cast("list[Fetched]", columns.fetched), columns.piece.count))

    def _give_up(self, columns: Columns) -> None:
        """Give up the reads of these columns: their entries are no longer wanted."""
        columns.is_given_up = True
        for read in [read for read, (whose, _) in self._batches.items() if whose is columns]:
            del self._batches[read]
            self._speculator.forget(read)
            read.abandon()

    def _fall_back(self, piece: Piece) -> None:
        """Continue this range without batches: no replica serves them at present."""
        self._plan.by_batch = self._plan.head_only = False
        self._plan.give_back(piece)

    # --- what was damaged in a batch ------------------------------------------------------------------------

    def _mend(self, columns: Columns, place: int, answer: BatchAnswer) -> None:
        mending = self._fetch_damaged(columns, place, answer)
        task = self._loop.create_task(mending, name=f"damaged entries from {answer.first}")
        self._mending.add(task)
        task.add_done_callback(self._mended)

    async def _fetch_damaged(self, columns: Columns, place: int, answer: BatchAnswer) -> None:
        self._took_column(columns, place, await self._sources.mended(answer))

    def _mended(self, task: asyncio.Task[None]) -> None:
        self._mending.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            assert isinstance(error, Exception)
            self._break(error)


class TracedRange(RangeRead):
    """A range of a client that has a tracer: one span, from the first `next` until `stop`."""

    def __init__(self, sources: EntrySources, plan: ReadPlan, begin: Callable[[], CallTrace]) -> None:
        super().__init__(sources, plan)
        self._begin = begin
        self._trace: CallTrace | None = None

    async def next(self) -> Sequence[LedgerEntry] | None:
        if self._trace is None:
            self._trace = self._begin()
            self._mark = self._trace.take_mark()
        try:
            return await super().next()
        except BaseException as error:
            self._trace.end(error)
            raise

    async def stop(self) -> None:
        try:
            if self._trace is not None:
                self._trace.end()
        finally:
            await super().stop()


async def read_one_batch(
    sources: EntrySources, first: int, count: int, max_bytes: int, order: Sequence[str]
) -> tuple[BatchRead, BatchAnswer | Exception]:
    """Return the read, which has ended, and its outcome: see `BatchRead`."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[BatchAnswer | Exception] = loop.create_future()

    def done(_: BatchRead, outcome: BatchAnswer | Exception) -> None:
        if not ended.done():  # else cancelled in this very turn of the loop
            ended.set_result(outcome)

    read = sources.read_batch(first, count, max_bytes, order, done)
    speculator = None
    if read.due < inf:
        speculator = Speculator(loop, sources.choice.served_by)
        speculator.watch(read)
    try:
        return read, await ended
    finally:
        read.abandon()
        if speculator is not None:
            speculator.stop()
