"""One pipelined connection to one bookie.

Invariants
- Every request ends exactly once, and never inside the call that sent it.
- Answers may come in any order; each ends the oldest request with its key.
- What is sent during one turn of the event loop goes out in one write, but for batch reads (`send_at_once`).
- An answer that is no frame, or too large, closes the connection: the stream cannot be trusted any more. A
  request that times out does not (the bookie may be slow); its late answer is dropped. But when requests time
  out and nothing at all is heard for a while longer, the connection is given up: the bookie may live elsewhere
  by now, and only a new connection finds it.
- What waits in memory is bounded by the windows of the writers and readers that use the connection, and by
  `ReceiveBuffer`.

Event loop only.

Source: reference wire protocol, sections 1 and 10; reference client protocol, section 18.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, cast

from bookie_client.connection.dialect import Dialect
from bookie_client.connection.health import BookieRecord
from bookie_client.connection.incoming import IncomingAnswers
from bookie_client.connection.latency import Lateness, Ticker
from bookie_client.connection.request import BookieRequest, FramedRequest, Outstanding
from bookie_protocol.errors import BookieTimeout, BookieUnavailable, ConnectionLost, PodkeeperError, ProtocolViolation
from bookie_protocol.wire.add_frames import AddFrames

FLUSH_BYTES: Final = 256 * 1024
"""Bytes collected in one turn of the loop that are written without waiting for its end."""
TICKS_PER_TIMEOUT: Final = 4
"""A request is given up after its time-out and at most one tick (a quarter of the shortest time-out) more."""


class BookieConnection(asyncio.BufferedProtocol):
    """See the module. Made by `ChannelPool`; `on_closed` is called once, when the connection is gone. `lateness`: makes
    time-outs adapt."""

    def __init__(
        self,
        bookie_id: str,
        dialect: Dialect,
        *,
        max_frame_size: int,
        ticker: Ticker,
        silence_ticks: int,
        record: BookieRecord,
        lateness: Lateness | None = None,
        on_closed: Callable[[BookieConnection], None],
    ) -> None:
        self.bookie_id = bookie_id
        self._ticker = ticker
        self._silence_ticks = silence_ticks
        self._record = record
        self._lateness = lateness
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._outstanding = Outstanding()
        self._takes_adds = False
        """Whether `AddFrames` go out as they are."""
        self._out: list[bytes | AddFrames] = []
        self._out_bytes = 0
        self._flush_scheduled = False
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

    def send(self, frame: bytes, key: bytes, request: BookieRequest, ticks: int) -> None:
        """Send a request that is given up after `ticks` ticks."""
        if self._reason is not None:
            self._loop.call_soon(request.refused, self.bookie_id, self._reason)
            return
        request.deadline = self._ticker.now + ticks
        self._outstanding.put(key, request)
        self._put(frame)

    def send_at_once(self, frame: bytes, key: bytes, request: BookieRequest, ticks: int) -> None:
        """The same, and it does not wait for what else this turn of the loop sends. A batch read is much work: kept
        back while answers to others are looked at, the bookie would have nothing to do, and then this side."""
        if self._reason is not None:
            self._loop.call_soon(request.refused, self.bookie_id, self._reason)
            return
        request.deadline = self._ticker.now + ticks
        self._outstanding.put(key, request)
        self._out.append(frame)
        self._write()

    def send_many(self, frames: bytes | AddFrames, requests: Sequence[FramedRequest], ticks: int) -> None:
        """Send many requests at once; `frames` are their frames, one behind the other."""
        if self._reason is not None:
            for request in requests:
                self._loop.call_soon(request.refused, self.bookie_id, self._reason)
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
        self._put(frames if self._takes_adds or isinstance(frames, bytes) else frames.frames)

    def send_measured(self, frame: bytes, key: bytes, request: BookieRequest, ticks: int) -> None:
        """The same, and its duration goes into the bookie's record."""
        request.sent = self._loop.time()
        self.send(frame, key, request, ticks)

    def _put(self, frames: bytes | AddFrames) -> None:
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
            # A transport that takes adds knows what is not bytes (`Connector`).
            self._transport.writelines(cast("list[bytes]", self._out))
        self._out = []
        self._out_bytes = 0

    # --- asyncio.BufferedProtocol ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._takes_adds = getattr(transport, "takes_adds", False)
        self._ticker.attach(self._tick)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._incoming.room()

    def buffer_updated(self, nbytes: int) -> None:
        self._silent_since = None
        try:
            self._incoming.received(nbytes)
        except ProtocolViolation as error:
            self.close(ProtocolViolation(f"bookie {self.bookie_id}: {error}"))

    def data_received(self, data: bytes) -> None:
        """Take bytes of a transport within this process, which are an object already."""
        self._silent_since = None
        try:
            self._incoming.take(data)
        except ProtocolViolation as error:
            self.close(ProtocolViolation(f"bookie {self.bookie_id}: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._reason is None:
            detail = f": {exc}" if exc else " by the bookie"
            self._reason = ConnectionLost(f"bookie {self.bookie_id}: connection closed{detail}")
        self._transport = None
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
        if self._transport is not None:
            self._transport.abort()

    async def shut_down(self, reason: PodkeeperError, timeout: float) -> None:
        """Send what is buffered, then close; after `timeout` seconds drop the connection."""
        if self._reason is None:
            self._reason = reason
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
                self._give_up(request)
        if expired and self._reason is None:
            self._check_silence()

    def _expired(self) -> list[tuple[bytes, BookieRequest]]:
        now, lateness = self._ticker.now, self._lateness
        if lateness is None:
            return self._outstanding.due(now, lambda _: 0)
        lateness.look()
        expired = self._outstanding.due(now, lateness.of)
        lateness.timed_out(expired)
        return expired

    def _give_up(self, request: BookieRequest) -> None:
        self._record.refused(BookieTimeout, was_read=hasattr(request, "sent"))
        error = BookieTimeout(f"bookie {self.bookie_id} did not answer {request.describe()} in time")
        request.refused(self.bookie_id, error)

    def _check_silence(self) -> None:
        if self._silent_since is None:
            self._silent_since = self._ticker.now
        elif self._ticker.now - self._silent_since >= self._silence_ticks:
            self.close(BookieUnavailable(f"bookie {self.bookie_id}: nothing heard from it, the connection is given up"))
