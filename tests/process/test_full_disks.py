"""Real small disks: clients write until the bookie is read-only, delete ledgers, and it comes back by itself. Nothing
that was acknowledged and not deleted is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bookie_client.blocking import BlockingClient
from bookie_pod.storage.disks import RESERVE
from bookie_protocol.errors import PodkeeperError, V2Code
from tests.support.collected_bookie import CollectedBookie, payload
from tests.support.frames import entry, v2_add, v2_code
from tests.support.metadata_process import MetadataProcess
from tests.support.serve_process import SmallDisk, SyncClient
from tests.support.until import until_true

pytestmark = pytest.mark.slow

PATIENCE_S = 60.0
SETTINGS = {
    "diskCheckInterval": "50",
    "flushInterval": "100",
    "diskUsageThreshold": "0.9",
    "diskUsageWarnThreshold": "0.85",
    "diskUsageLwmThreshold": "0.75",
    "logSizeLimit": "2097152",
    "gcWaitTime": "300",
    "minorCompactionInterval": "1",
    "majorCompactionInterval": "2",
    "dbStorage_rocksDB_writeBufferSizeMB": "1",
}
RARE = {"minorCompactionInterval": "3600", "majorCompactionInterval": "86400"}
"""As often as by default."""


@pytest.fixture
def disk(tmp_path: Path, megabytes: int) -> Iterator[SmallDisk]:
    with SmallDisk(tmp_path / "disk", megabytes) as made:
        yield made


@dataclass
class Written:
    """Ledgers and how many entries of each were acknowledged."""

    size: int
    acknowledged: dict[int, int] = field(default_factory=dict)

    def fill(self, client: BlockingClient, together: int, entries: int) -> None:
        """Ledgers of so many entries, so many of them at a time, until the bookie takes no more."""
        try:
            while True:
                writers = [client.create(ensemble=1, write_quorum=1, ack_quorum=1) for _ in range(together)]
                for writer in writers:
                    self.acknowledged[writer.ledger_id] = 0
                for _ in range(entries):
                    for writer in writers:
                        number = self.acknowledged[writer.ledger_id]
                        assert writer.append(payload(writer.ledger_id, number, self.size)) == number
                        self.acknowledged[writer.ledger_id] = number + 1
                for writer in writers:
                    writer.close()
        except PodkeeperError:
            return

    def add(self, client: BlockingClient, entries: int) -> None:
        """One ledger, as far as the bookie takes it."""
        with suppress(PodkeeperError), client.create(ensemble=1, write_quorum=1, ack_quorum=1) as writer:
            self.acknowledged[writer.ledger_id] = 0
            for number in range(entries):
                assert writer.append(payload(writer.ledger_id, number, self.size)) == number
                self.acknowledged[writer.ledger_id] = number + 1

    def recover(self, client: BlockingClient) -> None:
        """Writers that the full disk has ended have left ledgers open; a read-only bookie takes recovery adds."""
        for ledger_id in self.acknowledged:
            client.recover(ledger_id)

    def check(self, client: BlockingClient) -> None:
        for ledger_id, count in self.acknowledged.items():
            with client.open(ledger_id) as reader:
                found = [each.payload for each in reader.read(0, count - 1)] if count else []
            assert found == [payload(ledger_id, number, self.size) for number in range(count)], ledger_id

    def delete(self, client: BlockingClient, ledger_ids: list[int]) -> None:
        for ledger_id in ledger_ids:
            client.delete(ledger_id)
            del self.acknowledged[ledger_id]


def takes_writes(bookie: CollectedBookie) -> bool:
    with SyncClient(bookie.port) as client:
        code = v2_code(client.ask(v2_add(entry(1 << 40, 0))))
    assert code in (V2Code.EOK, V2Code.EREADONLY)
    return code == V2Code.EOK


@pytest.mark.parametrize(("megabytes", "size"), [(64, 10_000), (256, 60_000)])
@pytest.mark.parametrize(
    ("together", "settings"),
    [
        pytest.param(1, {}, id="whole logs die"),
        pytest.param(4, {"isForceGCAllowWhenNoSpace": "true"}, id="all logs must be compacted"),
        pytest.param(4, RARE, id="all logs must be compacted although no compaction is due"),
    ],
)
@pytest.mark.timeout(300)
def test_a_disk_that_clients_fill_comes_back_when_they_delete(
    tmp_path: Path,
    metadata: MetadataProcess,
    disk: SmallDisk,
    size: int,
    together: int,
    settings: dict[str, str],
) -> None:
    settings = {**SETTINGS, **settings, "ledgerDirectories": str(disk.path / "ledgers")}
    with CollectedBookie(tmp_path / "b", metadata.uri(), settings) as bookie:
        bookie.start()
        written = Written(size)
        with BlockingClient(bookie.uri) as client:
            written.fill(client, together, 100)
            until_true(lambda: not takes_writes(bookie), PATIENCE_S)
            written.recover(client)
            written.check(client)

            ledger_ids = sorted(written.acknowledged)
            keep = ledger_ids[:: 2 if settings["majorCompactionInterval"] == "86400" else 4]
            keep = keep if together > 1 else ledger_ids[-3:]
            written.delete(client, [each for each in ledger_ids if each not in keep])
            until_true(lambda: takes_writes(bookie), PATIENCE_S)
            until_true(lambda: bool(client.writable_bookies()), PATIENCE_S)
            written.check(client)

            written.fill(client, together, 100)  # all the space that came back
            until_true(lambda: not takes_writes(bookie), PATIENCE_S)
            written.recover(client)
            written.check(client)
        bookie.kill()
        bookie.start()
        with BlockingClient(bookie.uri) as client:
            written.check(client)
        assert bookie.quarantined() == {}


@pytest.mark.parametrize("megabytes", [128])
@pytest.mark.timeout(300)
def test_a_bookie_of_defaults_makes_room_of_half_dead_logs_by_itself(
    tmp_path: Path, metadata: MetadataProcess, disk: SmallDisk
) -> None:
    """Nothing is configured but how soon disks and garbage are looked at: logs fit the disk, and so do their copies."""
    settings = {
        "ledgerDirectories": str(disk.path / "ledgers"),
        "logSizeLimit": str(1 << 30),
        "diskUsageThreshold": "0.95",
        "diskUsageWarnThreshold": "0.90",
        "diskUsageLwmThreshold": "0.95",
        **RARE,
        "gcWaitTime": "500",
        "flushInterval": "100",
        "diskCheckInterval": "50",
    }
    with CollectedBookie(tmp_path / "b", metadata.uri(), settings) as bookie:
        bookie.start()
        written = Written(60_000)
        with BlockingClient(bookie.uri) as client:
            written.fill(client, 4, 100)
            until_true(lambda: not takes_writes(bookie), PATIENCE_S)
            ledger_ids = sorted(written.acknowledged)
            written.delete(client, ledger_ids[1::2])
            until_true(lambda: takes_writes(bookie), PATIENCE_S)
            until_true(lambda: bool(client.writable_bookies()), PATIENCE_S)
            written.recover(client)  # not before: by default recovery needs more room than this disk has
            written.check(client)
        bookie.kill()
        bookie.start()
        with BlockingClient(bookie.uri) as client:
            written.check(client)
        assert bookie.quarantined() == {}


ENGINES = ("DbLedgerStorage", "SortedLedgerStorage", "InterleavedLedgerStorage")


@pytest.mark.parametrize("megabytes", [64])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.timeout(300)
def test_a_bookie_starts_on_a_disk_that_somebody_else_has_filled(
    tmp_path: Path, metadata: MetadataProcess, disk: SmallDisk, engine: str
) -> None:
    """It reads everything, what only the journal has too, takes nothing, and collects until it is writable again."""
    package = "org.apache.bookkeeper.bookie." + ("storage.ldb." if engine.startswith("Db") else "")
    settings = {
        **SETTINGS,
        "ledgerDirectories": str(disk.path / "ledgers"),
        "ledgerStorageClass": package + engine,
        "zkTimeout": "3000",
    }
    reserve = disk.path / "ledgers" / "current" / RESERVE
    with CollectedBookie(tmp_path / "b", metadata.uri(), settings) as bookie:
        bookie.start()
        until_true(reserve.exists, PATIENCE_S)
        written = Written(60_000)
        with BlockingClient(bookie.uri) as client:
            for _ in range(30):
                written.add(client, 16)
            ballast = disk.fill()
            written.add(client, 5)  # nobody has looked at the disk yet, or it goes on in memory
        bookie.kill()
        with suppress(OSError):  # it has given nothing back
            disk.fill(at=ballast.with_name("more"))
        bookie.start()
        assert not reserve.exists()
        assert not takes_writes(bookie)
        with BlockingClient(bookie.uri) as client:
            written.recover(client)
            written.check(client)
            written.delete(client, sorted(written.acknowledged)[:25])
            until_true(lambda: takes_writes(bookie), PATIENCE_S)
            written.check(client)
        until_true(reserve.exists, PATIENCE_S)
        assert reserve.stat().st_blocks * 512 >= reserve.stat().st_size > 500_000
