"""Locations and the tracker that keeps them."""

import asyncio
from socket import gethostname

import pytest

from bookie_client.placement import inputs
from bookie_client.placement.inputs import TopologyTracker
from bookie_client.placement.sources import MappedLocations
from bookie_client.placement.topology import format_location, parse_location
from bookie_protocol.errors import CouldNotTell
from tests.support.until import until
from tests.unit.bookie_client.placement.clusters import Infos


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/rack", ("rack",)),
        ("/region/rack", ("region", "rack")),
        ("zone-a/", ("zone-a",)),
        ("", None),
        ("/", None),
        ("/default-rack", None),
        ("/default-region/default-rack", None),
        ("/default-zone/default-upgradedomain", None),
        ("/east/default-rack", ("east", "default-rack")),
    ],
)
def test_locations(text, expected):
    assert parse_location(text) == expected
    if expected is not None:
        assert parse_location(format_location(expected)) == expected
    assert format_location(None) == "/default-rack"


class Places:
    """A source that the test changes, delays and breaks."""

    def __init__(self, **places):
        self.places = {bookie: (place,) for bookie, place in places.items()}
        self.looks = []
        self.failure = None
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def open(self):
        pass

    async def locate(self, bookies, infos):
        self.looks.append(set(bookies))
        await self.may_answer.wait()
        if self.failure:
            raise self.failure
        return {bookie: self.places[bookie] for bookie in bookies if bookie in self.places}

    async def locate_host(self, host):
        if self.failure:
            raise self.failure
        return self.places.get(host)


@pytest.fixture
async def track():
    trackers = []

    async def make(source, **options):
        tracker = TopologyTracker(source, Infos(), **options)
        trackers.append(tracker)
        await tracker.start()
        return tracker

    yield make
    for tracker in trackers:
        await tracker.close()


def bookies(*names):
    return frozenset(names)


async def test_new_bookies_are_located_before_the_decision_and_known_ones_not_again(track):
    source = Places(b0="a", b1="b")
    tracker = await track(source)
    assert dict((await tracker.current(bookies("b0"))).locations) == {"b0": ("a",)}
    assert dict((await tracker.current(bookies("b0", "b1"))).locations) == {"b0": ("a",), "b1": ("b",)}
    await tracker.current(bookies("b1"))
    await tracker.current(bookies("b1"))
    assert source.looks == [{"b0"}, {"b0", "b1"}]


async def test_a_bookie_that_left_keeps_its_last_place_and_is_located_anew_when_it_returns(track):
    source = Places(b0="a", b1="b")
    tracker = await track(source)
    await tracker.current(bookies("b0", "b1"))
    source.places["b1"] = ("c",)
    assert (await tracker.current(bookies("b0"))).location("b1") == ("b",)
    assert (await tracker.current(bookies("b0", "b1"))).location("b1") == ("c",)


async def test_changes_are_seen_by_themselves_after_a_while(track):
    source = Places(b0="a")
    tracker = await track(source, refresh_interval=0.01)
    await tracker.current(bookies("b0"))
    for now in ({"b0": ("z",)}, {}):
        source.places = now
        deadline = asyncio.get_running_loop().time() + 5
        while (await tracker.current(bookies("b0"))).locations != now:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0)


async def test_a_source_that_fails_or_hangs_holds_no_decision_up(track, monkeypatch, caplog):
    monkeypatch.setattr(inputs, "LOOKUP_SECONDS", 0.02)
    source = Places(b0="a")
    tracker = await track(source)
    await tracker.current(bookies("b0"))
    source.failure = CouldNotTell("no answer")
    for _ in range(2):
        topology = await tracker.current(bookies("b0", "b1"))
        assert (topology.location("b0"), topology.location("b1")) == (("a",), None)
    assert caplog.text.count("cannot be looked up") == 1
    source.failure = None
    source.may_answer.clear()
    assert (await tracker.current(bookies("b0", "b1"))).location("b1") is None
    source.places["b1"] = ("b",)
    source.may_answer.set()
    await until(lambda: tracker.topology.location("b1") == ("b",))


async def test_a_look_under_way_that_began_without_a_bookie_is_followed_by_one_with_it(track):
    source = Places(b0="a", b1="b")
    tracker = await track(source)
    source.may_answer.clear()
    first = asyncio.create_task(tracker.current(bookies("b0")))
    await until(lambda: len(source.looks) == 1)
    second = asyncio.create_task(tracker.current(bookies("b0", "b1")))
    await asyncio.sleep(0)
    source.may_answer.set()
    assert (await first).location("b0") == ("a",)
    assert (await second).location("b1") == ("b",)
    assert source.looks == [{"b0"}, {"b0", "b1"}]


async def test_the_own_place_is_given_or_that_of_this_host(track):
    here = MappedLocations({gethostname(): "/east/r1"})
    assert (await track(here)).topology.local == ("east", "r1")
    assert (await track(here, local=("west", "r9"))).topology.local == ("west", "r9")
    assert (await track(MappedLocations({}))).topology.local is None
    broken = Places()
    broken.failure = CouldNotTell("no answer")
    assert (await track(broken)).topology.local is None


async def test_what_is_remembered_is_bounded(track, monkeypatch):
    monkeypatch.setattr(inputs, "MAX_REMEMBERED", 3)
    source = Places(**{f"b{i}": "a" for i in range(9)})
    tracker = await track(source)
    for i in range(9):
        await tracker.current(bookies(f"b{i}"))
    assert set(tracker.topology.locations) == {"b6", "b7", "b8"}
