"""What a bookie sends on one connection: bytes become frames, frames answers, and each answer ends the request that
waits for it.

Invariants
- Answers may come in any order; each ends the oldest request with its key. One that nobody waits for any more is
  dropped.
- An answer that is no frame, or too large, raises `ProtocolViolation`, before there is memory for it: the stream cannot
  be trusted any more.
- What waits in memory is bounded by `ReceiveBuffer`.

The answers to adds, of which many come at a time, are neither decoded nor looked at one by one, as far as that goes.

Event loop only.

Source: reference wire protocol, sections 1 and 10.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bookie_client.connection.bookie_record import BookieRecord
from bookie_client.connection.dialect import Dialect
from bookie_client.connection.lateness import Lateness
from bookie_client.connection.outstanding import Outstanding, SameKey
from bookie_client.connection.receive_buffer import ReceiveBuffer
from bookie_client.connection.request import BookieRequest
from bookie_protocol.wire.framing import LENGTH, LENGTH_SIZE, check_length

LARGE_FRAME: Final = 64 * 1024
"""Bytes from which an answer is copied out of the receive buffer alone. An acknowledgement is never that large."""


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
