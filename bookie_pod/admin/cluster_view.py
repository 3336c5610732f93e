"""The cluster's bookies, as the metadata service and they themselves tell. Event loop only."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from bookie_pod.admin.client import AdminClient
from bookie_pod.admin.ports import ClusterState, Space
from bookie_protocol.errors import MetadataDamaged, MetadataNotFound, PodkeeperError
from bookie_protocol.metadata_service.interface import BookieGroup

if TYPE_CHECKING:
    from bookie_client import Client

ASKED_AT_A_TIME: Final = 32


class ClusterView:
    """`ClusterPort`."""

    def __init__(self, client: AdminClient) -> None:
        self._client = client
        self._service = client.metadata
        self._places = asyncio.Semaphore(ASKED_AT_A_TIME)

    async def bookies(self, *, read_only: bool) -> Sequence[str]:
        group = BookieGroup.READ_ONLY if read_only else BookieGroup.WRITABLE
        return sorted((await self._service.bookies.list(group)).bookies)

    async def hosts(self, bookie_ids: Sequence[str]) -> Mapping[str, str | None]:
        return dict(zip(bookie_ids, await asyncio.gather(*map(self._host, bookie_ids)), strict=True))

    async def _host(self, bookie_id: str) -> str | None:
        async with self._places:
            try:
                address = (await self._service.bookies.service_info(bookie_id)).bookie_address()
            except (MetadataNotFound, MetadataDamaged):
                return None
        return address[0] if address is not None else None

    async def space(self) -> Mapping[str, Space]:
        client = await self._client.get()
        bookies = sorted({*await self.bookies(read_only=False), *await self.bookies(read_only=True)})
        found = await asyncio.gather(*(self._space(client, bookie) for bookie in bookies))
        return {bookie: space for bookie, space in zip(bookies, found, strict=True) if space is not None}

    async def _space(self, client: Client, bookie_id: str) -> Space | None:
        async with self._places:
            try:
                info = await client.bookie_info(bookie_id)
            except PodkeeperError:
                return None  # whoever asks sees that it is missing
        return Space(info.total_bytes, info.free_bytes)

    async def state(self) -> ClusterState:
        bookies, marks = self._service.bookies, self._service.under_replication
        sets = await asyncio.gather(
            *(bookies.list(group) for group in (BookieGroup.ALL, BookieGroup.WRITABLE, BookieGroup.READ_ONLY))
        )
        known, writable, read_only = (each.bookies for each in sets)
        return ClusterState(
            await self._service.auditor_election.current_auditor(),
            await self._is_under_replicated(),
            await marks.is_enabled(),
            total=len(known | writable | read_only),
            writable=len(writable),
            read_only=len(read_only - writable),
        )

    async def _is_under_replicated(self) -> bool:
        async with aclosing(self._service.under_replication.list()) as marks:  # type: ignore[type-var]
            async for _ in marks:
                return True
        return False
