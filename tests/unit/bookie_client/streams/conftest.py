"""A stream on three model bookies, with metadata in memory."""

from __future__ import annotations

import pytest

from bookie_client.streams import Streams, StreamSettings

SETTINGS = {"ensemble": 3, "write_quorum": 3, "ack_quorum": 2, "min_ledger_seconds": 0.0}


class Clock:
    """Seconds since 1970, as the test likes."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
async def client(three):
    async with three.client(add_timeout=30.0, read_timeout=30.0) as client:
        yield client


@pytest.fixture
async def streams(client, clock):
    """With one stream, "s"."""
    streams = Streams(client, password=b"secret", clock=clock)
    await streams.create("s", StreamSettings(**SETTINGS))
    return streams


async def read_all(streams, name="s", start="earliest", to=None):
    return [entry.payload async for entry in streams.reader(name).entries(start, to)]
