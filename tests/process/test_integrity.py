"""A bit that flips on the disk of a bookie: clients never get it, the scrubber finds it, another bookie mends it."""

from __future__ import annotations

import json
import re
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bookie_client.blocking import BlockingClient
from bookie_pod.storage.engines.detection import SORTED_LEDGER_STORAGE
from bookie_pod.storage.index.index_file import relative_path
from bookie_protocol.errors import LedgerClosed, LedgerFenced, V2Code, V3Status
from tests.support.bookie_process import free_port
from tests.support.frames import v2_add, v2_code, v3_read, v3_status
from tests.support.metadata_process import MetadataProcess
from tests.support.serve_cluster import ServeCluster
from tests.support.serve_process import ServeProcess, SyncClient
from tests.support.storage_engine import entry
from tests.support.until import until_true

ENTRIES = 60
PATIENCE_S = 40.0
SCRUBBING = {
    "localScrubInterval": "1",
    "localScrubRateLimit": "0",
    "flushInterval": "100",
    "logSizeLimit": "1048576",
    "localScrubRepair": "false",
}


@pytest.fixture
def cluster(tmp_path: Path, metadata: MetadataProcess) -> Iterator[ServeCluster]:
    made = ServeCluster(tmp_path, metadata.uri(), SCRUBBING)
    try:
        made.add(2)
        yield made
    finally:
        made.stop()


def payload(entry_id: int) -> bytes:
    return b"entry %06d " % entry_id * 30


def write(uri: str) -> int:
    with BlockingClient(uri) as client:
        ledger = client.create(ensemble=2, write_quorum=2, ack_quorum=2, password=b"pw")
        for entry_id in range(ENTRIES):
            ledger.submit(payload(entry_id))
        ledger.close()
        return ledger.ledger_id


def check(uri: str, ledger_id: int) -> None:
    with BlockingClient(uri) as client, client.open(ledger_id, password=b"pw") as reader:
        assert [entry.payload for entry in reader.entries()] == [payload(each) for each in range(ENTRIES)]


def flip(bookie: ServeProcess, entry_id: int) -> None:
    """Flip one bit of an entry in the entry log of a stopped bookie."""
    (path,) = (
        each for each in (bookie.work / "ledgers" / "current").glob("*.log") if payload(entry_id) in each.read_bytes()
    )
    content = bytearray(path.read_bytes())
    content[content.index(payload(entry_id)) + 100] ^= 0x10
    path.write_bytes(content)


def known_damage(bookie: ServeProcess) -> list[tuple[int, int]]:
    """Ledger and entry of what the stored register holds."""
    try:
        state = json.loads((bookie.work / "ledgers" / "current" / "scrub-state.json").read_text())
    except FileNotFoundError:
        return []
    return [(each["ledgerId"], each["entryId"]) for each in state["damages"]]


def code(bookie: ServeProcess, ledger_id: int, entry_id: int) -> int:
    """The status of a read of this entry on this bookie, over version 3, which tells limbo from faults."""
    with SyncClient(bookie.port) as client:
        return v3_status(client.ask(v3_read(ledger_id, entry_id)))


def test_a_flipped_bit_is_found_refused_and_mended_by_another_bookie(cluster: ServeCluster) -> None:
    ledger_id = write(cluster.uri)
    bookie = cluster.bookies["bookie-1"]
    assert bookie.stop() == 0
    flip(bookie, 17)
    bookie.start()

    until_true(lambda: known_damage(bookie) == [(ledger_id, 17)], PATIENCE_S)
    assert bookie.logged("the scrubber found damage")
    assert code(bookie, ledger_id, 17) == V3Status.EIO
    assert code(bookie, ledger_id, 16) == V3Status.EOK
    check(cluster.uri, ledger_id)

    bookie.kill()
    bookie.settings["localScrubInterval"] = "1000000"
    bookie.settings["localScrubRepair"] = "true"
    bookie.start()
    assert code(bookie, ledger_id, 17) == V3Status.EIO, "what is known to be damaged is refused from the start"

    bookie.stop()
    bookie.settings["localScrubInterval"] = "1"
    bookie.settings |= {"prometheusStatsHttpEnable": "true", "prometheusStatsHttpPort": str(free_port())}
    bookie.start()
    until_true(lambda: code(bookie, ledger_id, 17) == V3Status.EOK, PATIENCE_S)
    until_true(lambda: bookie.logged("damaged entries were fetched from other bookies"), PATIENCE_S)
    cluster.kill("bookie-2")
    check(cluster.uri, ledger_id)
    with urllib.request.urlopen(
        f"http://127.0.0.1:{bookie.settings['prometheusStatsHttpPort']}/metrics", timeout=10
    ) as answer:
        text = answer.read().decode()
    assert re.search(r"^scrubber_REPAIRED_ENTRIES 1$", text, re.MULTILINE)
    assert re.search(r'^scrubber_runTime_count\{success="true"\} [1-9]', text, re.MULTILINE)


def test_a_flipped_bit_is_refused_at_the_first_read_and_mended_without_a_scrub(cluster: ServeCluster) -> None:
    ledger_id = write(cluster.uri)
    bookie = cluster.bookies["bookie-1"]
    assert bookie.stop() == 0
    flip(bookie, 17)
    bookie.settings |= {"localScrubInterval": "0", "localScrubRepair": "true"}
    cluster.bookies["bookie-2"].pause()  # so that nobody mends it yet
    bookie.start()
    assert code(bookie, ledger_id, 17) == V3Status.EIO
    assert bookie.logged("a read found damage")
    assert [code(bookie, ledger_id, each) for each in (16, 18)] == [V3Status.EOK] * 2
    assert code(bookie, ledger_id, 17) == V3Status.EIO
    cluster.bookies["bookie-2"].resume()
    until_true(lambda: code(bookie, ledger_id, 17) == V3Status.EOK, PATIENCE_S)
    cluster.kill("bookie-2")
    check(cluster.uri, ledger_id)


CHECKING = {"dataIntegrityChecking": "true", "dataIntegrityStampMissingCookies": "true"}
UNKNOWN = V3Status.EUNKNOWNLEDGERSTATE


@pytest.mark.parametrize(
    "lost",
    [
        ["ledgers", "journal"],
        pytest.param(["ledgers"], marks=pytest.mark.slow),
        pytest.param(["journal"], marks=pytest.mark.slow),
    ],
)
def test_a_bookie_that_lost_its_disks_fetches_what_it_held(cluster: ServeCluster, lost: list[str]) -> None:
    closed = write(cluster.uri)
    bookie = cluster.bookies["bookie-1"]
    bookie.settings["journalMaxBackups"] = "0"
    for _ in range(2):  # so that the journal was trimmed
        assert bookie.stop() == 0
        cluster.start(["bookie-1"])
    with BlockingClient(cluster.uri) as client:
        writer = client.create(ensemble=2, write_quorum=2, ack_quorum=2, password=b"pw")
        for entry_id in range(ENTRIES):
            writer.append(payload(entry_id))
        bookie.kill()
        for name in lost:
            shutil.rmtree(bookie.work / name)
        assert "mount it" in bookie.refused()[1]

        bookie.settings |= {"dataIntegrityChecking": "true"}
        assert "dataIntegrityStampMissingCookies=true" in bookie.refused()[1]
        assert not (bookie.work / lost[0] / "current" / "VERSION").exists()

        cluster.bookies["bookie-2"].pause()
        bookie.settings |= CHECKING
        cluster.start(["bookie-1"])
        if "ledgers" in lost and "journal" in lost:
            assert code(bookie, closed, 5) == UNKNOWN
            assert code(bookie, writer.ledger_id, 5) == UNKNOWN
            assert code(bookie, writer.ledger_id, -1) == UNKNOWN
        for entry_id in (0, ENTRIES - 1):
            assert code(bookie, closed, entry_id) in (UNKNOWN, V3Status.EOK), "never a denial"
        cluster.bookies["bookie-2"].resume()
        until_true(lambda: bookie.logged("data integrity check complete"), PATIENCE_S)
        with pytest.raises((LedgerFenced, LedgerClosed)):
            writer.append(b"from a writer that was fenced")

    cluster.kill("bookie-2")
    for ledger_id in (closed, writer.ledger_id):
        assert code(bookie, ledger_id, 0) == V3Status.EOK
        check(cluster.uri, ledger_id)
    assert code(bookie, closed, ENTRIES) == V3Status.ENOENTRY, "now it knows"
    bookie.stop()
    bookie.settings["dataIntegrityStampMissingCookies"] = "false"
    bookie.start()
    check(cluster.uri, closed)


def test_records_of_a_journal_that_are_given_up_are_fetched_and_not_denied(cluster: ServeCluster) -> None:
    """They may be of any ledger; no setting but that one is needed."""
    bookie = cluster.bookies["bookie-1"]
    assert bookie.stop() == 0
    bookie.settings |= {"flushInterval": "600000", "localScrubInterval": "0"}  # so that only the journal has it
    cluster.start(["bookie-1"])
    ledger_id = write(cluster.uri)
    bookie.kill()
    (path,) = (each for each in (bookie.work / "journal" / "current").glob("*.txn") if payload(0) in each.read_bytes())
    content = bytearray(path.read_bytes())
    content[content.index(payload(0)) + 100] ^= 0x10
    path.write_bytes(content)
    assert "skipReplayJournalInvalidRecord=true" in bookie.refused()[1]
    cluster.bookies["bookie-2"].pause()
    bookie.settings["skipReplayJournalInvalidRecord"] = "true"
    cluster.start(["bookie-1"])
    assert {code(bookie, ledger_id, each) for each in (0, ENTRIES - 1, -1)} == {UNKNOWN}
    cluster.bookies["bookie-2"].resume()
    until_true(lambda: bookie.logged("data integrity check complete"), PATIENCE_S)
    cluster.kill("bookie-2")
    check(cluster.uri, ledger_id)
    assert code(bookie, ledger_id, ENTRIES) == V3Status.ENOENTRY, "now it knows"


@pytest.fixture
def sorted_cluster(tmp_path: Path, metadata: MetadataProcess) -> Iterator[ServeCluster]:
    made = ServeCluster(tmp_path, metadata.uri(), SCRUBBING | {"ledgerStorageClass": SORTED_LEDGER_STORAGE})
    try:
        made.add(2)
        yield made
    finally:
        made.stop()


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1024])


@pytest.mark.parametrize("damage", [Path.unlink, cut_short])
def test_an_index_file_that_is_lost_or_cut_is_made_good_by_its_bookie(
    sorted_cluster: ServeCluster, damage: Callable[[Path], None]
) -> None:
    """Nobody else has to find it, and no setting is needed."""
    cluster = sorted_cluster
    ledger_id = write(cluster.uri)
    bookie = cluster.bookies["bookie-1"]
    assert bookie.stop() == 0
    damage(bookie.work / "ledgers" / "current" / relative_path(ledger_id))
    cluster.bookies["bookie-2"].pause()
    cluster.start(["bookie-1"])
    assert {code(bookie, ledger_id, each) for each in (0, 5, -1)} == {UNKNOWN}
    cluster.bookies["bookie-2"].resume()
    until_true(lambda: bookie.logged("data integrity check complete"), PATIENCE_S)
    cluster.kill("bookie-2")
    check(cluster.uri, ledger_id)
    assert code(bookie, ledger_id, ENTRIES) == V3Status.ENOENTRY, "now it knows"


@pytest.mark.parametrize("come_back", [True, False])
def test_one_ledger_directory_fails_and_the_others_go_on(tmp_path: Path, come_back: bool) -> None:
    directories = [tmp_path / "disk0", tmp_path / "disk1"]
    settings = {
        "ledgerDirectories": ",".join(map(str, directories)),
        "isolateFailedLedgerDirectories": "true",
        "diskCheckInterval": "20",
        # A directory that is gone for good takes with it what was flushed; here that is nothing.
        "flushInterval": "50" if come_back else "600000",
    } | CHECKING
    with ServeProcess(tmp_path / "b", settings) as bookie:
        bookie.start()
        with SyncClient(bookie.port) as client:
            for ledger_id in (10, 11):
                assert v2_code(client.ask(v2_add(entry(ledger_id, 0)))) == V2Code.EOK
            (directories[1] / "current").rename(tmp_path / "away")
            until_true(lambda: bookie.logged("a ledger directory failed, the others go on"), PATIENCE_S)
            until_true(lambda: v2_code(client.ask(v2_add(entry(11, 1)))) == V2Code.EIO, PATIENCE_S)
            assert v2_code(client.ask(v2_add(entry(10, 1)))) == V2Code.EOK
            assert v2_code(client.ask(v2_add(entry(13, 0)))) == V2Code.EIO
            assert code(bookie, 11, 5) == V3Status.EIO, "no denial"
            assert code(bookie, 10, 5) == V3Status.ENOENTRY
        assert not (directories[1] / "current").exists(), "nothing is written where its disk was"
        bookie.kill()
        if come_back:
            (tmp_path / "away").rename(directories[1] / "current")
        bookie.start()
        assert [code(bookie, 10, each) for each in (0, 1)] == [V3Status.EOK] * 2
        assert code(bookie, 11, 0) == V3Status.EOK, "what was acknowledged is on the disk, or in the journal"
        assert code(bookie, 13, 0) in (V3Status.ENOLEDGER, V3Status.ENOENTRY), "what was refused is nowhere"


@pytest.fixture
def two_disks(tmp_path: Path, metadata: MetadataProcess) -> Iterator[ServeCluster]:
    """Two bookies with two ledger directories each; one that fails is isolated."""
    made = ServeCluster(tmp_path, metadata.uri())
    for name in ("bookie-1", "bookie-2"):
        settings = {
            "bookieId": name,
            "metadataServiceUri": made.uri,
            "zkTimeout": "4000",
            "ledgerDirectories": f"{tmp_path / name}/disk0,{tmp_path / name}/disk1",
            "isolateFailedLedgerDirectories": "true",
            "diskCheckInterval": "20",
        }
        made.bookies[name] = ServeProcess(tmp_path / name, settings)
    try:
        made.start(made.bookies)
        yield made
    finally:
        made.stop()


def test_what_one_of_two_ledger_directories_held_is_never_denied_and_comes_from_other_bookies(
    two_disks: ServeCluster,
) -> None:
    """Of each directory a ledger that is closed and one that is still written."""
    bookie = two_disks.bookies["bookie-1"]
    closed = [write(two_disks.uri) for _ in range(2)]
    with BlockingClient(two_disks.uri) as client:
        writers = [client.create(ensemble=2, write_quorum=2, ack_quorum=2, password=b"pw") for _ in range(2)]
        for writer in writers:
            for entry_id in range(ENTRIES):
                writer.append(payload(entry_id))
        ledgers = [*closed, *(writer.ledger_id for writer in writers)]
        kept = [ledger_id for ledger_id in ledgers if ledger_id % 2 == 0]
        gone = [ledger_id for ledger_id in ledgers if ledger_id % 2 == 1]
        assert len(set(kept) & set(closed)) == len(set(gone) & set(closed)) == 1
        assert bookie.stop() == 0  # so that the journal holds nothing of it any more
        bookie.start()
        # At once: the bookie would write into what is removed bit by bit.
        (bookie.work / "disk1").rename(bookie.work / "taken-out")
        until_true(lambda: bookie.logged("a ledger directory failed, the others go on"), PATIENCE_S)
        for ledger_id in gone:
            until_true(lambda each=ledger_id: code(bookie, each, 0) == V3Status.EIO, PATIENCE_S)
            assert code(bookie, ledger_id, ENTRIES) == V3Status.EIO, "no denial"
        assert [code(bookie, each, 0) for each in kept] == [V3Status.EOK] * 2
        bookie.kill()
        assert "mount it" in bookie.refused()[1]

        two_disks.bookies["bookie-2"].pause()
        bookie.settings |= CHECKING
        two_disks.start(["bookie-1"])
        for ledger_id in gone:
            assert [code(bookie, ledger_id, each) for each in (0, ENTRIES - 1, -1)] == [UNKNOWN] * 3
        for ledger_id in kept:
            assert [code(bookie, ledger_id, each) for each in (0, ENTRIES - 1)] == [V3Status.EOK] * 2
        two_disks.bookies["bookie-2"].resume()
        until_true(lambda: bookie.logged("data integrity check complete"), PATIENCE_S)
        for writer in writers:
            with pytest.raises((LedgerFenced, LedgerClosed)):
                writer.append(b"from a writer that was fenced")

    two_disks.kill("bookie-2")
    for ledger_id in ledgers:
        assert code(bookie, ledger_id, 0) == V3Status.EOK
        check(two_disks.uri, ledger_id)
    for ledger_id in closed:
        assert code(bookie, ledger_id, ENTRIES) == V3Status.ENOENTRY, "now it knows"
