"""The metadata service for tests that have no event loop of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.uri import open_metadata_service


def with_service(uri: str, work: Callable[[MetadataService], Any]) -> Any:
    async def connected() -> Any:
        service = await open_metadata_service(uri)
        try:
            return await work(service)
        finally:
            await service.close()

    return asyncio.run(connected())
