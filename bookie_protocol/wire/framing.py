"""Frames: `length: u32 BE`, then that many bytes (reference wire protocol, section 1).

Invariants
- The largest legal length is the frame limit less the 4 bytes of the length itself; 0 is never legal. A
  length that breaks this is refused as soon as its 4 bytes are there, so memory stays below one frame plus
  one piece fed.
- Every byte fed is copied a bounded number of times, whatever the size of frames and pieces.
- Frames in front of an illegal length are still handed out.

One reader per connection; not thread-safe. The bookie's hot path cuts frames by itself.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from bookie_protocol.errors import ProtocolViolation

DEFAULT_MAX_FRAME_SIZE: Final = 5 * 1024 * 1024
"""`nettyMaxFrameSizeBytes` of Apache BookKeeper: bytes of a whole frame, its length word included."""
LEAST_RECEIVED_FRAME_SIZE: Final = 16 * 1024 * 1024
"""Bytes of a frame that every client receives, whatever it may send, unless it has a larger limit itself."""

LENGTH: Final = struct.Struct(">I")
LENGTH_SIZE: Final = 4
assert LENGTH.size == LENGTH_SIZE


def frame(body: bytes) -> bytes:
    """`body` with its length word in front."""
    return LENGTH.pack(len(body)) + body


def check_length(length: int, max_frame_size: int) -> None:
    """Raises ProtocolViolation when no frame of this length may exist (negative lengths read as huge
    ones)."""
    if length <= 0:
        raise ProtocolViolation(f"frame length {length} is not positive: closing the connection")
    if length > max_frame_size - LENGTH_SIZE:
        raise ProtocolViolation(
            f"frame length {length} is above the {max_frame_size - LENGTH_SIZE} bytes that are received here: closing"
            " the connection; a client receives more with a larger max_frame_size (nettyMaxFrameSizeBytes)"
        )


class FrameReader:
    """Cuts a byte stream into frame bodies."""

    def __init__(self, max_frame_size: int = DEFAULT_MAX_FRAME_SIZE) -> None:
        self._max_frame_size = max_frame_size
        self._buffer = bytearray()
        self._start = 0

    @property
    def pending(self) -> int:
        """Bytes taken in and not handed out as frames yet."""
        return len(self._buffer) - self._start

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[bytes]:
        """Take in `data`, then iterate over the bodies of all complete frames.

        The data is taken in at once; frames that were not iterated over come first in the next iteration. Raises
        ProtocolViolation, while iterating, at the first illegal length, and again at every later call.
        """
        if self._start:
            del self._buffer[: self._start]
            self._start = 0
        self._buffer += data
        return iter(self._next, None)

    def _next(self) -> bytes | None:
        body_start = self._start + LENGTH_SIZE
        if len(self._buffer) < body_start:
            return None
        (length,) = LENGTH.unpack_from(self._buffer, self._start)
        check_length(length, self._max_frame_size)
        end = body_start + length
        if len(self._buffer) < end:
            return None
        self._start = end
        with memoryview(self._buffer) as view:
            return bytes(view[body_start:end])
