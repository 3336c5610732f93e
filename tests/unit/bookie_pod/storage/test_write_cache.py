"""One half of the write cache."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from bookie_pod.storage.write_cache import ENTRY_OVERHEAD, LEDGER_OVERHEAD, WriteCacheHalf


def test_fullness_counts_overhead_and_is_never_true_of_an_empty_half() -> None:
    half = WriteCacheHalf(1000)
    for ledger_id in range(10):
        half.entries_of(ledger_id)
    assert half.nbytes == 10 * LEDGER_OVERHEAD > half.max_bytes
    before = half.is_full
    assert half.account(1, 1)
    assert (before, half.is_full) == (False, True)
    assert half.nbytes == 10 * LEDGER_OVERHEAD + ENTRY_OVERHEAD + 1
    assert half.count == 1


def test_account_tells_when_the_limit_is_reached() -> None:
    half = WriteCacheHalf(LEDGER_OVERHEAD + 2 * (ENTRY_OVERHEAD + 100))
    half.entries_of(1)
    assert not half.account(100, 1)
    assert not half.is_full
    assert half.account(100, 1)


@given(st.lists(st.lists(st.integers(0, 1 << 40), max_size=20), max_size=8))
def test_highest_is_the_maximum_however_often_it_is_asked(chunks: list[list[int]]) -> None:
    half = WriteCacheHalf(1 << 30)
    seen: set[int] = set()
    for chunk in chunks:
        entries = half.entries_of(1)
        for entry_id in chunk:
            entries[entry_id] = b""
            seen.add(entry_id)
        assert half.highest(1) == max(seen, default=None)
        assert sorted(half.entry_ids(1)) == sorted(seen)


def test_highest_of_a_ledger_that_was_dropped_and_came_back() -> None:
    half = WriteCacheHalf(1 << 20)
    half.entries_of(1)[50] = b"old"
    assert half.highest(1) == 50
    half.drop_ledger(1)
    assert half.highest(1) is None
    half.entries_of(1)[3] = b"new"
    assert half.highest(1) == 3
    assert half.get(1, 50) is None


def test_highest_while_another_thread_puts() -> None:
    half = WriteCacheHalf(1 << 30)
    entries = half.entries_of(1)
    entries[0] = b""
    stop = threading.Event()
    failures: list[object] = []

    def look() -> None:
        low = 0
        while not stop.is_set():
            before = len(entries)
            found = half.highest(1)
            if found is None or found < low or found < before - 1:
                failures.append((found, low, before))
            low = found or 0

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    for entry_id in range(100_000):
        entries[entry_id] = b""
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert half.highest(1) == 99_999


def test_a_deletion_mark_hides_a_ledger() -> None:
    half = WriteCacheHalf(1 << 20)
    half.entries_of(1)[0] = b"x"
    half.deleted.add(1)
    assert half.get(1, 0) is None
    assert half.highest(1) is None
    assert half.entry_ids(1) == []
