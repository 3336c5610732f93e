"""The state machine of one ledger: killed at every side effect, raced, and with ledgers that go away."""

from __future__ import annotations

import shutil

import pytest

from bookie_protocol.archive.record import OffloadState
from bookie_protocol.errors import EntryDamaged, Unauthorized
from bookie_protocol.ledger_metadata.model import LedgerState
from pyspark_bookie.jobs.offload.machine import Fate
from pyspark_bookie.jobs.offload.store import OffloadStore, TakenOver
from tests.support.killing import Killed, KillSwitch
from tests.support.ledger_shelf import LedgerShelf
from tests.support.offload_rig import check_complete, folder_of, offloader, stop_after

PAYLOADS = [b"first", b"", b"x" * 1000, b"\0\xff", b"", b"last"]


def test_a_ledger_is_archived_and_then_left_alone(shelf: LedgerShelf, target: str) -> None:
    shelf.put(7, PAYLOADS, custom={"podkeeper/stream": b"orders"})
    fate, record = offloader(shelf, target).offload(7)
    assert fate is Fate.OFFLOADED
    assert record is not None
    check_complete(shelf, target, 7, PAYLOADS)
    assert record.files[0].path.startswith("data/date=2023-11-14/ledger-7-")
    assert offloader(shelf, target).offload(7)[0] is Fate.ALREADY
    assert offloader(shelf, target + "-other").offload(7)[0] is Fate.ELSEWHERE
    assert not folder_of(target + "-other").exists()


def test_a_long_ledger_gets_several_files(shelf: LedgerShelf, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark_bookie.archive.writing.ROW_GROUP_ENTRIES", 2)
    payloads = [bytes([n]) * 100 for n in range(11)]
    shelf.put(7, payloads)
    _, record = offloader(shelf, target, max_file_bytes=400, partition="none").offload(7)
    assert record is not None
    assert [(file.first_entry, file.entries) for file in record.files] == [(0, 4), (4, 4), (8, 3)]
    check_complete(shelf, target, 7, payloads)


def test_killed_anywhere_the_next_run_completes_it(shelf: LedgerShelf, target: str) -> None:
    places = 1
    at = 0
    while at < places:
        at += 1
        shelf.put(at, PAYLOADS)
        switch = KillSwitch(at)
        with pytest.raises(Killed):
            offloader(shelf, target, switch).offload(at)
        assert offloader(shelf, target).offload(at)[0] in (Fate.OFFLOADED, Fate.ALREADY)
        if at == 1:
            counting = KillSwitch()
            shelf.put(1000, PAYLOADS)
            offloader(shelf, target, counting).offload(1000)
            places = counting.count
    assert places > 15
    for ledger_id in range(1, places + 1):
        check_complete(shelf, target, ledger_id, PAYLOADS)
    assert list(folder_of(target).glob("_tmp/*")) == []


def test_killed_again_and_again(shelf: LedgerShelf, target: str) -> None:
    shelf.put(7, PAYLOADS)
    for at in range(1, 200):
        try:
            fate, _ = offloader(shelf, target, KillSwitch(at)).offload(7)
        except Killed:
            continue
        assert fate in (Fate.OFFLOADED, Fate.ALREADY)
        break
    check_complete(shelf, target, 7, PAYLOADS)


def test_open_and_empty_ledgers_are_no_business_of_ours(shelf: LedgerShelf, target: str) -> None:
    shelf.put(1, [], state=LedgerState.OPEN)
    shelf.put(2, [], state=LedgerState.IN_RECOVERY)
    shelf.put(3, [])
    assert [offloader(shelf, target).offload(ledger_id)[0] for ledger_id in (1, 2, 3, 4)] == [
        Fate.NOT_CLOSED,
        Fate.NOT_CLOSED,
        Fate.EMPTY,
        Fate.GONE,
    ]
    assert OffloadStore(shelf).ledger_ids() == []


def test_a_ledger_deleted_while_it_is_read_leaves_nothing(shelf: LedgerShelf, target: str) -> None:
    shelf.put(7, PAYLOADS)
    shelf.before_batch = lambda: shelf.delete(7)
    assert offloader(shelf, target).offload(7)[0] is Fate.GONE
    assert OffloadStore(shelf).ledger_ids() == []
    assert [path for path in folder_of(target).rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("state", [OffloadState.PREPARED, OffloadState.UPLOADED, OffloadState.VERIFIED])
def test_a_ledger_deleted_between_two_runs_leaves_nothing(shelf: LedgerShelf, target: str, state: OffloadState) -> None:
    shelf.put(7, PAYLOADS)
    stop_after(shelf, target, state)
    shelf.delete(7)
    assert offloader(shelf, target).offload(7)[0] is Fate.GONE
    assert OffloadStore(shelf).ledger_ids() == []
    assert [path for path in folder_of(target).rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("state", [OffloadState.PREPARED, OffloadState.UPLOADED, OffloadState.VERIFIED])
def test_another_ledger_of_the_same_id_begins_anew(shelf: LedgerShelf, target: str, state: OffloadState) -> None:
    shelf.put(7, PAYLOADS)
    stop_after(shelf, target, state)
    shelf.delete(7)
    shelf.put(7, [b"another"], created_ms=1_700_000_000_001)
    assert offloader(shelf, target).offload(7)[0] is Fate.OFFLOADED
    check_complete(shelf, target, 7, [b"another"])


def test_files_that_are_lost_or_damaged_before_they_are_published_are_written_anew(
    shelf: LedgerShelf, target: str
) -> None:
    shelf.put(7, PAYLOADS)
    stop_after(shelf, target, OffloadState.UPLOADED)
    [path] = folder_of(target).rglob("_tmp/*/*.parquet")
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    assert offloader(shelf, target).offload(7)[0] is Fate.OFFLOADED
    check_complete(shelf, target, 7, PAYLOADS)

    shelf.put(8, PAYLOADS)
    stop_after(shelf, target, OffloadState.VERIFIED, 8)
    shutil.rmtree(folder_of(target) / "_tmp")
    assert offloader(shelf, target).offload(8)[0] is Fate.OFFLOADED
    check_complete(shelf, target, 8, PAYLOADS)


def test_a_store_that_damages_everything_is_told(
    shelf: LedgerShelf, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.put(7, PAYLOADS)
    one = offloader(shelf, target)
    monkeypatch.setattr("pyspark_bookie.jobs.offload.machine.count_files", lambda *_: None)
    with pytest.raises(EntryDamaged, match="ledger 7"):
        one.offload(7)
    monkeypatch.undo()
    assert offloader(shelf, target).offload(7)[0] is Fate.OFFLOADED
    check_complete(shelf, target, 7, PAYLOADS)


def test_of_two_runs_one_goes_on(shelf: LedgerShelf, target: str) -> None:
    shelf.put(7, PAYLOADS)
    fates = []

    def another_run() -> None:
        shelf.before_batch = lambda: None
        fates.append(offloader(shelf, target).offload(7)[0])

    shelf.before_batch = another_run
    with pytest.raises(TakenOver, match="offload 7"):
        offloader(shelf, target).offload(7)
    assert fates == [Fate.OFFLOADED]
    check_complete(shelf, target, 7, PAYLOADS)


def test_a_wrong_password_is_refused_and_nothing_is_written(shelf: LedgerShelf, target: str) -> None:
    shelf.put(7, PAYLOADS)
    with pytest.raises(Unauthorized, match="ledger 7 has another password"):
        offloader(shelf, target, password=b"wrong").offload(7)
    assert [path for path in folder_of(target).rglob("*") if path.is_file()] == []
    assert offloader(shelf, target, password=b"secret").offload(7)[0] is Fate.OFFLOADED
