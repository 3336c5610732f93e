"""Oxia's own Java client on `bookie metadata-service`, which asks for a token, and our client beside it on one tree."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from bookie_protocol.metadata_service.uri import open_metadata_service
from tests.interop.java_agent import JavaAgent
from tests.support.bookie_process import free_port
from tests.support.java import SHORT_LIVED, MavenProject, find_java
from tests.support.standalone_command import BOOKIE
from tests.support.until import until_true

PROJECT = MavenProject(Path(__file__).parent / "java-oxia")
NAMESPACE = "pulsar"
TOKEN = "a-token-that-nobody-knows"


class OxiaAgent(JavaAgent):
    """Oxia's client in a process of its own; `calls` are in `OxiaAgent.java`."""

    def __init__(self, port: int, log: Path, timeout_ms: int = 4_000) -> None:
        options = ["-Xmx128m", *SHORT_LIVED, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
        arguments = (f"127.0.0.1:{port}", NAMESPACE, str(timeout_ms), TOKEN)
        line = [find_java(), *options, "-cp", PROJECT.class_path(), "dev.podkeeper.oxia.OxiaAgent", *arguments]
        super().__init__(line, log)

    def put(self, key: str, value: str = "", **options: Any) -> dict[str, Any]:
        return self.call("put", key=key, value=value, **options)

    def list(self, start: str, end: str, **options: Any) -> list[str]:
        keys: list[str] = self.call("list", key=start, end=end, **options)["keys"]
        return keys

    def told(self) -> str:
        """The next notification: its kind and its key."""
        return str(self.call("told")["told"])


class MetadataCommand:
    """The command, with a token and a namespace; killed, and started again on the same folder and port."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.tokens = folder / "tokens"
        self.tokens.write_text(f"{TOKEN}\n")
        self._log = folder / "service.log"
        self._line = [BOOKIE, "metadata-service", "--data", str(folder / "store"), "--host", "127.0.0.1", "--no-http"]
        self._line += ["--port", str(self.port), "--token-file", str(self.tokens), "--oxia-namespace", NAMESPACE]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"embedded://127.0.0.1:{self.port}/ledgers"

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._line, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until_true(self._listens, 60)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _listens(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False


@pytest.fixture
def metadata(tmp_path: Path) -> Iterator[MetadataCommand]:
    command = MetadataCommand(tmp_path)
    command.start()
    yield command
    command.kill()


@pytest.fixture
def oxia(metadata: MetadataCommand, tmp_path: Path) -> Iterator[OxiaAgent]:
    agent = OxiaAgent(metadata.port, tmp_path / "oxia.log")
    yield agent
    agent.stop()


def test_records(oxia: OxiaAgent) -> None:
    made = oxia.put("/a/b", "1", new=True)
    assert (made["key"], made["writes"], made["session"]) == ("/a/b", 0, None)
    assert oxia.put("/a/b", new=True) == {"refused": "KeyAlreadyExistsException"}
    written = oxia.put("/a/b", "2", version=made["version"])
    assert written["writes"] == 1
    assert oxia.put("/a/b", version=made["version"]) == {"refused": "UnexpectedVersionIdException"}
    found = oxia.call("get", key="/a/b")
    assert (found["value"], found["version"]) == ("2", written["version"])
    assert oxia.call("get", key="/a") == {}
    assert oxia.call("delete", key="/a/b", version=made["version"]) == {"refused": "UnexpectedVersionIdException"}
    assert oxia.call("delete", key="/a/b", version=written["version"]) == {"deleted": True}
    assert oxia.call("delete", key="/a/b") == {"deleted": False}


def test_orders_and_ranges(oxia: OxiaAgent) -> None:
    for name in ("/p/a", "/p/b", "/p/c", "/p/b/x", "/q", "no path"):
        oxia.put(name, name)
    assert oxia.list("/p/", "/p//") == ["/p/a", "/p/b", "/p/c"]
    assert oxia.list("", "") == ["no path", "/q", "/p/a", "/p/b", "/p/c", "/p/b/x"]
    found = [oxia.call("get", key="/p/b", compare=kind)["key"] for kind in ("floor", "lower", "higher", "ceiling")]
    assert found == ["/p/b", "/p/a", "/p/c", "/p/b"]
    records = oxia.call("scan", key="/p/b", end="/p//")["records"]
    assert [(each["key"], each["value"]) for each in records] == [("/p/b", "/p/b"), ("/p/c", "/p/c")]
    oxia.call("delete_range", key="/p/", end="/p//")
    assert oxia.list("", "") == ["no path", "/q", "/p/b/x"]


def test_sequences_and_indexes(oxia: OxiaAgent) -> None:
    oxia.call("follow", key="/s")
    assert oxia.put("/s", deltas=[1])["key"] == f"/s-{1:020d}"
    assert oxia.call("grown") == {"grown": f"/s-{1:020d}"}
    assert oxia.put("/s", deltas=[2])["key"] == f"/s-{3:020d}"
    assert oxia.call("grown") == {"grown": f"/s-{3:020d}"}
    oxia.put("/r/a", index="age", secondary="/r/9")
    oxia.put("/r/b", index="age", secondary="/r/3")
    assert oxia.list("/r/", "/r/9~", index="age") == ["/r/a", "/r/b"]  # which this client sorts by their keys
    assert oxia.list("/r/", "/r/9", index="age") == ["/r/b"]


async def test_both_clients_see_one_tree(metadata: MetadataCommand, oxia: OxiaAgent) -> None:
    service = await open_metadata_service(metadata.uri, timeout=10, token_file=str(metadata.tokens))
    oxia.call("listen")
    await service.tree.create("/ours", b"1")
    assert oxia.told() == "KeyCreated /ours"
    found = oxia.call("get", key="/ours")
    assert (found["value"], found["writes"]) == ("1", 0)
    assert oxia.put("/ours", "2", version=found["version"])["writes"] == 1
    assert oxia.told() == "KeyModified /ours"
    node = await service.tree.get("/ours")
    assert (node.data, node.stat.version) == (b"2", 1)
    await service.tree.delete("/ours")
    assert oxia.told() == "KeyDeleted /ours"
    await service.close()


def test_a_client_that_dies_or_leaves_takes_its_records_along(metadata: MetadataCommand, tmp_path: Path) -> None:
    watcher, dying, leaving = (OxiaAgent(metadata.port, tmp_path / f"{name}.log") for name in ("w", "d", "l"))
    try:
        watcher.call("listen")
        made = dying.put("/alive/dying", ephemeral=True)
        assert made["client"] == "podkeeper"
        assert made["session"] is not None
        leaving.put("/alive/leaving", ephemeral=True)
        assert [watcher.told() for _ in range(2)] == ["KeyCreated /alive/dying", "KeyCreated /alive/leaving"]
        leaving.call("close")
        assert watcher.told() == "KeyDeleted /alive/leaving"
        dying.stop()
        assert watcher.told() == "KeyDeleted /alive/dying"
    finally:
        for each in (watcher, dying, leaving):
            each.stop()


def test_clients_go_on_after_a_crash_of_the_service(metadata: MetadataCommand, tmp_path: Path) -> None:
    oxia = OxiaAgent(metadata.port, tmp_path / "oxia.log", 60_000)
    try:
        oxia.call("listen")
        oxia.put("/session", ephemeral=True)
        assert oxia.told() == "KeyCreated /session"
        before = oxia.call("get", key="/session")
        metadata.kill()
        metadata.start()
        until_true(lambda: oxia.put("/after", new=True).get("writes") == 0, 30)
        assert oxia.told() == "KeyCreated /after"
        assert oxia.call("get", key="/session") == before
        oxia.call("close")
    finally:
        oxia.stop()
