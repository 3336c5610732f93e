"""What a bookie sends on one connection: bytes become frames, frames answers, and each answer ends the request that
waits for it.

The answers to adds, of which many come at a time, are neither decoded nor looked at one by one, as far as that goes.

Frames that are not whole yet are in memory of the connection's own (`ReceiveBuffer`). The network writes into `room`,
the connection looks at `received` and drops what it has handled; the beginning of the next frame moves to the front.
So each byte of a large answer is copied once from here; pieces that come as objects of their own would be copied when
they come, and when they are joined.

Invariants
- Answers may come in any order; each ends the oldest request with its key. One that nobody waits for any more is
  dropped.
- An answer that is no frame, or too large, raises `ProtocolViolation`, before there is memory for it: the stream
  cannot be trusted any more.
- What waits in memory is bounded by `ReceiveBuffer`.
- The buffer always has room, and for the rest of the frame with which it begins. It takes `SMALL`, `LARGE` from the
  first larger frame on, and the size of a still larger one until it is handled.

Event loop only.

Source: reference wire protocol, sections 1 and 10.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bookie_client.connection.dialect import Dialect
from bookie_client.connection.health import BookieRecord
from bookie_client.connection.latency import Lateness
from bookie_client.connection.request import BookieRequest, Outstanding, SameKey
from bookie_protocol.wire.framing import LENGTH, LENGTH_SIZE, check_length

LARGE_FRAME: Final = 64 * 1024
"""Bytes from which an answer is copied out of the receive buffer alone. An acknowledgement is never that large."""
SMALL: Final = 64 * 1024
LARGE: Final = 256 * 1024
"""Bytes; some answers of the size that batch reads usually have."""
_RETAINED: Final = 16 << 20
"""Bytes that the process may keep of what was freed: the default window of one range."""


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
        self._buffer = ReceiveBuffer()
        self._wanted = LENGTH_SIZE
        """Bytes of the frame with which the buffer begins, or of what tells its length."""

    def room(self) -> memoryview:
        """Where the next bytes go; never empty."""
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
        """What came as an object. Raises `ProtocolViolation`."""
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
        """As `_take_frames`; large frames in front are copied alone, and once."""
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
        """Handle the answers to adds with which `data` begins, if nothing else stands between them. Adds of one writer
        that lie one behind the other are told together."""
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
            request.refused(self._bookie_id, answer.error(what))


class ReceiveBuffer:
    """See the module."""

    def __init__(self) -> None:
        self._memory = memoryview(bytearray(SMALL))
        self._filled = 0

    def __len__(self) -> int:
        """Bytes received and not dropped yet."""
        return self._filled

    def room(self) -> memoryview:
        """Where the next bytes go; never empty. `took` tells how many came."""
        return self._memory[self._filled :]

    def took(self, nbytes: int) -> int:
        """Note that so many bytes came; returns how many there are now."""
        self._filled += nbytes
        return self._filled

    def received(self) -> memoryview:
        """All that is there. Not to be kept: its memory is written to again."""
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
    """glibc gives freed memory back to the system beyond a threshold that begins at 128 KB, which may be less than one
    answer: the memory of each would be mapped page by page anew. A block of its own that is freed raises the threshold
    to twice its size. This is one, and nobody touches it; other allocators do not mind."""
    bytes(_RETAINED // 2)
