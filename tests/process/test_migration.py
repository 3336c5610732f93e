"""Pulsar's live migration from ZooKeeper to Oxia (PIP-454) under a cluster of processes with auto-recovery, which are
written to and read from all the time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bookie_client import Client, ClientOptions
from bookie_protocol.metadata_service.interface import BookieGroup
from bookie_protocol.metadata_service.uri import open_metadata_service
from tests.support.client_workload import Workload
from tests.support.migration import Coordinator, embedded_oxia
from tests.support.serve_cluster import ServeCluster
from tests.support.serve_process import ServeProcess
from tests.support.until import until, until_true
from tests.support.zookeeper import ZooKeeperServer

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(300)]

NAMES = [f"bookie-{number}" for number in range(1, 5)]
SETTINGS = {
    "zkTimeout": "20000",
    "autoRecoveryDaemonEnabled": "true",
    "gcWaitTime": "500",
    "flushInterval": "200",
    "minorCompactionInterval": "1",
    "majorCompactionInterval": "2",
}
OPTIONS = ClientOptions(add_timeout=30.0, read_timeout=30.0)


class Rig:
    def __init__(self, folder: Path, oxia: str) -> None:
        self.folder = folder
        self.zookeeper = ZooKeeperServer(str(folder / "zookeeper"))
        self.oxia = oxia
        self.cluster: ServeCluster
        self.coordinator: Coordinator

    @property
    def target_uri(self) -> str:
        return f"metadata-store:oxia://{self.oxia}/default"

    async def start(self) -> None:
        await asyncio.to_thread(self.zookeeper.start)
        self.coordinator = Coordinator(self.zookeeper, self.oxia)
        await self.coordinator.start()
        self.cluster = ServeCluster(self.folder / "bookies", f"metadata-store:zk:{self.zookeeper.hosts}", SETTINGS)
        await asyncio.to_thread(self.cluster.add, len(NAMES))

    async def stop(self) -> None:
        self.cluster.stop()
        await self.coordinator.stop()
        self.zookeeper.stop()

    async def all_registered(self, uri: str) -> None:
        service = await open_metadata_service(uri, timeout=20)
        try:
            async with asyncio.timeout(120), service.bookies.watch(BookieGroup.WRITABLE) as watched:
                async for found in watched:
                    if found.bookies == set(NAMES):
                        return
        finally:
            await service.close()

    async def written(self) -> int:
        """A ledger that was closed before the migration."""
        async with Client(self.cluster.uri, OPTIONS) as client:
            writer = await client.create(ensemble=3, write_quorum=3, ack_quorum=3, password=b"pw")
            for number in range(100):
                await writer.append(b"%d" % number)
            await writer.close()
            return writer.ledger_id

    async def restart(self, load: Workload) -> ServeProcess:
        """A bookie that the writer does not need: one that starts in a pause serves when that is over."""
        (spare,) = set(NAMES) - set(load.ledger.metadata.last_ensemble)
        await asyncio.to_thread(self.cluster.kill, spare)
        self.cluster.bookies[spare].launch()
        return self.cluster.bookies[spare]

    async def collected(self, name: str) -> None:
        """Wait for a pass of garbage collection that begins from now on. It has found nothing that went back."""
        (file,) = self.cluster.bookies[name].work.glob("**/metadata-seen")
        before = json.loads(file.read_text())
        assert before["wentBack"] == ""

        def next_pass() -> bool:
            seen = json.loads(file.read_text())
            assert seen["wentBack"] == ""
            return seen["written"] not in (before["written"], before["next"])

        await until(next_pass, 60)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with embedded_oxia(str(tmp_path / "oxia")) as oxia:
        made = Rig(tmp_path, oxia)
        try:
            await made.start()
            yield made
        finally:
            await made.stop()


async def test_writers_and_readers_do_not_hear_of_it(rig: Rig) -> None:
    """A migration fails before the one that succeeds. A bookie is restarted in each phase, and at last ZooKeeper ends,
    and a bookie, so that the ensemble changes in Oxia."""
    coordinator, cluster = rig.coordinator, rig.cluster
    kept = await rig.written()
    async with Workload(cluster.uri, OPTIONS) as load:
        waiting = len(coordinator.participants())
        assert waiting >= len(NAMES) + 1
        await coordinator.prepare()
        await rig.restart(load)
        await load.progress(50)
        await coordinator.set_phase("FAILED")
        await rig.all_registered(cluster.uri)
        await load.progress(50)

        await coordinator.joined(waiting)
        await coordinator.prepare()
        await coordinator.copy()
        await rig.restart(load)
        await load.progress(50)
        await coordinator.set_phase("COMPLETED")
        await rig.all_registered(rig.target_uri)
        restarted = await rig.restart(load)
        await asyncio.to_thread(until_true, restarted.is_up, 60)  # the killed one may be registered for a while
        await rig.all_registered(rig.target_uri)
        await load.progress(50)

        await asyncio.to_thread(rig.zookeeper.stop)
        dead = load.ledger.metadata.last_ensemble[0]
        await asyncio.to_thread(cluster.kill, dead)
        await load.progress(50)
        await until(lambda: dead not in load.ledger.metadata.last_ensemble)  # two of three bookies acknowledge entries
    await rig.collected(NAMES[0] if NAMES[0] != dead else NAMES[1])
    async with Client(rig.target_uri, OPTIONS) as client, client.open(kept, password=b"pw") as reader:
        assert [each.payload async for each in reader.entries()] == [b"%d" % number for number in range(100)]
