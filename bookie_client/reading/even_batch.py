"""Verification of entries that all have one size: of all together, by arrays over the answer, without a look at each.

Their lengths and ids have to be what they should be. For their digests one checksum is computed, over all of them in
turn, each with its digest behind it: CRC32C is linear, so what a string adds to the whole is cancelled by its own
checksum, and the result depends on how many there are and on their size alone. A string that its checksum does not fit
makes it another one. Where several do not fit, their differences cancel out once in 2**32 cases, as seldom as one
difference escapes its own checksum.

Invariant: a batch is only ever found good here. Which entry is damaged, and how, somebody else finds out.

Any thread. The array library is loaded when some batches have come: a short-lived client may never need it.

Source: reference client protocol, sections 5 and 11.5; reference wire protocol, section 7 (digests).
"""

from __future__ import annotations

import struct
import sys
from functools import lru_cache
from itertools import count as counting
from typing import Final

import google_crc32c

from bookie_client.reading.entry import EntryBatch
from bookie_protocol.entry import ENTRY_HEADER_SIZE
from bookie_protocol.wire.packed_entries import PackedEntries
from bookie_protocol.wire.v2_layout import ENTRY_LENGTH

_PREFIX: Final = struct.Struct(">iq")
"""Length and ledger id."""
_CHECKSUM_SIZE: Final = 4
_CHECKSUM_AT: Final = ENTRY_LENGTH.size + ENTRY_HEADER_SIZE
"""From the start of an entry, its length in front, as all places here."""
_PAYLOAD_AT: Final = _CHECKSUM_AT + _CHECKSUM_SIZE
_FEWEST: Final = 32
"""For fewer arrays do not pay."""
_LONGEST: Final = 2048
"""Longer ones cost more in copying than in looking at each. Bytes of an entry."""
_TOGETHER: Final = 128
"""Entries that are copied and looked at while the processor's cache holds them."""
_WORTH_LOADING: Final = 32
"""Batches; loading takes as long as looking at the entries of some thousand."""

_batches = counting(1)


def even_crc32c_batch(ledger_id: int, first: int, packed: PackedEntries, most: int, step: int = 1) -> EntryBatch | None:
    """The first `most` entries. None if this is not the way for them, or if anything is wrong."""
    body, at = packed.body, packed.start
    left = len(body) - at
    size = ENTRY_LENGTH.unpack_from(body, at)[0] if left >= ENTRY_LENGTH.size else 0
    if not ENTRY_HEADER_SIZE + _CHECKSUM_SIZE <= size <= _LONGEST:
        return None
    stride = ENTRY_LENGTH.size + size
    count = min(left // stride, most)
    if count < _FEWEST or (count < most and count * stride != left) or not _has_arrays():
        return None
    for place in range(0, count, _TOGETHER):
        run = memoryview(body)[at + place * stride : at + min(place + _TOGETHER, count) * stride]
        if not _is_sound(run, size, ledger_id, first + place * step, step):
            return None
    return EntryBatch(ledger_id, first, body, range(at, at + count * stride + 1, stride), _PAYLOAD_AT, step)


def _has_arrays() -> bool:
    if "numpy" not in sys.modules and next(_batches) <= _WORTH_LOADING:
        return False
    try:
        import numpy  # noqa: F401 - loaded here
    except Exception:  # for want of a descriptor, say: single digests do as well
        return False
    return True


def _is_sound(run: memoryview, size: int, ledger_id: int, first: int, step: int) -> bool:
    """Whether these are entries of this size with ids one step apart from `first` on, and digests that fit."""
    import numpy as np

    stride = ENTRY_LENGTH.size + size
    count = len(run) // stride
    prefix = _PREFIX.pack(size, ledger_id)
    ids = np.arange(first, first + count * step, step, dtype=">i8")
    if np.ndarray(count, f"V{len(prefix)}", run, 0, (stride,)).tobytes() != prefix * count:
        return False
    if np.ndarray(count, "V8", run, len(prefix), (stride,)).tobytes() != ids.tobytes():
        return False
    rows = np.ndarray((count, stride), np.uint8, run)
    covered = np.empty((count, size), np.uint8)
    covered[:, :ENTRY_HEADER_SIZE] = rows[:, ENTRY_LENGTH.size : _CHECKSUM_AT]
    covered[:, ENTRY_HEADER_SIZE:-_CHECKSUM_SIZE] = rows[:, _PAYLOAD_AT:]
    covered[:, -_CHECKSUM_SIZE:] = rows[:, _PAYLOAD_AT - 1 : _CHECKSUM_AT - 1 : -1]  # cancels least byte first
    return bool(google_crc32c.value(covered) == _crc32c_of_sound_strings(count, size - _CHECKSUM_SIZE))


@lru_cache(maxsize=1024)
def _crc32c_of_sound_strings(count: int, size: int) -> int:
    """The CRC32C of any `count` strings of `size` bytes, each with its own CRC32C behind it; computed from zeros."""
    string = bytes(size)
    return int(google_crc32c.value((string + google_crc32c.value(string).to_bytes(_CHECKSUM_SIZE, "little")) * count))
