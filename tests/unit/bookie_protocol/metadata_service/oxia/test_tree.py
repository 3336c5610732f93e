"""What the tree over Oxia does before it asks anybody."""

from __future__ import annotations

import asyncio
from typing import Any

from bookie_protocol.metadata_service.oxia.connection import OxiaConnection
from bookie_protocol.metadata_service.oxia.tree import OxiaTree


async def test_what_needs_a_path_alone_runs_alone_however_many_wait() -> None:
    connection = OxiaConnection(["127.0.0.1:1"], "ns")
    tree: Any = OxiaTree(connection, 10.0)
    running, most = 0, 0

    async def run(times: int) -> None:
        nonlocal running, most
        for _ in range(times):
            async with tree._alone("/a"):
                running += 1
                most = max(most, running)
                await asyncio.sleep(0)
                running -= 1
            await asyncio.sleep(0)

    await asyncio.gather(*(run(number) for number in range(6)))
    assert most == 1
    assert not tree._turns
    await connection.close()
