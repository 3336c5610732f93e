"""Verification of the entries of a batch, in one loop.

Pure; any thread.

Source: reference client protocol, sections 5 and 11.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bookie_client.reading.entry import LedgerEntry
from bookie_protocol.digest import DigestManager
from bookie_protocol.entry import ENTRY_HEADER, ENTRY_HEADER_SIZE
from bookie_protocol.errors import DigestMismatch


class Verified(NamedTuple):
    """Entries of consecutive ids."""

    entries: list[LedgerEntry]
    """In the place of a damaged one stands an entry without bytes."""
    damaged: dict[int, DigestMismatch]
    """By place in `entries`."""
    nbytes: int
    """Of the payloads of all good ones."""


def verify_run(digest: DigestManager, ledger_id: int, first: int, entries: Sequence[bytes]) -> Verified:
    """The k-th of `entries` as entry `first + k`, or why it is not that entry."""
    digest_of, unpack, made = digest.digest, ENTRY_HEADER.unpack, tuple.__new__
    payload_at = ENTRY_HEADER_SIZE + digest.size
    result: list[LedgerEntry] = []
    damaged: dict[int, DigestMismatch] = {}
    append, nbytes = result.append, 0
    for entry_id, entry in enumerate(entries, first):
        header, payload = entry[:ENTRY_HEADER_SIZE], entry[payload_at:]
        if len(entry) >= payload_at and digest_of(header, payload) == entry[ENTRY_HEADER_SIZE:payload_at]:
            found_ledger, found_entry, _, length = unpack(header)
            if found_ledger == ledger_id and found_entry == entry_id:
                # The constructor of a named tuple costs three times as much.
                append(made(LedgerEntry, (ledger_id, entry_id, length, payload)))
                nbytes += len(payload)
                continue
        damaged[len(result)] = _mismatch(digest, ledger_id, entry_id, entry)
        append(LedgerEntry(ledger_id, entry_id, 0, b""))
    return Verified(result, damaged, nbytes)


def _mismatch(digest: DigestManager, ledger_id: int, entry_id: int, entry: bytes) -> DigestMismatch:
    try:
        digest.verify(entry, ledger_id, entry_id)
    except DigestMismatch as error:
        return error
    raise AssertionError("the digest manager disagrees with itself")
