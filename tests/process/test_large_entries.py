"""Very many honest clients with large entries, beyond what a small bookie has memory for at a time."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from tests.support.certificates import Certificates
from tests.support.frames import entry, v2_add, v2_code, v3_start_tls
from tests.support.metadata_process import MetadataProcess
from tests.support.serve_process import ServeProcess

CLIENTS = 200
SIZE = 1_000_000


async def _add(port: int, context: ssl.SSLContext, ledger_id: int, everybody: asyncio.Barrier) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 16)
    try:
        writer.write(v3_start_tls())
        await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
        await writer.start_tls(context)
        await everybody.wait()
        writer.write(v2_add(entry(ledger_id, 0, bytes(SIZE))))
        length = await reader.readexactly(4)
        return v2_code(length + await reader.readexactly(int.from_bytes(length)))
    finally:
        writer.transport.abort()


@pytest.mark.timeout(180)
def test_all_of_them_are_served_and_none_is_closed(tmp_path: Path) -> None:
    certificates, metadata = Certificates(tmp_path).make_all(), MetadataProcess(tmp_path / "metadata")
    settings = certificates.settings(demand_client=True) | {
        "memoryBudgetMb": "128",
        "dbStorage_writeCacheMaxSizeMb": "32",
        "dbStorage_readAheadCacheMaxSizeMb": "32",
        "metadataServiceUri": metadata.uri(),
    }
    context = certificates.client_context("client")
    context.check_hostname = False

    async def add_all(port: int) -> list[int]:
        everybody = asyncio.Barrier(CLIENTS)
        async with asyncio.TaskGroup() as group:
            adding = [group.create_task(_add(port, context, 1000 + each, everybody)) for each in range(CLIENTS)]
        return [each.result() for each in adding]

    metadata.start()
    try:
        ServeProcess.command("cluster", "init", metadata.uri())
        with ServeProcess(tmp_path / "bookie", settings) as bookie:
            bookie.start()
            assert asyncio.run(add_all(bookie.port)) == [0] * CLIENTS
            assert not [line for line in bookie.lines() if "connection closed" in line]
    finally:
        metadata.stop()
