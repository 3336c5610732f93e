"""Ledgers of the cluster, for the admin API. Event loop only."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from bookie_pod.admin.client import AdminClient
from bookie_protocol.ledger_metadata.model import LedgerMetadata


class ClusterLedgers:
    """`LedgerPort` through the client."""

    def __init__(self, client: AdminClient) -> None:
        self._client = client
        self._ledgers = client.metadata.ledgers

    async def ids(self) -> AsyncIterator[int]:
        async for span in self._ledgers.ranges():
            for ledger_id in span.ids:
                yield ledger_id

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        return await (await self._client.get()).metadata(ledger_id)

    async def delete(self, ledger_id: int) -> None:
        await self._ledgers.delete(ledger_id)

    async def entries(self, ledger_id: int, first: int, last: int | None) -> AsyncGenerator[tuple[int, bytes], None]:
        client = await self._client.get()
        async with client.open(ledger_id, password=None) as reader:
            end = reader.last_add_confirmed if last is None else min(last, reader.last_add_confirmed)
            if first > end:
                return
            async with aclosing(reader.batches(first, end)) as batches:
                async for batch in batches:
                    for entry in batch:
                        yield entry.entry_id, entry.payload
