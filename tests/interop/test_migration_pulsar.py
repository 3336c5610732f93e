"""Pulsar 5's own coordinator moves the metadata of our processes from ZooKeeper to a real Oxia."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bookie_protocol.metadata_service.uri import open_metadata_service
from tests.support.java import SHORT_LIVED, MavenProject, find_java
from tests.support.metadata_examples import INFO, Recorded, W, ledger, listed
from tests.support.oxia import MISSING, OxiaServer, is_program
from tests.support.until import until
from tests.support.zookeeper import ZooKeeperServer

pytestmark = [pytest.mark.zookeeper, pytest.mark.oxia]

PROJECT = MavenProject(Path(__file__).parent / "java-migration")
PARTICIPANTS = "/pulsar/migration-coordinator/participants"


@pytest.fixture
def own_zookeeper(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    server = ZooKeeperServer(str(tmp_path / "zookeeper"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def own_oxia(tmp_path: Path) -> Iterator[OxiaServer]:
    if not is_program():
        pytest.skip(MISSING)
    (tmp_path / "oxia").mkdir()
    server = OxiaServer(tmp_path / "oxia")
    server.start()
    yield server
    server.stop()


def started(words: list[str], log: Path) -> subprocess.Popen[bytes]:
    line = [find_java(), "-Xmx256m", *SHORT_LIVED, "-cp", PROJECT.class_path(), *words]
    with log.open("wb") as output:
        return subprocess.Popen(line, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT)


async def test_a_cluster_goes_on_in_oxia(own_zookeeper: ZooKeeperServer, own_oxia: OxiaServer, tmp_path: Path) -> None:
    uri = f"metadata-store:zk:{own_zookeeper.hosts}"
    service = await open_metadata_service(uri, timeout=15)
    await service.cluster.initialize(instance_id="one")
    await service.ledgers.create(ledger(7))
    before = [await service.ledgers.generate_id() for _ in range(4)]
    await service.bookies.register("b:1", W, INFO)
    await service.cookies.create("b:1", b"cookie")
    log, target = tmp_path / "java.log", f"oxia://{own_oxia.target}/default"
    words = ["dev.podkeeper.migration.Migrate", f"zk:{own_zookeeper.hosts}", target]
    java = started(words, log)
    kazoo = own_zookeeper.kazoo(timeout=10)
    try:
        await asyncio.to_thread(kazoo.start, 30)
        await until(lambda: java.poll() is not None or b"ready" in log.read_bytes(), 60)
        assert java.poll() is None, log.read_text()
        await until(lambda: len(kazoo.get_children(PARTICIPANTS)) == 2, 30)
        states = Recorded(service.session)
        assert java.stdin is not None
        java.stdin.write(b"\n")
        java.stdin.flush()
        await until(lambda: java.poll() is not None or b"migrated" in log.read_bytes(), 90)
        assert java.poll() is None, log.read_text()
        await states.renewed(60)
        after = [await service.ledgers.generate_id() for _ in range(3)]
        assert min(after) > max(before)
        await service.ledgers.create(ledger(after[0]))
        direct = await open_metadata_service(f"metadata-store:{target}", timeout=15)
        later = await open_metadata_service(uri, timeout=15)
        for each in (service, direct, later):
            assert await listed(each) == [7, after[0]]
            assert (await each.bookies.list(W)).bookies == {"b:1"}
            assert (await each.cookies.read("b:1")).value == b"cookie"
            assert await each.cluster.instance_id() == "one"
            await each.close() if each is not service else None
        await service.close()
    finally:
        java.kill()
        java.wait()
        kazoo.stop()
        kazoo.close()
