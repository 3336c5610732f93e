"""Ranges that one batch brings: one request as a rule, and whatever is not as usual is gone on from."""

import asyncio

import pytest

from bookie_client.reading.plan import ReadPlan
from bookie_client.reading.range_read import RangeRead
from bookie_protocol.errors import StorageFault
from tests.unit.bookie_client.reading.rig import Rig, read_range, run_virtually, virtually


def read(rig, first, last):
    """Payloads."""

    async def main():
        return [entry.payload for entry in await read_range(rig.reader(), first, last)]

    return run_virtually(main)


def questions(rig):
    return sorted(question for bookie in rig.bookies.values() for question in bookie.batches)


@pytest.fixture
def no_plan(monkeypatch):
    def none(*_):
        raise AssertionError("a plan was made")

    monkeypatch.setattr(ReadPlan, "__init__", none)


@pytest.mark.parametrize(("first", "last"), [(0, 49), (7, 8), (60, 99)])
@pytest.mark.parametrize("write_quorum", [1, 3])
def test_it_is_one_request_and_no_plan(no_plan, first, last, write_quorum):
    rig = Rig(100, batch_read_entries=50, ensemble=write_quorum, write_quorum=write_quorum)
    assert read(rig, first, last) == rig.payloads[first : last + 1]
    assert questions(rig) == [(first, last - first + 1)]


@pytest.mark.parametrize(
    ("options", "first", "last"),
    [
        ({"batch_read_entries": 50}, 0, 50),
        ({"batch_read_bytes": 5_000}, 0, 20),
        ({}, 5, 5),
        ({"closed": False}, 0, 49),
        ({"batch_reads": False}, 0, 49),
        ({"ensemble": 4}, 0, 49),
    ],
    ids=["too many", "too large", "a single one", "of unknown size", "no batches", "striped"],
)
def test_others_have_a_plan(no_plan, options, first, last):
    with pytest.raises(AssertionError, match="plan"):
        read(Rig(100, **options), first, last)


def test_a_range_across_segments_has_a_plan(no_plan):
    rig = Rig(100)
    rig.metadata = rig.metadata.with_ensemble(50, ("A", "D", "E"))
    with pytest.raises(AssertionError, match="plan"):
        read(rig, 49, 50)


def test_what_an_answer_lacks_is_read_and_nothing_twice():
    """The first entries are larger than the others: fewer of them fit."""
    rig = Rig(1000, sizes=[2000] * 20 + [10] * 980, batch_read_bytes=10_000)
    assert read(rig, 0, 34) == rig.payloads[:35]
    (start, count), (rest, _) = questions(rig)[:2]
    assert (start, count) == (0, 35)
    assert 0 < rest < 20
    assert sum(len(bookie.reads) for bookie in rig.bookies.values()) == 0


@pytest.mark.parametrize("fails", [False, True])
def test_segments_that_change_under_way_change_nothing(fails):
    """A short answer, or none, to what was one segment when it was asked for: now it is two."""
    rig = Rig(1000, sizes=[2000] * 20 + [10] * 980, batch_read_bytes=10_000)
    if fails:
        for bookie in rig.bookies.values():
            bookie.batch_error = StorageFault

    async def main():
        reading = asyncio.create_task(read_range(rig.reader(), 0, 34))
        await asyncio.sleep(0.0005)
        rig.metadata = rig.metadata.with_ensemble(1, ("A", "B", "D"))
        rig.place_entries()
        if fails:
            with pytest.raises(StorageFault):
                await reading
            return []
        return [entry.payload for entry in await reading]

    assert run_virtually(main) == ([] if fails else rig.payloads[:35])


def test_a_silent_bookie_is_not_waited_for():
    rig = Rig(100)
    rig.bookies["A"].delay = None
    assert read(rig, 0, 99) == rig.payloads
    assert (rig.batches_under_way, rig.given_up) == (0, 1)


@virtually
async def test_whoever_gives_up_leaves_nothing_behind(monkeypatch):
    rig = Rig(100)
    for bookie in rig.bookies.values():
        bookie.delay = None
    monkeypatch.delattr(RangeRead, "go_on")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(30):
            await read_range(rig.reader(), 0, 99)
    assert rig.batches_under_way == 0
