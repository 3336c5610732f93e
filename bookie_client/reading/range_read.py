"""One range of entries under way: pieces fetched ahead, handed out in order.

Invariants
- Entries come in order and verified; the first that no replica can serve ends the range with its error, after
  the entries in front of it.
- What is under way or waits to be consumed is bounded by the plan (`plan`).
- When the iteration ends, however it ends, nothing of it is under way any more.

Event loop only.

Source: reference client protocol, sections 11.2 to 11.5.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from bookie_client.reading.batch_read import BatchRefused
from bookie_client.reading.entry import LedgerEntry
from bookie_client.reading.entry_group import EntryGroup
from bookie_client.reading.plan import Piece, ReadPlan
from bookie_client.reading.sources import EntrySources, Fetched, fetched
from bookie_client.reading.speculation import Speculator
from bookie_protocol.errors import PodkeeperError


class RangeRead:
    """Made by `EntryReader`; iterate once."""

    def __init__(self, sources: EntrySources, plan: ReadPlan) -> None:
        self._sources = sources
        self._plan = plan
        self._loop = asyncio.get_running_loop()
        self._speculator = Speculator(self._loop, sources.served_by)
        self._tasks: set[asyncio.Task[None]] = set()
        self._groups: dict[EntryGroup, Piece] = {}
        self._waiter: asyncio.Future[None] | None = None
        self._broken: BaseException | None = None

    async def run(self) -> AsyncGenerator[Sequence[LedgerEntry], None]:
        """The entries, some at a time. A batch stays in the window until the next one is asked for."""
        plan = self._plan
        try:
            while not plan.is_finished:
                self._issue()
                head = plan.pieces[0]
                while not head.is_done:
                    await self._wait()
                if head.entries:
                    yield head.entries
                if head.error is not None:
                    raise head.error
                plan.consumed()
        finally:
            await self._stop()

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
            raise self._broken

    def _piece_done(self) -> None:
        """Wake whoever waits for it; and what it left, or what its size allows, may be asked for now."""
        if self._waiter is not None and not self._waiter.done() and self._plan.pieces[0].is_done:
            self._waiter.set_result(None)
        self._issue()

    async def _stop(self) -> None:
        self._speculator.stop()
        for group in self._groups:
            group.abandon()
        self._groups.clear()
        # The one that brought the last entries has ended, and nobody need wait a turn of the loop for it.
        tasks = [task for task in self._tasks if not task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # --- one request per entry ------------------------------------------------------------------------------

    def _read_singly(self, piece: Piece) -> None:
        group = self._sources.group(self._group_done)
        self._groups[group] = piece
        self._sources.send(group, range(piece.start, piece.stop))
        self._speculator.watch(group)

    def _group_done(self, group: EntryGroup) -> None:
        piece = self._groups.pop(group)
        self._speculator.forget(group)
        self._took(piece, fetched(group.answers[entry_id] for entry_id in range(piece.start, piece.stop)))

    # --- batches --------------------------------------------------------------------------------------------

    def _read_batch(self, piece: Piece) -> None:
        task = self._loop.create_task(self._fetch_batch(piece), name=f"batch read from {piece.start}")
        self._tasks.add(task)
        task.add_done_callback(self._batch_ended)

    def _batch_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Not an answer of a bookie but a defect: whoever iterates must see it.
            self._broken = error
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_result(None)

    async def _fetch_batch(self, piece: Piece) -> None:
        sources = self._sources
        order = sources.batch_order(piece.start, piece.ordinal)
        if not order:
            self._fall_back(piece)
            return
        try:
            got = await sources.read_batch(piece.start, piece.count, piece.max_bytes, order)
        except BatchRefused:
            self._fall_back(piece)
        except PodkeeperError as error:
            self._took(piece, Fetched([], 0, error))
        else:
            self._plan.head_only = False
            self._took(piece, got)

    def _fall_back(self, piece: Piece) -> None:
        """No replica serves batches at present: this range goes on without them."""
        self._plan.by_batch = self._plan.head_only = False
        self._plan.give_back(piece)
        self._issue()

    def _took(self, piece: Piece, got: Fetched) -> None:
        self._plan.took(piece, *got)
        self._piece_done()
