"""Reads the ledgers map at the tail of a closed log (reference disk formats, 4.5).

The map is believed only if all of it fits: framing, number of ledgers, and no more bytes than lie before
it. Anything else is "no map" and the caller counts by a scan.

Threads: any; pure reading.
"""

from __future__ import annotations

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
    decode_map_pairs,
)
from bookie_pod.storage.files import File


def read_ledgers_map(file: File) -> dict[int, int]:
    """Ledger id to bytes. `ValueError` if there is no map that can be believed, `OSError` if reading
    fails.
    """
    header = decode_header(file.pread(HEADER_SIZE, 0))
    if not header.has_map:
        raise ValueError("the log was never closed")
    ledgers: dict[int, int] = {}
    position, limit = header.map_offset, file.size()
    while (batch := _read_batch(file, position, limit, header.ledger_count - len(ledgers))) is not None:
        position, pairs = batch
        ledgers.update(pairs)
    _check(ledgers, header.ledger_count, header.map_offset)
    return ledgers


def _read_batch(file: File, position: int, limit: int, expected: int) -> tuple[int, list[tuple[int, int]]] | None:
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
    return start + length, decode_map_pairs(file.pread(length, start), count)


def _check(ledgers: dict[int, int], count: int, map_offset: int) -> None:
    if len(ledgers) != count:
        raise ValueError(f"the map holds {len(ledgers)} ledgers, the header says {count}")
    if min(ledgers) < 0 or min(ledgers.values()) <= 0:
        raise ValueError("the map holds a negative ledger id or an empty ledger")
    if sum(ledgers.values()) > map_offset - HEADER_SIZE:
        raise ValueError(f"the map counts more than the {map_offset - HEADER_SIZE} bytes before it")
