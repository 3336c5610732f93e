"""Ranges by batch and singly: order, fall-over, fall-back, bounds, speculation, giving up. On a virtual clock."""

import asyncio
from contextlib import aclosing

import pytest

from bookie_client.context import RETRY_SECONDS
from bookie_client.reading import batch_read
from bookie_client.reading.choice import ReplicaChoice
from bookie_client.reading.entry import payloads_of
from bookie_client.reading.plan import ReadPlan
from bookie_client.reading.range_read import RangeRead
from bookie_client.reading.reader import EntryReader, one_by_one, whole
from bookie_client.reading.sources import EntrySources
from bookie_protocol.errors import BookieUnavailable, DigestMismatch, NoSuchEntry, StorageFault
from tests.unit.bookie_client.reading.rig import Rig, now, read_range, run_virtually, virtually


@pytest.fixture(autouse=True, params=[True, False], ids=["short ranges as one batch", "all by a plan"])
def how_short_ranges_are_read(request, monkeypatch):
    if not request.param:
        monkeypatch.setattr(EntryReader, "_most_in_a_batch", lambda _: 0)


def read(rig, first=0, last=None):
    """Entries, seconds, reader."""

    async def main():
        reader = rig.reader()
        end = len(rig.payloads) - 1 if last is None else last
        entries = await read_range(reader, first, end)
        return entries, now(), reader

    return run_virtually(main)


def right(rig, entries, first=0):
    return [(e.entry_id, e.payload) for e in entries] == list(enumerate(rig.payloads))[first:][: len(entries)]


def test_a_range_takes_few_requests_and_all_bookies_share_them():
    rig = Rig(1000, batch_read_entries=100)
    entries, _, reader = read(rig)
    assert right(rig, entries)
    assert len(entries) == 1000
    assert sum(rig.batched().values()) == 10
    assert all(3 <= batches <= 4 for batches in rig.batched().values())
    assert rig.asked() == {"A": 0, "B": 0, "C": 0}
    assert sum(reader.served_by.values()) == 1000


def test_ranges_of_one_neighbourhood_begin_with_one_bookie_and_others_with_others():
    """Bookies read ahead; and readers of many short ranges share all of them."""
    rig = Rig(900, batch_read_entries=100)

    async def main():
        reader = rig.reader()
        for first in range(0, 900, 20):
            assert right(rig, await read_range(reader, first, first + 19), first)

    run_virtually(main)
    parts = {name: {first // 100 for first, _ in bookie.batches} for name, bookie in rig.bookies.items()}
    assert parts == {"A": {0, 3, 6}, "B": {1, 4, 7}, "C": {2, 5, 8}}


def test_batches_are_under_way_together_once_one_was_served():
    rig = Rig(1000, batch_read_entries=100)
    _, seconds, _ = read(rig)
    assert rig.most_batches == 9  # all that are left behind the first
    assert seconds == pytest.approx(0.002)


@pytest.mark.parametrize("options", [{"ensemble": 4, "write_quorum": 2, "batch_reads": False}, {"batch_reads": False}])
def test_single_reads_go_ahead_of_the_application(options):
    rig = Rig(2000, **options)
    entries, seconds, _ = read(rig)
    assert right(rig, entries)
    assert sum(rig.batched().values()) == 0
    assert seconds <= 0.004  # a window of 1,000 entries, and a round trip of 1 ms


def test_the_window_bounds_batches_in_bytes():
    rig = Rig(400, size=1000, read_window_bytes=80_000, batch_read_bytes=10_000)
    plans = []

    async def main():
        reader = rig.reader()
        plan = reader._plan(0, 399)
        plans.append(plan)
        count = 0
        async with aclosing(RangeRead(reader._sources, plan).batches()) as batches:
            async for batch in batches:
                count += len(batch)
                assert plan.bytes_in_use <= 80_000
        return count

    assert run_virtually(main) == 400
    assert 60_000 <= plans[0].peak_bytes <= 80_000
    assert plans[0].bytes_in_use == 0
    assert rig.most_batches <= 7


def test_a_reader_may_read_ahead_less_than_its_client_allows_and_never_more():
    rig = Rig(400, size=1000, read_window_bytes=80_000, batch_read_bytes=10_000)

    async def main():
        reader = rig.reader()
        peaks = []
        for nbytes in (40_000, 1_000_000, 40_000):
            reader.read_ahead(nbytes)
            plan = reader._plan(0, 399)
            async with aclosing(RangeRead(reader._sources, plan).batches()) as batches:
                peaks.append((sum([len(batch) async for batch in batches]), plan.peak_bytes <= 40_000))
        return peaks

    assert run_virtually(main) == [(400, True)] * 3


def test_entries_of_very_different_sizes_come_all_and_in_order():
    sizes = [5 if i % 10 else 9_000 for i in range(300)]
    rig = Rig(300, sizes=sizes, read_window_bytes=80_000, batch_read_bytes=10_000)
    entries, *_ = read(rig)
    assert right(rig, entries)
    assert len(entries) == 300


def test_one_entry_is_read_by_a_single_read():
    rig = Rig()
    entries, *_ = read(rig, 5, 5)
    assert right(rig, entries, 5)
    assert sum(rig.batched().values()) == 0


@pytest.mark.parametrize("options", [{"batch_reads": False}, {"batch_read_entries": 1}])
def test_batches_can_be_turned_off(options):
    rig = Rig(**options)
    entries, *_ = read(rig)
    assert right(rig, entries)
    assert (len(entries), sum(rig.batched().values()), sum(rig.asked().values())) == (100, 0, 100)


def test_segments_are_read_from_their_own_bookies():
    rig = Rig(90)
    rig.metadata = rig.metadata.with_ensemble(50, ("A", "D", "E"))
    for bookie in rig.bookies.values():
        bookie.entries.clear()
    rig.place_entries()
    entries, *_ = read(rig)
    assert (right(rig, entries), len(entries)) == (True, 90)
    assert all(first >= 50 for name in "DE" for first, _ in rig.bookies[name].batches)
    assert all(first < 50 for name in "BC" for first, _ in rig.bookies[name].batches)


# --- bookies that cannot -----------------------------------------------------------------------------------------


def test_bookies_without_batch_reads_are_read_singly_and_remembered():
    rig = Rig(300, batch_read_entries=50)
    for bookie in rig.bookies.values():
        bookie.knows_batches = False

    async def main():
        reader = rig.reader()
        first = await read_range(reader, 0, 299)
        assert rig.batched() == {"A": 1, "B": 1, "C": 1}
        second = await read_range(reader, 0, 299)
        assert rig.batched() == {"A": 1, "B": 1, "C": 1}
        await asyncio.sleep(RETRY_SECONDS)
        for bookie in rig.bookies.values():
            bookie.knows_batches = True
        third = await read_range(reader, 0, 299)
        assert sum(rig.batched().values()) == 3 + 6
        return first, second, third

    for entries in run_virtually(main):
        assert right(rig, entries)
        assert len(entries) == 300


def test_one_old_bookie_leaves_the_batches_to_the_others():
    rig = Rig(600, batch_read_entries=50)
    rig.bookies["A"].knows_batches = False
    entries, *_ = read(rig)
    assert (right(rig, entries), len(entries)) == (True, 600)
    assert rig.batched()["A"] == 1
    assert rig.asked() == {"A": 0, "B": 0, "C": 0}


def test_the_only_copy_on_an_old_bookie_is_found():
    rig = Rig(60)
    rig.bookies["B"].knows_batches = False
    del rig.bookies["A"].entries[0], rig.bookies["C"].entries[0]
    entries, *_ = read(rig)
    assert (right(rig, entries), len(entries)) == (True, 60)


# --- failures ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [StorageFault, BookieUnavailable, NoSuchEntry])
def test_a_failed_batch_is_read_from_the_next_replica(error):
    rig = Rig(300, batch_read_entries=50)
    rig.bookies["A"].error = error
    entries, _, reader = read(rig)
    assert (right(rig, entries), len(entries)) == (True, 300)
    assert set(reader.served_by) == {"B", "C"}


@pytest.mark.parametrize("options", [{}, {"write_quorum": 2}], ids=["every bookie has all", "striped"])
def test_a_batch_that_cannot_be_taken_apart_is_read_from_the_next_replica(options):
    rig = Rig(300, batch_read_entries=50, **options)
    rig.bookies["A"].cuts_batches = True
    entries, _, reader = read(rig)
    assert (right(rig, entries), len(entries)) == (True, 300)
    assert (set(reader.served_by), sum(rig.asked().values())) == ({"B", "C"}, 0)
    assert rig.batched()["A"]


def test_a_hole_of_one_replica_is_filled_from_another():
    rig = Rig(100, batch_read_entries=50)
    for missing in (10, 20, 21, 60):
        del rig.bookies["A"].entries[missing]
    entries, *_ = read(rig)
    assert (right(rig, entries), len(entries)) == (True, 100)


def test_a_damaged_entry_alone_is_read_elsewhere():
    rig = Rig(100)
    rig.bookies["A"].damage(30)
    rig.bookies["A"].damage(31)
    rig.bookies["B"].damage(31)
    entries, _, reader = read(rig)
    assert (right(rig, entries), len(entries)) == (True, 100)
    assert reader.damaged_at == {"A": 2, "B": 1}
    assert reader.served_by == {"A": 98, "B": 1, "C": 1}
    assert rig.batched() == {"A": 1, "B": 0, "C": 0}


def test_a_batch_of_nothing_but_damage_is_read_from_the_next_replica():
    rig = Rig(100)
    for entry_id in range(100):
        rig.bookies["A"].damage(entry_id)
    entries, _, reader = read(rig)
    assert (right(rig, entries), len(entries)) == (True, 100)
    assert reader.damaged_at == {"A": 100}
    assert (rig.batched(), sum(rig.asked().values())) == ({"A": 1, "B": 1, "C": 0}, 0)


@pytest.mark.parametrize("batch_reads", [True, False])
def test_the_first_entry_that_nobody_serves_ends_the_range(batch_reads):
    rig = Rig(100, batch_reads=batch_reads)
    for bookie in rig.bookies.values():
        bookie.damage(42)

    async def main():
        seen = []
        with pytest.raises(DigestMismatch, match="entry 42 of ledger 7") as raised:
            async for batch in rig.reader().batches(0, 99, bound=99):
                seen.extend(batch)
        assert all(f"{name}: " in str(raised.value) for name in "ABC")
        return seen

    seen = run_virtually(main)
    assert (right(rig, seen), len(seen)) == (True, 42)


@pytest.mark.parametrize("batch_reads", [True, False])
def test_an_entry_that_everybody_misses_is_no_such_entry(batch_reads):
    rig = Rig(100, batch_reads=batch_reads)
    for bookie in rig.bookies.values():
        del bookie.entries[42]
    with pytest.raises(NoSuchEntry, match="entry 42 of ledger 7"):
        read(rig)
    rig.bookies["C"].error = StorageFault
    with pytest.raises(StorageFault):
        read(rig, 42)


# --- slow bookies ------------------------------------------------------------------------------------------------


def test_a_slow_batch_is_asked_of_another_bookie_and_given_up():
    rig = Rig(100, first_speculative_read_timeout=0.5)
    rig.bookies["A"].delay = 10.0

    async def main():
        reader = rig.reader()
        entries = await read_range(reader, 0, 99)
        assert rig.health.slow() == {"A"}
        return entries, now()

    entries, seconds = run_virtually(main)
    assert (right(rig, entries), len(entries)) == (True, 100)
    assert seconds == pytest.approx(0.501)
    assert (rig.batched(), rig.given_up) == ({"A": 1, "B": 1, "C": 0}, 1)


def test_a_scan_with_a_silent_bookie_waits_once():
    """Once overtaken, the bookie counts as slow and is asked last."""
    rig = Rig(1000, batch_read_entries=50, first_speculative_read_timeout=0.5, read_window_bytes=400_000)
    rig.bookies["A"].delay = None
    entries, seconds, reader = read(rig)
    assert (right(rig, entries), len(entries)) == (True, 1000)
    assert seconds < 1.1
    assert set(reader.served_by) == {"B", "C"}


def test_single_reads_of_a_silent_bookie_are_asked_elsewhere_after_the_delay():
    rig = Rig(90, batch_reads=False, first_speculative_read_timeout=0.5)
    rig.bookies["A"].delay = None
    entries, seconds, reader = read(rig)
    assert (right(rig, entries), len(entries)) == (True, 90)
    assert seconds < 1.1
    assert reader.served_by["A"] == 0


def test_a_bookie_that_goes_on_answering_is_given_more_time():
    rig = Rig(30, ensemble=2, write_quorum=2, batch_reads=False, first_speculative_read_timeout=0.5)
    # The entries of which it is asked first: one after the other, the last after 1.3 s.
    rig.bookies["A"].slow_entries = {entry_id: 0.045 * entry_id for entry_id in range(0, 30, 2)}
    entries, *_ = read(rig)
    assert (right(rig, entries), len(entries)) == (True, 30)
    assert rig.asked() == {"A": 15, "B": 15}


def test_a_bookie_that_goes_on_answering_is_not_waited_for_beyond_the_longest_delay():
    rig = Rig(30, ensemble=2, write_quorum=2, batch_reads=False, first_speculative_read_timeout=0.5)
    rig.bookies["A"].slow_entries = {entry_id: 0.19 * entry_id for entry_id in range(2, 30, 2)} | {0: None}
    entries, seconds, _ = read(rig)
    assert (right(rig, entries), len(entries)) == (True, 30)
    assert all(rig.times_of(entry_id) == [("A", 0), ("B", pytest.approx(2.0))] for entry_id in (0, *range(12, 30, 2)))
    assert rig.asked() == {"A": 15, "B": 15 + 10}
    assert seconds == pytest.approx(2.001)


def test_parallel_ranges_take_the_fastest_and_call_nobody_slow(monkeypatch):
    slow = []
    monkeypatch.setattr(ReplicaChoice, "outrun", lambda _, bookies: slow.extend(bookies))
    rig = Rig(100, parallel_reads=True)
    rig.bookies["A"].delay = None
    rig.bookies["B"].delay = 5.0
    entries, seconds, _ = read(rig)
    assert (right(rig, entries), len(entries)) == (True, 100)
    assert seconds == pytest.approx(0.001)
    assert (rig.batched(), rig.given_up) == ({"A": 1, "B": 1, "C": 1}, 2)
    assert slow == []


# --- sticky ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_reads", [True, False])
@virtually
async def test_a_sticky_reader_stays_with_one_bookie_until_it_fails(batch_reads):
    rig = Rig(300, sticky_reads=True, batch_reads=batch_reads, batch_read_entries=50, reorder_reads=False)
    reader = rig.reader()
    await read_range(reader, 0, 299)
    (first,) = reader.served_by
    rig.bookies[first].error = StorageFault
    await read_range(reader, 0, 299)
    (second,) = set(reader.served_by) - {first}
    rig.bookies[first].error = None
    before = rig.asked()[first] + rig.batched()[first]
    await read_range(reader, 0, 299)
    assert set(reader.served_by) == {first, second}
    assert rig.asked()[first] + rig.batched()[first] == before
    assert reader.served_by[second] == 600


def test_striped_ledgers_are_not_sticky():
    rig = Rig(ensemble=4, write_quorum=2, sticky_reads=True)
    entries, _, reader = read(rig)
    assert (right(rig, entries), reader.served_by) == (True, dict.fromkeys("ABCD", 25))


def test_slow_and_unreachable_bookies_are_asked_last():
    rig = Rig(100)

    async def main():
        reader = rig.reader()
        rig.health.mark_slow("A")
        rig.health.record("B").connection_failed(10)
        assert reader._sources.choice.order(0) == ["C", "A", "B"]
        assert reader._sources.choice.order(1) == ["C", "A", "B"]
        await read_range(reader, 0, 99)
        assert rig.batched() == {"A": 0, "B": 0, "C": 1}

    run_virtually(main)
    unordered = Rig(reorder_reads=False)

    async def in_order_of_the_striping():
        reader = unordered.reader()
        unordered.health.mark_slow("A")
        assert reader._sources.choice.order(0) == ["A", "B", "C"]

    run_virtually(in_order_of_the_striping)


@virtually
async def test_quarantined_then_read_only_then_unregistered_bookies_are_asked_after_the_others():
    rig = Rig(100, ensemble=4, write_quorum=4, quarantine_errors=1)
    reader = rig.reader()
    rig.context.bookies.known_writable = frozenset("CD")
    rig.context.bookies.known_read_only = frozenset("B")
    rig.health.record("C").refused(StorageFault, was_read=False)
    assert reader._sources.choice.order(0) == ["D", "C", "B", "A"]
    await read_range(reader, 0, 99)
    await read_range(reader, 5, 5)
    assert rig.batched() == {"A": 0, "B": 0, "C": 0, "D": 1}
    assert rig.asked() == {"A": 0, "B": 0, "C": 0, "D": 1}


@virtually
async def test_a_random_order_spreads_the_first_replica_and_keeps_slow_ones_last():
    rig = Rig(300, random_read_order=True)
    reader = rig.reader()
    rig.health.mark_slow("A")
    orders = [reader._sources.choice.order(0) for _ in range(50)]
    assert {tuple(order) for order in orders} == {("B", "C", "A"), ("C", "B", "A")}


# --- giving up ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_reads", [True, False])
@virtually
async def test_an_iteration_that_is_given_up_leaves_nothing_behind(batch_reads):
    rig = Rig(1000, batch_reads=batch_reads, batch_read_entries=10, read_window_entries=100)
    reader = rig.reader()
    async with aclosing(one_by_one(reader.batches(0, 999, bound=999))) as entries:
        async for entry in entries:
            if entry.entry_id == 50:
                break
    assert rig.batches_under_way == 0
    before = rig.asked(), rig.batched()
    await asyncio.sleep(10)
    assert (rig.asked(), rig.batched()) == before
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize("batch_reads", [True, False])
@virtually
async def test_cancelling_leaves_nothing_behind(batch_reads):
    rig = Rig(1000, batch_reads=batch_reads, batch_read_entries=10)
    for bookie in rig.bookies.values():
        bookie.delay, bookie.error = 3.0, StorageFault
    reading = asyncio.create_task(read_range(rig.reader(), 0, 999))
    await asyncio.sleep(1.0)
    reading.cancel()
    await asyncio.wait([reading])
    assert reading.cancelled()
    assert rig.batches_under_way == 0
    assert len(asyncio.all_tasks()) == 1
    before = rig.asked()
    await asyncio.sleep(30)
    assert rig.asked() == before


def broken(*what):
    raise RuntimeError("a defect")


@virtually
async def test_a_defect_in_asking_is_raised_where_the_range_is_read():
    rig = Rig(100)
    reader = rig.reader()
    rig.context.operations.send_batch_read = lambda *question, step: broken()
    with pytest.raises(RuntimeError, match="a defect"):
        await read_range(reader, 0, 99)


@pytest.mark.parametrize("damaged", [(), (3,)])
@virtually
async def test_a_defect_in_taking_an_answer_is_raised_where_the_range_is_read(monkeypatch, damaged):
    """A connection hands answers over: raised there, the defect would cost the connection, and the reader waited."""
    rig = Rig(100)
    for entry_id in damaged:
        rig.bookies["A"].damage(entry_id)
    monkeypatch.setattr(*(EntrySources, "mended", broken) if damaged else (batch_read, "verify_packed", broken))
    with pytest.raises(RuntimeError, match="a defect"):
        await read_range(rig.reader(), 0, 99)


@pytest.mark.parametrize("batch_reads", [True, False])
@pytest.mark.parametrize("bookies_that_fail", ["", "ABC"])
@virtually
async def test_a_defect_in_what_comes_behind_an_answer_is_raised_where_the_range_is_read(
    monkeypatch, batch_reads, bookies_that_fail
):
    rig = Rig(100, batch_reads=batch_reads, batch_read_entries=50)
    for name in bookies_that_fail:
        rig.bookies[name].error = StorageFault
    monkeypatch.setattr(ReadPlan, "took", broken)
    with pytest.raises(RuntimeError, match="a defect"):
        await read_range(rig.reader(), 0, 99)


@pytest.mark.parametrize("part", [whole, payloads_of])
def test_what_was_read_in_front_of_a_bad_entry_is_there(part):
    rig = Rig(100, batch_read_entries=10)
    for bookie in rig.bookies.values():
        bookie.damage(42)

    async def main():
        found = []
        with pytest.raises(DigestMismatch):
            await rig.reader().read_into(found, 0, 99, part, bound=99)
        return found

    found = run_virtually(main)
    assert [each.payload if part is whole else bytes(each) for each in found] == rig.payloads[:42]


def test_open_ledgers_are_read_without_knowing_sizes():
    rig = Rig(500, closed=False, size=5000, batch_read_bytes=50_000, read_window_bytes=400_000)
    entries, *_ = read(rig)
    assert (right(rig, entries), len(entries)) == (True, 500)
