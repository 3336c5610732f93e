"""The cache of entries flushed last or read from disk, and the windows of read-ahead."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from bookie_pod.storage.engines.log_reads import (
    FIRST_WINDOW,
    GROWTH,
    MAX_STREAMS,
    NEAR,
    ReadAheadWindows,
)
from bookie_pod.storage.engines.read_cache import ENTRY_OVERHEAD, PIECES, ReadCache
from bookie_pod.storage.write_cache import WriteCacheHalf


def _flushed(ledgers: dict[int, dict[int, bytes]]) -> WriteCacheHalf:
    half = WriteCacheHalf(1 << 20)
    for ledger_id, entries in ledgers.items():
        half.entries_of(ledger_id).update(entries)
        half.account(sum(map(len, entries.values())), len(entries))
    return half


def get(cache: ReadCache, ledger_id: int, entry_id: int) -> bytes | None:
    """What readers are given."""
    return next((entries[entry_id] for entries in cache.views(ledger_id) if entry_id in entries), None)


def _fill(cache: ReadCache, ledger_id: int, entries: dict[int, bytes]) -> None:
    cache.put(ledger_id, entries.items(), cache.generation)


def test_the_oldest_go_first_and_the_limit_holds() -> None:
    cache = ReadCache(4 * (ENTRY_OVERHEAD + 100))
    for entry_id in range(6):
        _fill(cache, 1, {entry_id: bytes(100)})
    assert [entry_id for entry_id in range(6) if get(cache, 1, entry_id)] == [2, 3, 4, 5]
    assert cache.nbytes <= cache.max_bytes
    assert cache.count == 4


def test_an_entry_larger_than_the_cache_is_not_taken_and_drives_nothing_out() -> None:
    cache = ReadCache(1000)
    _fill(cache, 1, {0: b"x"})
    _fill(cache, 1, {1: bytes(1000)})
    assert get(cache, 1, 0) == b"x"
    assert get(cache, 1, 1) is None


def test_an_entry_that_was_looked_up_before_a_flush_is_not_taken() -> None:
    cache = ReadCache(300)
    generation = cache.generation
    cache.keep(_flushed({1: {0: b"newer"}}))
    cache.put(1, [(0, b"older")], generation)
    assert get(cache, 1, 0) is None


def test_what_was_flushed_takes_the_place_of_older_copies_only() -> None:
    cache = ReadCache(1 << 20)
    _fill(cache, 1, {0: b"a", 1: b"b"})
    _fill(cache, 2, {0: b"c"})
    cache.keep(_flushed({1: {1: b"B", 7: b"H"}, 3: {0: b"D"}}))
    cache.keep(_flushed({1: {7: b"h"}}))
    assert [get(cache, *place) for place in ((1, 0), (1, 1), (1, 7), (2, 0), (3, 0))] == [b"a", b"B", b"h", b"c", b"D"]
    assert [view[7] for view in cache.views(1) if 7 in view] == [b"h"], "two small flushes are one"
    for ledger_id in (1, 2):
        cache.forget_ledger(ledger_id)
        assert not any(get(cache, ledger_id, entry_id) for entry_id in range(8))
        assert not cache.views(ledger_id)
    assert get(cache, 3, 0) == b"D"


def test_what_was_flushed_takes_half_of_the_cache_and_the_oldest_goes_first() -> None:
    flushes = [_flushed({1: {n: bytes(1000)}}) for n in range(10)]
    cache = ReadCache(8 * flushes[0].nbytes)
    for n in range(100, 120):
        _fill(cache, 2, {n: bytes(1000)})
    for flushed in flushes:
        cache.keep(flushed)
        assert cache.nbytes <= cache.max_bytes
    assert [n for n in range(10) if get(cache, 1, n)] == [6, 7, 8, 9]
    assert get(cache, 2, 119), "the other half is for what is read"
    for n in range(120, 140):
        _fill(cache, 2, {n: bytes(1000)})
        assert cache.nbytes <= cache.max_bytes
    assert [n for n in range(10) if get(cache, 1, n)] == [6, 7, 8, 9]


def test_one_flush_may_take_three_quarters_and_what_is_larger_is_not_kept_nor_anything_older() -> None:
    flushed = _flushed({1: {0: b"new", 1: bytes(4000)}})
    cache = ReadCache(flushed.nbytes * 3 // 2)
    cache.keep(_flushed({1: {0: b"old"}}))
    cache.keep(flushed)
    assert get(cache, 1, 0) == b"new"
    cache.keep(_flushed({1: {0: b"newest", 1: bytes(6000)}}))
    assert get(cache, 1, 0) is None
    assert (cache.nbytes, cache.count, cache._flushed) == (0, 0, {}), "not even the names of its ledgers"


def test_small_flushes_become_one_and_a_ledger_lies_in_few_dicts_however_many_there_are() -> None:
    cache = ReadCache(1 << 20)
    for n in range(3000):
        cache.keep(_flushed({1: {n: bytes(500), -1: b"%d" % n}, n + 2: {0: b"x"}}))
        assert get(cache, 1, -1) == b"%d" % n
        assert len(cache.views(1)) <= 2 * PIECES + 1
        assert cache.nbytes <= cache.max_bytes // 2
    kept = [n for n in range(3000) if get(cache, 1, n)]
    assert kept == list(range(kept[0], 3000))
    assert cache.nbytes > cache.max_bytes // 3
    assert [n for n in range(3000) if get(cache, n + 2, 0)] == kept


def test_a_ledger_that_is_forgotten_during_a_flush_is_not_kept_of_it_but_of_the_next() -> None:
    cache, flushed = ReadCache(1 << 20), _flushed({1: {0: b"x"}, 2: {0: b"y"}, 3: {0: b"z"}})
    cache.begin_flush()
    cache.forget_ledger(2)
    flushed.deleted.add(1)
    cache.keep(flushed)
    assert [get(cache, each, 0) for each in (1, 2, 3)] == [None, None, b"z"]
    assert [len(cache.views(each)) for each in (1, 2, 3)] == [0, 0, 1]
    cache.begin_flush()
    cache.keep(_flushed({2: {1: b"w"}}))
    assert [get(cache, 2, n) for n in range(2)] == [None, b"w"]


def test_nothing_of_an_earlier_life_comes_back_when_flushes_become_one_or_go() -> None:
    cache = ReadCache(1 << 16)
    cache.keep(_flushed({1: {0: b"old", 1: b"old"}}))
    cache.forget_ledger(1)
    cache.begin_flush()
    cache.keep(_flushed({1: {0: b"new"}}))
    assert [get(cache, 1, n) for n in range(2)] == [b"new", None]
    for n in range(2000):
        cache.keep(_flushed({2: {n: bytes(500)}}))
    assert not cache.views(1)


@given(st.randoms(use_true_random=False))
def test_bounds_hold_and_only_true_copies_are_served(rng: random.Random) -> None:
    cache = ReadCache(20 * (ENTRY_OVERHEAD + 20))
    truth: dict[tuple[int, int], bytes] = {}
    for step in range(80):
        ledger_id, entry_id = rng.randrange(3), rng.randrange(12)
        action = rng.randrange(10)
        if action == 0:
            cache.forget_ledger(ledger_id)
            for place in [place for place in truth if place[0] == ledger_id]:
                del truth[place]
        elif action == 1:
            truth[ledger_id, entry_id] = b"%d" % step
            cache.keep(_flushed({ledger_id: {entry_id: truth[ledger_id, entry_id]}}))
        else:
            data = truth.setdefault((ledger_id, entry_id), b"%d" % step)
            _fill(cache, ledger_id, {entry_id: data})
        assert 0 <= cache.nbytes <= cache.max_bytes
        for place in ((a, b) for a in range(3) for b in range(12)):
            held = get(cache, *place)
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
