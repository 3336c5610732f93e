"""Rows of the `locations` database, and lists of them.

Format
    key    16 bytes  ledger id i64, entry id i64, big-endian
    value   8 bytes  location i64, big-endian: (log id << 32) | offset of the entry's first byte

Pure; any thread.

Source: reference on-disk formats, section 8.2.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from bookie_protocol.columns import byte_column

KEY: Final = struct.Struct(">qq")
VALUE: Final = struct.Struct(">q")
assert KEY.size == 16
assert VALUE.size == 8

MAX_ENTRY_ID: Final = (1 << 63) - 1
SHORT_RUN: Final = 12
"""Rows below which packing one by one is faster than an array."""


class LocationRun(NamedTuple):
    """Entries of one ledger, ascending, and where each one lies."""

    ledger_id: int
    entry_ids: Sequence[int]
    locations: Sequence[int]


class EntryMove(NamedTuple):
    """One entry that compaction copied."""

    ledger_id: int
    entry_id: int
    old: int
    """Location that compaction read it from."""
    new: int
    """Location of the synced copy."""


def encode_rows(ledger_id: int, entry_ids: Sequence[int], locations: Sequence[int]) -> tuple[list[bytes], list[bytes]]:
    """Keys and values of a run. One array each: a tenth of the time of packing row by row."""
    count = len(entry_ids)
    if count < SHORT_RUN:
        return [KEY.pack(ledger_id, entry_id) for entry_id in entry_ids], list(map(VALUE.pack, locations))
    rows = np.empty((count, 2), dtype=">i8")
    rows[:, 0] = ledger_id
    rows[:, 1] = np.fromiter(entry_ids, np.int64, count)
    values = np.fromiter(locations, np.int64, count).astype(">i8")
    return (
        byte_column(rows.tobytes(), 0, KEY.size, KEY.size, count),
        byte_column(values.tobytes(), 0, VALUE.size, VALUE.size, count),
    )
