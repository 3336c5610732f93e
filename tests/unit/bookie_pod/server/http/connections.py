"""Connections that a test opens without a client."""

from __future__ import annotations

import asyncio
import contextlib


async def closed(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
