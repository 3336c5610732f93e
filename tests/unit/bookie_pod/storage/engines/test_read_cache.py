"""The cache of entries read from disk, and the windows of read-ahead."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from bookie_pod.storage.engines.log_reads import (
    ENTRY_OVERHEAD,
    FIRST_WINDOW,
    GROWTH,
    MAX_STREAMS,
    NEAR,
    ReadAheadWindows,
    ReadCache,
)


def _fill(cache: ReadCache, ledger_id: int, entries: dict[int, bytes]) -> None:
    cache.put(ledger_id, entries.items(), cache.generation)


def test_the_oldest_go_first_and_the_limit_holds() -> None:
    cache = ReadCache(4 * (ENTRY_OVERHEAD + 100))
    for entry_id in range(6):
        _fill(cache, 1, {entry_id: bytes(100)})
    assert [entry_id for entry_id in range(6) if cache.get(1, entry_id)] == [2, 3, 4, 5]
    assert cache.nbytes <= cache.max_bytes
    assert cache.count == 4


def test_an_entry_larger_than_the_cache_is_not_taken_and_drives_nothing_out() -> None:
    cache = ReadCache(1000)
    _fill(cache, 1, {0: b"x"})
    _fill(cache, 1, {1: bytes(1000)})
    assert cache.get(1, 0) == b"x"
    assert cache.get(1, 1) is None


def test_an_entry_that_was_looked_up_before_a_flush_is_not_taken() -> None:
    cache = ReadCache(1 << 20)
    generation = cache.generation
    cache.forget({1: {0: b"newer"}})
    cache.put(1, [(0, b"older")], generation)
    assert cache.get(1, 0) is None


def test_forgetting_what_was_flushed_keeps_the_rest() -> None:
    cache = ReadCache(1 << 20)
    _fill(cache, 1, {0: b"a", 1: b"b"})
    _fill(cache, 2, {0: b"c"})
    cache.forget({1: {1: b"", 7: b""}, 3: {0: b""}})
    assert cache.get(1, 0) == b"a"
    assert cache.get(1, 1) is None
    assert cache.get(2, 0) == b"c"
    cache.forget_ledger(2)
    assert cache.get(2, 0) is None


@given(st.randoms(use_true_random=False))
def test_bounds_hold_and_only_true_copies_are_served(rng: random.Random) -> None:
    cache = ReadCache(10 * (ENTRY_OVERHEAD + 20))
    truth: dict[tuple[int, int], bytes] = {}
    for step in range(200):
        ledger_id, entry_id = rng.randrange(3), rng.randrange(12)
        action = rng.randrange(10)
        if action == 0:
            cache.forget_ledger(ledger_id)
            for place in [place for place in truth if place[0] == ledger_id]:
                del truth[place]
        elif action == 1:
            truth[ledger_id, entry_id] = b"%d" % step
            cache.forget({ledger_id: {entry_id: b""}})
        else:
            data = truth.setdefault((ledger_id, entry_id), b"%d" % step)
            _fill(cache, ledger_id, {entry_id: data})
        assert 0 <= cache.nbytes <= cache.max_bytes
        for place in ((a, b) for a in range(3) for b in range(12)):
            held = cache.get(*place)
            assert held is None or held == truth[place]


def test_windows_grow_only_with_sequential_misses() -> None:
    windows = ReadAheadWindows(100)
    assert windows.window(1, 0) == 0
    windows.done(1, 1, 0)
    assert windows.window(1, 1) == FIRST_WINDOW
    windows.done(1, 5, FIRST_WINDOW)
    assert windows.window(1, 7) == 0  # a jump
    assert windows.window(1, 5) == FIRST_WINDOW * GROWTH  # the stream goes on
    windows.done(1, 22, FIRST_WINDOW * GROWTH)
    assert windows.window(2, 22) == 0  # another ledger
    wide = windows.window(1, 22)
    windows.done(1, 90, wide)
    assert windows.window(1, 90) == 100


def test_of_a_striped_ledger_a_stream_goes_on_behind_what_others_hold() -> None:
    windows = ReadAheadWindows(100)
    windows.done(1, 5, FIRST_WINDOW, gaps=True)
    assert windows.window(1, 5 + NEAR) == 0  # a jump
    assert windows.window(1, 4) == 0  # back
    assert windows.window(1, 4 + NEAR) == FIRST_WINDOW * GROWTH
    assert windows.window(1, 5) == 0  # it was taken


def test_windows_can_be_off_and_are_bounded() -> None:
    off = ReadAheadWindows(0)
    assert off.window(1, 0) == 0
    windows = ReadAheadWindows(100)
    for ledger_id in range(MAX_STREAMS + 1):
        windows.done(ledger_id, 5, FIRST_WINDOW)
    assert windows.window(0, 5) == 0  # forgotten
    assert windows.window(1, 5) == FIRST_WINDOW * GROWTH
