"""A bookie and its ZooKeeper: sessions that expire, a ZooKeeper that pauses, a cluster that was never made."""

from __future__ import annotations

import shutil
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from bookie_protocol.errors import ExitCode
from tests.support.bookie_process import free_port
from tests.support.frames import entry, v2_add, v2_code, v2_entry, v2_read
from tests.support.serve_process import ServeProcess, SyncClient
from tests.support.until import until_true
from tests.support.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.zookeeper


class Registered:
    """What ZooKeeper knows of one bookie."""

    def __init__(self, server: ZooKeeperServer, root: str, bookie_id: str) -> None:
        self._client = KazooClient(server.hosts)
        self._client.start()
        self._path = f"{root}/available/{bookie_id}"

    def session(self) -> int:
        """The session that holds the registration; 0 if there is none."""
        stat = self._client.exists(self._path)
        return 0 if stat is None else stat.ephemeralOwner

    def until(self, condition: Callable[[int], object], seconds: float = 20.0) -> int:
        deadline = time.monotonic() + seconds
        while not condition(session := self.session()):
            assert time.monotonic() < deadline, f"session {session:#x}"
            time.sleep(0.02)
        return session

    def change(self, path: str) -> None:
        """Make a node."""
        self._client.create(path)

    def close(self) -> None:
        self._client.stop()
        self._client.close()


@pytest.fixture
def bookie(tmp_path: Path, zookeeper: ZooKeeperServer) -> Iterator[ServeProcess]:
    root = f"/process-{uuid.uuid4().hex[:8]}"
    uri = zookeeper.uri(root, "hierarchical")
    assert ServeProcess.command("cluster", "init", uri).returncode == 0
    with ServeProcess(tmp_path, {"metadataServiceUri": uri, "zkTimeout": "2000"}) as process:
        yield process


def registered(bookie: ServeProcess, zookeeper: ZooKeeperServer) -> Registered:
    root = "/" + bookie.settings["metadataServiceUri"].rsplit("/", 1)[1]
    return Registered(zookeeper, root, f"127.0.0.1:{bookie.port}")


def add(bookie: ServeProcess, entry_id: int) -> None:
    with SyncClient(bookie.port) as client:
        assert v2_code(client.ask(v2_add(entry(1, entry_id)))) == 0


@pytest.mark.slow
def test_a_zookeeper_that_pauses_costs_no_bookie(bookie: ServeProcess, zookeeper: ZooKeeperServer) -> None:
    bookie.start()
    look = registered(bookie, zookeeper)
    try:
        look.until(lambda session: session)
        add(bookie, 0)
        zookeeper.pause()
        began = time.monotonic()
        while time.monotonic() - began < 3.5:  # longer than the session lasts
            add(bookie, 1)  # clients notice nothing
        zookeeper.resume()
        # Whatever ZooKeeper makes of the session, in the end a living one holds the registration, and goes on to.
        look.until(lambda session: session)
        time.sleep(3)
        assert look.session()
        add(bookie, 2)
        assert bookie.stop() == 0
        look.until(lambda session: not session)
    finally:
        zookeeper.resume()
        look.close()
    bookie.start()
    with SyncClient(bookie.port) as client:
        for e in range(3):
            assert v2_entry(client.ask(v2_read(1, e))) == entry(1, e)


@pytest.mark.slow
def test_a_zookeeper_that_loses_the_session_gets_a_new_registration(tmp_path: Path) -> None:
    """ZooKeeper stopped for longer than the session lasts, then started with the same data."""
    server = ZooKeeperServer(str(tmp_path / "zookeeper"))
    server.start()
    try:
        uri = server.uri("/ledgers", "hierarchical")
        assert ServeProcess.command("cluster", "init", uri).returncode == 0
        with ServeProcess(tmp_path / "bookie", {"metadataServiceUri": uri, "zkTimeout": "1000"}) as bookie:
            bookie.start()
            look = Registered(server, "/ledgers", f"127.0.0.1:{bookie.port}")
            before = look.until(lambda session: session)
            bookie.pause()  # no heartbeat comes
            look.until(lambda session: not session)
            bookie.resume()
            after = look.until(lambda session: session)
            assert after != before
            add(bookie, 0)
            assert bookie.logged("metadata session expired: registering again")
            look.close()
            server.stop()
            add(bookie, 1)
            server.start()
            look = Registered(server, "/ledgers", f"127.0.0.1:{bookie.port}")
            look.until(lambda session: session)
            add(bookie, 2)
            look.close()
            assert bookie.stop() == 0
            assert bookie.lines() == []
    finally:
        server.stop()


def test_two_bookies_of_one_name(bookie: ServeProcess, zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    bookie.settings["bookieId"] = "the-one"
    bookie.start()
    add(bookie, 0)
    second = ServeProcess(
        tmp_path / "second",
        {
            **bookie.settings,
            "bookiePort": str(free_port()),
            "journalDirectories": str(tmp_path / "second" / "journal"),
            "ledgerDirectories": str(tmp_path / "second" / "ledgers"),
        },
    )
    with second:
        code, line = second.refused()
        assert code == 2
        assert "the-one" in line
    add(bookie, 1)


def test_a_root_without_a_cluster(bookie: ServeProcess, zookeeper: ZooKeeperServer) -> None:
    uri = zookeeper.uri("/nobody-was-here", "hierarchical")
    bookie.settings["metadataServiceUri"] = uri
    code, line = bookie.refused()
    assert code == 5
    assert uri in line
    assert "cluster init" in line


def test_sigterm_while_zookeeper_does_not_answer(bookie: ServeProcess, zookeeper: ZooKeeperServer) -> None:
    zookeeper.pause()
    try:
        bookie.launch()
        deadline = time.monotonic() + 20
        while "connecting to the metadata service" not in bookie.log.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        began = time.monotonic()
        assert bookie.stop() == 0
        assert time.monotonic() - began < 15
        assert bookie.lines() == []
    finally:
        zookeeper.resume()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_zookeeper_with_data_of_before_takes_no_session_back(tmp_path: Path) -> None:
    """It hangs up on clients that have seen later changes, and ends no session: nobody would ever tell the bookie."""
    server = ZooKeeperServer(str(tmp_path / "zookeeper"))
    server.start()
    data, backup = tmp_path / "zookeeper" / "data", tmp_path / "backup"
    try:
        uri = server.uri("/ledgers", "hierarchical")
        assert ServeProcess.command("cluster", "init", uri).returncode == 0
        http = str(free_port())
        settings = {
            "metadataServiceUri": uri,
            "zkTimeout": "2000",
            "httpServerEnabled": "true",
            "httpServerHost": "127.0.0.1",
            "httpServerPort": http,
        }
        with ServeProcess(tmp_path / "bookie", settings) as bookie:
            bookie.start()
            server.stop()
            shutil.copytree(data, backup)
            server.start()
            look = Registered(server, "/ledgers", f"127.0.0.1:{bookie.port}")
            look.until(lambda session: session)
            for number in range(20):
                look.change(f"/ledgers/later-{number}")
            look.close()
            until_true(lambda: ready(http) == 200, 30)
            server.stop()
            shutil.rmtree(data)
            backup.rename(data)
            server.start()
            until_true(lambda: ready(http) == 503, 30)
            add(bookie, 0)
            assert bookie.process is not None
            assert bookie.process.wait(120) == ExitCode.METADATA_SESSION_EXPIRED
            bookie.start()
            until_true(lambda: ready(http) == 200, 30)
    finally:
        server.stop()


def ready(port: str) -> int:
    """The status of the readiness probe; 0: nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0
