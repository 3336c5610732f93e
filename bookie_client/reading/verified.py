"""Verification of the entries of a batch, in one pass.

Pure; any thread.

Source: reference client protocol, sections 5 and 11.5.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import count
from typing import Final, NamedTuple

import google_crc32c

from bookie_client.reading.entry import EntryBatch, LedgerEntry
from bookie_client.reading.even_batch import even_crc32c_batch
from bookie_protocol.digest import DigestManager, DigestType
from bookie_protocol.entry import ENTRY_HEADER, ENTRY_HEADER_SIZE
from bookie_protocol.errors import DigestMismatch, fresh
from bookie_protocol.wire.packed_entries import PackedEntries
from bookie_protocol.wire.v2_layout import ENTRY_LENGTH

_CRC32C_OVERHEAD: Final = ENTRY_HEADER_SIZE + 4
"""The header, and the digest behind it."""
_PACKED_CRC32C_HEADER: Final = struct.Struct(">iqqqqI")
"""An entry's length in the answer, its header, and a CRC32C digest."""
_LENGTH_SIZE: Final = ENTRY_LENGTH.size
assert _PACKED_CRC32C_HEADER.size == _LENGTH_SIZE + _CRC32C_OVERHEAD


class Verified(NamedTuple):
    """Entries whose ids are one step apart."""

    entries: Sequence[LedgerEntry]
    """In the place of a damaged one stands an entry without bytes."""
    damaged: dict[int, DigestMismatch]
    """By place in `entries`."""
    nbytes: int
    """Of the payloads of all good ones."""


def verify_packed(
    digest: DigestManager, ledger_id: int, first: int, packed: PackedEntries, most: int, step: int = 1
) -> Verified:
    """As `verify_run`, of the first `most` entries of an answer. Raises `ProtocolViolation` where their lengths do not
    fit."""
    if digest.type is DigestType.CRC32C:
        # The digest that nearly all ledgers have. None: something is wrong, which somebody else finds out.
        asked = ledger_id, first, packed, most, step
        batch = even_crc32c_batch(*asked) or _crc32c_batch(*asked)
        if batch is not None:
            return Verified(batch, {}, batch.nbytes)
    return verify_run(digest, ledger_id, first, packed.split()[:most], step)


def _crc32c_batch(ledger_id: int, first: int, packed: PackedEntries, most: int, step: int) -> EntryBatch | None:
    """The batch with entries of any sizes; None if anything is wrong."""
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
    """The k-th of `entries` as entry `first + k * step`, or why it is not that entry."""
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
