"""Bookies restart while clients write with an ack quorum of two of three: what the others acknowledged meanwhile is
made whole before the next one goes. Real bookies, `bookie autorecovery`, an embedded metadata service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from bookie_client import Client, ClientOptions
from bookie_client.writing.writer import LedgerWriter
from bookie_pod.autorecovery.auditor.runs import AuditRecords, look_at_returned
from bookie_protocol.errors import NotThere
from tests.support.auto_recovery import QUICK, AutoRecoveryProcess, healed
from tests.support.cluster_fixtures import all_writable
from tests.support.healing_rig import PASSWORD, copies_are_whole
from tests.support.metadata_process import MetadataProcess
from tests.support.serve_cluster import ServeCluster

LEDGERS = 20
BEFORE, MEANWHILE, AFTER = 30, 25, 10
"""Entries of each ledger that are written before a restart, during it and after it."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ServeCluster]:
    service = MetadataProcess(tmp_path / "metadata")
    service.start()
    made = ServeCluster(tmp_path / "bookies", service.uri(), QUICK)
    try:
        yield made
    finally:
        made.stop()
        service.stop()


@pytest.fixture
async def client(cluster: ServeCluster) -> AsyncIterator[Client]:
    async with Client(cluster.uri, ClientOptions(add_timeout=20, read_timeout=20)) as made:
        yield made


async def write(writers: Sequence[LedgerWriter], count: int) -> None:
    for writer in writers:
        await writer.append_many([b"x" * 100] * count)


async def short(client: Client, writers: Sequence[LedgerWriter], bookie: str) -> int:
    """Confirmed entries that metadata want on this bookie, and that it does not have."""
    found = 0
    for writer in writers:
        metadata = await client.metadata(writer.ledger_id)
        try:
            held = await client.operations.entries_of_ledger(bookie, writer.ledger_id)
        except NotThere:
            held = ()  # type: ignore[assignment]
        ends = [*metadata.first_entry_ids[1:], writer.last_add_confirmed + 1]
        for first, behind in zip(metadata.first_entry_ids, ends, strict=True):
            if bookie in metadata.ensembles[first]:
                found += sum(entry_id not in held for entry_id in range(first, behind))
    return found


async def until_looked_at(client: Client, bookie: str) -> None:
    records = AuditRecords(client.metadata_service)
    async with asyncio.timeout(60), records.watch_returned() as changes:
        async for _ in changes:
            if bookie not in (await records.returned()).waiting:
                return


@pytest.mark.parametrize("spares", [0, 1])
async def test_copies_are_whole_before_the_next_restart(
    cluster: ServeCluster, client: Client, tmp_path: Path, spares: int
) -> None:
    """Without a spare the writers go on without the bookie, in segments that stay open; with one they name it instead,
    and leave closed segments behind in which the bookie lacks what was under way."""
    names = await asyncio.to_thread(cluster.add, 3 + spares)
    await all_writable(client, cluster)
    delay = {"lostBookieRecoveryDelay": "600", "openLedgerRereplicationGracePeriod": "600000"}
    with AutoRecoveryProcess(tmp_path / "one", cluster.uri, delay) as one:
        await one.ready()
        writers = [
            await client.create(ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD) for _ in range(LEDGERS)
        ]
        await write(writers, BEFORE)
        for victim in names[:2]:
            await asyncio.to_thread(cluster.kill, victim)
            await write(writers, MEANWHILE)
            await asyncio.to_thread(cluster.start, [victim])
            await all_writable(client, cluster)
            await write(writers, AFTER)
            await look_at_returned(client.metadata_service, [victim])
            await until_looked_at(client, victim)
            await healed(client, [])
            assert await short(client, writers, victim) == 0
        await write(writers, AFTER)
        for writer in writers:
            await writer.close()
        await copies_are_whole(client, [writer.ledger_id for writer in writers])
