"""Reading for those who must not disturb others: the same entries, and the read cache as it was."""

from __future__ import annotations

import pytest

from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_protocol.errors import EntryDamaged, NoSuchEntry, NoSuchLedger, StorageFault
from tests.support.storage_engine import MemoryBookie, entry, put, small_options

MIB = 1 << 20


def _flushed(count: int = 200) -> tuple[MemoryBookie, DbLedgerStorage]:
    bookie = MemoryBookie(options=small_options(read_cache_bytes=8000))
    storage = bookie.open()
    put(storage, *(entry(1, n) for n in range(count)))
    put(storage, *(entry(2, n) for n in range(3)))
    storage.flush()
    storage.close()
    return bookie, bookie.open()


def _cached(storage: DbLedgerStorage) -> list[tuple[int, int, bytes]]:
    return list(storage.directories[0].read_cache._queue)


def test_what_others_have_in_the_read_cache_stays_and_nothing_is_added() -> None:
    _, storage = _flushed()
    for n in range(3):
        storage.read(2, n)
    before = _cached(storage)
    assert before
    assert storage.read_apart(1, 0, 200, MIB) == [entry(1, n) for n in range(200)]
    assert storage.read_apart(1, 50, 1, 0) == [entry(1, 50)]
    assert _cached(storage) == before
    # The ordinary way fills the cache, and what was there goes.
    for n in range(200):
        storage.read(1, n)
    assert not {ledger for ledger, _, _ in _cached(storage)} & {2}
    storage.close()


def test_a_run_costs_two_look_ups_and_nothing_is_read_ahead_of_it() -> None:
    bookie, storage = _flushed()
    assert len(storage.read_apart(1, 10, 100, MIB)) == 100
    assert (bookie.metrics.lookups, bookie.metrics.log_reads, bookie.metrics.read_ahead_entries) == (2, 1, [99])
    assert storage.read_apart(1, 150, 1, MIB) == [entry(1, 150)]
    assert bookie.metrics.read_ahead_entries == [99]
    # What comes next does not count as a stream, either.
    storage.read(1, 110)
    assert bookie.metrics.read_ahead_entries == [99]
    storage.close()


def test_a_run_ends_with_its_count_its_bytes_and_its_ledger() -> None:
    _, storage = _flushed()
    size = len(entry(1, 0))
    assert len(storage.read_apart(1, 0, 7, MIB)) == 7
    assert len(storage.read_apart(1, 0, 200, 10 * size)) in range(5, 12)
    assert len(storage.read_apart(1, 0, 200, 0)) == 1
    assert storage.read_apart(1, 198, 50, MIB) == [entry(1, 198), entry(1, 199)]
    storage.close()


def test_memory_is_used_and_counts_before_the_log() -> None:
    _, storage = _flushed(20)
    put(storage, entry(1, 5, mark=b"n"), entry(1, 20), entry(1, 21))
    assert storage.read_apart(1, 5, 1, MIB) == [entry(1, 5, mark=b"n")]
    assert storage.read_apart(1, 20, 5, MIB) == [entry(1, 20), entry(1, 21)]
    assert storage.read_apart(1, 3, 10, MIB) == [entry(1, 3), entry(1, 4)]  # the log has an older copy of entry 5
    storage.close()


def test_after_a_flush_in_between_only_what_was_looked_up_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    _, storage = _flushed(20)
    directory = storage.directories[0]
    read_run = directory.logs.read_run

    def flushed_meanwhile(*args: int) -> list[tuple[int, bytes, int]]:
        found = read_run(*args)
        put(storage, entry(1, 5, mark=b"n"))
        storage.flush()
        return found

    monkeypatch.setattr(directory.logs, "read_run", flushed_meanwhile)
    assert storage.read_apart(1, 3, 10, MIB) == [entry(1, 3)]
    monkeypatch.undo()
    assert storage.read_apart(1, 5, 1, MIB) == [entry(1, 5, mark=b"n")]
    storage.close()


def test_damage_ends_a_run_and_is_told_to_whoever_asks_for_it() -> None:
    _, storage = _flushed(20)
    storage.directories[0].refuse({storage.directories[0].locations.get(1, 5)})
    assert storage.read_apart(1, 3, 10, MIB) == [entry(1, 3), entry(1, 4)]
    with pytest.raises(EntryDamaged):
        storage.read_apart(1, 5, 10, MIB)
    assert storage.read_apart(1, 6, 2, MIB) == [entry(1, 6), entry(1, 7)]
    storage.close()


def test_absence_and_faults_are_those_of_read() -> None:
    bookie, storage = _flushed(5)
    with pytest.raises(NoSuchEntry):
        storage.read_apart(1, 5, 10, MIB)
    with pytest.raises(NoSuchLedger):
        storage.read_apart(3, 0, 10, MIB)
    bookie.faults.fail("pread", "open", path=".log")
    with pytest.raises(StorageFault) as caught:
        storage.read_apart(1, 2, 10, MIB)
    assert not isinstance(caught.value, NoSuchEntry)
    storage.close()
