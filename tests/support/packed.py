"""Entries as they stand in the answer to a batch read."""

from __future__ import annotations

from collections.abc import Iterable

from bookie_client.reading.entry import EntryBatch, LedgerEntry
from bookie_client.reading.verified import verify_packed
from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.wire.v2 import PackedEntries

LEDGER = 7
FIRST = 100


def packed(entries: Iterable[bytes]) -> PackedEntries:
    return PackedEntries(b"..." + b"".join(len(entry).to_bytes(4) + entry for entry in entries), 3)


def batch_of(payloads: list[bytes], in_front: bytes = b"") -> tuple[EntryBatch, list[LedgerEntry]]:
    """The batch, and the entries that it has to have."""
    digest = digest_manager(DigestType.CRC32C, b"")
    expected, length = [], 50
    for entry_id, payload in enumerate(payloads, FIRST):
        length += len(payload)
        expected.append(LedgerEntry(LEDGER, entry_id, length, payload, entry_id - 3))
    body = packed([digest.encode(LEDGER, each.entry_id, each.lac, each.length, each.payload) for each in expected]).body
    answer = PackedEntries(in_front + body[packed([]).start :], len(in_front))
    batch = verify_packed(digest, LEDGER, FIRST, answer, len(payloads)).entries
    assert isinstance(batch, EntryBatch)
    return batch, expected
