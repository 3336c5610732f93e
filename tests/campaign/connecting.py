"""How clients of a campaign reach the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from bookie_client import Client, ClientOptions
from bookie_protocol.errors import CouldNotTell, PodkeeperError

_PAUSE_S: Final = 0.25


def options(version: int = 3) -> ClientOptions:
    """Short time-outs; no bookie is kept out for the errors that are made on purpose."""
    return ClientOptions(
        protocol_version=version,
        add_timeout=2.5,
        read_timeout=2.5,
        connect_timeout=2.5,
        max_reconnect_delay=0.5,
        long_poll_timeout=2.0,
        quarantine=False,
        tail_patience=20.0,
    )


@asynccontextmanager
async def connected(uri: str, version: int = 3) -> AsyncIterator[Client]:
    """A client, as soon as the metadata service answers."""
    while True:
        client = Client(uri, options(version), placement="random")
        try:
            await client.start()
        except CouldNotTell:
            await asyncio.sleep(_PAUSE_S)
            continue
        try:
            yield client
        finally:
            with suppress(PodkeeperError):
                await client.close()
        return
