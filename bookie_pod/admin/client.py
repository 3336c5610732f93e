"""The client that the admin API uses: opened by the first who needs it, closed with the bookie.

Event loop only.
"""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING, Final

from bookie_pod.config.model import BookieConfig
from bookie_protocol.errors import CouldNotTell
from bookie_protocol.metadata_service.tree.service import MetadataService

if TYPE_CHECKING:
    from bookie_client import Client, ClientOptions

READ_WINDOW_BYTES: Final = 4 * 1024 * 1024
"""Bytes that one read of a ledger reads ahead."""


class ClusterClient:
    """Shares the node's metadata service; has connections of its own."""

    def __init__(self, metadata: MetadataService, config: BookieConfig) -> None:
        self.metadata = metadata
        self._config = config
        self._client: Client | None = None
        self._turn = asyncio.Lock()
        self._closed = False

    async def options(self) -> ClientOptions:
        """Options that fit this cluster. Loads the client's code, which takes a while the first time."""
        await asyncio.to_thread(importlib.import_module, "bookie_client")
        from bookie_pod.client_options import client_options

        return client_options(self._config, read_window_bytes=READ_WINDOW_BYTES)

    async def get(self) -> Client:
        """The open client. `MetadataUnavailable`; `CouldNotTell` when the bookie stops."""
        async with self._turn:
            if self._closed:
                raise CouldNotTell("the bookie stops")
            if self._client is None:
                options = await self.options()
                from bookie_client import Client

                client = Client(self.metadata, options)
                await client.start()
                self._client = client
            return self._client

    async def close(self) -> None:
        async with self._turn:
            self._closed = True
            client, self._client = self._client, None
        if client is not None:
            await client.close()
