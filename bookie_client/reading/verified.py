"""Verification of the entries of a batch, in one pass.

Pure; any thread.

Sources: docs/internals/client-protocol.md, sections 5 and 11.5; docs/internals/client-protocol.md, sections 5 and 11.5;
docs/internals/wire-protocol.md, section 7 (digests).
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from functools import lru_cache
from itertools import count
from itertools import count as counting
from typing import Final, NamedTuple

import google_crc32c

from bookie_client.reading.entry import EntryBatch, LedgerEntry
from bookie_protocol.digest import DigestManager, DigestType
from bookie_protocol.entry import ENTRY_HEADER, ENTRY_HEADER_SIZE
from bookie_protocol.errors import DigestMismatch, fresh
from bookie_protocol.wire.v2 import ENTRY_LENGTH, PackedEntries

_CRC32C_OVERHEAD: Final = ENTRY_HEADER_SIZE + 4
"""The header, and the digest behind it."""
_PACKED_CRC32C_HEADER: Final = struct.Struct(">iqqqqI")
"""An entry's length in the answer, its header, and a CRC32C digest."""
_LENGTH_SIZE: Final = ENTRY_LENGTH.size
assert _PACKED_CRC32C_HEADER.size == _LENGTH_SIZE + _CRC32C_OVERHEAD

_PREFIX: Final = struct.Struct(">iq")
"""Length and ledger id."""
_CHECKSUM_SIZE: Final = 4
_CHECKSUM_AT: Final = ENTRY_LENGTH.size + ENTRY_HEADER_SIZE
"""Offset from the start of an entry, including its length, as for all places here."""
_PAYLOAD_AT: Final = _CHECKSUM_AT + _CHECKSUM_SIZE
_FEWEST: Final = 32
"""Minimum number of entries for which arrays are faster."""
_LONGEST: Final = 2048
"""Longer ones cost more in copying than in looking at each. Bytes of an entry."""
_TOGETHER: Final = 128
"""Entries that are copied and looked at while the processor's cache holds them."""
_WORTH_LOADING: Final = 32
"""Batches; loading takes as long as looking at the entries of some thousand."""
_batches = counting(1)


class Verified(NamedTuple):
    """Entries whose ids are one step apart."""

    entries: Sequence[LedgerEntry]
    """Entries by place; a damaged one is replaced by an entry without bytes."""
    damaged: dict[int, DigestMismatch]
    """Digest errors by place in `entries`."""
    nbytes: int
    """Payload bytes of all good entries."""


def verify_packed(
    digest: DigestManager, ledger_id: int, first: int, packed: PackedEntries, most: int, step: int = 1
) -> Verified:
    """Verify the first `most` entries of an answer, as `verify_run` does. Raises `ProtocolViolation` if their
    lengths do not fit."""
    if digest.type is DigestType.CRC32C:
        # The digest that nearly all ledgers have. None: something is wrong; `verify_run` finds out what.
        asked = ledger_id, first, packed, most, step
        batch = even_crc32c_batch(*asked) or _crc32c_batch(*asked)
        if batch is not None:
            return Verified(batch, {}, batch.nbytes)
    return verify_run(digest, ledger_id, first, packed.split()[:most], step)


def _crc32c_batch(ledger_id: int, first: int, packed: PackedEntries, most: int, step: int) -> EntryBatch | None:
    """Return the batch with entries of any sizes; None if anything is wrong."""
    body, at, end = packed.body, packed.start, len(packed.body)
    unpack, crc, extend = _PACKED_CRC32C_HEADER.unpack_from, google_crc32c.value, google_crc32c.extend
    starts: list[int] = []
    append, entry_id, stop = starts.append, first, first + most * step
    last_start = end - _PACKED_CRC32C_HEADER.size
    while at <= last_start and entry_id < stop:
        size, found_ledger, found_entry, _, _, checksum = unpack(body, at)
        header_at = at + _LENGTH_SIZE
        header_end, entry_end = header_at + ENTRY_HEADER_SIZE, header_at + size
        if (
            size < _CRC32C_OVERHEAD
            or entry_end > end
            or extend(crc(body[header_at:header_end]), body[header_at + _CRC32C_OVERHEAD : entry_end]) != checksum
            or found_ledger != ledger_id
            or found_entry != entry_id
        ):
            return None
        append(at)
        at = entry_end
        entry_id += step
    if not starts or (at < end and entry_id < stop):
        return None
    append(at)
    return EntryBatch(ledger_id, first, body, starts, _PACKED_CRC32C_HEADER.size, step)


def verify_run(digest: DigestManager, ledger_id: int, first: int, entries: Sequence[bytes], step: int = 1) -> Verified:
    """Return the k-th of `entries` as entry `first + k * step`, or why it is not that entry."""
    digest_of, unpack, made = digest.digest, ENTRY_HEADER.unpack, tuple.__new__
    payload_at = ENTRY_HEADER_SIZE + digest.size
    result: list[LedgerEntry] = []
    damaged: dict[int, DigestMismatch] = {}
    append, nbytes = result.append, 0
    for entry_id, entry in zip(count(first, step), entries):
        header, payload = entry[:ENTRY_HEADER_SIZE], entry[payload_at:]
        if len(entry) >= payload_at and digest_of(header, payload) == entry[ENTRY_HEADER_SIZE:payload_at]:
            found_ledger, found_entry, lac, length = unpack(header)
            if found_ledger == ledger_id and found_entry == entry_id:
                append(made(LedgerEntry, (ledger_id, entry_id, length, payload, lac)))
                nbytes += len(payload)
                continue
        damaged[len(result)] = _mismatch(digest, ledger_id, entry_id, entry)
        append(LedgerEntry(ledger_id, entry_id, 0, b""))
    return Verified(result, damaged, nbytes)


def _mismatch(digest: DigestManager, ledger_id: int, entry_id: int, entry: bytes) -> DigestMismatch:
    try:
        digest.verify(entry, ledger_id, entry_id)
    except DigestMismatch as error:
        return fresh(error)
    raise AssertionError("the digest manager disagrees with itself")


def even_crc32c_batch(ledger_id: int, first: int, packed: PackedEntries, most: int, step: int = 1) -> EntryBatch | None:
    """Verification of entries that all have one size: of all together, by arrays over the answer, without a look at
    each.

    Their lengths and ids have to be what they should be. For their digests one checksum is computed, over all of them
    in turn, each with its digest behind it: CRC32C is linear, so what a string adds to the whole is cancelled by its
    own checksum, and the result depends on how many there are and on their size alone. A string that its checksum
    does not fit makes it another one. Where several do not fit, their differences cancel out once in 2**32 cases, as
    seldom as one difference escapes its own checksum.

    Invariant: a batch is only ever found good here. `verify_run` finds out which entry is damaged, and how.

    The first `most` entries. None if this is not the way for them, or if anything is wrong.

    Any thread. The array library is loaded when some batches have come: a short-lived client may never need it.
    """
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
    """Return True if these are entries of this size with ids one step apart from `first` on, and matching digests."""
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
