"""A bookie whose indexes have lost rows: rebuilt while it serves, with clients that write and read all the while."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bookie_client.blocking import BlockingClient
from bookie_pod.storage.files_posix import PosixFiles
from bookie_pod.storage.index.locations import KEY, VALUE
from bookie_pod.storage.index.rocksdb_store import RocksStores
from bookie_pod.storage.index.store import StoreKind
from bookie_protocol.errors import V3Status
from tests.support.bookie_process import free_port
from tests.support.frames import v3_read, v3_status
from tests.support.metadata_process import MetadataProcess
from tests.support.serve_cluster import ServeCluster
from tests.support.serve_process import PROGRAM, ServeProcess, SyncClient
from tests.support.until import until_true

ENTRIES = 2000
PATIENCE_S = 60.0
ONE = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1, "password": b"pw"}
SETTINGS = {"flushInterval": "200", "logSizeLimit": "1048576", "httpServerEnabled": "true"}


@pytest.fixture
def bookie(tmp_path: Path, metadata: MetadataProcess) -> Iterator[ServeProcess]:
    cluster = ServeCluster(tmp_path, metadata.uri(), SETTINGS | {"httpServerPort": str(free_port())})
    try:
        cluster.add(1)
        yield cluster.bookies["bookie-1"]
    finally:
        cluster.stop()


def payload(number: int) -> bytes:
    return b"entry %08d " % number * 40


def url(bookie: ServeProcess) -> str:
    return f"http://127.0.0.1:{bookie.settings['httpServerPort']}"


def asked(bookie: ServeProcess, path: str, method: str = "GET") -> Any:
    request = urllib.request.Request(f"{url(bookie)}/{path}", method=method)
    with urllib.request.urlopen(request, timeout=20) as answer:
        text = answer.read().decode()
    return text if path == "metrics" else json.loads(text)


def state(bookie: ServeProcess) -> dict[str, Any]:
    (found,) = asked(bookie, "api/v1/bookie/index_rebuild")
    return dict(found)


def write(client: BlockingClient, count: int) -> int:
    ledger = client.create(**ONE)  # type: ignore[arg-type]
    for number in range(count):
        ledger.submit(payload(number))
    ledger.close()
    return ledger.ledger_id


def check(client: BlockingClient, ledger_id: int, count: int) -> None:
    with client.open(ledger_id, password=b"pw") as reader:
        assert [entry.payload for entry in reader.entries()] == [payload(number) for number in range(count)]


def code(bookie: ServeProcess, ledger_id: int, entry_id: int) -> int:
    with SyncClient(bookie.port) as client:
        return v3_status(client.ask(v3_read(ledger_id, entry_id)))


def lose(bookie: ServeProcess, ledger_id: int, lost_ledger: int) -> None:
    """Behind the back of a stopped bookie: rows of one ledger go or lead elsewhere, another's record is gone."""
    stores = RocksStores(PosixFiles())
    current = bookie.work / "ledgers" / "current"
    locations = stores.open(str(current / "locations"), StoreKind.LOCATIONS)
    batch = locations.batch()
    for entry_id in range(0, ENTRIES, 3):
        batch.delete(KEY.pack(ledger_id, entry_id))
    for entry_id in range(1, ENTRIES, 30):
        batch.put(KEY.pack(ledger_id, entry_id), VALUE.pack(999 << 32 | 1028))
    batch.commit()
    locations.close()
    ledgers = stores.open(str(current / "ledgers"), StoreKind.LEDGERS)
    batch = ledgers.batch()
    batch.delete(lost_ledger.to_bytes(8, "big"))
    batch.commit()
    ledgers.close()


class Load:
    """One client that appends to a ledger and reads its tail until it is stopped."""

    def __init__(self, uri: str) -> None:
        self.count = self.ledger_id = 0
        self._uri = uri
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with BlockingClient(self._uri) as client:
                ledger = client.create(**ONE)  # type: ignore[arg-type]
                self.ledger_id = ledger.ledger_id
                while not self._stop.is_set():
                    ledger.append(payload(self.count))
                    self.count += 1
                ledger.close()
        except BaseException as error:
            self._failure = error

    def stop(self) -> int:
        self._stop.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self.count


def test_lost_rows_and_a_lost_ledger_come_back_under_load(bookie: ServeProcess) -> None:
    uri = bookie.settings["metadataServiceUri"]
    with BlockingClient(uri) as client:
        first, second, deleted = (write(client, ENTRIES) for _ in range(3))
        client.delete(deleted)
    assert bookie.stop() == 0
    lose(bookie, first, second)
    bookie.settings["indexRebuildRateByBytes"] = "2000000"
    bookie.start()
    assert code(bookie, first, 0) == V3Status.ENOENTRY, "this is what is to be repaired"
    assert code(bookie, second, 0) == V3Status.ENOLEDGER

    load = Load(uri)
    with subprocess.Popen(
        [PROGRAM, "index", "rebuild", "--url", url(bookie), "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as command:
        until_true(lambda: state(bookie)["phase"] == "entry logs", PATIENCE_S)
        assert code(bookie, first, 0) == V3Status.EUNKNOWNLEDGERSTATE
        assert code(bookie, first, 10 * ENTRIES) == V3Status.EUNKNOWNLEDGERSTATE
        assert code(bookie, first, 2) == V3Status.EOK
        out, err = command.communicate(timeout=PATIENCE_S)
    added = load.stop()
    assert (command.returncode, err) == (0, b"")
    (found,) = json.loads(out)
    assert (found["outcome"], found["restoredLedgers"], found["danglingRows"]) == ("done", 1, 0)
    assert found["changedRows"] >= ENTRIES // 3 + ENTRIES // 30
    assert code(bookie, first, 10 * ENTRIES) == V3Status.ENOENTRY
    assert code(bookie, deleted, 0) in (V3Status.ENOLEDGER, V3Status.EOK), "until it is collected"
    for _ in range(2):
        with BlockingClient(uri) as client:
            check(client, first, ENTRIES)
            check(client, second, ENTRIES)
            check(client, load.ledger_id, added)
        assert bookie.stop() == 0
        bookie.start()
    assert sorted(path.name.partition(".")[0] for path in Path(found["backups"][0]).parent.glob("*.BACKUP-*")) == [
        "ledgers",
        "locations",
    ]


def test_it_can_be_interrupted_and_a_kill_leaves_the_old_index(bookie: ServeProcess) -> None:
    uri = bookie.settings["metadataServiceUri"]
    with BlockingClient(uri) as client:
        first, second = (write(client, ENTRIES) for _ in range(2))
    assert bookie.stop() == 0
    lose(bookie, first, second)
    bookie.settings["indexRebuildRateByBytes"] = "1000"
    bookie.start()
    rebuild = ("index", "rebuild", "--no-ledgers", "--url", url(bookie))
    with subprocess.Popen([PROGRAM, *rebuild], stdout=subprocess.PIPE) as command:
        until_true(lambda: state(bookie)["phase"] == "entry logs", PATIENCE_S)
        again = ServeProcess.command(*rebuild)
        assert (again.returncode, again.stderr.count("\n")) == (10, 1)
        command.send_signal(signal.SIGINT)
        out, _ = command.communicate(timeout=PATIENCE_S)
    assert command.returncode == 130
    assert b"stopped" in out
    assert state(bookie)["outcome"] == "stopped"
    assert code(bookie, first, 0) == V3Status.ENOENTRY

    building = bookie.work / "ledgers" / "current" / "rebuilt.building"
    assert not building.exists()
    assert ServeProcess.command(*rebuild, "--no-watch").returncode == 0
    until_true(lambda: state(bookie)["phase"] == "entry logs", PATIENCE_S)
    assert building.exists()
    bookie.kill()
    bookie.settings["indexRebuildRateByBytes"] = "0"
    bookie.start()
    assert not building.exists()
    assert code(bookie, first, 2) == V3Status.EOK
    assert asked(bookie, "api/v1/bookie/index_rebuild", "PUT") == {"triggered": True}
    until_true(lambda: state(bookie)["outcome"] == "done", PATIENCE_S)
    assert "index_rebuild_RUNNING 0\n" in asked(bookie, "metrics")
    with BlockingClient(uri) as client:
        check(client, first, ENTRIES)
        check(client, second, ENTRIES)
