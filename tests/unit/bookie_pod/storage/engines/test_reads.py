"""Reading: read-ahead, faults that must not look like absence, entries that move while they are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_pod.metrics.db_storage import ReadLevel
from bookie_pod.storage.engines.read_cache import ReadCache
from bookie_pod.storage.entry_log.interface import Row
from bookie_pod.storage.index.locations import KEY, VALUE, LocationRun
from bookie_protocol.entry import LAST_ENTRY
from bookie_protocol.errors import EntryDamaged, NoSuchEntry, NotThere, StorageFault
from tests.support.production import changed
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
    # 1 entry, then 1 + 4, 1 + 16, 1 + 64, and 1 + 100 from there on
    assert bookie.metrics.read_ahead_entries[:4] == [4, 16, 64, 100]
    assert bookie.metrics.log_reads == 4 + -(-(1000 - 1 - 5 - 17 - 65) // 101)
    storage.close()


@pytest.mark.parametrize("ids", [(0, 1, 2, 4, 5), range(6)], ids=["behind a gap", "in a row"])
def test_no_copy_that_was_replaced_is_read_ahead(ids: Sequence[int]) -> None:
    bookie = MemoryBookie(options=small_options())
    storage = bookie.open()
    put(storage, *(entry(1, n, 100, b"old") for n in ids))
    storage.flush()
    put(storage, entry(1, 4, 100, b"new"))
    storage.flush()
    storage.close()
    storage = bookie.open()
    assert storage.read_apart(1, 0, 6, 1 << 20) == [entry(1, n, 100, b"old") for n in ids if n < 4]
    assert [storage.read(1, n) for n in (0, 1, 2)] == [entry(1, n, 100, b"old") for n in (0, 1, 2)]
    assert storage.cached(1, 5) == entry(1, 5, 100, b"old"), "what lies where the index says is read ahead"
    assert storage.read(1, 4) == entry(1, 4, 100, b"new")
    storage.close()


def test_an_index_that_fails_for_what_lies_behind_an_entry_costs_only_that(monkeypatch: pytest.MonkeyPatch) -> None:
    bookie = _flushed(10)
    storage = bookie.open()
    reads = storage.directories[0]._log_reads
    locate = reads._locate

    def one(ledger_id: int, entry_ids: Sequence[int]) -> Sequence[int | None]:
        if len(entry_ids) > 1:
            raise StorageFault("the index cannot be read")
        return locate(ledger_id, entry_ids)

    monkeypatch.setattr(reads, "_locate", one)
    assert [storage.read(1, n) for n in range(3)] == [entry(1, n) for n in range(3)]
    assert storage.cached(1, 3) is None
    storage.close()


def test_a_random_reader_reads_nothing_ahead() -> None:
    bookie = _flushed(1000)
    storage = bookie.open()
    for n in range(0, 1000, 37):
        assert storage.read(1, n) == entry(1, n)
    assert bookie.metrics.read_ahead_entries == []
    storage.close()


def test_read_ahead_stops_at_the_next_ledger_and_at_its_bytes() -> None:
    bookie = _flushed(3)
    storage = bookie.open()
    assert [storage.read(1, n) for n in range(2)] == [entry(1, n) for n in range(2)]
    assert bookie.metrics.read_ahead_entries == [1]
    storage.close()
    bookie = MemoryBookie(options=small_options(read_cache_bytes=4000))
    storage = bookie.open()
    put(storage, *(entry(1, n, 400) for n in range(10)))
    storage.flush()
    storage.close()
    storage = bookie.open()
    for n in range(2):
        storage.read(1, n)
    assert bookie.metrics.read_ahead_entries == [2]  # a quarter of the read cache
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
    read = directory.logs.read_run

    def moved_first(*at: int) -> list[Row]:
        monkeypatch.setattr(directory.logs, "read_run", read)
        moved = directory.logs.append_run(1, [0], [entry(1, 0)])
        directory.logs.sync()
        directory.locations.write([LocationRun(1, [0], moved)])
        bookie.files.unlink("/ledgers0/0.log")
        raise StorageFault("entry log 0 is gone")

    monkeypatch.setattr(directory.logs, "read_run", moved_first)
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
    assert storage.cached(1, 0) == entry(1, 0, mark=b"n")
    assert storage.cached(1, 1) == entry(1, 1)
    assert storage.read(1, 0) == entry(1, 0, mark=b"n")
    storage.close()


def test_misses_cost_one_look_up_and_no_log_read() -> None:
    bookie = _flushed(2)
    storage = bookie.open()
    with pytest.raises(NoSuchEntry):
        storage.read(1, 9)
    assert (bookie.metrics.lookups, bookie.metrics.log_reads) == (1, 0)
    assert bookie.metrics.levels[ReadLevel.ENTRY_LOG] == 0
    storage.close()


def test_what_is_read_ahead_has_a_limit_in_bytes_of_its_own() -> None:
    bookie = _flushed(100)
    bookie.options = changed(bookie.options, read_ahead_batch_bytes=3 * 40)
    storage = bookie.open()
    assert [storage.read(1, n) for n in range(2)] == [entry(1, n) for n in range(2)]
    assert bookie.metrics.read_ahead_entries == [3]
    storage.close()


def test_what_is_found_damaged_while_it_is_flushed_is_not_served_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    bookie = MemoryBookie()
    storage = bookie.open()
    (directory,) = storage.directories
    put(storage, entry(1, 0), entry(2, 0))
    write = directory.locations.write

    def finds_behind_it(*arguments: Any) -> None:
        write(*arguments)
        directory.refuse({directory.locations.get(1, 0)})
        directory.read_cache.forget_ledger(1)

    monkeypatch.setattr(directory.locations, "write", finds_behind_it)
    storage.flush()
    with pytest.raises(EntryDamaged):
        storage.read(1, 0)
    assert storage.cached(2, 0) == entry(2, 0)
    storage.close()


@pytest.mark.parametrize("count", [1, 3])
def test_who_reads_apart_learns_what_the_disk_has(count: int) -> None:
    bookie = MemoryBookie()
    storage = bookie.open()
    put(storage, *(entry(1, n) for n in range(3)))
    storage.flush()
    put(storage, entry(1, 3))
    bookie.files.corrupt("/ledgers0/0.log", (storage.directories[0].locations.get(1, 0) & 0xFFFFFFFF) + 8, b"\xff" * 8)
    assert storage.read(1, 0) == entry(1, 0), "memory has it still"
    with pytest.raises(EntryDamaged):
        storage.read_apart(1, 0, count, 1 << 20)
    (damaged,) = storage.read_each(1, [0], apart=True)
    assert isinstance(damaged, EntryDamaged)
    assert storage.read_apart(1, 3, count, 1 << 20) == [entry(1, 3)], "and what is not on the disk yet"
    storage.close()


class FlushesWhenAsked(ReadCache):
    """Somebody flushes as soon as its generation was looked at."""

    def __init__(self, flush: Callable[[], None]) -> None:
        self._flush: Callable[[], None] | None = None
        super().__init__(1 << 20)
        self._flush = flush

    @property  # type: ignore[override]
    def generation(self) -> int:
        flush, self._flush = self._flush, None
        found = self._generation
        if flush is not None:
            flush()
        return found

    @generation.setter
    def generation(self, value: int) -> None:
        self._generation = value


def test_what_comes_along_is_no_copy_that_a_flush_replaces_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryBookie().open()
    (directory,) = storage.directories
    put(storage, *(entry(1, n, mark=b"old") for n in range(2)))
    storage.flush()
    put(storage, entry(1, 1, mark=b"new"))
    read_apart = directory._log_reads.read_apart

    def before_the_check(*run: int) -> list[bytes]:
        found = read_apart(*run)
        directory.read_cache = FlushesWhenAsked(storage.flush)
        directory.read_cache.generation = generation
        return found

    generation = directory.read_cache.generation
    monkeypatch.setattr(directory._log_reads, "read_apart", before_the_check)
    assert entry(1, 1, mark=b"old") not in storage.read_apart(1, 0, 2, 1 << 20)
    storage.close()


# --- many entries at once -----------------------------------------------------------------------------------------


IDS = st.lists(st.integers(0, 40), max_size=40)


@given(ids=IDS, on_disk=st.sets(st.integers(0, 40)), in_memory=st.sets(st.integers(0, 40)), damaged=st.integers(0, 40))
def test_entries_that_are_asked_for_together_are_those_that_each_would_be_alone(
    ids: list[int], on_disk: set[int], in_memory: set[int], damaged: int
) -> None:
    bookie = MemoryBookie(options=small_options(read_cache_bytes=8000))
    storage = bookie.open()
    put(storage, entry(1, 50), *(entry(1, each) for each in sorted(on_disk)))
    storage.flush()
    put(storage, *(entry(1, each, mark=b"n") for each in sorted(in_memory)))
    storage.directories[0].refuse({storage.directories[0].locations.get(1, damaged)})

    def alone(entry_id: int) -> bytes | type[Exception]:
        try:
            return storage.read(1, entry_id)
        except Exception as error:
            return type(error)

    together = [found if isinstance(found, bytes) else type(found) for found in storage.read_each(1, ids)]
    assert together == [alone(each) for each in ids]
    storage.close()


@given(flushes=st.lists(st.sets(st.integers(0, 20)), max_size=5), active=st.sets(st.integers(0, 20)), ids=IDS)
def test_memory_has_the_newest_copy_of_each_entry_wherever_it_lies_and_counts_each_read_once(
    flushes: list[set[int]], active: set[int], ids: list[int]
) -> None:
    bookie = MemoryBookie()
    storage = bookie.open()
    newest: dict[int, bytes] = {}
    for at, entry_ids in enumerate([*flushes, active]):
        newest |= {each: entry(1, each, mark=b"%d" % at) for each in entry_ids}
        put(storage, *(newest[each] for each in sorted(entry_ids)))
        if at < len(flushes):
            storage.flush()
    bookie.metrics.levels.clear()
    assert storage.cached_each(1, ids) == list(map(newest.get, ids))
    assert bookie.metrics.levels.total() == sum(each in newest for each in ids)
    bookie.metrics.levels.clear()
    run = list(takewhile(lambda each: each in newest, range(21)))
    assert storage.cached_run(1, range(21)) == [newest[each] for each in run]
    assert bookie.metrics.levels.total() == len(run)
    assert bookie.metrics.levels[ReadLevel.WRITE_CACHE] == len(active.intersection(run))
    storage.close()


def test_they_cost_one_look_up_and_what_lies_together_one_read() -> None:
    bookie = _flushed(100)
    storage = bookie.open()
    metrics = bookie.metrics
    before = metrics.lookups, metrics.log_reads
    assert list(storage.read_each(1, range(10, 42))) == [entry(1, each) for each in range(10, 42)]
    assert (metrics.lookups, metrics.log_reads) == (before[0] + 1, before[1] + 1)
    assert next(storage.read_each(1, (42, 70))) == entry(1, 42)  # the stream goes on, and nobody waits for 70
    assert (metrics.lookups, metrics.log_reads) == (before[0] + 3, before[1] + 2)  # also of what is read ahead
    assert storage.cached(1, 100 - 1) is not None
    storage.close()


@pytest.mark.parametrize("ids", [(3, 4, 5), (5, 4, 3)])
def test_a_row_that_cannot_be_read_concerns_its_entry_alone(ids: tuple[int, ...]) -> None:
    bookie = _flushed(10)
    storage = bookie.open()
    store = storage.directories[0].locations._store
    batch = store.batch()
    batch.put(KEY.pack(1, 4), b"short")
    batch.commit()
    found = dict(zip(ids, storage.read_each(1, ids), strict=True))
    assert isinstance(found.pop(4), StorageFault)
    assert found == {3: entry(1, 3), 5: entry(1, 5)}
    storage.close()


def test_an_older_copy_that_lies_behind_is_not_taken_for_the_entry() -> None:
    bookie = _flushed(10)
    storage = bookie.open()
    put(storage, entry(1, 5, mark=b"n"))
    storage.flush()
    assert list(storage.read_each(1, (4, 5, 6))) == [entry(1, 4), entry(1, 5, mark=b"n"), entry(1, 6)]
    storage.close()


def test_a_row_that_leads_to_another_entry_gives_nobody_that_entry() -> None:
    bookie = _flushed(10)
    storage = bookie.open()
    locations = storage.directories[0].locations
    batch = locations._store.batch()
    batch.put(KEY.pack(1, 4), VALUE.pack(locations.get(1, 6)))
    batch.commit()
    found = list(storage.read_each(1, (5, 6, 4)))
    assert found[:2] == [entry(1, 5), entry(1, 6)]
    assert isinstance(found[2], EntryDamaged)
    storage.close()


def test_damage_that_is_found_while_the_entry_is_read_is_damage() -> None:
    class FoundMeanwhile(list[int]):
        looks = 0

        def __contains__(self, location: object) -> bool:
            self.looks += 1
            return self.looks > 1

    bookie = _flushed(3)
    storage = bookie.open()
    storage.directories[0].refuse(FoundMeanwhile([1]))
    with pytest.raises(EntryDamaged):
        storage.read(1, 0)
    storage.close()


def test_reading_ahead_goes_on_over_what_other_bookies_hold() -> None:
    bookie = MemoryBookie(options=small_options())
    storage = bookie.open()
    ids = [each for each in range(900) if each % 3]
    put(storage, *(entry(1, each) for each in ids))
    storage.flush()
    assert [storage.read(1, each) for each in ids] == [entry(1, each) for each in ids]
    assert bookie.metrics.log_reads <= 3 + -(-600 // 101) + 1
    storage.close()
