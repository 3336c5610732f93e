"""Verification of entries that all have one size: of all together, by arrays over the answer, without a look at each.

Their lengths and ids have to be what they should be. Their digests are joined to the checksum of all headers and
payloads behind each other, which is computed once: an entry that its digest does not fit makes it differ
(`bookie_protocol.joined_crc32c`).

Invariant: a batch is only ever found good here. Which entry is damaged, and how, somebody else finds out.

Pure; any thread.

Source: reference client protocol, sections 5 and 11.5.
"""

from __future__ import annotations

import struct
from typing import Final

import google_crc32c

from bookie_client.reading.entry_batch import EntryBatch
from bookie_protocol.entry import ENTRY_HEADER_SIZE
from bookie_protocol.joined_crc32c import MOST, JoinedCrc32c, joined_crc32c
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


def even_crc32c_batch(ledger_id: int, first: int, packed: PackedEntries, most: int) -> EntryBatch | None:
    """The first `most` entries. None if this is not the way for them, or if anything is wrong."""
    body, at = packed.body, packed.start
    left = len(body) - at
    size = ENTRY_LENGTH.unpack_from(body, at)[0] if left >= ENTRY_LENGTH.size else 0
    if not ENTRY_HEADER_SIZE + _CHECKSUM_SIZE <= size <= _LONGEST:
        return None
    stride = ENTRY_LENGTH.size + size
    count = min(left // stride, most)
    if count < _FEWEST or (count < most and count * stride != left):
        return None
    joined = joined_crc32c(size - _CHECKSUM_SIZE)
    if not joined.is_worth_it():
        return None
    for place in range(0, count, MOST):
        run = memoryview(body)[at + place * stride : at + min(place + MOST, count) * stride]
        if not _is_sound(run, size, ledger_id, first + place, joined):
            return None
    return EntryBatch(ledger_id, first, body, range(at, at + count * stride + 1, stride), _PAYLOAD_AT)


def _is_sound(run: memoryview, size: int, ledger_id: int, first: int, joined: JoinedCrc32c) -> bool:
    """Whether these are entries of this size with consecutive ids from `first` on, and digests that fit."""
    import numpy as np

    stride = ENTRY_LENGTH.size + size
    count = len(run) // stride
    prefix = _PREFIX.pack(size, ledger_id)
    ids = np.arange(first, first + count, dtype=">i8")
    if np.ndarray(count, f"V{len(prefix)}", run, 0, (stride,)).tobytes() != prefix * count:
        return False
    if np.ndarray(count, "V8", run, len(prefix), (stride,)).tobytes() != ids.tobytes():
        return False
    rows = np.ndarray((count, stride), np.uint8, run)
    covered = np.empty((count, size - _CHECKSUM_SIZE), np.uint8)
    covered[:, :ENTRY_HEADER_SIZE] = rows[:, ENTRY_LENGTH.size : _CHECKSUM_AT]
    covered[:, ENTRY_HEADER_SIZE:] = rows[:, _PAYLOAD_AT:]
    return bool(google_crc32c.value(covered) == joined.join(rows[:, _CHECKSUM_AT:_PAYLOAD_AT]))
