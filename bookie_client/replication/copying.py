"""The copying of one fragment: pieces of entries, read from the sources and sent to the targets, several at once.

Invariants
- A piece takes room in the window, as large as it is expected to be, before it is read; the room is put right once its
  size is known, and given back when every target has acknowledged it.
- One frame serves all targets of an entry, and all frames of a piece go to a target in one write.
- A piece is stored when every target has acknowledged every entry sent to it; the first refusal ends it, and nothing of
  it is sent again. "Too many requests" is answered by sending that entry again later, a bounded number of times.
- Once an entry turned out to be unreadable nothing more is sent: the rest is only read, to name every entry of that
  kind (up to `MAX_UNREADABLE`, then the copying ends).
- Nothing is under way once `run` has ended, however it ended.

The adds have the flag of recovery, so that ledgers which are fenced on a target take them, and not its priority:
clients come first. Event loop only.

Source: docs/internals/auto-recovery.md, section 7; docs/internals/wire-protocol.md, sections 3 and 4.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from bookie_client.access import LedgerAccess
from bookie_client.connection.channel import Channel
from bookie_client.connection.dialect import AddEncoder
from bookie_client.connection.request import Answer, FramedRequest
from bookie_client.context import ClientContext
from bookie_client.replication.fragments import Fragment
from bookie_client.replication.source_reads import FAULTY_ANSWERS, MAX_SINGLES, SourceReads, explained
from bookie_client.replication.throttle import ReplicationThrottle, piece_bytes
from bookie_client.writing.window import Window
from bookie_protocol.errors import EntriesUnreadable, LedgerStateUnknown, PodkeeperError, TooManyRequests
from bookie_protocol.versioned import LedgerLife

LEAST_PIECES: Final = 16
ENTRIES_UNDER_WAY: Final = 8192
"""Entries of one replicator under way: its pieces hold about this number together, but there are at least
`LEAST_PIECES`, so that small pieces do not leave the disks idle.
"""
FIRST_PIECE: Final = 16
"""Entries of the first piece, which is read alone, when nothing is known of their sizes."""
ENTRY_COST: Final = 200
"""Bytes that an entry costs here beyond what is stored, about."""
PIECES_PER_WINDOW: Final = 8
MAX_UNREADABLE: Final = 1_000
BUSY_TRIES: Final = 10
BUSY_SECONDS: Final = 0.02
"""The first pause before an entry is sent again; doubles with each."""


class CopyLimits(NamedTuple):
    """The limits that all fragments of one replicator share."""

    window: Window
    max_window_bytes: int
    throttle: ReplicationThrottle
    entry_batch_size: int
    batch_reads: bool

    @classmethod
    def of(
        cls, max_bytes_in_flight: int, throttle: ReplicationThrottle, entry_batch_size: int, batch_reads: bool
    ) -> CopyLimits:
        pieces = max(LEAST_PIECES, ENTRIES_UNDER_WAY // entry_batch_size)
        window = Window(pieces, max_bytes_in_flight, 0)
        return cls(window, max_bytes_in_flight, throttle, entry_batch_size, batch_reads)


class FragmentCopy:
    """One copying. `life`: the ledger whose metadata name the fragment; `targets`: position -> who gets its entries;
    `average`: stored bytes of an entry, if known; `told` is called after each piece with different entries, and bytes,
    copied so far."""

    def __init__(
        self,
        context: ClientContext,
        life: LedgerLife,
        fragment: Fragment,
        access: LedgerAccess,
        sources: SourceReads,
        targets: Mapping[int, str],
        limits: CopyLimits,
        average: int | None,
        told: Callable[[int, int], None],
    ) -> None:
        self._context = context
        self._fragment = fragment
        self._sources = sources
        self._limits = limits
        self._average = average
        self._told = told
        self._channels: dict[int, Channel] = {
            position: context.pool.channel(bookie, fragment.ledger_id) for position, bookie in targets.items()
        }
        channel = next(iter(self._channels.values()))
        self._encode = channel.dialect.add_encoder(life, access.master_key, background=True)
        quorums = fragment.quorums
        self._needs = quorums.holds if quorums.ensemble != quorums.write else None
        self._max_bytes = min(
            context.options.batch_read_bytes,
            context.options.max_frame_size,
            max(1, limits.max_window_bytes // PIECES_PER_WINDOW),
        )
        self._unreadable: dict[int, dict[str, PodkeeperError]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self.entries = 0
        """Different entries that were stored wherever they are needed."""
        self.copies = 0
        self.nbytes = 0
        """Bytes of all copies, as stored."""

    async def run(self) -> None:
        """Copy everything. Raises `EntriesUnreadable`, `TargetFailed`."""
        try:
            await self._start_pieces()
            while self._tasks and self._failure is None:
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks)
        failure, self._failure = self._failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # its frames lead here
        if self._unreadable:
            raise unreadable_error(self._fragment.ledger_id, self._unreadable)

    def wanted(self) -> Iterator[int]:
        """The entries that some target needs, ascending."""
        fragment, needs = self._fragment, self._needs
        entries = range(fragment.first_entry, fragment.last_entry + 1)
        if needs is None:
            return iter(entries)
        size = fragment.quorums.ensemble
        places = [any(needs(position, place) for position in self._channels) for place in range(size)]
        return (entry_id for entry_id in entries if places[entry_id % size])

    # --- pieces ---------------------------------------------------------------------------------------------

    async def _start_pieces(self) -> None:
        window, throttle = self._limits.window, self._limits.throttle
        wanted, ordinal = self.wanted(), self._fragment.first_entry
        while self._failure is None and len(self._unreadable) < MAX_UNREADABLE:
            ids = list(islice(wanted, self._piece_entries()))
            if not ids:
                return
            requests = self._sources.requests(ids)
            expected = len(ids) * (self._average or ENTRY_COST)
            reserved = expected + len(ids) * ENTRY_COST
            await window.acquire(reserved)
            try:
                await throttle.read(expected, requests)
            except BaseException:
                window.release(1, reserved)
                raise
            task = asyncio.get_running_loop().create_task(
                self._piece(ids, ordinal, expected, requests), name=f"copy of ledger {self._fragment.ledger_id}"
            )
            self._tasks.add(task)
            task.add_done_callback(self._ended)
            ordinal += 1
            if self._average is None:
                await asyncio.wait([task])

    def _piece_entries(self) -> int:
        if self._average is None:
            return min(FIRST_PIECE, self._limits.entry_batch_size)
        nbytes = piece_bytes(self._limits.throttle.piece_rate, self._max_bytes)
        # A little less than would fit: a batch that is cut short costs another request.
        count = min(self._limits.entry_batch_size, nbytes * 9 // 10 // (self._average + 4))
        return max(1, count if self._sources.reads_batches else min(count, MAX_SINGLES))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None and self._failure is None:
            self._failure = task.exception()

    async def _piece(self, ids: Sequence[int], ordinal: int, expected: int, requests: int) -> None:
        window, throttle = self._limits.window, self._limits.throttle
        reserved = expected + len(ids) * ENTRY_COST
        try:
            outcome = await self._sources.read(ids, ordinal, self._max_bytes)
            found, nbytes = outcome.found, outcome.nbytes
            window.release(0, expected - nbytes)
            reserved += nbytes - expected
            throttle.correct_read(nbytes - expected, outcome.requests - requests)
            if found:
                self._learn(nbytes // len(found))
            self._unreadable.update(outcome.errors)
            if not self._unreadable:
                await self._store(ids, found)
        finally:
            window.release(1, reserved)

    async def _store(self, ids: Sequence[int], found: Mapping[int, bytes]) -> None:
        entries = [(entry_id, found[entry_id]) for entry_id in ids]
        nbytes = copies = 0
        for position in self._channels:
            mine = [len(entry) for entry_id, entry in entries if self._needs is None or self._needs(position, entry_id)]
            nbytes += sum(mine)
            copies += len(mine)
        await self._limits.throttle.write(nbytes, copies)
        adds = CopyAdds(self._fragment.ledger_id, self._channels)
        loop = asyncio.get_running_loop()
        try:
            began = loop.time()
            self.copies += await adds.store(entries, self._encode, self._context.transactions, self._needs)
            self._limits.throttle.stored(loop.time() - began)
        finally:
            adds.close()
        self.entries += len(entries)
        self.nbytes += nbytes
        self._told(self.entries, self.nbytes)

    def _learn(self, seen: int) -> None:
        self._average = seen if self._average is None else (3 * self._average + seen) // 4


def unreadable_error(ledger_id: int, answers: Mapping[int, Mapping[str, PodkeeperError]]) -> EntriesUnreadable:
    """Return the error about entries that no replica gives. `answers`: of each entry, what the bookies answered."""
    found = dict(sorted(answers.items())[:MAX_UNREADABLE])
    told = explained(ledger_id, found)
    error = EntriesUnreadable(f"no replica can give some entries, so nothing was exchanged: {told}")
    error.entries = tuple(found)
    said = [each for answers in found.values() for each in answers.items()]
    error.untold = frozenset(bookie for bookie, why in said if isinstance(why, LedgerStateUnknown))
    heard = (*FAULTY_ANSWERS, LedgerStateUnknown)
    error.silent = frozenset(bookie for bookie, why in said if not isinstance(why, heard))
    return error


class TargetFailed(Exception):
    """An error: a target refused a copy, or may not have it. It never leaves this package: `error` does."""

    def __init__(self, bookie: str, error: PodkeeperError) -> None:
        super().__init__(str(error))
        self.bookie = bookie
        self.error = error


class CopyAdds:
    """The adds of one piece; `close` it. `channels`: the targets, by position."""

    def __init__(self, ledger_id: int, channels: Mapping[int, Channel]) -> None:
        self.ledger_id = ledger_id
        self._channels = {channel.bookie_id: channel for channel in channels.values()}
        self._positions = channels
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._left = 0
        self._tries: Counter[tuple[str, int]] = Counter()

    @property
    def is_over(self) -> bool:
        return self._done.done()

    async def store(
        self,
        entries: Sequence[tuple[int, bytes]],
        encode: AddEncoder,
        transactions: Iterable[int],
        needs: Callable[[int, int], bool] | None,
    ) -> int:
        """Send all, and wait until all are durable; returns the number of copies. `needs(position, entry id)`: whether
        that target gets the entry; None: each gets all. Raises `TargetFailed`."""
        adds = [_CopyAdd(self, entry_id) for entry_id, _ in entries]
        for add, (entry_id, entry), txn_id in zip(adds, entries, transactions, strict=False):
            add.key, add.encoded = encode(txn_id, entry_id, entry)
        everything = b"".join([add.frame for add in adds]) if needs is None else b""
        sending: list[tuple[Channel, list[_CopyAdd]]] = []
        for position, channel in self._positions.items():
            mine = adds if needs is None else [add for add in adds if needs(position, add.entry_id)]
            if mine:
                sending.append((channel, mine))
                self._left += len(mine)
        copies = self._left
        if not copies:
            return 0
        for channel, mine in sending:
            channel.send_adds(everything or b"".join([add.frame for add in mine]), mine)
        await self._done
        return copies

    def close(self) -> None:
        """Answers that come later are dropped."""
        self._done.cancel()

    # --- answers --------------------------------------------------------------------------------------------

    def acknowledged(self) -> None:
        self._left -= 1
        if not self._left and not self._done.done():
            self._done.set_result(None)

    def refused(self, bookie: str, add: _CopyAdd, error: PodkeeperError) -> None:
        if self._done.done():
            return
        if isinstance(error, TooManyRequests):
            tried = self._tries[bookie, add.entry_id]
            if tried < BUSY_TRIES:
                self._tries[bookie, add.entry_id] = tried + 1
                self._loop.call_later(BUSY_SECONDS * 2**tried, self._send_again, bookie, add)
                return
        self._done.set_exception(TargetFailed(bookie, error))

    def _send_again(self, bookie: str, add: _CopyAdd) -> None:
        if not self._done.done():
            self._channels[bookie].send_add(add.frame, add.key, add)


class _CopyAdd(FramedRequest):
    """One entry; it waits in the connections to all its targets."""

    __slots__ = ("_adds", "encoded", "entry_id")

    encoded: bytes

    def __init__(self, adds: CopyAdds, entry_id: int) -> None:
        self._adds = adds
        self.entry_id = entry_id

    @property
    def frame(self) -> bytes:
        return self.encoded

    @property
    def is_wanted(self) -> bool:
        return not self._adds.is_over

    def acknowledged(self, bookie: str) -> None:
        self._adds.acknowledged()

    def accepted(self, bookie: str, answer: Answer) -> None:
        self._adds.acknowledged()

    def refused(self, bookie: str, error: PodkeeperError) -> None:
        self._adds.refused(bookie, self, error)

    def describe(self) -> str:
        return f"the copy of entry {self.entry_id} of ledger {self._adds.ledger_id}"
