"""Journals back into the storage: what comes back, what is skipped, when the marks move."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from random import Random

import pytest

from bookie_pod.config.sections.journal import JournalConfig
from bookie_pod.node.recovery import (
    CANCEL_CHECK_ENTRIES,
    ReplayCancelled,
    ReplayedJournals,
    ReplayIntoStorage,
    replay_journals,
)
from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.entry_log.directories import DiskState
from bookie_pod.storage.index.ledger_data import LedgerRecord
from bookie_pod.storage.journal import Journal, JournalBatch, LogMark, replay_journal
from bookie_pod.storage.journal.format import (
    deletion_record,
    entry_record,
    explicit_lac_record,
    fence_record,
    key_record,
)
from bookie_pod.storage.journal.journal_file import JournalFile
from bookie_pod.storage.journal.marks import MarkFiles
from bookie_protocol.errors import JournalDamaged, JournalMissing, LedgerStateUnknown, StorageFault
from tests.support.frames import KEY, NO_KEY, OTHER_KEY, entry, lac_packet
from tests.support.journal_rig import Replayed
from tests.support.storage_engine import MemoryBookie, small_options

JOURNALS = ["/j0/current", "/j1/current"]
NOTHING = LogMark()


@pytest.fixture
def bookie() -> MemoryBookie:
    made = MemoryBookie(("/l0", "/l1"), small_options(half_bytes=4096, directories=2))
    for folder in (*JOURNALS, "/l0", "/l1"):
        made.files.makedirs(folder)
    return made


@pytest.fixture
def storage(bookie: MemoryBookie) -> Iterator[DbLedgerStorage]:
    engine = bookie.open()
    yield engine
    bookie.faults.clear()
    engine.close()


def journal(
    bookie: MemoryBookie, index: int, *records: list[bytes], checks: bool = True, after: LogMark = NOTHING
) -> str:
    """A journal of one process that wrote these records and ended; gives its file."""
    made = Journal(
        JOURNALS[index],
        index,
        bookie.files,
        JournalConfig(pre_alloc_size_bytes=4096, group_checks=checks),
        lambda batches, error: None,
        lambda error: None,
    )
    made.start(after)
    made.append(JournalBatch.of(*records))
    made.stop()
    return f"{JOURNALS[index]}/{bookie.files.listdir(JOURNALS[index])[-1]}"


def replay(bookie: MemoryBookie, storage: DbLedgerStorage, **more: object) -> ReplayedJournals:
    return replay_journals(
        bookie.files,
        storage,
        journal_folders=JOURNALS,
        ledger_folders=["/l0", "/l1"],
        **more,  # type: ignore[arg-type]
    )


def marks(bookie: MemoryBookie) -> list[LogMark]:
    return [MarkFiles(bookie.files, ["/l0", "/l1"], index, 2).read() for index in (0, 1)]


def test_everything_comes_back_from_both_journals(bookie: MemoryBookie, storage: DbLedgerStorage) -> None:
    journal(bookie, 0, key_record(2, KEY), *(entry_record(entry(2, e)) for e in range(50)), fence_record(2))
    packet = lac_packet(3, 9)
    journal(bookie, 1, key_record(3, NO_KEY), entry_record(entry(3, 0)), explicit_lac_record(3, packet))
    keys = replay(bookie, storage).keys
    assert keys == {2, 3}
    assert storage.ledger(2) == LedgerRecord(KEY, fenced=True)
    assert storage.ledger(3) == LedgerRecord(NO_KEY, explicit_lac=packet)
    assert list(storage.entry_ids(2)) == list(range(50))
    assert storage.read(3, 0) == entry(3, 0)
    assert all(mark > LogMark() for mark in marks(bookie))
    # Everything below the marks is in synced files: a process that finds no journal above them has it all.
    storage.close()
    again = bookie.open()
    assert list(again.entry_ids(2)) == list(range(50))
    again.close()


def test_a_ledger_whose_key_was_lost_and_whose_owner_has_none_keeps_that(
    bookie: MemoryBookie, storage: DbLedgerStorage
) -> None:
    storage.set_ledger(2, LedgerRecord(b""))
    journal(bookie, 0, key_record(2, NO_KEY), entry_record(entry(2, 0)))
    replay(bookie, storage)
    assert storage.ledger(2) == LedgerRecord(NO_KEY)


def _flip(bookie: MemoryBookie, path: str) -> None:
    content = bytearray(bookie.files.read_bytes(path))
    content[content.index(entry(2, 0)) + 30] ^= 1
    bookie.files.write_bytes_synced(path, content)


def _remove(bookie: MemoryBookie, path: str) -> None:
    bookie.files.unlink(path)


@pytest.mark.parametrize("spoil", [_flip, _remove, None], ids=["damaged", "missing", "whole"])
def test_records_that_are_given_up_are_told_before_a_mark_moves(
    bookie: MemoryBookie, storage: DbLedgerStorage, spoil: Callable[[MemoryBookie, str], None] | None
) -> None:
    """The listener puts every ledger in doubt, since the skipped records may have been entries of any of them."""

    def next_journal(*records: list[bytes]) -> str:
        after = replay_journal(JOURNALS[0], [NOTHING], bookie.files, Replayed()).after
        return journal(bookie, 0, *records, after=after)

    next_journal(key_record(6, KEY))
    replay(bookie, storage)
    before = marks(bookie)
    path = next_journal(key_record(2, KEY), *(entry_record(entry(2, e)) for e in range(3)))
    next_journal(key_record(4, KEY), entry_record(entry(4, 0)))
    if spoil is not None:
        spoil(bookie, path)
        with pytest.raises((JournalDamaged, JournalMissing)):
            replay(bookie, storage)
    told = []

    def give_up(reason: str) -> None:
        told.append(reason)
        assert marks(bookie) == before
        assert storage.read(4, 0) == entry(4, 0)

    assert replay(bookie, storage, give_up=give_up).unflushed is None
    assert len(told) == (spoil is not None)
    assert marks(bookie)[0] > before[0]


def test_replaying_twice_changes_nothing(bookie: MemoryBookie, storage: DbLedgerStorage) -> None:
    records = [key_record(2, KEY), *(entry_record(entry(2, e)) for e in range(5)), fence_record(2)]
    journal(bookie, 0, *records)
    replay(bookie, storage)
    for name in ("lastMark.0", "lastMark.1"):
        for folder in ("/l0", "/l1"):
            bookie.files.unlink(f"{folder}/{name}")
    replay(bookie, storage)
    assert list(storage.entry_ids(2)) == [0, 1, 2, 3, 4]
    assert storage.ledger(2) == LedgerRecord(KEY, fenced=True)


def test_a_directory_that_took_no_mark_neither_begins_a_replay_nor_hides_a_lost_journal(
    bookie: MemoryBookie, storage: DbLedgerStorage
) -> None:
    journal(bookie, 0, key_record(2, KEY), entry_record(entry(2, 0)))
    replay(bookie, storage)
    stale = bookie.files.read_bytes("/l1/lastMark.0")
    journal(bookie, 0, key_record(2, KEY), entry_record(entry(2, 1)))
    assert replay(bookie, storage).keys == {2}
    bookie.files.write_bytes_synced("/l1/lastMark.0", stale)
    assert replay(bookie, storage).keys == set(), "nothing comes again"
    bookie.files.write_bytes_synced("/l1/lastMark.0", stale)
    bookie.files.unlink(f"{JOURNALS[0]}/{sorted(bookie.files.listdir(JOURNALS[0]))[-1]}")
    with pytest.raises(JournalMissing):
        replay(bookie, storage)


def test_records_of_a_ledger_that_was_deleted_are_skipped(bookie: MemoryBookie, storage: DbLedgerStorage) -> None:
    journal(
        bookie,
        0,
        entry_record(entry(4, 0)),
        fence_record(4),
        explicit_lac_record(4, lac_packet(4, 1)),
        key_record(2, KEY),
        entry_record(entry(2, 0)),
    )
    replay(bookie, storage)
    assert storage.ledger(4) is None
    assert storage.read(2, 0) == entry(2, 0)


def test_another_key_concerns_its_ledger_alone(bookie: MemoryBookie, storage: DbLedgerStorage) -> None:
    """One record never decides about the whole bookie: what it contradicts is in limbo, all else comes back."""
    storage.set_ledger(2, LedgerRecord(OTHER_KEY))
    journal(
        bookie,
        0,
        key_record(2, KEY),
        entry_record(entry(2, 0)),
        fence_record(2),
        key_record(4, KEY),
        entry_record(entry(4, 0)),
        key_record(4, OTHER_KEY),
        entry_record(entry(4, 1)),
        key_record(2, OTHER_KEY),
        entry_record(entry(2, 7)),
        key_record(6, bytes(5000)),
        entry_record(entry(6, 0)),
        key_record(8, KEY),
        entry_record(entry(8, 0)),
    )
    assert replay(bookie, storage).keys >= {2, 4, 8}
    assert storage.ledger(2) == LedgerRecord(OTHER_KEY, fenced=True, limbo=True)
    assert list(storage.entry_ids(2)) == [7]
    assert storage.ledger(4) == LedgerRecord(KEY, fenced=True, limbo=True)
    assert list(storage.entry_ids(4)) == [0]
    assert storage.ledger(6) == LedgerRecord(b"", fenced=True, limbo=True)
    with pytest.raises(LedgerStateUnknown):
        storage.read(6, 0)
    assert storage.ledger(8) == LedgerRecord(KEY)
    assert storage.read(8, 0) == entry(8, 0)
    assert marks(bookie)[0] > LogMark()


@pytest.mark.parametrize("stored", [None, KEY, OTHER_KEY])
def test_nothing_of_an_earlier_life_comes_back_behind_a_deletion(
    bookie: MemoryBookie, storage: DbLedgerStorage, stored: bytes | None
) -> None:
    """Whatever the index knew when the process died: the earlier life, the later one, or nothing."""
    if stored is not None:
        storage.set_ledger(2, LedgerRecord(stored))
    journal(
        bookie,
        0,
        key_record(2, KEY),
        *(entry_record(entry(2, e)) for e in range(10)),
        fence_record(2),
        deletion_record(2, 0),
        deletion_record(4, 0),
        key_record(2, OTHER_KEY),
        *(entry_record(entry(2, e)) for e in range(3)),
    )
    keys = replay(bookie, storage).keys
    assert keys == {2}
    assert storage.ledger(2) == LedgerRecord(OTHER_KEY)
    assert list(storage.entry_ids(2)) == [0, 1, 2]
    storage.flush()
    assert list(storage.entry_ids(2)) == [0, 1, 2]


def test_an_unknown_key_learns_the_real_one(storage: DbLedgerStorage) -> None:
    sink = ReplayIntoStorage(storage)
    for key in (b"", KEY, NO_KEY):
        sink.on_key(2, key)
    assert storage.ledger(2) == LedgerRecord(KEY)


def test_a_fault_while_flushing_leaves_the_marks(bookie: MemoryBookie, storage: DbLedgerStorage) -> None:
    journal(bookie, 0, key_record(2, KEY), entry_record(entry(2, 0)))
    bookie.faults.fail("write", "writev", path="/l0/", errno=errno.EIO)
    with pytest.raises(StorageFault):
        replay(bookie, storage)
    assert marks(bookie) == [LogMark(), LogMark()]


def test_full_disks_leave_the_marks_and_the_bookie_serves(
    bookie: MemoryBookie, storage: DbLedgerStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bookie whose disks are full still serves what it has, from memory what it cannot write."""
    journal(bookie, 0, key_record(2, KEY), entry_record(entry(2, 0)))
    for directory, states in bookie.states.items():
        states.report(directory, DiskState.FULL)
    monkeypatch.setattr(
        bookie.files, "usage", lambda path: type("Usage", (), {"usable": 0, "total": 100, "device": 1})()
    )
    keys = replay(bookie, storage).keys
    assert keys == {2}
    assert storage.read(2, 0) == entry(2, 0)
    assert marks(bookie) == [LogMark(), LogMark()]
    assert bookie.files.listdir("/j0/current")  # what they need is still there


@pytest.mark.parametrize("path", [".log", "/locations", "/ledgers"])
def test_what_a_full_disk_takes_not_waits_in_memory_as_far_as_that_reaches(
    bookie: MemoryBookie, storage: DbLedgerStorage, path: str
) -> None:
    several = [entry(2, each, bytes(200)) for each in range(18)]  # more than a half, less than two
    journal(bookie, 0, key_record(2, KEY), *map(entry_record, several))
    bookie.faults.fail("write", "writev", "pwrite", path=path, errno=errno.ENOSPC)
    replayed = replay(bookie, storage)
    assert replayed.unflushed is not None
    assert [storage.read(2, each) for each in range(18)] == several
    assert marks(bookie) == [LogMark(), LogMark()]

    journal(bookie, 1, key_record(2, KEY), *(entry_record(entry(2, each, bytes(200))) for each in range(18, 60)))
    with pytest.raises(StorageFault, match=r"memory .*free"):
        replay(bookie, storage)
    bookie.faults.clear()
    assert replay(bookie, storage).unflushed is None
    assert len(list(storage.entry_ids(2))) == 60


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
def test_a_start_goes_on_without_a_mark_that_the_machine_does_not_take(
    bookie: MemoryBookie, storage: DbLedgerStorage, number: int
) -> None:
    journal(bookie, 0, key_record(2, KEY), entry_record(entry(2, 0)))
    bookie.faults.fail("create", "write", "overwrite", path="lastMark", errno=number)
    assert replay(bookie, storage).unflushed is not None
    assert marks(bookie) == [LogMark(), LogMark()]
    bookie.faults.clear()
    assert replay(bookie, storage).unflushed is None
    assert list(storage.entry_ids(2)) == [0]


def test_no_mark_is_past_what_a_power_failure_may_take_back(bookie: MemoryBookie, storage: DbLedgerStorage) -> None:
    """A process that was killed left its last group unsynced, and the machine lives a little longer."""
    path = journal(bookie, 0, key_record(2, KEY), entry_record(entry(2, 0)))
    written = bookie.files.read_bytes(path)
    bookie.files.corrupt(path, 512, bytes(len(written) - 512))
    file = bookie.files.open(path, writable=True)
    file.pwrite(written[512:], 512)
    replay(bookie, storage)
    for seed in range(20):
        files = bookie.files.crash(Random(seed))
        copies = MarkFiles(files, ["/l0", "/l1"], 0, 2).copies()
        assert replay_journal(JOURNALS[0], copies, files, Replayed()).began.offset > 512


@pytest.mark.parametrize("checks", [True, False])
def test_a_tail_that_was_torn_before_the_disks_were_full_is_no_damage_behind_another_crash(
    bookie: MemoryBookie, storage: DbLedgerStorage, checks: bool
) -> None:
    """The mark stays before it, and what the next process wrote does not tell, or was torn as well."""
    torn = b"".join(entry_record(entry(2, 1)))[:-5]
    first = journal(bookie, 0, key_record(2, KEY), entry_record(entry(2, 0)), checks=checks)
    bookie.files.truncate_to(first, 1536 if checks else 1024)
    bookie.files.corrupt(first, 1536 if checks else 1024, torn)
    bookie.faults.fail("write", "writev", "pwrite", path="/ledgers", errno=errno.ENOSPC)
    replayed = replay(bookie, storage)
    assert replayed.unflushed is not None
    assert marks(bookie) == [LogMark(), LogMark()]

    second = journal(bookie, 0, fence_record(2), checks=checks, after=replayed.ends[0])
    if checks:
        bookie.files.write_bytes(second, bookie.files.read_bytes(second)[:512] + torn)
    bookie.faults.clear()
    assert replay(bookie, storage).unflushed is None
    assert list(storage.entry_ids(2)) == [0]


def test_a_replay_ends_soon_after_it_was_cancelled(bookie: MemoryBookie, storage: DbLedgerStorage) -> None:
    journal(bookie, 0, key_record(2, KEY), *(entry_record(entry(2, e)) for e in range(4 * CANCEL_CHECK_ENTRIES)))
    sink: list[int] = []

    def cancelled() -> bool:
        sink.append(1)
        return len(sink) == 2

    with pytest.raises(ReplayCancelled):
        replay(bookie, storage, cancelled=cancelled)
    assert marks(bookie) == [LogMark(), LogMark()]
    replay(bookie, storage)
    assert len(list(storage.entry_ids(2))) == 4 * CANCEL_CHECK_ENTRIES


@pytest.mark.parametrize("seed", range(10))
def test_what_a_failed_sync_has_lost_keeps_no_later_start_from_its_journal(
    seed: int, bookie: MemoryBookie, storage: DbLedgerStorage
) -> None:
    """A sync failed, which ended the process; the kernel calls its pages clean. The next one starts, then the power
    fails."""
    path = journal(bookie, 0, key_record(2, KEY), entry_record(entry(2, 0)))
    written = bookie.files.read_bytes(path)
    bookie.files.corrupt(path, 512, bytes(len(written) - 512))
    file = bookie.files.open(path, writable=True)
    file.pwrite(written[512:], 512)
    bookie.faults.fail("sync", path=path, times=1)
    with pytest.raises(OSError):
        file.sync()
    replayed = replay(bookie, storage)
    before = replayed.ends[0].journal_id
    heads = [LogMark(before + 1, 512), LogMark()]
    journal_file = JournalFile.create(bookie.files, JOURNALS[0], before + 1, JournalConfig(), before)
    replayed.go_on_at(heads, ["/l0", "/l1"])
    journal_file.close()
    files = bookie.files.crash(Random(seed))
    end = replay_journal(JOURNALS[0], MarkFiles(files, ["/l0", "/l1"], 0, 2).copies(), files, Replayed())
    assert end.began == heads[0]
