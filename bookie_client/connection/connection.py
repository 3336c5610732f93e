"""One pipelined connection to one bookie: it splits bytes into frames, decodes answers and ends the waiting requests.

The answers to adds, of which many come at a time, are neither decoded nor looked at one by one, as far as that goes.

Frames that are not whole yet are in memory of the connection's own (`ReceiveBuffer`). The network writes into `room`,
the connection looks at `received` and drops what it has handled; the beginning of the next frame moves to the front.
So each byte of a large answer is copied once from here; pieces that come as objects of their own would be copied when
they come, and when they are joined.

Invariants
- Every request ends exactly once, and never inside the call that sent it.
- What is sent during one turn of the event loop goes out in one write, but for batch reads (`send_at_once`).
- An answer that is no frame, or too large, raises `ProtocolViolation`, before there is memory for it, and closes the
  connection: the stream cannot be trusted any more. A request that times out does not (the bookie may be slow); its
  late answer is dropped. But when requests time out and nothing at all is heard for a while longer, the connection is
  given up: the bookie may live elsewhere by now, and only a new connection finds it.
- What waits in memory is bounded by the windows of the writers and readers that use the connection, by
  `ReceiveBuffer`, and by `Backlog`: while the bookie is behind with taking what was sent, requests fail at once with
  `BookieBusy`.
- Answers may come in any order; each ends the oldest request with its key. An answer without a waiting request is
  dropped.
- The buffer always has room, and for the rest of the frame with which it begins. It takes `SMALL`, `LARGE` from the
  first larger frame on, and the size of a still larger one until it is handled.

Event loop only.

Sources: docs/internals/wire-protocol.md, sections 1 and 10; docs/internals/client-protocol.md, section 18.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, cast

from bookie_client.connection.backlog import Backlog
from bookie_client.connection.dialect import Dialect
from bookie_client.connection.health import BookieRecord
from bookie_client.connection.latency import Lateness, Ticker
from bookie_client.connection.request import BookieRequest, FramedRequest, Outstanding, SameKey
from bookie_protocol.errors import (
    BookieBusy,
    BookieTimeout,
    BookieUnavailable,
    ConnectionLost,
    PodkeeperError,
    ProtocolViolation,
)
from bookie_protocol.wire.framing import LENGTH, LENGTH_SIZE, check_length

LARGE_FRAME: Final = 64 * 1024
"""Bytes from which an answer is copied out of the receive buffer alone. An acknowledgement is never that large."""
SMALL: Final = 64 * 1024
LARGE: Final = 256 * 1024
"""Bytes; some answers of the size that batch reads usually have."""
_RETAINED: Final = 16 << 20
"""Bytes that the process may keep of what was freed: the default window of one range."""
FLUSH_BYTES: Final = 256 * 1024
"""Bytes collected in one turn of the loop that are written without waiting for its end."""
TICKS_PER_TIMEOUT: Final = 4
"""A request is given up after its time-out and at most one tick (a quarter of the shortest time-out) more."""


class IncomingAnswers:
    """See the module. `clock`: that of the event loop; `lateness`: makes time-outs adapt."""

    def __init__(
        self,
        bookie_id: str,
        dialect: Dialect,
        outstanding: Outstanding,
        record: BookieRecord,
        clock: Callable[[], float],
        *,
        max_frame_size: int,
        lateness: Lateness | None,
    ) -> None:
        self._bookie_id = bookie_id
        self._dialect = dialect
        self._outstanding = outstanding
        self._record = record
        self._clock = clock
        self._max_frame_size = max_frame_size
        self._lateness = lateness
        self.origin = ""
        """The local address of the connection, once there is one."""
        self._buffer = ReceiveBuffer()
        self._wanted = LENGTH_SIZE
        """Bytes of the frame with which the buffer begins, or of what tells its length."""

    def room(self) -> memoryview:
        """Return the memory for the next bytes; never empty."""
        return self._buffer.room()

    def received(self, nbytes: int) -> None:
        """Take the bytes that came into the buffer. Raises `ProtocolViolation`."""
        buffer = self._buffer
        done = buffer.took(nbytes)  # all of them, if they are no frames
        if done < self._wanted:
            return
        try:
            done = self._take_received(buffer.received())
        finally:
            buffer.drop(done, self._wanted)
        self._look_at_lateness()

    def take(self, data: bytes) -> None:
        """Take received bytes that came as an object. Raises `ProtocolViolation`."""
        rest = memoryview(data)
        if not self._buffer:
            rest = rest[self._take_frames(data) :]
            self._look_at_lateness()
            self._buffer.drop(0, self._wanted)
        while rest:
            room = self.room()
            piece, rest = rest[: len(room)], rest[len(room) :]
            room[: len(piece)] = piece
            self.received(len(piece))

    def _look_at_lateness(self) -> None:
        if self._lateness is not None:
            self._lateness.answers_came(self._outstanding)

    # --- frames ---------------------------------------------------------------------------------------------

    def _take_received(self, received: memoryview) -> int:
        """Handle frames as `_take_frames` does, but copy large frames at the front alone, and once."""
        done, size = 0, len(received)
        while size - done >= LENGTH_SIZE:
            (length,) = LENGTH.unpack_from(received, done)
            if length < LARGE_FRAME:
                return done + self._take_frames(bytes(received[done:]))
            check_length(length, self._max_frame_size)
            start, end = done + LENGTH_SIZE, done + LENGTH_SIZE + length
            if end > size:
                self._wanted = end - done
                return done
            self._take_answer(bytes(received[start:end]))
            done = end
        self._wanted = LENGTH_SIZE
        return done

    def _take_frames(self, data: bytes) -> int:
        """Handle all complete frames of `data`; returns how many bytes they took."""
        position, size, longest = self._take_acknowledgements(data), len(data), self._max_frame_size - LENGTH_SIZE
        unpack, acknowledged, take = LENGTH.unpack_from, self._dialect.acknowledged, self._outstanding.take
        bookie = self._bookie_id
        while size - position >= LENGTH_SIZE:
            (length,) = unpack(data, position)
            end = position + LENGTH_SIZE + length
            if not 0 < length <= longest:
                check_length(length, self._max_frame_size)
            if end > size:
                self._wanted = end - position
                return position
            start = position + LENGTH_SIZE
            position = end
            key = acknowledged(data, start, end)
            if key is None:
                self._take_answer(data[start:end])
                continue
            request = take(key)
            if request is not None:
                request.acknowledged(bookie)
        self._wanted = LENGTH_SIZE
        return position

    # --- answers --------------------------------------------------------------------------------------------

    def _take_acknowledgements(self, data: bytes) -> int:
        """Handle the run of answers to adds at the start of `data`. Consecutive adds of one writer are answered
        together."""
        run = self._dialect.acknowledged_run(data)
        if run is None:
            return 0
        keys, taken = run
        outstanding = self._outstanding
        pop = outstanding.pop
        answered: list[BookieRequest] = []
        for key in keys:
            request = pop(key, None)
            if isinstance(request, SameKey):
                request = outstanding.oldest(key, request)
            if request is not None:
                answered.append(request)
        at, bookie = 0, self._bookie_id
        while at < len(answered):
            at = answered[at].acknowledged_run(answered, at, bookie)
        return taken

    def _take_answer(self, body: bytes) -> None:
        """Any other answer."""
        answer = self._dialect.decode(body)
        request = self._outstanding.take(answer.key)
        if request is None:
            return  # given up before
        sent = getattr(request, "sent", None)
        if sent is not None:
            now = self._clock()
            self._record.read_took(now - sent, now)
        if answer.error is None:
            request.accepted(self._bookie_id, answer)
        else:
            self._record.refused(answer.error, was_read=sent is not None)
            what = f"bookie {self._bookie_id} answered {answer.error.v3.name} to {request.describe()}"
            request.refused(self._bookie_id, answer.error(what + self.named(answer.key)))

    def named(self, key: bytes) -> str:
        """Return what the bookie's log has of a request, for the end of a message: transaction id and local address."""
        found = self._dialect.shown_key(key)
        words = [*([found] if found else []), *([f"from {self.origin}"] if self.origin else [])]
        return f" ({', '.join(words)})" if words else ""


class ReceiveBuffer:
    """See the module."""

    def __init__(self) -> None:
        self._memory = memoryview(bytearray(SMALL))
        self._filled = 0

    def __len__(self) -> int:
        """Bytes received and not dropped yet."""
        return self._filled

    def room(self) -> memoryview:
        """Return the memory for the next bytes; never empty. `took` reports how many came."""
        return self._memory[self._filled :]

    def took(self, nbytes: int) -> int:
        """Note that so many bytes came; returns how many there are now."""
        self._filled += nbytes
        return self._filled

    def received(self) -> memoryview:
        """Return all that is there. Not to be kept: its memory is written to again."""
        return self._memory[: self._filled]

    def drop(self, nbytes: int, wanted: int) -> None:
        """The first `nbytes` are handled; the frame behind them has `wanted` bytes, as far as is known."""
        rest = self._memory[nbytes : self._filled]
        size = self._size(wanted)
        if size != len(self._memory):
            if len(self._memory) == SMALL:
                _keep_freed_memory()
            self._memory = memoryview(bytearray(size))
        elif not nbytes:
            return
        self._memory[: len(rest)] = rest
        self._filled = len(rest)

    def _size(self, wanted: int) -> int:
        size = len(self._memory)
        if wanted > size:
            return max(wanted, LARGE)
        return LARGE if wanted <= LARGE < size else size


def _keep_freed_memory() -> None:
    """Raise the threshold above which glibc returns freed memory to the system, by freeing one large block.

    The threshold begins at 128 KB, which may be less than one answer: the memory of each answer would be mapped page by
    page again. Freeing a block of its own raises it to twice the block's size. The block is never touched; other
    allocators ignore it."""
    bytes(_RETAINED // 2)


class BookieConnection(asyncio.BufferedProtocol):
    """See the module. Made by `ChannelPool`; `on_closed` is called once, when the connection is gone. `patience`: whole
    ticks that a byte may wait before it leaves. `lateness`: makes time-outs adapt."""

    def __init__(
        self,
        bookie_id: str,
        dialect: Dialect,
        *,
        max_frame_size: int,
        ticker: Ticker,
        patience: int,
        silence_ticks: int,
        record: BookieRecord,
        lateness: Lateness | None = None,
        on_closed: Callable[[BookieConnection], None],
    ) -> None:
        self.bookie_id = bookie_id
        self._ticker = ticker
        self._patience = patience
        self._silence_ticks = silence_ticks
        self._record = record
        self._lateness = lateness
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._outstanding = Outstanding()
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._flush_scheduled = False
        self._backlog = Backlog()
        self._barred = False
        """True if the connection is closed, or was behind when it was last asked: look before sending."""
        self._incoming = IncomingAnswers(
            bookie_id,
            dialect,
            self._outstanding,
            record,
            self._loop.time,
            max_frame_size=max_frame_size,
            lateness=lateness,
        )
        self._silent_since: int | None = None
        self._reason: PodkeeperError | None = None
        self._gone = asyncio.Event()

    # --- sending --------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self._transport is not None and self._reason is None

    @property
    def outstanding(self) -> int:
        """Requests without an answer (requests for the same entry on a v2 connection may count as one)."""
        return len(self._outstanding)

    def refusal(self) -> PodkeeperError | None:
        """Return why requests fail at once now; None if they are sent."""
        if self._reason is not None:
            return self._reason
        if self._barred and self._backlog.is_behind(self._unsent):
            return BookieBusy(
                f"bookie {self.bookie_id} is busy: it has not taken {self._unsent} bytes that were sent to it; requests"
                " fail until it has"
            )
        self._barred = False
        return None

    @property
    def _unsent(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def send(self, frame: bytes, key: bytes, request: BookieRequest, ticks: int) -> None:
        """Send a request that is given up after `ticks` ticks."""
        if self._barred and (refusal := self.refusal()) is not None:
            self._loop.call_soon(request.refused, self.bookie_id, refusal)
            return
        request.deadline = self._ticker.now + ticks
        self._outstanding.put(key, request)
        self._put(frame)

    def send_at_once(self, frame: bytes, key: bytes, request: BookieRequest, ticks: int) -> None:
        """The same, and it does not wait for what else this turn of the loop sends. A batch read is much work: kept
        back while answers to others are looked at, the bookie would have nothing to do, and then this side."""
        if self._barred and (refusal := self.refusal()) is not None:
            self._loop.call_soon(request.refused, self.bookie_id, refusal)
            return
        request.deadline = self._ticker.now + ticks
        self._outstanding.put(key, request)
        self._out.append(frame)
        self._out_bytes += len(frame)
        self._write()

    def send_many(self, frames: bytes, requests: Sequence[FramedRequest], ticks: int) -> None:
        """Send many requests at once; `frames` are their frames, one behind the other."""
        if self._barred and (refusal := self.refusal()) is not None:
            for request in requests:
                self._loop.call_soon(request.refused, self.bookie_id, refusal)
            return
        deadline = self._ticker.now + ticks
        outstanding = self._outstanding
        setdefault = outstanding.setdefault
        for request in requests:
            request.deadline = deadline
            before = setdefault(request.key, request)
            if before is not request:
                outstanding.put_behind(request.key, before, request)
        if self._lateness is not None and requests:
            self._lateness.adds_sent(requests[-1].key)
        self._put(frames)

    def send_measured(self, frame: bytes, key: bytes, request: BookieRequest, ticks: int) -> None:
        """The same, and its duration goes into the bookie's record."""
        request.sent = self._loop.time()
        self.send(frame, key, request, ticks)

    def _put(self, frames: bytes) -> None:
        self._out.append(frames)
        self._out_bytes += len(frames)
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)
        elif self._out_bytes >= FLUSH_BYTES:
            self._write()

    def _flush(self) -> None:
        self._flush_scheduled = False
        self._write()

    def _write(self) -> None:
        if self._transport is not None and self._out:
            self._transport.writelines(self._out)
            self._backlog.written += self._out_bytes
        self._out = []
        self._out_bytes = 0

    # --- asyncio.BufferedProtocol ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        own = transport.get_extra_info("sockname")
        if isinstance(own, tuple):
            self._incoming.origin = f"{own[0]}:{own[1]}"  # as the bookie's log has it
        self._ticker.attach(self._tick)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._incoming.room()

    def buffer_updated(self, nbytes: int) -> None:
        if self._silent_since is not None:
            self._heard()
        try:
            self._incoming.received(nbytes)
        except ProtocolViolation as error:
            self.close(ProtocolViolation(f"bookie {self.bookie_id}: {error}"))

    def data_received(self, data: bytes) -> None:
        """Take bytes that the transport has as an object, as that of a simulation does."""
        if self._silent_since is not None:
            self._heard()
        try:
            self._incoming.take(data)
        except ProtocolViolation as error:
            self.close(ProtocolViolation(f"bookie {self.bookie_id}: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._reason is None:
            detail = f": {exc}" if exc else " by the bookie"
            origin = f" (from {self._incoming.origin})" if self._incoming.origin else ""
            self._reason = ConnectionLost(f"bookie {self.bookie_id}: connection closed{detail}{origin}")
        self._barred = True
        self._transport = None
        self._record.stalled.discard(self)
        self._gone.set()
        self._ticker.detach(self._tick)
        requests = list(self._outstanding.requests())
        self._outstanding.clear()
        self._on_closed(self)
        for request in requests:
            request.refused(self.bookie_id, self._reason)

    def close(self, reason: PodkeeperError) -> None:
        """Drop the connection; what is outstanding fails with `reason`."""
        if self._reason is None:
            self._reason = reason
        self._barred = True
        if self._transport is not None:
            self._transport.abort()

    async def shut_down(self, reason: PodkeeperError, timeout: float) -> None:
        """Send what is buffered, then close; after `timeout` seconds drop the connection."""
        if self._reason is None:
            self._reason = reason
        self._barred = True
        self._write()
        if self._transport is not None:
            self._transport.close()
        try:
            async with asyncio.timeout(timeout):
                await self._gone.wait()
        except TimeoutError:
            self.close(reason)
            await self._gone.wait()

    # --- time-outs ------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        expired = self._expired()
        for key, request in expired:
            if self._outstanding.drop(key, request):
                self._give_up(key, request)
        self._look_at_silence(bool(expired))

    def _look_at_silence(self, timed_out: bool) -> None:
        """Give the connection up if nothing is heard for long while requests time out, none may be sent, or none is
        sent any more: bookies are not chosen while they are stalled, so no request would ever end that."""
        patience = self._patience if self._lateness is None else self._patience + self._lateness.of_adds
        behind = self._backlog.tick(self._ticker.now, self._unsent, patience)
        if behind:
            self._barred = True
        idle = self._silent_since is not None and not len(self._outstanding)
        if (behind or timed_out or idle) and self._reason is None:
            if self._silent_since is None:
                self._silent_since = self._ticker.now
            elif self._ticker.now - self._silent_since >= self._silence_ticks:
                self.close(
                    BookieUnavailable(f"bookie {self.bookie_id}: nothing heard from it, the connection is given up")
                )
        if behind or self._silent_since is not None:
            self._record.stalled.add(self)
        else:
            self._record.stalled.discard(self)

    def _heard(self) -> None:
        self._silent_since = None
        if not self._barred:
            self._record.stalled.discard(self)

    def _expired(self) -> list[tuple[bytes, BookieRequest]]:
        now, lateness = self._ticker.now, self._lateness
        if lateness is None:
            return self._outstanding.due(now, lambda _: 0)
        lateness.look()
        expired = self._outstanding.due(now, lateness.of)
        lateness.timed_out(expired)
        return expired

    def _give_up(self, key: bytes, request: BookieRequest) -> None:
        self._record.refused(BookieTimeout, was_read=hasattr(request, "sent"))
        named = self._incoming.named(key)
        error = BookieTimeout(f"bookie {self.bookie_id} did not answer {request.describe()} in time{named}")
        request.refused(self.bookie_id, error)
