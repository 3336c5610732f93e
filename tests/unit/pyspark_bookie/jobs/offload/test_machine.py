"""The state machine of one ledger: killed at every side effect, raced, and with ledgers that go away."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from bookie_protocol.archive import LedgerIdentity, OffloadRecord, OffloadState
from bookie_protocol.errors import EntryDamaged, Unauthorized
from bookie_protocol.ledger_metadata.model import LedgerState
from pyspark_bookie.archive.files import Files
from pyspark_bookie.archive.reading import archived_ledgers, manifest_at, read_payloads
from pyspark_bookie.common.throttle import Throttle
from pyspark_bookie.jobs.offload.cleaning import OffloadStore, Stored, TakenOver, find_orphans
from pyspark_bookie.jobs.offload.machine import Fate
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


@pytest.mark.parametrize("place", [lambda data: len(data) // 3, lambda data: data.rindex(b"value")])
def test_files_that_are_lost_or_damaged_before_they_are_published_are_written_anew(
    shelf: LedgerShelf, target: str, place: Callable[[bytearray], int]
) -> None:
    shelf.put(7, PAYLOADS)
    stop_after(shelf, target, OffloadState.UPLOADED)
    [path] = folder_of(target).rglob("_tmp/*/*.parquet")
    data = bytearray(path.read_bytes())
    data[place(data)] ^= 0x80
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
    with pytest.raises(Unauthorized, match=r"ledger 7 .*password"):
        offloader(shelf, target, password=b"wrong").offload(7)
    assert [path for path in folder_of(target).rglob("*") if path.is_file()] == []
    assert offloader(shelf, target, password=b"secret").offload(7)[0] is Fate.OFFLOADED


# --- a number that is used again ------------------------------------------------------------------------------


def lives(target: str) -> dict[str, list[bytes]]:
    """The payloads of every ledger 7 that the archive has, by the uuid of its manifest."""
    files = Files(target, "--target")
    found = {}
    for uuid in archived_ledgers(files)[7]:
        manifest = manifest_at(files, 7, uuid)
        assert manifest is not None
        payloads = read_payloads(files, 7, manifest.files, Throttle(None))
        found[manifest.uuid] = [payload for batch in payloads for payload in batch]
    return found


@pytest.mark.parametrize("format_version", [2, 3])
def test_a_later_ledger_of_the_number_is_archived_beside_the_first(
    shelf: LedgerShelf, target: str, format_version: int
) -> None:
    """Format 2 has no creation token, and Java clients record no creation time: the metadata service knows it."""
    shelf.put(7, [b"mon", b"day"], created_ms=None, format_version=format_version)
    _, first = offloader(shelf, target).offload(7)
    shelf.delete(7)
    shelf.put(7, [b"fri", b"day"], created_ms=None, format_version=format_version)
    fate, second = offloader(shelf, target).offload(7)
    assert fate is Fate.OFFLOADED
    assert first is not None
    assert second is not None
    assert lives(target) == {first.uuid: [b"mon", b"day"], second.uuid: [b"fri", b"day"]}
    found = find_orphans(
        Files(target, "--target"), datetime.now(UTC) + timedelta(days=1), OffloadStore(shelf).current_uuid
    )
    assert found.files == (), "what was archived of the first one is nobody's orphan"
    assert offloader(shelf, target).offload(7)[0] is Fate.ALREADY


def test_where_nobody_can_tell_the_content_decides(shelf: LedgerShelf, target: str) -> None:
    """As with records of older versions, which know neither creation time nor token."""
    shelf.put(7, PAYLOADS, created_ms=None)
    offloader(shelf, target).offload(7)
    store = OffloadStore(shelf)

    def as_older_versions_wrote_it() -> None:
        stored = store.read(7)
        assert stored is not None
        store.update(stored, replace(stored.value, ledger=replace(stored.value.ledger, created_ms=None, token=0)))

    as_older_versions_wrote_it()
    fate, record = offloader(shelf, target).offload(7)
    assert (fate, len(lives(target))) == (Fate.ALREADY, 1)
    assert record is not None
    assert record.ledger.is_surely(LedgerIdentity.of(shelf.metadata(7))), "and it is not asked again"
    as_older_versions_wrote_it()
    shelf.payloads(7)[-1] = b"LAST"
    assert offloader(shelf, target).offload(7)[0] is Fate.OFFLOADED
    assert list(map(len, lives(target).values())) == [6, 6]


def test_what_was_restored_is_not_archived_twice(shelf: LedgerShelf, target: str) -> None:
    shelf.put(7, PAYLOADS)
    offloader(shelf, target).offload(7)
    shelf.delete(7)
    shelf.put(7, PAYLOADS, created_ms=1_800_000_000_000)
    fate, record = offloader(shelf, target).offload(7)
    assert (fate, len(lives(target))) == (Fate.ALREADY, 1)
    assert record is not None
    assert record.ledger.created_ms == 1_800_000_000_000
    check_complete(shelf, target, 7, PAYLOADS)


@pytest.mark.parametrize("state", [OffloadState.UPLOADED, OffloadState.VERIFIED])
def test_files_of_an_earlier_ledger_are_not_gone_on_with(shelf: LedgerShelf, target: str, state: OffloadState) -> None:
    shelf.put(7, [b"mon", b"day"], created_ms=None)
    stop_after(shelf, target, state)
    shelf.delete(7)
    shelf.put(7, [b"fri", b"day"], created_ms=None)
    assert offloader(shelf, target).offload(7)[0] is Fate.OFFLOADED
    check_complete(shelf, target, 7, [b"fri", b"day"])


def test_the_loser_of_two_runs_leaves_the_winners_manifest(shelf: LedgerShelf, target: str) -> None:
    """It comes back from a pause when the other one is done, and has yet to write its manifest."""
    shelf.put(7, PAYLOADS)
    stop_after(shelf, target, OffloadState.VERIFIED)
    one = offloader(shelf, target)
    write = one._files.write

    def after_another_run(path: str, content: bytes, temporary: str) -> None:
        store = OffloadStore(shelf)
        stored = store.read(7)
        assert stored is not None
        identity = stored.value.ledger
        store.update(stored, stored.value.restarted(stored.value.target, "f" * 32, stored.value.folder, identity))
        assert offloader(shelf, target).offload(7)[0] is Fate.OFFLOADED
        write(path, content, temporary)

    one._files.write = after_another_run  # type: ignore[method-assign]
    with pytest.raises(TakenOver):
        one.offload(7)
    check_complete(shelf, target, 7, PAYLOADS)


def test_a_ledger_that_goes_while_it_is_archived_keeps_what_was_completed(shelf: LedgerShelf, target: str) -> None:
    """A run that finds it gone looks at its record right before another run is done."""
    shelf.put(7, PAYLOADS)
    first, late = offloader(shelf, target), offloader(shelf, target)
    update, read = first._store.update, late._store.read
    done: list[Stored] = []

    def complete(stored: Stored, record: OffloadRecord) -> Stored:
        if record.state is not OffloadState.COMPLETE:
            return update(stored, record)
        is_last = iter((False, True))

        def look(ledger_id: int) -> Stored | None:
            found = read(ledger_id)
            if next(is_last):
                done.append(update(stored, record))
            return found

        late._store.read = look  # type: ignore[method-assign]
        shelf.delete(7)
        with pytest.raises(TakenOver):
            late.offload(7)
        return done[0]

    first._store.update = complete  # type: ignore[method-assign]
    assert first.offload(7)[0] is Fate.OFFLOADED
    check_complete(shelf, target, 7, PAYLOADS)
