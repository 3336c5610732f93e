"""Space that comes back: a bookie as a process, ledgers deleted through the client, entry logs that go or shrink."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from bookie_client.blocking import BlockingClient
from tests.support.serve_process import ServeProcess
from tests.support.zookeeper import ZooKeeperServer

LOG_LIMIT = 1 << 20
OVERHEAD = 44
"""Bytes that an entry takes in a log beside the `size` that a test gives: its number, and what a bookie adds."""
COLLECTING = {
    "gcWaitTime": "200",
    "logSizeLimit": str(LOG_LIMIT),
    "minorCompactionInterval": "1",
    "majorCompactionInterval": "2",
    "flushInterval": "200",
    "compactionRateByBytes": "100000000",
    "gcOverreplicatedLedgerWaitTime": "-1",
}
PATIENCE_S = 30.0


@pytest.fixture
def bookie(tmp_path: Path, zookeeper: ZooKeeperServer) -> Iterator[ServeProcess]:
    uri = zookeeper.uri(f"/{uuid4().hex}")
    assert ServeProcess.command("cluster", "init", uri).returncode == 0
    with ServeProcess(tmp_path / "b", COLLECTING | {"metadataServiceUri": uri}) as process:
        process.start()
        yield process


def logs(bookie: ServeProcess) -> dict[str, int]:
    """Entry logs on disk and their sizes."""
    found = {}
    for path in (bookie.work / "ledgers" / "current").glob("*.log"):
        try:
            found[path.name] = path.stat().st_size
        except FileNotFoundError:  # removed meanwhile
            continue
    return found


def until(condition: Callable[[], bool], what: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


def write(client: BlockingClient, ledgers: int, entries: int, size: int) -> list[int]:
    """Ledgers whose entries lie in the logs alternately."""
    open_ledgers = [client.create(ensemble=1, write_quorum=1, ack_quorum=1) for _ in range(ledgers)]
    for number in range(entries):
        for at, ledger in enumerate(open_ledgers):
            ledger.submit(bytes([at]) * size + number.to_bytes(4))
    for ledger in open_ledgers:
        ledger.close()
    return [ledger.ledger_id for ledger in open_ledgers]


def check(client: BlockingClient, ledger_id: int, at: int, entries: int, size: int) -> None:
    with client.open(ledger_id) as reader:
        found = [each.payload for each in reader.entries()]
    assert found == [bytes([at]) * size + number.to_bytes(4) for number in range(entries)]


@pytest.mark.zookeeper
@pytest.mark.slow
def test_short_lived_ledgers_give_their_space_back_beside_a_long_lived_one(bookie: ServeProcess) -> None:
    entries, size = 400, 2000
    with BlockingClient(bookie.settings["metadataServiceUri"]) as client:
        ledger_ids = write(client, 10, entries, size)
        until(lambda: sum(logs(bookie).values()) >= 10 * entries * size * 0.9, lambda: logs(bookie))
        for ledger_id in ledger_ids[:9]:
            client.delete(ledger_id)
        # Another ledger, so that the log that held the last entries is rotated.
        write(client, 1, 600, size)
        # Of a log that stays a fifth may be dead; and one is written at present.
        limit = (entries + 600) * (size + OVERHEAD) / 0.8 + LOG_LIMIT
        until(lambda: sum(logs(bookie).values()) < limit, lambda: (logs(bookie), bookie.lines()[-20:]))
        check(client, ledger_ids[9], 9, entries, size)
    bookie.stop()
    bookie.start()
    with BlockingClient(bookie.settings["metadataServiceUri"]) as client:
        check(client, ledger_ids[9], 9, entries, size)
