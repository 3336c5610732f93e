"""Auto-recovery's tree: what we write the reference's tools and daemon understand, and the other way round."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.uri import open_metadata_service
from tests.interop.cluster import Cluster
from tests.interop.java_autorecovery import start_daemon, tool_configuration
from tests.support.java_bookie import java_shell

_DAEMON_SECONDS = 60.0


@pytest.fixture
def empty(make_cluster) -> Cluster:
    """A cluster of the reference's making, without bookies."""
    return make_cluster()


@pytest.fixture
async def service(empty: Cluster) -> AsyncIterator[MetadataService]:
    opened = await open_metadata_service(empty.metadata_uri)
    yield opened
    await opened.close()


@pytest.fixture
def configuration(empty: Cluster, tmp_path: Path) -> Path:
    return tool_configuration(empty, tmp_path)


async def test_the_shell_reads_and_writes_our_tree(
    service: MetadataService, class_path: str, configuration: Path
) -> None:
    async def shell(*arguments: str) -> str:
        return await asyncio.to_thread(java_shell, class_path, configuration, *arguments)

    tree = service.under_replication
    marked_ms = int(time.time() * 1000)
    await tree.mark(7, ["10.0.0.1:3181"], ctime_ms=marked_ms)
    await tree.mark(2**40 + 3, ["10.0.0.2:3181", "10.0.0.3:3181"], ctime_ms=None)
    await tree.set_lost_bookie_recovery_delay(17)
    vote = await service.auditor_election.elect("10.0.0.9:3181")
    lock = await tree.lock(7)

    said = await shell("listunderreplicated", "-printmissingreplica", "-printreplicationworkerid")
    assert re.findall(r"ListUnderReplicatedCommand - ([\w -]+) \w+=(\S+)", said) == [
        ("Under-replicated ledger", "7"),
        ("Ctime", str(marked_ms)),
        ("Missing replica", "10.0.0.1:3181"),
        ("Replication worker", socket.gethostname()),
        ("Under-replicated ledger", str(2**40 + 3)),
        ("Missing replica", "10.0.0.2:3181"),
        ("Missing replica", "10.0.0.3:3181"),
        ("Under replicated ledger count", "2"),
    ], said
    assert "17" in await shell("lostbookierecoverydelay", "-g")
    assert "10.0.0.9" in await shell("whoisauditor")

    await shell("lostbookierecoverydelay", "-s", "23")
    assert await tree.lost_bookie_recovery_delay() == 23
    async with tree.watch_enabled() as states:
        assert await anext(states)
        await shell("autorecovery", "-d")
        assert not await anext(states)
        assert not await tree.is_enabled()
        await shell("autorecovery", "-e")
        assert await anext(states)
    await tree.release(lock)
    await vote.resign()


async def test_a_daemon_of_the_reference_shares_votes_and_work(
    service: MetadataService, class_path: str, configuration: Path, tmp_path: Path
) -> None:
    """It waits for our auditor to go, and takes away the mark of a ledger that does not exist."""
    ours = await service.auditor_election.elect("10.0.0.9:3181")
    daemon = await start_daemon(class_path, configuration, tmp_path)
    tree, election = service.under_replication, service.auditor_election

    async def two_votes() -> bool:
        assert daemon.returncode is None, (tmp_path / "daemon.log").read_text()[-3000:]
        return len(await _votes(service)) == 2

    async def no_work() -> bool:
        return await tree.read(7) is None and not await tree.locks()

    async def auditor() -> str | None:
        return await election.current_auditor()

    try:
        async with asyncio.timeout(_DAEMON_SECONDS):
            await _until(two_votes)
            assert await auditor() == "10.0.0.9:3181"
            await tree.mark(7, ["10.0.0.1:3181"], ctime_ms=1)
            await _until(no_work)
            await ours.resign()
            await _until(auditor)
            assert str(await auditor()).startswith("127.0.0.1:")
            again = asyncio.create_task(election.elect("10.0.0.9:3181"))
            await _until(two_votes)
            daemon.kill()
            assert (await again).bookie_id == "10.0.0.9:3181"  # after the end of the daemon's session
    finally:
        if daemon.returncode is None:
            daemon.kill()
        await daemon.wait()


async def _until(condition: Callable[[], Awaitable[object]]) -> None:
    while not await condition():  # noqa: ASYNC110 - another process gives no event
        await asyncio.sleep(0.1)


async def _votes(service: MetadataService) -> list[str]:
    children = await service.tree.children(f"{service.root}/underreplication/auditorelection")
    return sorted(children.names)
