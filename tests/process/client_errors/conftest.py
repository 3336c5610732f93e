"""Every error that the client's handles promise, brought about by what brings it about in life.

Each file has a cluster of its own, of as many bookies as its `BOOKIES` says; they are as the tests before left them.
"""

from __future__ import annotations

import pytest

from bookie_client import Client, ClientOptions
from bookie_protocol.metadata_service.uri import open_metadata_service
from tests.process.client_errors.ledgers import SHORT
from tests.support.cluster_fixtures import bookies as cluster
from tests.support.cluster_fixtures import metadata_service

__all__ = ["cluster", "metadata_service"]


@pytest.fixture
async def service(cluster):
    opened = await open_metadata_service(cluster.uri)
    yield opened
    await opened.close()


@pytest.fixture
async def client(cluster):
    async with Client(cluster.uri) as made:
        yield made


@pytest.fixture
async def impatient(cluster):
    """For what fails by a time-out."""
    async with Client(cluster.uri, ClientOptions(**SHORT)) as made:
        yield made
