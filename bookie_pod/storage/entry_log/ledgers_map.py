"""Reads the ledgers map at the tail of a closed log (reference disk formats, 4.5).

The map is believed only if all of it fits: framing, number of ledgers, no more bytes than lie before it, and the check
sum if the log has one. Anything else is "no map" and the caller counts by a scan. Without a check sum (logs of the
reference) a flipped bit in a ledger id goes unseen, so nothing may be deleted on the word of such a map.

Threads: any; pure reading.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bookie_pod.storage.entry_log.format import (
    HEADER_SIZE,
    MAP_CHECK_OFFSET,
    MAP_ENTRY_ID,
    MAP_FIXED_SIZE,
    MAP_HEAD,
    MAP_LEDGER_ID,
    MAP_PAIR,
    MAP_POINTER_OFFSET,
    SIZE,
    SIZE_BYTES,
    decode_header,
    map_checksum,
    map_checksum_in,
)
from bookie_pod.storage.entry_log.ledger_sizes import Array, LedgerSizes, LedgerSizesBuilder
from bookie_pod.storage.files import File


class StoredMap(NamedTuple):
    """A map that was read."""

    ledgers: LedgerSizes
    checked: bool
    """A check sum of all of it was right."""


def map_offset(file: File) -> int | None:
    """Where the header says the entries end and the map begins; None if it names none, or cannot be read: the log was
    never complete, as far as anybody can tell."""
    try:
        header = decode_header(file.pread(HEADER_SIZE, 0))
    except ValueError:
        return None
    return header.map_offset if header.has_map else None


def read_ledgers_map(file: File) -> StoredMap:
    """Bytes per ledger. `ValueError` if there is no map that can be believed, `OSError` if reading fails."""
    head = file.pread(HEADER_SIZE, 0)
    header = decode_header(head)
    if not header.has_map:
        raise ValueError("the log was never closed")
    stored = map_checksum_in(head)
    ledgers = LedgerSizesBuilder()
    position, limit, found = header.map_offset, file.size(), 0
    checksum = map_checksum(head[MAP_POINTER_OFFSET:MAP_CHECK_OFFSET], b"")
    while (batch := _read_batch(file, position, limit, header.ledger_count - found)) is not None:
        position, data, pairs = batch
        found += len(pairs)
        _check_pairs(pairs, header.map_offset)
        ledgers.add_array(pairs)
        checksum = map_checksum(b"", data, checksum)
    sizes = ledgers.build()
    if len(sizes) != header.ledger_count:
        raise ValueError(f"the map holds {len(sizes)} ledgers, the header says {header.ledger_count}")
    if sizes.total > header.map_offset - HEADER_SIZE:
        raise ValueError(f"the map counts more than the {header.map_offset - HEADER_SIZE} bytes before it")
    if stored is not None and stored != checksum:
        raise ValueError("the check sum of the map is wrong")
    return StoredMap(sizes, stored is not None)


def _read_batch(file: File, position: int, limit: int, expected: int) -> tuple[int, bytes, Array] | None:
    """(offset of the next batch, bytes, pairs) of the batch at `position`; None at the end of the map."""
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
    data = file.pread(length, start)
    return start + length, head + data, _decode_pairs(data, count)


def _decode_pairs(data: bytes, count: int) -> Array:
    if len(data) != count * MAP_PAIR.size:
        raise ValueError(f"{len(data)} bytes do not hold {count} ledgers")
    return np.frombuffer(data, ">i8").reshape(count, 2).astype(np.int64)


def _check_pairs(pairs: Array, most: int) -> None:
    if len(pairs) and (int(pairs[:, 0].min()) < 0 or int(pairs[:, 1].min()) <= 0):
        raise ValueError("the map holds a negative ledger id or an empty ledger")
    if len(pairs) and int(pairs[:, 1].max()) > most:  # one by one: the sum of such numbers could wrap
        raise ValueError(f"the map holds a ledger of {int(pairs[:, 1].max())} bytes, {most} lie before it")
