"""Work on a read lane whose result is sent to a client, and plain reads that run together.

Plain reads of one ledger run on its lane together, and are answered together.

Invariants
- A read whose client has no room, because it does not take its answers or holds its share of the memory already, is not
  begun: it is put aside, and given to its lane again when there is room. Reads that go together are put aside together.
- A read counts from before it is read until its answer has been handed to the connection. If the entry turns out to be
  larger than was known, and there is no room for that, it is let go, and read again when there is.
- A read that waited until its connection was closed is not made.
- At most `TOGETHER` plain reads are one piece of work, so that a lane goes on with others, and hands its results over.
- An error of one read concerns that read, and where each takes long those before it are answered meanwhile.

Threads: event loop only, but for the work, and `_on_lane`, which belong to the lane.

Source: docs/internals/wire-protocol.md, sections 3.6, 8.2 and 10.1.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from bookie_pod.ledgers.state import LedgerState
from bookie_pod.server.tcp.read_lanes import ReadLanes
from bookie_pod.server.tcp.replies import code_of, status_of
from bookie_pod.server.tcp.request_log import RequestId
from bookie_pod.server.tcp.requests import Reply
from bookie_pod.server.tcp.wire import Wire
from bookie_protocol.errors import BookieUnavailable, TooManyRequests
from bookie_protocol.wire.v2 import RESPONSE_SIZE, OpCode, response_prefix
from bookie_protocol.wire.v3_encode import read_error, read_response
from bookie_protocol.wire.v3_hot import ReadFields
from bookie_protocol.wire.varint import decode_uint64

WORTH_BYTES: Final = 4096
"""Smaller answers are not worth counting: a connection has a bounded number of reads under way."""

HEADER_BYTES: Final = 128
"""Bytes of an answer beside its entries, about."""
LENGTH_BYTES: Final = 80
"""Bytes of each of several entries beside its own, about: its length, and the objects of its bytes."""
_LATER: Final = object()
TOGETHER: Final = 32
LONG_S: Final = 0.005
"""After so long what was read is handed over, though there is more to read."""
PIECE_BYTES: Final = 64 * 1024
"""Answers are joined up to about so many bytes; no copy is larger than that and one entry."""

PlainRead = tuple[int, Any, int]
"""Entry id, what the answer repeats of the request, bytes that are reserved for it."""
ReadEach = Callable[[int, Sequence[int]], Iterator[bytes | Exception]]


def run(
    lanes: ReadLanes,
    ledger_id: int,
    work: Callable[[], Any],
    done: Callable[[Any, BaseException | None], None],
    reply: Reply,
    most: int = 0,
) -> None:
    """Run `work` on the ledger's lane, then `done(result, error)` on the event loop. `most`: bytes that the result may
    have, if that is known before. Raises TooManyRequests."""
    _LaneWork(lanes, ledger_id, work, done, reply, most if most >= WORTH_BYTES else 0).give()


class _LaneWork:
    """Holds nothing that holds it: what is done is gone at once, without the collector of cycles."""

    __slots__ = ("_counted", "_done", "_lanes", "_ledger_id", "_reply", "_wanted", "_work")

    def __init__(
        self,
        lanes: ReadLanes,
        ledger_id: int,
        work: Callable[[], Any],
        done: Callable[[Any, BaseException | None], None],
        reply: Reply,
        wanted: int,
    ) -> None:
        self._lanes = lanes
        self._ledger_id = ledger_id
        self._work = work
        self._done = done
        self._reply = reply
        self._wanted = wanted
        self._counted = 0

    def give(self) -> None:
        """Give it to its lane. Raises TooManyRequests."""
        self._lanes.run(self._ledger_id, self._on_lane, self._on_loop)

    def _on_lane(self) -> Any:
        """If the work raises, what was taken for it goes back on the loop."""
        reply = self._reply
        if reply.gone:
            raise BookieUnavailable("the connection that asked is closed")
        if not self._counted:
            if reply.must_wait or not reply.take(self._wanted):
                return _LATER
            self._counted = self._wanted
        result = self._work()
        nbytes = _size(result)
        if nbytes < WORTH_BYTES:
            nbytes = 0
        if nbytes > self._counted and not reply.take(nbytes - self._counted):
            self._wanted = nbytes
            return _LATER
        if nbytes < self._counted:
            reply.making(nbytes - self._counted)
        self._counted = nbytes
        return result

    def _on_loop(self, result: Any, error: BaseException | None) -> None:
        if result is _LATER:
            self._give_back()
            self._reply.postpone(self._again, self._wanted)
            return
        try:
            self._done(result, error)
        finally:
            self._give_back()

    def _again(self) -> None:
        self._counted = self._wanted
        try:
            self.give()
        except TooManyRequests as refused:
            self._on_loop(None, refused)

    def _give_back(self) -> None:
        if self._counted:
            counted, self._counted = self._counted, 0
            self._reply.made(counted)


def _size(result: Any) -> int:
    """Return the bytes of the answer: of one entry, with or without its LAC, or of several."""
    if isinstance(result, tuple):
        result = result[0]
    if isinstance(result, bytes):
        return HEADER_BYTES + len(result)
    return HEADER_BYTES + sum(map(len, result)) + LENGTH_BYTES * len(result) if isinstance(result, list) else 0


class ReadDialect(NamedTuple):
    """The answers of one version of the protocol to a plain read, given what is repeated of the request."""

    answer: Callable[[Any, bytes, LedgerState], Sequence[bytes]]
    refuse: Callable[[Any, BaseException], bytes]
    tells_lac: bool
    """The answer says how far the ledger is confirmed: that has to be known."""
    txn_of: Callable[[Any], int | None]
    """Returns the transaction id, of what is repeated of the request."""


class LaneReads:
    """One piece of work."""

    __slots__ = ("_counted", "_dialect", "_lanes", "_read_each", "_reads", "_since", "_state", "_wire")

    def __init__(
        self,
        wire: Wire,
        lanes: ReadLanes,
        read_each: ReadEach,
        dialect: ReadDialect,
        state: LedgerState,
        reads: Sequence[PlainRead],
    ) -> None:
        """`read_each` gives entries of a ledger in turn, on the lane."""
        self._wire = wire
        self._lanes = lanes
        self._read_each = read_each
        self._dialect = dialect
        self._state = state
        self._reads = reads
        self._since = time.perf_counter()
        self._counted = 0

    def begin(self) -> None:
        """Give them to the lane; those for which it has no place are refused."""
        reads = self._reads
        room = self._lanes.room(self._state.ledger_id, len(reads))
        self._reads = reads[:room]
        if room:
            self._lanes.run(self._state.ledger_id, self._on_lane, self._on_loop, room)
        if room < len(reads):
            refused = TooManyRequests(f"ledger {self._state.ledger_id}: too many reads are waiting already")
            self._answer(reads[room:], [refused] * (len(reads) - room))

    def _on_lane(self) -> list[bytes | BaseException]:
        """Return the results of the first of them that are not answered yet; those behind were not begun."""
        wire, reads = self._wire, self._reads
        each = self._read_each(self._state.ledger_id, [read[0] for read in reads])
        results: list[bytes | BaseException] = []
        uncounted = 0
        since = time.monotonic()
        for _ in reads:
            if results and time.monotonic() - since >= LONG_S:
                counted, self._counted = self._counted, 0
                wire.context.loop.call_soon_threadsafe(self._answer_first, results, counted)
                results, since = [], time.monotonic()
            if wire.closed:
                results.append(BookieUnavailable("the connection that asked is closed"))
                continue
            if wire.must_wait:
                break
            entry = next(each)
            results.append(entry)
            if not isinstance(entry, bytes):
                continue
            uncounted += len(entry)
            if uncounted >= WORTH_BYTES:
                self._counted += uncounted
                wire.share.make(uncounted)
                uncounted = 0
        return results

    def _on_loop(self, results: Any, error: BaseException | None) -> None:
        counted, self._counted = self._counted, 0
        self._answer_first([error] * len(self._reads) if error is not None else results, counted)
        if self._reads:
            self._wire.postpone(self.begin)

    def _answer_first(self, results: Sequence[bytes | BaseException], counted: int) -> None:
        """`counted`: bytes of them that were taken from what clients may hold."""
        reads, self._reads = self._reads[: len(results)], self._reads[len(results) :]
        try:
            self._answer(reads, results)
        finally:
            if counted:
                self._wire.made(counted)

    def _answer(self, reads: Sequence[PlainRead], results: Sequence[bytes | BaseException]) -> None:
        wire, state, (answer, refuse, *_) = self._wire, self._state, self._dialect
        elapsed_ms = (time.perf_counter() - self._since) * 1000
        pieces: list[bytes] = []
        nbytes = total = found = 0
        for read, result in zip(reads, results, strict=True):
            _, echo, reserved = read
            if isinstance(result, bytes):
                size = len(result)
                pieces += answer(echo, result, state)
                found += 1
            else:
                size = 0
                pieces.append(refuse(echo, result))
                self._failed(read, result, elapsed_ms)
            wire.read_finished(reserved, size)
            total += size
            nbytes += size
            if nbytes >= PIECE_BYTES:
                wire.send(b"".join(pieces))
                pieces, nbytes = [], 0
        if pieces:
            wire.send(b"".join(pieces))
        if found:
            wire.context.metrics.reads_done(found, total, elapsed_ms)
        if reads and elapsed_ms >= wire.context.request_log.slow_ms:
            wire.context.request_log.read_was_slow(wire.peer, self._identity(reads[0]), elapsed_ms)

    def _failed(self, read: PlainRead, error: BaseException, elapsed_ms: float) -> None:
        wire = self._wire
        wire.context.metrics.read_done("read", elapsed_ms, False)
        if isinstance(error, TooManyRequests):
            wire.context.metrics.read_rejected()
        if not wire.closed:
            wire.context.request_log.read_failed(wire.peer, self._identity(read), error)

    def _identity(self, read: PlainRead) -> RequestId:
        return RequestId(self._state.ledger_id, read[0], self._dialect.txn_of(read[1]))


# --- the dialects -------------------------------------------------------------------------------------------


def _answer_v2(ids: bytes, entry: bytes, state: LedgerState) -> Sequence[bytes]:
    return _prefix_v2(len(entry)), ids, entry


@lru_cache(maxsize=4096)
def _prefix_v2(size: int) -> bytes:
    """Return the bytes before the ids in the answer with an entry of this size."""
    return (RESPONSE_SIZE + size).to_bytes(4) + response_prefix(2, OpCode.READENTRY, 0)[4:]


def _refuse_v2(ids: bytes, error: BaseException) -> bytes:
    return response_prefix(2, OpCode.READENTRY, code_of(error)) + ids


def _answer_v3(read: ReadFields, entry: bytes, state: LedgerState) -> Sequence[bytes]:
    return read_response(read[0], read[1], read[2], entry, state.lac)


def _refuse_v3(read: ReadFields, error: BaseException) -> bytes:
    return read_error(read[0], read[1], read[2], status_of(error))


def _txn_v2(ids: bytes) -> None:
    """Return None: version 2 has no transaction ids."""


def _txn_v3(read: ReadFields) -> int:
    return decode_uint64(read[0])


V2_READS: Final = ReadDialect(_answer_v2, _refuse_v2, tells_lac=False, txn_of=_txn_v2)
V3_READS: Final = ReadDialect(_answer_v3, _refuse_v3, tells_lac=True, txn_of=_txn_v3)
