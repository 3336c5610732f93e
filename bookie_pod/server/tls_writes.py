"""A transport with TLS that hands on no more than the socket takes, and counts all that it holds.

TLS by itself encrypts at once all that is written at once, and hands it to the socket. Its count does not have what the
socket has not sent, and only a later write asks its owner to wait. So answers wait here, and TLS gets a part when the
socket has sent everything before it.

Invariants
- TLS and the socket hold one part of what was written, at most, but at the end. TLS keeps the room for it as long as
  the connection lasts.
- `get_write_buffer_size` counts what waits here, what TLS holds and what the socket has not sent.
- The protocol waits while this is above the high-water mark, as beside a socket without TLS.
- A transport that is closed takes nothing more, and closes when everything was handed on.
- When the client says that it sends nothing more, TLS gets all that is left at once (`hand_on_all`), since it takes
  nothing later: such a client waits for its answers.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any, Final, Protocol, cast

PART: Final = 64 * 1024
"""Bytes that are encrypted at a time."""
_HIGH: Final = 64 * 1024
"""Bytes at which the protocol waits, unless it says otherwise, as of asyncio's transports."""
_NEVER: Final = 1 << 30
"""Bytes at which TLS asks the protocol to wait: it never holds so many."""
_Bytes = bytes | bytearray | memoryview


class _Writer(Protocol):
    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


def hand_on_all(transport: object) -> None:
    """Hand on what is left, because the client has said that it sends nothing more. Plain transports are left alone."""
    if isinstance(transport, InParts):
        transport.hand_on_all()


class InParts(asyncio.Transport):
    """Writes in parts to `secured`, the transport of TLS over `plain`.

    The protocol of `plain` calls `pause`, `go_on` and `lost`; that and the one of this call `hand_on_all`.
    """

    def __init__(self, secured: asyncio.Transport, plain: asyncio.Transport) -> None:
        super().__init__()
        self._secured = secured
        self._plain = plain
        self._left: deque[_Bytes] = deque()
        """The bytes that TLS has not got yet."""
        self._nbytes = 0
        """Bytes of what is left."""
        self._high, self._low = _HIGH, _HIGH // 4
        self._waits = plain.get_write_buffer_size() > 0
        """The socket has not sent everything."""
        self._is_full = False
        """The protocol waits."""
        self._closes = False
        secured.set_write_buffer_limits(high=_NEVER, low=0)

    # --- out ------------------------------------------------------------------------------------------------

    def write(self, data: _Bytes) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        if self.is_closing():
            return
        for data in list_of_data:
            if data:
                self._left.append(data)
                self._nbytes += len(data)
        self._hand_on()
        if not self._is_full and self.get_write_buffer_size() > self._high:
            self._is_full = True
            self._writer.pause_writing()

    def pause(self) -> None:
        """Hand nothing on until `go_on`: the socket does not take everything."""
        self._waits = True

    def go_on(self) -> None:
        """Hand on the next part: the socket has sent everything."""
        self._waits = False
        self._hand_on()
        if self._is_full and self.get_write_buffer_size() <= self._low:
            self._is_full = False
            self._writer.resume_writing()

    def _hand_on(self) -> None:
        while self._left and not self._waits:
            part = self._next_part()
            self._nbytes -= len(part)
            self._secured.write(part)
        if self._closes and not (self._left or self._waits or self._secured.is_closing()):
            self._secured.resume_reading()  # asyncio ends TLS only where nothing is left unread
            self._secured.close()

    def hand_on_all(self) -> None:
        """Hand on what is left, whatever the socket has sent."""
        self._waits = False
        self._hand_on()

    def _next_part(self) -> _Bytes:
        """Take `PART` bytes of what is left, or fewer: small answers are joined, as each write is a record of TLS."""
        first, left = self._left.popleft(), self._left
        if len(first) > PART:
            whole = memoryview(first)
            left.appendleft(whole[PART:])
            return whole[:PART]
        joined, size = [first], len(first)
        while left and size + len(left[0]) <= PART:
            size += len(left[0])
            joined.append(left.popleft())
        return first if len(joined) == 1 else b"".join(joined)

    @property
    def _writer(self) -> _Writer:
        return cast("_Writer", self._secured.get_protocol())

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _HIGH if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self._nbytes + self._secured.get_write_buffer_size() + self._plain.get_write_buffer_size()

    def can_write_eof(self) -> bool:
        return False

    # --- life -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        if not self._closes:
            self._closes = True
            self._hand_on()
            if not self._secured.is_closing():
                self._secured.pause_reading()

    def abort(self) -> None:
        self.lost()
        self._secured.abort()

    def lost(self) -> None:
        """The connection is gone: drop what is left."""
        self._left.clear()
        self._nbytes, self._is_full = 0, False

    def is_closing(self) -> bool:
        return self._closes or self._secured.is_closing()

    # --- the same as of the transport of TLS ------------------------------------------------------------------

    def pause_reading(self) -> None:
        self._secured.pause_reading()

    def resume_reading(self) -> None:
        if not self._closes:
            self._secured.resume_reading()

    def is_reading(self) -> bool:
        return self._secured.is_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._secured.get_extra_info(name, default)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._secured.get_protocol()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._secured.set_protocol(protocol)
