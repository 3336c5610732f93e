"""The slots of a ledger's pages that have held a location durably at some time of its life.

A slot that has, and is zero now, has lost it; one that has not was never used. A page is stored as one bit for each
slot, the lowest of the first byte first, without the zeros at the end.

Invariants
- Bits are added and never taken away: a location that a page has lost stays lost until it is put again.
- The memory for a page does not depend on its place: a stranger chooses entry ids, but each page that is kept here has
  been written to a file.

Values; any thread.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from bookie_pod.storage.index.index_file import SLOT_BYTES

NOTHING: Final = b""
_NUMBER: Final = struct.Struct("=q")


def slots_in(data: bytes | bytearray) -> bytes:
    """Return the slots of a page that hold a location."""
    slots = np.frombuffer(data, np.int64, len(data) // SLOT_BYTES)  # zero has no byte order
    return np.packbits(slots != 0, bitorder="little").tobytes().rstrip(b"\0")


def joined(held: bytes, found: bytes) -> bytes:
    """Return the slots of either."""
    if held in (NOTHING, found):
        return found
    both = int.from_bytes(held, "little") | int.from_bytes(found, "little")
    return both.to_bytes(max(len(held), len(found)), "little")


class HeldPages(NamedTuple):
    """The pages of one ledger of which anything is known."""

    numbers: bytes = b""
    """Ascending, i64 each, as this machine has them."""
    slots: tuple[bytes, ...] = ()
    """The bits of each page, in the same order."""

    def get(self, page: int) -> bytes:
        """Return the bits of a page."""
        numbers = self.pages()
        at = bisect_left(numbers, page)
        return self.slots[at] if at < len(numbers) and numbers[at] == page else NOTHING

    def pages(self) -> Sequence[int]:
        """Their numbers, ascending."""
        return memoryview(self.numbers).cast("q")

    def replaced(self, pages: Iterable[tuple[int, bytes]]) -> HeldPages:
        """The same, but for these, which ascend."""
        numbers = self.pages()
        parts: list[bytes] = []
        slots: list[bytes] = []
        begin = 0
        for page, held in pages:
            end = bisect_left(numbers, page, begin)
            parts += self.numbers[_NUMBER.size * begin : _NUMBER.size * end], _NUMBER.pack(page)
            slots += self.slots[begin:end]
            slots.append(held)
            begin = end + (end < len(numbers) and numbers[end] == page)
        parts.append(self.numbers[_NUMBER.size * begin :])
        slots += self.slots[begin:]
        return HeldPages(b"".join(parts), tuple(slots))
