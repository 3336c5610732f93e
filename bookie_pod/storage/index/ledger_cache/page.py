"""One page of a ledger's slots, as the index file has it.

Invariants
- `data` is the page as it stands in the file: big-endian locations, 0 = absent.
- `version` grows after each change. A flush takes the version first, then the bytes; the page is clean afterwards only
  if the version is still that one.
- A page that is pinned or dirty is never evicted. `dropped`: its ledger was deleted, nobody may use what it holds.
- `replaced` is set while a slot holds a location in place of another one that the file may have: the entry logs must be
  synced before that reaches the file, or a crash could leave the ledger with neither copy.

Threads: flags and pins under the lock of the `PageTable`; `data` is written by one thread at a time, in single calls,
and may be read by any.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from bookie_pod.storage.index.index_file import SLOT_BYTES

_SLOT = struct.Struct(">q")
assert _SLOT.size == SLOT_BYTES


class IndexPage:
    """Slots `first_entry` up to the page's size."""

    __slots__ = (
        "data",
        "dirty",
        "dropped",
        "error",
        "first_entry",
        "ledger_id",
        "loading",
        "pins",
        "replaced",
        "version",
    )

    def __init__(self, ledger_id: int, first_entry: int) -> None:
        self.ledger_id = ledger_id
        self.first_entry = first_entry
        self.data = bytearray()
        self.dirty = False
        self.dropped = False
        self.replaced = False
        self.pins = 1
        self.version = 0
        self.loading: threading.Event | None = threading.Event()
        """Set and taken away when `data` is there, or `error` says why not."""
        self.error: BaseException | None = None

    def get(self, slot: int) -> int:
        """The location in a slot, 0 if there is none."""
        location: int = _SLOT.unpack_from(self.data, slot * SLOT_BYTES)[0]
        return location

    def put(self, slot: int, locations: Sequence[int]) -> None:
        """Write adjacent slots."""
        begin, length = slot * SLOT_BYTES, len(locations) * SLOT_BYTES
        if self.data.count(0, begin, begin + length) != length:
            self.replaced = True
        _slots(len(locations)).pack_into(self.data, begin, *locations)
        self.version += 1


@lru_cache(maxsize=64)
def _slots(count: int) -> struct.Struct:
    return struct.Struct(f">{count}q")


def entries_of(data: bytes | bytearray, first_entry: int) -> list[tuple[int, int]]:
    """(entry id, location) of the slots that are not empty, ascending. A part of a slot at the end is no slot."""
    if not any(data):
        return []
    count = len(data) // SLOT_BYTES
    locations = _slots(count).unpack_from(data)
    return [(first_entry + slot, location) for slot, location in enumerate(locations) if location]


def locations_in(data: bytes | bytearray) -> int:
    """How many slots are not empty."""
    slots = np.frombuffer(data, np.int64, len(data) // SLOT_BYTES)  # zero has no byte order
    return int(np.count_nonzero(slots))


def highest_entry(data: bytes | bytearray, first_entry: int) -> int | None:
    """The highest entry id with a location in these slots."""
    used = len(data.rstrip(b"\0"))
    slot = (used - 1) // SLOT_BYTES
    if used == 0 or (slot + 1) * SLOT_BYTES > len(data):  # a part of a slot at the end counts as zero
        found = entries_of(data, first_entry)
        return found[-1][0] if found else None
    return first_entry + slot
