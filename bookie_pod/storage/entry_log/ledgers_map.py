"""Reads the ledgers map at the tail of a closed log (reference disk formats, 4.5).

The map is believed only if all of it fits: framing, number of ledgers, and no more bytes than lie before
it. Anything else is "no map" and the caller counts by a scan.

Threads: any; pure reading.
"""

from __future__ import annotations

import numpy as np

from bookie_pod.storage.entry_log.format import (
    HEADER_SIZE,
    MAP_ENTRY_ID,
    MAP_FIXED_SIZE,
    MAP_HEAD,
    MAP_LEDGER_ID,
    MAP_PAIR,
    SIZE,
    SIZE_BYTES,
    decode_header,
)
from bookie_pod.storage.entry_log.ledger_sizes import Array, LedgerSizes, LedgerSizesBuilder
from bookie_pod.storage.files import File


def is_closed(file: File) -> bool:
    """Whether the header names a map: the log was complete once. False for a header that cannot be read."""
    try:
        return decode_header(file.pread(HEADER_SIZE, 0)).has_map
    except ValueError:
        return False


def read_ledgers_map(file: File) -> LedgerSizes:
    """Bytes per ledger. `ValueError` if there is no map that can be believed, `OSError` if reading fails."""
    header = decode_header(file.pread(HEADER_SIZE, 0))
    if not header.has_map:
        raise ValueError("the log was never closed")
    ledgers = LedgerSizesBuilder()
    position, limit, found = header.map_offset, file.size(), 0
    while (batch := _read_batch(file, position, limit, header.ledger_count - found)) is not None:
        position, pairs = batch
        found += len(pairs)
        _check_pairs(pairs)
        ledgers.add_array(pairs)
    sizes = ledgers.build()
    if len(sizes) != header.ledger_count:
        raise ValueError(f"the map holds {len(sizes)} ledgers, the header says {header.ledger_count}")
    if sizes.total > header.map_offset - HEADER_SIZE:
        raise ValueError(f"the map counts more than the {header.map_offset - HEADER_SIZE} bytes before it")
    return sizes


def _read_batch(file: File, position: int, limit: int, expected: int) -> tuple[int, Array] | None:
    """(offset of the next batch, pairs) of the batch at `position`; None at the end of the map."""
    head = file.pread(min(MAP_HEAD.size, max(0, limit - position)), position)
    if len(head) < SIZE_BYTES or SIZE.unpack_from(head)[0] <= 0:
        return None
    if len(head) < MAP_HEAD.size:
        raise ValueError(f"the map breaks off at {position + len(head)}")
    size, ledger_id, entry_id, count = MAP_HEAD.unpack(head)
    if (ledger_id, entry_id) != (MAP_LEDGER_ID, MAP_ENTRY_ID):
        raise ValueError(f"entry {entry_id} of ledger {ledger_id} at {position} instead of a map")
    length = count * MAP_PAIR.size
    if not 0 <= count <= expected or size != MAP_FIXED_SIZE + length:
        raise ValueError(f"a batch of {count} ledgers and {size} bytes at {position}, {expected} expected")
    start = position + MAP_HEAD.size
    if start + length > limit:
        raise ValueError(f"the map breaks off at {limit}")
    return start + length, _decode_pairs(file.pread(length, start), count)


def _decode_pairs(data: bytes, count: int) -> Array:
    if len(data) != count * MAP_PAIR.size:
        raise ValueError(f"{len(data)} bytes do not hold {count} ledgers")
    return np.frombuffer(data, ">i8").reshape(count, 2).astype(np.int64)


def _check_pairs(pairs: Array) -> None:
    if len(pairs) and (int(pairs[:, 0].min()) < 0 or int(pairs[:, 1].min()) <= 0):
        raise ValueError("the map holds a negative ledger id or an empty ledger")
