"""Finding the next entry of an entry log behind damaged bytes.

A log has no marks to find a record by, so this goes by likelihood: a plausible head whose record is followed by more
plausible records, or by the ledgers map, or by the end of the file. A head is plausible if its size is sane, its ids
are not negative, and the LAC that clients put behind them lies below the entry. What is found is for a person to look
at; nothing is deleted or indexed on its word alone.

Memory: one chunk. Pure reading; any thread.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import numpy as np

from bookie_pod.storage.entry_log.format import ENTRY_HEAD, MAP_LEDGER_ID, MIN_ENTRY_SIZE, SIZE_BYTES
from bookie_pod.storage.entry_log.scan import SANE_ENTRY_BYTES
from bookie_pod.storage.files import File, Files
from bookie_protocol.errors import StorageFault

CHUNK: Final = 1 << 20
RECORDS_IN_A_ROW: Final = 3
"""Plausible records that make a run."""
_LAC: Final = Struct(">q")
_CLIENT_HEAD: Final = 32
"""Ledger id, entry id, LAC, length: what every client's entry begins with (reference wire protocol, entry payload)."""


def next_record(files: Files, path: str, begin: int) -> int | None:
    """Offset of the size word of the next run of records at or behind `begin`; None without one. `StorageFault`."""
    try:
        file = files.open(path)
        try:
            return _search(file, begin, file.size())
        finally:
            file.close()
    except OSError as error:
        raise StorageFault(f"cannot read entry log {path}: {error}") from error


def _search(file: File, begin: int, size: int) -> int | None:
    overlap = ENTRY_HEAD.size - 1
    for base in range(begin, size, CHUNK):
        data = file.pread(min(CHUNK + overlap, size - base), base)
        for at in _candidates(data):
            if _is_run(file, base + at, size):
                return base + at
    return None


def _candidates(data: bytes) -> list[int]:
    """Offsets at which a head of an entry of a sane size could stand."""
    count = len(data) - ENTRY_HEAD.size + 1
    if count <= 0:
        return []
    octets = np.frombuffer(data, np.uint8)
    size = sum(octets[at : at + count].astype(np.uint32) << np.uint32(8 * (3 - at)) for at in range(4))
    sane = (size >= MIN_ENTRY_SIZE) & (size <= SANE_ENTRY_BYTES)
    sane &= (octets[4 : 4 + count] < 0x80) & (octets[12 : 12 + count] < 0x80)
    return [int(at) for at in np.flatnonzero(sane)]


def _is_run(file: File, start: int, size: int) -> bool:
    for _ in range(RECORDS_IN_A_ROW):
        head = file.pread(ENTRY_HEAD.size + _LAC.size, start)
        if not head.strip(b"\0"):
            return True  # the end of the file, or zeros up to it
        if len(head) < ENTRY_HEAD.size:
            return False
        length, ledger_id, entry_id = ENTRY_HEAD.unpack_from(head)
        if ledger_id == MAP_LEDGER_ID and length >= MIN_ENTRY_SIZE:
            return True
        if not MIN_ENTRY_SIZE <= length <= SANE_ENTRY_BYTES or ledger_id < 0 or entry_id < 0:
            return False
        if length >= _CLIENT_HEAD and len(head) == ENTRY_HEAD.size + _LAC.size:
            (lac,) = _LAC.unpack_from(head, ENTRY_HEAD.size)
            if not -1 <= lac < max(entry_id, 0):
                return False
        start += SIZE_BYTES + length
        if start > size:
            return False
    return True
