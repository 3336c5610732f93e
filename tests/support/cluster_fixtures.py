"""Fixtures of tests with a cluster of bookie processes; a module that imports them says how many bookies in `BOOKIES`.

    from tests.support.cluster_fixtures import bookies, cluster, metadata_service

`metadata_service` may be replaced by a fixture of the module's own. `bookies`: as the tests before left them.
`cluster`: the same, all of them up and registered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from bookie_client import Client
from tests.support.metadata_process import MetadataProcess
from tests.support.serve_cluster import ServeCluster


@pytest.fixture(scope="module")
def metadata_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MetadataProcess]:
    """Embedded, a process of its own."""
    service = MetadataProcess(tmp_path_factory.mktemp("metadata"))
    service.start()
    yield service
    service.stop()


@pytest.fixture(scope="module")
def bookies(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, metadata_service: MetadataProcess
) -> Iterator[ServeCluster]:
    made = ServeCluster(tmp_path_factory.mktemp("bookies"), metadata_service.uri())
    try:
        made.add(request.module.BOOKIES)
        yield made
    finally:
        made.stop()


@pytest.fixture
async def cluster(bookies: ServeCluster) -> ServeCluster:
    down = [name for name, bookie in bookies.bookies.items() if bookie.process is None]
    await asyncio.to_thread(bookies.start, down)
    async with Client(bookies.uri) as client:
        await all_writable(client, bookies)
    return bookies


async def all_writable(client: Client, cluster: ServeCluster) -> None:
    """Every bookie is registered, also one whose session ended while it hung or was dead."""
    async with asyncio.timeout(60):
        while await client.writable_bookies() != set(cluster.bookies):  # noqa: ASYNC110 - other processes give no event
            await asyncio.sleep(0.02)
