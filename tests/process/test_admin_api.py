"""A runbook's way to collect garbage: `PUT /api/v1/bookie/gc`, then `GET /api/v1/bookie/gc_details` until it is done;
and the same with `bookie gc`. The bookie is a process, ledgers are deleted through the client."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from bookie_client.blocking import BlockingClient
from tests.support.bookie_process import free_port
from tests.support.serve_process import ServeProcess
from tests.support.until import until_true
from tests.support.zookeeper import ZooKeeperServer

PATIENCE_S = 60.0
TYPES = {
    "forceCompacting": bool,
    "majorCompacting": bool,
    "minorCompacting": bool,
    "lastMajorCompactionTime": int,
    "lastMinorCompactionTime": int,
    "majorCompactionCounter": int,
    "minorCompactionCounter": int,
}
RATE = 700_000
"""Bytes per second: slow enough that a compaction can be seen at work."""


class Collected:
    """A bookie whose entry logs hold garbage beside one ledger that lives."""

    def __init__(self, process: ServeProcess, client: BlockingClient) -> None:
        self.process = process
        self.client = client
        self.url = f"http://127.0.0.1:{process.settings['httpServerPort']}"
        self.token = Path(process.settings["httpServerAuthTokenFile"]).read_text()

    def ask(self, path: str, method: str = "GET", body: object = None) -> tuple[int, Any]:
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(f"{self.url}/api/v1/{path}", data, method=method)
        request.add_header("Authorization", f"Bearer {self.token}")
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.loads(answer.read())

    def details(self) -> dict[str, Any]:
        status, found = self.ask("bookie/gc_details")
        assert status == 200
        (only,) = found
        assert {name: type(only[name]) for name in TYPES} == TYPES
        return dict(only)

    def write(self, ledgers: int, entries: int) -> list[int]:
        """Their entries lie in the logs alternately."""
        handles = [self.client.create(ensemble=1, write_quorum=1, ack_quorum=1) for _ in range(ledgers)]
        for number in range(entries):
            for handle in handles:
                handle.submit(number.to_bytes(4) * 500)
        for handle in handles:
            handle.close()
        return [handle.ledger_id for handle in handles]

    def garbage(self) -> int:
        """Rotated and flushed logs of which a third lives; returns the ledger that does."""
        kept, *dead = self.write(3, 600)
        for ledger_id in dead:
            self.client.delete(ledger_id)
        for ledger_id in self.write(1, 700):  # rotates the last of these logs
            self.client.delete(ledger_id)
        until_true(lambda: self.flushed() >= 3, PATIENCE_S)
        return kept

    def flushed(self) -> int:
        """Logs that the next pass will look at."""
        names = self.ask("bookie/list_disk_file?file_type=entrylog")[1]["entrylog files"].split()
        reasons = [self.ask(f"bookie/gc/why?entryLog={name}")[1][0]["reason"] for name in names]
        return sum("not looked at yet" in reason for reason in reasons)

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        token = self.process.settings["httpServerAuthTokenFile"]
        return self.process.command("gc", *arguments, "--url", self.url, "--token-file", token)


@pytest.fixture
def collected(tmp_path: Path, zookeeper: ZooKeeperServer) -> Iterator[Collected]:
    uri = zookeeper.uri(f"/{uuid4().hex}")
    token = tmp_path / "token"
    token.write_text("s3cret-of-the-cluster")
    assert ServeProcess.command("cluster", "init", uri).returncode == 0
    settings = {
        "metadataServiceUri": uri,
        "httpServerEnabled": "true",
        "httpServerHost": "127.0.0.1",
        "httpServerPort": str(free_port()),
        "httpServerAuthTokenFile": str(token),
        "logSizeLimit": "1048576",
        "flushInterval": "200",
        "compactionRateByBytes": str(RATE),
        "gcOverreplicatedLedgerWaitTime": "-1",
    }
    with ServeProcess(tmp_path / "b", settings) as process, BlockingClient(uri) as client:
        process.start()
        yield Collected(process, client)


@pytest.mark.zookeeper
@pytest.mark.slow
def test_gc_then_details_until_done(collected: Collected) -> None:
    kept = collected.garbage()
    before = collected.details()
    assert not any(before[name] for name in ("forceCompacting", "majorCompacting", "minorCompacting"))
    assert collected.ask("bookie/gc", "PUT") == (
        200,
        f"Triggered GC on BookieServer: 127.0.0.1:{collected.process.port}",
    )
    seen = {"forceCompacting": False, "majorCompacting": False}
    deadline = time.monotonic() + PATIENCE_S
    while (now := collected.details())["forceCompacting"]:
        assert time.monotonic() < deadline, now
        assert collected.ask("bookie/gc")[1] in ({"is_in_force_gc": "true"}, {"is_in_force_gc": "false"})
        seen = {name: flag or now[name] for name, flag in seen.items()}
        time.sleep(0.01)
    assert seen == {"forceCompacting": True, "majorCompacting": True}
    assert not now["majorCompacting"]
    assert now["majorCompactionCounter"] == before["majorCompactionCounter"] + 1
    assert now["lastMajorCompactionTime"] > before["lastMajorCompactionTime"]
    assert now["lastMinorCompactionTime"] > before["lastMinorCompactionTime"]
    assert collected.ask("bookie/gc")[1] == {"is_in_force_gc": "false"}
    (progress,) = collected.ask("bookie/gc/progress")[1]
    assert progress["lastPass"]["logsCompacted"] >= 1
    # How much of it lies in logs that are rotated depends on when flushes came.
    assert progress["lastPass"]["reclaimedBytes"] > 1_000_000
    with collected.client.open(kept) as reader:
        assert [each.payload for each in reader.entries()] == [number.to_bytes(4) * 500 for number in range(600)]


@pytest.mark.zookeeper
@pytest.mark.slow
def test_the_same_by_command(collected: Collected) -> None:
    collected.garbage()
    assert collected.command("suspend").returncode == 0
    status = collected.command("status")
    assert status.stdout.count("suspended, none so far") == 2
    # Measured, but not compacted: so the forecast knows, and a log says why it stays.
    measured = collected.command("run", "--watch", "--json")
    assert measured.returncode == 0, measured.stderr
    assert json.loads(measured.stdout)[0]["lastPass"]["compaction"] is None
    (forecast,) = json.loads(collected.command("forecast", "--json").stdout)
    assert forecast["major"]["logs"] >= 1
    assert forecast["major"]["dueInSeconds"] is None
    names = collected.ask("bookie/list_disk_file?file_type=entrylog")[1]["entrylog files"].split()
    held_back = [name for name in names if "off or suspended" in collected.command("why", name).stdout]
    assert len(held_back) == forecast["major"]["logs"]
    watched = collected.command("run", "--major", "--watch", "--json")
    assert (watched.returncode, watched.stderr) == (0, "")
    (result,) = json.loads(watched.stdout)
    assert result["lastPass"]["compaction"] == "major"
    assert result["lastPass"]["logsCompacted"] >= forecast["major"]["logs"]
    for name in held_back:
        gone = collected.command("why", name)
        assert gone.returncode == 11
        assert gone.stderr.startswith(f"bookie: there is no entry log {name} ")
