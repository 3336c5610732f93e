"""A bookie that gets another id: every copy is where it was, and half-way it starts under neither id."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bookie_client import Client
from bookie_pod.node.standalone.cluster import StandaloneCluster
from bookie_protocol.metadata_service.interface import BookieGroup
from tests.process.decommission.leaving import GOING, check_all, run, write
from tests.support import warm
from tests.support.warm import WarmChild

NEW = "moved-0"
pytestmark = pytest.mark.slow


async def _ends(child: WarmChild) -> int:
    async with asyncio.timeout(60):
        await child.communicate()
    assert child.returncode is not None
    return child.returncode


async def test_a_bookie_serves_its_ledgers_under_another_id(embedded: StandaloneCluster, tmp_path: Path) -> None:
    uri = embedded.metadata_service_uri
    async with Client(uri) as client:
        await write(client, 12)
    await embedded.bookies[GOING].stop()
    old_file = tmp_path / GOING / "bookie.conf"
    new_file = tmp_path / "new.conf"
    new_file.write_text(old_file.read_text().replace(f"bookieId={GOING}\n", f"bookieId={NEW}\n"))
    await run(embedded, "rename-bookie", GOING, NEW, "--yes", "--limit", "2")
    for file in (old_file, new_file):
        assert await _ends(await warm.start(warm.BOOKIE, ["serve", "--config", str(file)])) != 0
    out = await run(embedded, "rename-bookie", GOING, NEW, "--yes")
    assert f"now run `bookie disk rename-bookie {GOING} {NEW}` there" in out
    assert (await embedded.metadata.bookies.list(BookieGroup.ALL)).bookies >= {NEW}
    words = ["disk", "rename-bookie", GOING, NEW, "--config", str(new_file)]
    assert await _ends(await warm.start(warm.BOOKIE, words)) == 0
    bookie = await warm.start(warm.BOOKIE, ["serve", "--config", str(new_file)])
    try:
        async with asyncio.timeout(60), embedded.metadata.bookies.watch(BookieGroup.WRITABLE) as snapshots:
            async for snapshot in snapshots:
                if NEW in snapshot.bookies:
                    break
        assert await check_all(embedded, GOING) == 1200
    finally:
        bookie.terminate()
        await _ends(bookie)
