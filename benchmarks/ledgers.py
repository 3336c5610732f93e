"""Ledgers to measure with: some that hold data, and the mere metadata of very many.

Threads: the event loop.
"""

from __future__ import annotations

import asyncio
from typing import Final

from bookie_client import Client
from bookie_protocol.digest import DigestType
from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState
from bookie_protocol.metadata_service.tree.service import MetadataService

_APPENDED_AT_ONCE: Final = 5000
_CREATED_AT_ONCE: Final = 200


async def write_ledger(client: Client, payload: bytes, entries: int, copies: int) -> int:
    """A closed ledger with every entry on each of so many bookies; returns its id."""
    async with client.create(ensemble=copies, write_quorum=copies, ack_quorum=copies) as ledger:
        for start in range(0, entries, _APPENDED_AT_ONCE):
            await ledger.append_many([payload] * min(_APPENDED_AT_ONCE, entries - start))
    return ledger.ledger_id


async def create_metadata(
    service: MetadataService, ids: range, ensemble: tuple[str, ...], *, entries: int, length: int
) -> None:
    """Closed ledgers of so many entries and bytes on three bookies, by their metadata; nothing is stored in them."""

    async def create(ledger_id: int) -> None:
        closed = LedgerState.CLOSED, entries - 1, length, DigestType.CRC32C, b""
        await service.ledgers.create(LedgerMetadata(ledger_id, 3, 3, 2, {0: ensemble}, *closed))

    for start in range(0, len(ids), _CREATED_AT_ONCE):
        await asyncio.gather(*map(create, ids[start : start + _CREATED_AT_ONCE]))
