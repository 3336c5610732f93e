"""`BookieOperations` without a client: for tests that talk to bookies by address."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from bookie_client.connection.network import Connector, tcp_connector
from bookie_client.connection.operations import BookieOperations
from bookie_client.connection.pool import ChannelPool
from bookie_client.options import ClientOptions
from bookie_protocol.errors import MetadataNotFound


class Operations(BookieOperations):
    """`ports`: where each bookie listens on this host; may change at any time."""

    def __init__(self, ports: Mapping[str, int], connector: Connector = tcp_connector, **options: Any) -> None:
        self.ports = ports
        self.host = "127.0.0.1"
        self.pool = ChannelPool(self._resolve, ClientOptions(**options), connector)
        super().__init__(self.pool, count(1))

    async def _resolve(self, bookie_id: str) -> tuple[str, int]:
        if bookie_id not in self.ports:
            raise MetadataNotFound(f"bookie {bookie_id}")
        return self.host, self.ports[bookie_id]


@asynccontextmanager
async def operations_on(ports: Mapping[str, int], **options: Any) -> AsyncIterator[Operations]:
    """Operations whose connections are closed at the end."""
    operations = Operations(ports, **options)
    try:
        yield operations
    finally:
        await operations.pool.close()
