"""One request to one bookie, awaited: what recovery, tailing, batch reads and tools are made of.

    answer = await operations.read_entry("bookie-0:3181", ledger_id, LAST_ENTRY, fence_key=key)

Invariants
- `bookie` is a bookie id; its connection is made on demand and shared with the adds and reads of the client.
- Every call ends: with the answer, with the error that the bookie answered, with `BookieUnavailable` (no
  connection; `ConnectionLost` when it broke under the request) or `BookieTimeout`. Cancelling gives up.
- `NotThere` errors are the bookie's own word. Nothing here verifies digests: the caller does.
- A client of protocol version 2 fences, and asks for what only version 3 has and every version-2 client of the
  reference may ask for (space, lists of entries), over a second connection that speaks version 3. Fencing,
  because version 2 cannot tell the answer to a fencing read from that to a plain read of the same entry.
- What reads entries for users is marked with the client's traffic class. Fencing reads, reads with high priority and
  reads of the last entry, which ask for the last add confirmed, never are.
- Batch reads, which only version 2 has, use a connection of their own in every client: a bookie that does not know them
  hangs up, and adds under way must not suffer from that. One that hangs up on the first batch read it is asked for does
  not know them (those before 4.17 do): that is `BadVersion`. From one that has served a batch before it is a lost
  connection like any other. The answer of one that ignores the step is dropped: `BadVersion` too.
- Each caller gets one result or one error. If it is cancelled the request is given up: it is not sent any more if it
  still waits for a connection, and an answer that comes later is dropped.
- An answer of another kind than the request's is a `ProtocolViolation`, never an empty result.

Event loop only.

Source: docs/internals/wire-protocol.md, sections 3, 4, 8 and 11; docs/internals/client-protocol.md, sections 10 to 12.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from bookie_client.connection.channel import Channel
from bookie_client.connection.dialect import KeyAndFrame
from bookie_client.connection.pool import ChannelPool
from bookie_client.connection.request import NO_LAC, Answer, BookieInfo, EntryAnswer, LacAnswer, LongPollAnswer, Request
from bookie_protocol.entry import LAST_ENTRY
from bookie_protocol.errors import (
    BadVersion,
    BookieUnavailable,
    ConnectionLost,
    PodkeeperError,
    ProtocolViolation,
    TooManyRequests,
    Unauthorized,
    fresh,
)
from bookie_protocol.keys import NO_LIFE
from bookie_protocol.versioned import LedgerLife
from bookie_protocol.wire.availability import Availability
from bookie_protocol.wire.v2 import PackedEntries

__all__ = ["BookieInfo", "BookieOperations", "EntryAnswer", "LacAnswer", "LongPollAnswer"]

T = TypeVar("T")


BatchDone = Callable[[str, PackedEntries | PodkeeperError], None]
"""(bookie, entries as they came, at least one; or why there are none)."""


class BatchRequest(Request):
    """Made by `BookieOperations.send_batch_read`. `proven`: bookies that have served a batch; it adds its own.
    `stepped`: it was asked for with a step."""

    __slots__ = ("_bookie", "_done", "_first", "_proven", "_stepped", "ledger_id")

    def __init__(
        self, bookie: str, ledger_id: int, first: int, proven: set[str], done: BatchDone, *, stepped: bool = False
    ) -> None:
        self._bookie = bookie
        self.ledger_id = ledger_id
        self._first = first
        self._proven = proven
        self._stepped = stepped
        self._done: BatchDone | None = done

    def abandon(self) -> None:
        """Give up: it is not sent any more, or its answer is dropped."""
        self._done = None

    @property
    def is_wanted(self) -> bool:
        return self._done is not None

    def take(self, answer: Answer) -> None:
        entries = answer.detail
        if not isinstance(entries, PackedEntries) or entries.is_empty:
            self._end(ProtocolViolation("the bookie's answer to a batch read holds no entry"))
            return
        self._proven.add(self._bookie)
        if self._stepped and not entries.stepped:
            self._end(BadVersion(f"bookie {self._bookie} knows no batch reads with a step"))
            return
        self._end(entries)

    def answered(self, entry: bytes, max_lac: int | None) -> None:
        self.take(Answer(b"", None, entry, max_lac))

    def failed(self, error: PodkeeperError) -> None:
        if isinstance(error, ConnectionLost) and self._bookie not in self._proven:
            what = f"bookie {self._bookie} hung up on a batch read, so it knows none: {error}"
            cause, error = error, BadVersion(what)
            error.__cause__ = cause
        self._end(error)

    def describe(self) -> str:
        return f"the batch read from entry {self._first} of ledger {self.ledger_id}"

    def _end(self, outcome: PackedEntries | PodkeeperError) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(self._bookie, outcome)


class BookieOperations:
    """See the module. `transactions`: the client's one sequence of transaction ids."""

    def __init__(self, pool: ChannelPool, transactions: Iterator[int]) -> None:
        self._pool = pool
        self._transactions = transactions
        self._batch_reads_known: set[str] = set()

    # --- entries --------------------------------------------------------------------------------------------

    async def read_entry(
        self,
        bookie: str,
        ledger_id: int,
        entry_id: int,
        *,
        fence_key: bytes | None = None,
        life: bytes = NO_LIFE,
        high_priority: bool = False,
    ) -> EntryAnswer:
        """Read an entry; -1 is the last one that this bookie stores.

        `fence_key`: the ledger's master key; the ledger is fenced there, durably, before the entry is read. `life`, as
        copies name it: a bookie that stores another ledger of the id raises `LedgerStateUnknown`, and fences nothing.
        Raises `NoSuchEntry`, `NoSuchLedger`, `LedgerStateUnknown`, `Unauthorized` (wrong key), `StorageFault`.
        """
        what = f"the read of entry {entry_id} of ledger {ledger_id}"
        channel = self._pool.channel(bookie, ledger_id, None if fence_key is None else 3)
        is_plain = fence_key is None and not high_priority and entry_id != LAST_ENTRY
        request = channel.dialect.read(
            next(self._transactions),
            ledger_id,
            entry_id,
            fence_key=fence_key,
            life=life,
            recovery=high_priority,
            batch_class=is_plain and self._pool.options.reads_are_batch,
        )
        one_shot = OneShot(what if fence_key is None else f"the fencing read of {what[12:]}", _entry)
        key, frame = request
        if fence_key is None:
            channel.send_read(frame, key, one_shot)
            return await one_shot.outcome()
        return await self._ask(channel, request, one_shot, self._pool.options.read_timeout)

    async def add_entry(
        self, bookie: str, ledger: LedgerLife, entry_id: int, entry: bytes, master_key: bytes, *, recovery: bool = False
    ) -> None:
        """Store an entry as given. `recovery`: also in a fenced ledger, and with high priority.

        Raises `LedgerFenced`, `BookieReadOnly`, `Unauthorized`, `TooManyRequests`, `StorageFault`."""
        channel = self._pool.channel(bookie, ledger.ledger_id)
        encode = channel.dialect.add_encoder(ledger, master_key, recovery=recovery)
        key, frame = encode(next(self._transactions), entry_id, entry)
        one_shot = OneShot(f"the add of entry {entry_id} of ledger {ledger.ledger_id}", nothing)
        channel.send_add(frame, key, one_shot)
        await one_shot.outcome()

    def send_batch_read(
        self,
        bookie: str,
        ledger_id: int,
        first_entry_id: int,
        max_count: int,
        max_bytes: int,
        done: BatchDone,
        *,
        step: int = 1,
    ) -> BatchRequest:
        """Ask for consecutive entries from the first on, or for every `step`-th, which only Podkeeper's bookies
        support.

        `done` is called with the outcome later. At most `max_count` entries are asked for (0: no limit); a bookie that
        ignores the limit may send more. `max_bytes` limits the answer's frame; 0, or more than the frame limit, means
        the frame limit."""
        options = self._pool.options
        limit = options.max_frame_size
        channel = self._pool.channel(bookie, ledger_id, 2, apart=True)
        key, frame = channel.dialect.batch_read(
            next(self._transactions),
            ledger_id,
            first_entry_id,
            max_count,
            max_bytes if 0 < max_bytes < limit else limit,
            recovery=False,
            batch_class=options.reads_are_batch,
            step=step,
        )
        request = BatchRequest(bookie, ledger_id, first_entry_id, self._batch_reads_known, done, stepped=step != 1)
        channel.send(frame, key, request, options.read_timeout)
        return request

    async def batch_read(
        self,
        bookie: str,
        ledger_id: int,
        first_entry_id: int,
        max_count: int,
        max_bytes: int,
        *,
        step: int = 1,
    ) -> PackedEntries:
        """Send a batch read as `send_batch_read` does, and return the entries as they came, at least one.

        Raises what `read_entry` raises for the first entry, and `BadVersion` if the bookie does not support batch reads
        (it hung up on the first one: bookies before 4.17 do), or not with a step."""
        answered: asyncio.Future[PackedEntries | PodkeeperError] = asyncio.get_running_loop().create_future()

        def done(_: str, outcome: PackedEntries | PodkeeperError) -> None:
            if not answered.done():  # else cancelled in this very turn of the loop
                answered.set_result(outcome)

        request = self.send_batch_read(bookie, ledger_id, first_entry_id, max_count, max_bytes, done, step=step)
        try:
            outcome = await answered
        finally:
            request.abandon()
        if isinstance(outcome, PodkeeperError):
            raise fresh(outcome)
        return outcome

    # --- the last add confirmed -----------------------------------------------------------------------------

    async def read_lac(self, bookie: str, ledger_id: int) -> LacAnswer:
        """Return the explicit LAC and the last entry that this bookie knows.

        Raises `NoSuchEntry` when it has neither (also of an unknown ledger), `NoSuchLedger`,
        `LedgerStateUnknown`, `StorageFault`; `BadVersion` in a client of version 2, which reads entry -1
        instead.
        """
        channel = self._pool.channel(bookie, ledger_id)
        request = channel.dialect.read_lac(next(self._transactions), ledger_id)
        one_shot = OneShot(f"the read of the LAC of ledger {ledger_id}", detail_of(LacAnswer))
        return await self._ask(channel, request, one_shot, self._pool.options.read_timeout)

    async def write_lac(
        self, bookie: str, ledger_id: int, master_key: bytes, lac: int, body: bytes, life: bytes = NO_LIFE
    ) -> None:
        """Store an explicit LAC; `body` is its packet. Also in a fenced ledger. `life`: only in the ledger with it.

        Raises `Unauthorized`, `BookieReadOnly`, `StorageFault`; `BadVersion` in a client of version 2.
        """
        channel = self._pool.channel(bookie, ledger_id)
        request = channel.dialect.write_lac(next(self._transactions), ledger_id, master_key, lac, body, life)
        one_shot = OneShot(f"the explicit LAC {lac} of ledger {ledger_id}", nothing)
        await self._ask(channel, request, one_shot, self._pool.options.add_timeout)

    async def long_poll(
        self,
        bookie: str,
        ledger_id: int,
        entry_id: int,
        previous_lac: int,
        timeout: float,
        *,
        piggyback_entry: bool,
    ) -> LongPollAnswer:
        """Wait until this bookie's LAC of the ledger passes `previous_lac`, at most `timeout` seconds, and
        read.

        `piggyback_entry`: `entry_id` is -1, and entry `previous_lac + 1` comes along if this bookie stores it;
        when the time is up, neither entry nor error. Without it, `entry_id` is read after the wait. The answer
        may take the time-out of reads on top. Raises what `read_entry` raises; `BadVersion` in a client of
        version 2.
        """
        channel = self._pool.channel(bookie, ledger_id)
        request = channel.dialect.long_poll(
            next(self._transactions),
            ledger_id,
            entry_id,
            previous_lac,
            max(0, round(timeout * 1000)),
            piggyback=piggyback_entry,
        )
        one_shot = OneShot(f"the long poll of ledger {ledger_id} behind LAC {previous_lac}", _long_poll)
        return await self._ask(channel, request, one_shot, max(0.0, timeout) + self._pool.options.read_timeout)

    async def force_ledger(self, bookie: str, ledger_id: int) -> None:
        """Make durable what this bookie acknowledged before its sync (deferred sync).

        Raises `StorageFault`, `TooManyRequests`; `BadVersion` in a client of version 2.
        """
        channel = self._pool.channel(bookie, ledger_id)
        request = channel.dialect.force_ledger(next(self._transactions), ledger_id)
        one_shot = OneShot(f"the force of ledger {ledger_id}", nothing)
        await self._ask(channel, request, one_shot, self._pool.options.add_timeout)

    # --- the bookie -----------------------------------------------------------------------------------------

    async def answers(self, bookie: str, ledger_id: int = 0, entry_id: int = 0) -> bool:
        """Return whether the bookie answers a read in time, on the connection that adds of this ledger use. What it
        answers does not matter, unless it says that it has too much to do. The answer is short if there is no such
        entry."""
        try:
            await self.read_entry(bookie, ledger_id, entry_id)
        except (BookieUnavailable, ProtocolViolation, TooManyRequests, Unauthorized):
            return False
        except PodkeeperError:
            return True
        return True

    async def bookie_info(self, bookie: str) -> BookieInfo:
        """Total and free space of the bookie's ledger disks, in bytes."""
        channel = self._pool.channel(bookie, version=3)
        request = channel.dialect.bookie_info(next(self._transactions))
        one_shot = OneShot("the request for its space", detail_of(BookieInfo))
        return await self._ask(channel, request, one_shot, self._pool.options.read_timeout)

    async def entries_of_ledger(self, bookie: str, ledger_id: int) -> Availability:
        """Which entries of the ledger this bookie stores. Raises `NoSuchLedger`, `StorageFault`.

        Java bookies with DbLedgerStorage never answer for a ledger that they know: `BookieTimeout`.
        """
        channel = self._pool.channel(bookie, ledger_id, 3)
        request = channel.dialect.entries_of_ledger(next(self._transactions), ledger_id)
        one_shot = OneShot(f"the list of entries of ledger {ledger_id}", detail_of(Availability))
        return await self._ask(channel, request, one_shot, self._pool.options.read_timeout)

    async def _ask(self, channel: Channel, request: KeyAndFrame, one_shot: OneShot[T], timeout: float) -> T:
        key, frame = request
        channel.send(frame, key, one_shot, timeout)
        return await one_shot.outcome()


def _entry(answer: Answer) -> EntryAnswer:
    if not answer.entry:
        raise ProtocolViolation("the bookie's answer to a read holds no entry")
    return EntryAnswer(answer.entry, answer.max_lac)


def _long_poll(answer: Answer) -> LongPollAnswer:
    return LongPollAnswer(NO_LAC if answer.max_lac is None else answer.max_lac, answer.entry or None)


class OneShot(Request, Generic[T]):
    """A request with one answer. `convert` returns the result of a successful answer, or raises `ProtocolViolation`."""

    __slots__ = ("_answered", "_convert", "_what")

    def __init__(self, what: str, convert: Callable[[Answer], T]) -> None:
        self._what = what
        self._convert = convert
        self._answered: asyncio.Future[T | PodkeeperError] = asyncio.get_running_loop().create_future()

    async def outcome(self) -> T:
        """Return the outcome, or raise the error that the request ended with."""
        outcome = await self._answered
        if isinstance(outcome, PodkeeperError):
            raise fresh(outcome)
        return outcome

    @property
    def is_wanted(self) -> bool:
        return not self._answered.done()

    def take(self, answer: Answer) -> None:
        if self._answered.done():
            return
        try:
            self._answered.set_result(self._convert(answer))
        except PodkeeperError as error:
            self.failed(fresh(error))

    def answered(self, entry: bytes, max_lac: int | None) -> None:
        self.take(Answer(b"", None, entry, max_lac))

    def failed(self, error: PodkeeperError) -> None:
        if not self._answered.done():
            self._answered.set_result(error)

    def describe(self) -> str:
        return self._what


def detail_of(kind: type[T]) -> Callable[[Answer], T]:
    """Return a conversion: the answer's detail, which must be a `kind`."""

    def convert(answer: Answer) -> T:
        if not isinstance(answer.detail, kind):
            raise ProtocolViolation(f"the bookie's answer holds no {kind.__name__}")
        return answer.detail

    return convert


def nothing(answer: Answer) -> None:
    """A conversion: success says it all."""
