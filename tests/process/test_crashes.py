"""kill -9 under writes, SIGTERM at any moment of the start, disks that fill up or turn read-only under the bookie."""

from __future__ import annotations

import json
import os
import random
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bookie_pod.storage.journal import LogMark
from tests.support.frames import (
    LAST,
    NO_KEY,
    entry,
    lac_packet,
    v2_add,
    v2_code,
    v2_entry,
    v2_read,
    v3_add,
    v3_answer,
    v3_fence,
    v3_read_lac,
    v3_write_lac,
)
from tests.support.serve_process import ServeProcess, SmallDisk, SyncClient

BOOKIE_EXCEPTION = 5
TWO_JOURNALS = {
    "journalDirectories": "{0}/j0,{0}/j1",
    "ledgerDirectories": "{0}/l0,{0}/l1",
    "journalMaxSizeMB": "1",
    "journalMaxBackups": "2",
    "flushInterval": "150",
    "dbStorage_writeCacheMaxSizeMb": "2",
    "logSizeLimit": "1048576",
}


@dataclass
class Promises:
    """What a bookie has acknowledged to one writer."""

    entries: dict[int, int] = field(default_factory=dict)
    """Ledger to the number of entries: 0, 1, ..."""
    fenced: set[int] = field(default_factory=set)
    lacs: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Ledger to the last LAC that was acknowledged and the last one that was sent."""


def stored(ledger_id: int, entry_id: int) -> bytes:
    return entry(ledger_id, entry_id, struct.pack(">qq", entry_id, ledger_id) * (1 + ledger_id % 60))


class Writer(threading.Thread):
    """Writes to ledgers of its own in bursts; fences and sends explicit LACs in between; until the bookie dies."""

    def __init__(self, port: int, ledgers: list[int], promises: Promises, seed: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._ledgers = ledgers
        self._promises = promises
        self._rng = random.Random(seed)
        self.fault: BaseException | None = None

    def run(self) -> None:
        try:
            with SyncClient(self._port) as client:
                while True:
                    self._burst(client)
        except (OSError, EOFError):
            return
        except BaseException as error:
            self.fault = error

    def _burst(self, client: SyncClient) -> None:
        rng, promises = self._rng, self._promises
        frames: list[bytes] = []
        done: list[tuple[str, int, int]] = []
        for _ in range(rng.randrange(1, 30)):
            ledger_id = rng.choice(self._ledgers)
            kind = rng.randrange(40)
            if kind == 0:
                frames.append(v3_fence(ledger_id))
                done.append(("fence", ledger_id, 0))
            elif kind in (1, 2):
                _, sent = promises.lacs.get(ledger_id, (-1, -1))
                promises.lacs[ledger_id] = (promises.lacs.get(ledger_id, (-1, -1))[0], sent + 1)
                frames.append(v3_write_lac(ledger_id, sent + 1))
                done.append(("lac", ledger_id, sent + 1))
            else:
                # Fenced ledgers go on with recovery adds.
                entry_id = promises.entries.get(ledger_id, 0) + sum(d[:2] == ("add", ledger_id) for d in done)
                frames.append(v3_add(stored(ledger_id, entry_id), recovery=True, txn=len(frames)))
                done.append(("add", ledger_id, entry_id))
        client.send(*frames)
        for _ in frames:
            answer = v3_answer(client.frame())
            assert answer.status in (0, 403), answer
            if answer.HasField("addResponse"):
                add = answer.addResponse
                assert add.entryId == promises.entries.get(add.ledgerId, 0)
                promises.entries[add.ledgerId] = add.entryId + 1
            elif answer.HasField("writeLacResponse"):
                ledger_id = answer.writeLacResponse.ledgerId
                acknowledged, sent = promises.lacs[ledger_id]
                promises.lacs[ledger_id] = (acknowledged + 1, sent)
            else:
                promises.fenced.add(answer.readResponse.ledgerId)


def check(bookie: ServeProcess, all_promises: list[Promises]) -> None:
    with SyncClient(bookie.port) as two, SyncClient(bookie.port) as three:
        for promises in all_promises:
            for ledger_id, count in promises.entries.items():
                for first in range(0, count, 200):
                    ids = range(first, min(count, first + 200))
                    two.send(*(v2_read(ledger_id, e) for e in ids))
                    found = sorted(v2_entry(two.frame()) for _ in ids)
                    assert found == [stored(ledger_id, e) for e in ids]
                assert v2_code(two.ask(v2_read(ledger_id, LAST))) == 0
                assert v2_code(two.ask(v2_add(entry(ledger_id, 0), NO_KEY))) == 102
            for ledger_id in promises.fenced:
                assert v2_code(two.ask(v2_add(entry(ledger_id, 10**6)))) == 104
            for ledger_id, (acknowledged, sent) in promises.lacs.items():
                packet = v3_answer(three.ask(v3_read_lac(ledger_id))).readLacResponse.lacBody
                if acknowledged >= 0:
                    assert packet
                if packet:
                    lac = struct.unpack_from(">qq", packet)[1]
                    assert packet == lac_packet(ledger_id, lac)
                    assert acknowledged <= lac <= sent


def survive_kills(tmp_path: Path, seed: int, kills: int, seconds: float) -> None:
    rng = random.Random(seed)
    settings = {key: value.format(tmp_path) for key, value in TWO_JOURNALS.items()}
    promises = [Promises() for _ in range(3)]
    with ServeProcess(tmp_path, settings) as bookie:
        for kill in range(kills):
            bookie.start()
            check(bookie, promises)
            writers = [
                Writer(bookie.port, list(range(number, 60, 3)), promise, seed * 1000 + kill * 10 + number)
                for number, promise in enumerate(promises)
            ]
            for writer in writers:
                writer.start()
            time.sleep(rng.random() * seconds)
            bookie.kill()
            for writer in writers:
                writer.join(20)
                assert not writer.is_alive()
                assert writer.fault is None, repr(writer.fault)
        bookie.start()
        check(bookie, promises)
        assert sum(sum(promise.entries.values()) for promise in promises) > 100
        assert bookie.stop() == 0
        bookie.start()
        check(bookie, promises)
        journals_are_trimmed(bookie, tmp_path)


def journals_are_trimmed(bookie: ServeProcess, tmp_path: Path) -> None:
    """Below each mark no more journals than journalMaxBackups are left, once a checkpoint has gone by."""
    with SyncClient(bookie.port) as client:
        assert v2_code(client.ask(v2_add(entry(998, 0)))) == 0
        assert v2_code(client.ask(v2_add(entry(999, 0)))) == 0
    deadline = time.monotonic() + 10
    while True:
        below = []
        for index in (0, 1):
            marks = [
                LogMark.from_bytes((tmp_path / name / "current" / f"lastMark.{index}").read_bytes()).journal_id
                for name in ("l0", "l1")
            ]
            ids = [int(path.stem, 16) for path in (tmp_path / f"j{index}" / "current").glob("*.txn")]
            below.append(sum(journal_id < max(marks) for journal_id in ids))
        if max(below) <= 2:
            return
        assert time.monotonic() < deadline, below
        time.sleep(0.05)


def test_kill_minus_nine_under_sync_writes(tmp_path: Path) -> None:
    survive_kills(tmp_path, seed=1, kills=2, seconds=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
def test_many_kills_under_sync_writes(tmp_path: Path, seed: int) -> None:
    survive_kills(tmp_path, seed, kills=8, seconds=2.0)


def test_a_clean_stop_leaves_nothing_to_do(tmp_path: Path) -> None:
    with ServeProcess(tmp_path) as bookie:
        bookie.start()
        assert (tmp_path / "ledgers" / "current" / "DIRTY").exists()
        with SyncClient(bookie.port) as client:
            client.send(*(v2_add(entry(1, e)) for e in range(100)))
            assert [v2_code(client.frame()) for _ in range(100)] == [0] * 100
        assert bookie.stop() == 0
        assert not (tmp_path / "ledgers" / "current" / "DIRTY").exists()
        bookie.start()
        (replayed,) = [json.loads(line) for line in bookie.log.read_text().splitlines() if "journals replayed" in line]
        assert replayed["entries"] == 0
        with SyncClient(bookie.port) as client:
            assert [v2_entry(client.ask(v2_read(1, e))) for e in range(100)] == [entry(1, e) for e in range(100)]


# --- SIGTERM while it starts ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sigterm_at_any_moment_of_the_start(tmp_path: Path) -> None:
    with ServeProcess(tmp_path) as bookie:
        bookie.start()
        with SyncClient(bookie.port) as client:
            body = bytes(100_000)
            for ledger_id in range(20):
                client.send(*(v2_add(entry(ledger_id, e, body)) for e in range(10)))
                assert [v2_code(client.frame()) for _ in range(10)] == [0] * 10
        bookie.kill()
        for phase in ("connecting", "cookies", "opening the storage", "replaying", "starting", "serving"):
            bookie.launch()
            deadline = time.monotonic() + 20
            while phase not in bookie.log.read_text() and time.monotonic() < deadline:
                time.sleep(0.001)
            assert bookie.stop() == 0, phase
            assert bookie.lines() == [], phase
            assert "Traceback" not in bookie.log.read_text(), phase
        bookie.start()
        with SyncClient(bookie.port) as client:
            for ledger_id in range(20):
                for e in range(10):
                    assert v2_entry(client.ask(v2_read(ledger_id, e))) == entry(ledger_id, e, body)


# --- disks ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with SmallDisk(tmp_path / "disk", 24) as made:
        yield made


def mode_of(bookie: ServeProcess) -> int:
    """The code of an ordinary add: 0 or 105 (read-only)."""
    with SyncClient(bookie.port) as client:
        return v2_code(client.ask(v2_add(entry(500, 0))))


def wait_for_mode(bookie: ServeProcess, code: int) -> None:
    deadline = time.monotonic() + 20
    while mode_of(bookie) != code:
        assert time.monotonic() < deadline, bookie.log.read_text()[-3000:]
        time.sleep(0.02)


def write_some(bookie: ServeProcess) -> None:
    with SyncClient(bookie.port) as client:
        for e in range(50):
            assert v2_code(client.ask(v2_add(entry(1, e, bytes(1000))))) == 0


def check_some(bookie: ServeProcess) -> None:
    with SyncClient(bookie.port) as client:
        for e in range(50):
            assert v2_entry(client.ask(v2_read(1, e))) == entry(1, e, bytes(1000))


SMALL = {
    "diskCheckInterval": "50",
    "flushInterval": "100",
    "diskUsageThreshold": "0.9",
    "diskUsageWarnThreshold": "0.85",
    "diskUsageLwmThreshold": "0.85",
    "minUsableSizeForHighPriorityWrites": "1000000",
}


def test_a_ledger_disk_that_fills_up_and_empties(tmp_path: Path, disk: SmallDisk) -> None:
    settings = {**SMALL, "ledgerDirectories": str(disk.path / "ledgers")}
    with ServeProcess(tmp_path, settings) as bookie:
        bookie.start()
        write_some(bookie)
        ballast = disk.fill(leave=500_000)
        wait_for_mode(bookie, 105)
        check_some(bookie)
        # A restart on a full disk serves what is there.
        bookie.kill()
        bookie.start()
        assert mode_of(bookie) == 105
        check_some(bookie)
        ballast.unlink()
        wait_for_mode(bookie, 0)
        assert bookie.stop() == 0
        bookie.start()
        check_some(bookie)


def test_a_ledger_disk_without_a_byte_left(tmp_path: Path, disk: SmallDisk) -> None:
    """Nothing can be flushed; what the journal holds is served all the same, and flushed when there is room."""
    settings = {**SMALL, "ledgerDirectories": str(disk.path / "ledgers"), "flushInterval": "3600000"}
    with ServeProcess(tmp_path, settings) as bookie:
        bookie.start()
        write_some(bookie)
        ballast = disk.fill()
        wait_for_mode(bookie, 105)
        bookie.kill()
        try:
            bookie.start()
        except AssertionError:
            # Refused is right as well, if it says why and loses nothing.
            (line,) = bookie.lines()
            assert str(disk.path) in line
            bookie.process = None
        else:
            check_some(bookie)
            ballast.unlink()
            wait_for_mode(bookie, 0)
            check_some(bookie)
            bookie.kill()
        ballast.unlink(missing_ok=True)
        bookie.start()
        check_some(bookie)


@pytest.mark.slow
def test_a_full_journal_disk_ends_the_bookie_and_nothing_acknowledged_is_lost(tmp_path: Path, disk: SmallDisk) -> None:
    with ServeProcess(tmp_path, {"journalDirectories": str(disk.path / "journal")}) as bookie:
        bookie.start()
        ballast = disk.fill(leave=2_000_000)
        acknowledged = 0
        with pytest.raises((EOFError, OSError)), SyncClient(bookie.port) as client:
            while True:
                assert v2_code(client.ask(v2_add(entry(1, acknowledged, bytes(100_000))))) == 0
                acknowledged += 1
        assert bookie.ended() == BOOKIE_EXCEPTION
        (line,) = bookie.lines()
        assert line.startswith("bookie: ")
        assert str(disk.path / "journal") in line
        assert os.strerror(28) in line
        ballast.unlink()
        bookie.start()
        assert acknowledged > 5
        with SyncClient(bookie.port) as client:
            for e in range(acknowledged):
                assert v2_entry(client.ask(v2_read(1, e))) == entry(1, e, bytes(100_000))
            assert v2_code(client.ask(v2_add(entry(1, acknowledged + 1)))) == 0


@pytest.mark.parametrize("what", [pytest.param("journal", marks=pytest.mark.slow), "ledgers"])
def test_a_file_system_mounted_read_only(tmp_path: Path, disk: SmallDisk, what: str) -> None:
    with ServeProcess(tmp_path, {f"{what.rstrip('s')}Directories": str(disk.path / what)}) as bookie:
        bookie.start()
        write_some(bookie)
        bookie.kill()
        disk.remount("ro")
        code, line = bookie.refused()
        assert code == BOOKIE_EXCEPTION
        assert str(disk.path / what) in line
        assert os.strerror(30) in line or "read and written" in line
        disk.remount("rw")
        bookie.start()
        check_some(bookie)


def test_a_ledger_directory_that_goes_away_while_it_serves(tmp_path: Path) -> None:
    with ServeProcess(tmp_path, {"diskCheckInterval": "50"}) as bookie:
        bookie.start()
        write_some(bookie)
        (tmp_path / "ledgers").rename(tmp_path / "elsewhere")
        assert bookie.ended() == BOOKIE_EXCEPTION
        (line,) = bookie.lines()
        assert str(tmp_path / "ledgers") in line
        (tmp_path / "elsewhere").rename(tmp_path / "ledgers")
        bookie.start()
        check_some(bookie)
