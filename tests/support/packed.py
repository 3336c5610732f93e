"""Entries as they stand in the answer to a batch read."""

from __future__ import annotations

from collections.abc import Iterable

from bookie_protocol.wire.v2 import PackedEntries


def packed(entries: Iterable[bytes]) -> PackedEntries:
    return PackedEntries(b"..." + b"".join(len(entry).to_bytes(4) + entry for entry in entries), 3)
