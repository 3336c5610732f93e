"""A TLS handshake, and the bytes that TLS gets from the socket at a time after it: `TlsReads` is between the two.

What is written after it leaves in parts (`tls_writes`).

TLS by itself receives up to 256 KiB at once, and keeps the memory for what it received at most as long as the
connection lasts. And no other part sees its work when there is no data for us: a client may ask for new keys with every
27 bytes, of which each takes some 20 microseconds.

Invariants
- Each step of a handshake waits for a turn of the loop that has room for it (`tls.STEPS`), and nothing more is received
  until it is made.
- A connection receives `PART` bytes at a time until it uses them up, and its owner allows more (`Told.may_grow`). Until
  then the rest of what TLS receives into is not resident, whatever its memory was used for before.
- TLS knows when the socket has not sent everything, also of what was written before TLS took over.
- Of each `WINDOW` that was received since the handshake at least `1 / RATIO` is data, but for one record that has not
  come to its end, and for what the connection has not taken yet. Otherwise `wasteful` is called.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, cast

from bookie_pod.server.tls_writes import InParts, hand_on_all
from bookie_pod.server.turns import Turns

PART: Final = 32 * 1024
WINDOW: Final = 32 * 1024
RATIO: Final = 5
"""The ratio of bytes received to data, at most.

A record of the oldest ciphers has some 70 bytes beside its data, and no request is shorter than 20.
"""
_LARGEST: Final = 256 * 1024
_RECORD: Final = 17 * 1024
_madvise: Final = getattr(ctypes.CDLL(None), "madvise", None) if hasattr(mmap, "MADV_DONTNEED") else None


@dataclass(frozen=True, slots=True)
class Told:
    """The questions that `TlsReads` asks a connection, and its reports to it."""

    received: Callable[[], int]
    """Bytes of data that TLS has given it."""
    may_grow: Callable[[], bool]
    """It uses up all that it may receive at a time; whether it may receive more from now on."""
    wasteful: Callable[[], None]


async def shake_hands(
    plain: asyncio.Transport,
    protocol: asyncio.Protocol,
    context: ssl.SSLContext,
    told: Told,
    steps: Turns,
    *,
    begin: Callable[[], bytes] = bytes,
    timeout_s: float | None = None,
) -> asyncio.Transport | None:
    """TLS of the server's side over this transport; the transport of `protocol` then, None if the client is gone.
    `begin`: what was received before TLS took over. Raises what the loop's `start_tls` raises."""
    if plain.is_closing():  # TLS would not learn that, and would wait for its client until its time is over
        return None
    loop, before = asyncio.get_running_loop(), plain.get_protocol()
    starting = asyncio.ensure_future(
        loop.start_tls(plain, protocol, context, server_side=True, ssl_handshake_timeout=timeout_s)
    )
    try:
        try:
            await asyncio.sleep(0)  # TLS is the socket's protocol then
        except BaseException:
            starting.cancel()
            raise
        below = cast("asyncio.BufferedProtocol | None", plain.get_protocol())
        if below is None or below is before:  # the socket was closed meanwhile
            return await starting
        reads = TlsReads(below, plain, told, steps)
        plain.set_protocol(reads)
        plain.set_write_buffer_limits(high=0, low=0)
        if plain.get_write_buffer_size():
            reads.pause_writing()  # a protocol before TLS may have been asked to wait, and TLS was not
        loop.call_soon(reads.begin, begin())
        secured = await starting
    finally:
        del starting  # the traceback of its error holds this frame
    if secured is None:
        return None
    reads.handshake_over(cast("_Secured", secured))
    reads.writes = InParts(secured, plain)
    return reads.writes


class _Secured(Protocol):
    """The methods that a transport with TLS has beside others, in asyncio and in uvloop."""

    def set_read_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Bytes that are received while the connection takes none."""

    def get_read_buffer_size(self) -> int:
        """Bytes that were received and not decrypted."""


class TlsReads(asyncio.BufferedProtocol):
    """The protocol of a socket, of which `plain` is the transport; `tls`: the protocol of TLS."""

    def __init__(self, tls: asyncio.BufferedProtocol, plain: asyncio.Transport, told: Told, steps: Turns) -> None:
        self._tls = tls
        self._plain = plain
        self._told = told
        self._steps = steps
        self._step: Callable[[], None] | None = None
        """The step of the handshake that is to be made."""
        self._whole = memoryview(tls.get_buffer(_LARGEST))
        self._buffer = self._whole[:PART]
        _give_back(self._whole[PART:])
        self._came = self._received_before = 0
        self._pending: Callable[[], int] | None = None
        """Bytes that TLS has, and that the connection has not taken yet; None: the handshake is under way."""
        self.writes: InParts | None = None
        """The transport that writes over TLS; None: the handshake is under way."""
        self._is_full = False
        """The socket has not sent everything."""

    def begin(self, data: bytes) -> None:
        """Feed the bytes that were received before."""
        if data:
            self._make(lambda: self._feed(data))

    def _feed(self, data: bytes) -> None:
        for start in range(0, len(data), PART):
            part = data[start : start + PART]
            self._buffer[: len(part)] = part
            self._tls.buffer_updated(len(part))

    def _make(self, step: Callable[[], None]) -> None:
        """Make a step of the handshake, now or in a later turn of the loop: nothing is received until then."""
        if self._steps.take(self._go_on):
            step()
        else:
            self._step = step
            self._plain.pause_reading()

    def _go_on(self) -> bool:
        step, self._step = self._step, None
        if step is None or self._plain.is_closing():
            return False
        self._plain.resume_reading()  # first: TLS may have enough after the step
        step()
        return True

    def handshake_over(self, secured: _Secured) -> None:
        """Watch the received bytes from now on: the handshake is over."""
        self._go_on()  # with what came meanwhile
        secured.set_read_buffer_limits(high=PART)
        self._came, self._received_before = 0, self._told.received()
        self._pending = secured.get_read_buffer_size

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._pending is None:
            self._make(lambda: self._tls.buffer_updated(nbytes))
            return
        self._tls.buffer_updated(nbytes)
        if nbytes == PART and self._buffer is not self._whole and self._told.may_grow():
            self._buffer = self._whole
        self._came += nbytes
        if self._came >= WINDOW:
            self._look(self._pending())

    def _look(self, pending: int) -> None:
        received = self._told.received()
        if self._came - pending > _RECORD + RATIO * (received - self._received_before):
            self._told.wasteful()
        self._came, self._received_before = 0, received

    def eof_received(self) -> bool | None:
        hand_on_all(self.writes)
        return self._tls.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.writes is not None:
            self.writes.lost()
        self._tls.connection_lost(exc)

    def pause_writing(self) -> None:
        if not self._is_full:
            self._is_full = True
            self._tls.pause_writing()
            if self.writes is not None:
                self.writes.pause()

    def resume_writing(self) -> None:
        if self._is_full:
            self._is_full = False
            self._tls.resume_writing()
            if self.writes is not None and not self._is_full:
                self.writes.go_on()


def _give_back(unused: memoryview) -> None:
    """Its pages go back to the system until something is received into them: nothing of what they hold is needed."""
    if _madvise is not None and unused:
        address = ctypes.addressof(ctypes.c_char.from_buffer(unused))
        begin, end = (
            -(-address // mmap.PAGESIZE) * mmap.PAGESIZE,
            (address + len(unused)) // mmap.PAGESIZE * mmap.PAGESIZE,
        )
        if begin < end:
            _madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)
