"""What a connection received of frames that are not whole yet, received into memory of its own.

The network writes into `room`, the connection looks at `received` and drops what it has handled; the beginning of the
next frame moves to the front. So each byte of a large answer is copied once from here; pieces that come as objects of
their own would be copied when they come, and when they are joined.

Invariants
- There is room always, and for the rest of the frame with which the buffer begins.
- Memory: `SMALL`, `LARGE` from the first larger frame on, and the size of a still larger one until it is handled.

One connection's event loop only.
"""

from __future__ import annotations

from typing import Final

SMALL: Final = 64 * 1024
LARGE: Final = 256 * 1024
"""Bytes; some answers of the size that batch reads usually have."""
_RETAINED: Final = 16 << 20
"""Bytes that the process may keep of what was freed: the default window of one range."""


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
