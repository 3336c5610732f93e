"""Reading: read-ahead, faults that must not look like absence, entries that move while they are read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie_pod.storage.engines.metrics import ReadLevel
from bookie_pod.storage.index.location_rows import LocationRun
from bookie_protocol.entry import LAST_ENTRY
from bookie_protocol.errors import EntryDamaged, NoSuchEntry, NotThere, StorageFault
from tests.support.storage_engine import MemoryBookie, entry, put, small_options


def _flushed(count: int, **options: int) -> MemoryBookie:
    bookie = MemoryBookie(options=small_options(**options))
    storage = bookie.open()
    put(storage, *(entry(1, n) for n in range(count)))
    put(storage, *(entry(2, n) for n in range(3)))
    storage.flush()
    storage.close()
    return bookie


def test_a_sequential_reader_goes_to_disk_ever_less_often() -> None:
    bookie = _flushed(1000)
    storage = bookie.open()
    assert [storage.read(1, n) for n in range(1000)] == [entry(1, n) for n in range(1000)]
    # 1 + 4 entries, then 1 + 16, 1 + 64, and 1 + 100 from there on
    assert bookie.metrics.read_ahead_entries[:4] == [4, 16, 64, 100]
    assert bookie.metrics.log_reads == 3 + -(-(1000 - 5 - 17 - 65) // 101)
    storage.close()


def test_a_random_reader_reads_little_ahead() -> None:
    bookie = _flushed(1000)
    storage = bookie.open()
    for n in range(0, 1000, 37):
        assert storage.read(1, n) == entry(1, n)
    assert set(bookie.metrics.read_ahead_entries[:-1]) == {4}
    storage.close()


def test_read_ahead_stops_at_the_next_ledger_and_at_its_bytes() -> None:
    bookie = _flushed(3)
    storage = bookie.open()
    assert storage.read(1, 1) == entry(1, 1)
    assert bookie.metrics.read_ahead_entries == [1]
    storage.close()
    bookie = MemoryBookie(options=small_options(read_cache_bytes=2000))
    storage = bookie.open()
    put(storage, *(entry(1, n, 400) for n in range(10)))
    storage.flush()
    storage.read(1, 0)
    assert bookie.metrics.read_ahead_entries == [2]  # half of the read cache
    storage.close()


def test_a_damaged_entry_is_damage_and_never_absence() -> None:
    bookie = _flushed(5)
    storage = bookie.open()
    location = storage.directories[0].locations.get(1, 2)
    bookie.files.corrupt("/ledgers0/0.log", (location & 0xFFFFFFFF) + 8, b"\xff" * 8)
    with pytest.raises(EntryDamaged):
        storage.read(1, 2)
    assert storage.read(1, 1) == entry(1, 1)
    assert storage.read(1, 3) == entry(1, 3)
    storage.close()


@pytest.mark.parametrize(("names", "path"), [(("pread", "open"), ".log"), (("get",), "locations")])
def test_a_failing_disk_is_a_fault_for_every_entry_that_memory_does_not_hold(names: tuple[str, ...], path: str) -> None:
    bookie = _flushed(5)
    storage = bookie.open()
    bookie.faults.fail(*names, path=path)
    with pytest.raises(StorageFault) as caught:
        storage.read(1, 2)
    assert not isinstance(caught.value, NotThere)
    bookie.faults.clear()
    assert storage.read(1, 2) == entry(1, 2)
    storage.close()


@pytest.mark.parametrize("name", ["seek", "scan"])
def test_a_failing_index_hides_no_last_entry_and_ends_no_listing(name: str) -> None:
    bookie = _flushed(5)
    storage = bookie.open()
    put(storage, entry(1, 2))
    bookie.faults.fail(name, path="locations")
    with pytest.raises(StorageFault):
        if name == "seek":
            storage.read(1, LAST_ENTRY)
        else:
            list(storage.entry_ids(1))
    storage.close()


def test_an_entry_that_compaction_moves_between_look_up_and_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    bookie = _flushed(1)
    storage = bookie.open()
    directory = storage.directories[0]
    read = directory.logs.read_checked

    def moved_first(location: int, ledger_id: int, entry_id: int) -> bytes:
        monkeypatch.setattr(directory.logs, "read_checked", read)
        moved = directory.logs.append_run(1, [0], [entry(1, 0)])
        directory.logs.sync()
        directory.locations.write([LocationRun(1, [0], moved)])
        bookie.files.unlink("/ledgers0/0.log")
        raise StorageFault("entry log 0 is gone")

    monkeypatch.setattr(directory.logs, "read_checked", moved_first)
    assert storage.read(1, 0) == entry(1, 0)
    storage.close()


def test_a_missing_log_is_a_fault() -> None:
    bookie = _flushed(1)
    bookie.files.unlink("/ledgers0/0.log")
    storage = bookie.open()
    with pytest.raises(StorageFault):
        storage.read(1, 0)
    storage.close()


def test_a_newer_copy_replaces_the_one_in_the_read_cache() -> None:
    bookie = _flushed(2)
    storage = bookie.open()
    assert storage.read(1, 0) == entry(1, 0)
    assert storage.read(1, 1) == entry(1, 1)
    put(storage, entry(1, 0, mark=b"n"))
    storage.flush()
    assert storage.cached(1, 0) is None
    assert storage.cached(1, 1) == entry(1, 1)
    assert storage.read(1, 0) == entry(1, 0, mark=b"n")
    storage.close()


def test_misses_cost_one_look_up_and_no_log_read() -> None:
    bookie = _flushed(2)
    storage = bookie.open()
    with pytest.raises(NoSuchEntry, match="ledger 1 has no entry 9"):
        storage.read(1, 9)
    assert (bookie.metrics.lookups, bookie.metrics.log_reads) == (1, 0)
    assert bookie.metrics.levels[ReadLevel.ENTRY_LOG] == 0
    storage.close()


def test_what_is_read_ahead_has_a_limit_in_bytes_of_its_own() -> None:
    bookie = _flushed(100)
    bookie.options = replace(bookie.options, read_ahead_bytes=3 * 40)
    storage = bookie.open()
    assert storage.read(1, 0) == entry(1, 0)
    assert bookie.metrics.read_ahead_entries == [3]
    storage.close()
