"""Adds on their way out, as a writer's encoder makes them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from bookie_client.connection.dialect_v3 import V3AddEncoder
from bookie_client.writing.pending_add import PendingAdd
from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.wire.add_frames import AddFrames


def add_frames(
    ledger_id: int,
    key: bytes,
    first: int,
    bodies: Sequence[bytes],
    *,
    lac: int | None = None,
    txn: int = 1,
    digest_type: DigestType = DigestType.CRC32C,
    flags: int = 0,
) -> AddFrames:
    """Adds of consecutive entries from `first` on, with consecutive transaction ids from `txn` on."""
    digest, encoder = digest_manager(digest_type, b"secret"), V3AddEncoder(ledger_id, key, flags)
    adds, length = [], 1000
    for entry_id, body in enumerate(bodies, first):
        length += len(body)
        add = PendingAdd(entry_id, length, ("a",))
        add.body = body
        adds.append(add)
    lac = first - 1 if lac is None else lac
    common = encoder.make_heads(adds, lac, digest, count(txn))
    return AddFrames([add.head for add in adds], [add.body for add in adds], encoder.tail, common)
