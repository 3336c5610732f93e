"""Something to find in a live bookie."""

from __future__ import annotations

from typing import Any

from bookie_client import Client


async def some_ledgers(bookie: Any) -> None:
    async with Client(bookie._metadata) as client:
        for _ in range(5):
            async with client.create(ensemble=1, write_quorum=1, ack_quorum=1) as ledger:
                await ledger.append_many([b"payload \xff"] * 20)
