"""Acknowledgements from enough racks, regions and zones."""

from __future__ import annotations

import asyncio
from itertools import product
from types import SimpleNamespace

import pytest

from bookie_client import Client, ClientOptions, PlacementOptions
from bookie_client.distribution import Quorums
from bookie_client.placement.options import make_policy
from bookie_client.placement.topology import Topology, parse_location
from bookie_client.writing.fault_domains import DomainCheck, SpreadAddState
from bookie_protocol.errors import BadRequest, BookieUnavailable, NotEnoughBookies, QuorumLost, TooManyRequests
from tests.support.until import until

RACKS = {"A": 1, "B": 1, "C": 2, "D": 2}


def two_racks(bookies):
    return len({RACKS[bookie] for bookie in bookies}) >= 2


def state(ensemble=("A", "B", "C"), quorums=(3, 3, 2), **options):
    return SpreadAddState(7, Quorums(*quorums), ensemble, suffices=two_racks, **options)


@pytest.mark.parametrize(("bookie", "replaced"), [("A", None), ("C", {2: "C"})])
def test_a_change_is_not_delayed_for_the_one_bookie_of_a_rack(bookie, replaced):
    machine = state(delay_ensemble_change=True)
    assert machine.refused(machine.begin(1), bookie, TooManyRequests("full")).change == replaced


def test_an_add_waits_for_the_other_rack():
    machine = state()
    first, second = machine.begin(1), machine.begin(1)
    assert not machine.acknowledged(first, "A")
    assert not machine.acknowledged(first, "B")
    assert not machine.acknowledged(second, "C")
    assert not machine.acknowledged(second, "A")  # complete, behind one that is not
    assert not machine.deliver()
    assert machine.acknowledged(first, "C")
    assert [add.entry_id for add in machine.deliver()] == [0, 1]
    assert not machine.acknowledged(second, "B")


@pytest.mark.parametrize("order", list(product("ABC", repeat=3)))
def test_it_is_complete_exactly_when_two_racks_have_it(order):
    machine = state()
    add = machine.begin(1)
    heard = set()
    for bookie in order:
        heard.add(bookie)
        machine.acknowledged(add, bookie)
        assert (add.acks >= 2) is (len(heard) >= 2 and two_racks(heard))


def test_adds_cannot_do_without_the_only_bookie_of_another_rack():
    ensemble = ("A", "B", "C")
    assert state().can_do_without({0}, ensemble)
    assert not state().can_do_without({2}, ensemble)
    assert not state().can_do_without({0, 1}, ensemble)


def test_an_ensemble_that_is_only_stored_is_judged_as_it_is_stored():
    assert state().can_do_without({2}, ("A", "C", "D"))
    assert not state(("A", "C", "D")).can_do_without({2}, ("A", "B", "C"))


def test_an_ensemble_change_counts_anew():
    machine = state()
    add = machine.begin(1)
    machine.acknowledged(add, "A")
    machine.acknowledged(add, "B")
    outcome = machine.refused(add, "C", BookieUnavailable("down"))
    assert outcome.change == {2: "C"}
    outcome = machine.ensemble_changed(("A", "B", "D"))
    assert outcome.resend == [(add, 2)]
    assert not machine.deliver()
    assert machine.acknowledged(add, "D")
    assert machine.deliver() == [add]


def test_a_change_that_takes_the_other_rack_away_takes_its_acknowledgement_back():
    machine = state()
    first, second = machine.begin(1), machine.begin(1)
    machine.refused(first, "C", BookieUnavailable("down"))
    for bookie in "ABC":
        machine.acknowledged(second, bookie)  # while the change runs: complete, thanks to the other rack
    for bookie in "AB":
        machine.acknowledged(first, bookie)
    machine.ensemble_changed(("A", "B", "D"))
    assert not machine.deliver()
    assert machine.acknowledged(first, "D")
    assert machine.deliver() == [first]
    assert machine.acknowledged(second, "D")
    assert machine.deliver() == [second]


def test_a_change_that_leaves_both_racks_leaves_an_add_complete():
    machine = state()
    add = machine.begin(1)
    machine.acknowledged(add, "C")
    machine.refused(add, "A", BookieUnavailable("down"))
    machine.acknowledged(add, "B")
    machine.ensemble_changed(("D", "B", "C"))
    assert machine.deliver() == [add]
    other = machine.begin(1)
    machine.acknowledged(other, "D")
    machine.acknowledged(other, "C")
    assert not machine.deliver()


@pytest.mark.parametrize(
    ("options", "places", "suffices"),
    [
        ({}, ["/r1", "/r1"], False),
        ({}, ["/r1", "/r2"], True),
        ({}, ["/r1", ""], True),
        ({}, ["", ""], False),
        ({"min_racks": 3}, ["/r1", "/r2"], False),
        ({"min_racks": 1}, ["/r1", "/r1"], True),
        ({"policy": "random"}, ["/r1", "/r1"], True),
        ({"weighted": True}, ["/r1", "/r1"], False),
        ({"policy": "region-aware"}, ["/e/r1", "/e/r2"], True),
        ({"policy": "region-aware", "regions_to_write": ("e", "w")}, ["/e/r1", "/e/r2"], False),
        ({"policy": "region-aware", "regions_to_write": ("e", "w")}, ["/e/r1", "/w/r1"], True),
        ({"policy": "zone-aware"}, ["/z1/u1", "/z1/u2"], False),
        ({"policy": "zone-aware"}, ["/z1/u1", "/z2/u1"], True),
    ],
)
def test_what_policies_demand(options, places, suffices):
    bookies = {f"b{i}": parse_location(place) for i, place in enumerate(places)}
    topology = Topology({bookie: place for bookie, place in bookies.items() if place is not None})
    policy = make_policy(PlacementOptions(**options))
    assert policy.acknowledgements_suffice(frozenset(bookies), Quorums(3, 3, 2), topology) is suffices


def test_it_needs_a_time_out():
    with pytest.raises(BadRequest, match="enforce_fault_domains needs add_quorum_timeout"):
        ClientOptions(enforce_fault_domains=True)


def spread_client(cluster, timeout=30.0, racks=(1, 1, 2), *, enforce=True):
    locations = {f"b{i}": f"/rack{rack}" for i, rack in enumerate(racks, 1)}
    options = ClientOptions(enforce_fault_domains=enforce, add_quorum_timeout=timeout, add_timeout=60)
    return Client(cluster.metadata, options, placement=PlacementOptions(locations=locations))


async def test_a_writer_waits_for_the_other_rack(three):
    async with spread_client(three) as client:
        ledger = await client.create(write_quorum=3, ack_quorum=2)
        assert await ledger.append(b"everywhere") == 0
        three.servers["b3"].hold = True
        append = asyncio.create_task(ledger.append(b"one rack"))
        await until(lambda: all(1 in three.held_at(b, ledger.ledger_id) for b in ("b1", "b2")))
        await asyncio.sleep(0.05)
        assert not append.done()
        three.servers["b3"].release()
        assert await append == 1
        await ledger.close()


async def test_a_writer_that_did_not_ask_for_it_waits_for_no_rack(three):
    async with spread_client(three, timeout=10.0, enforce=False) as client:
        ledger = await client.create(write_quorum=3, ack_quorum=2)
        three.servers["b3"].hold = True
        assert await ledger.append(b"one rack") == 0
        three.servers["b3"].release()
        await ledger.close()


async def test_a_rack_that_stays_away_ends_the_handle(three):
    async with spread_client(three, timeout=0.2) as client:
        ledger = await client.create(write_quorum=3, ack_quorum=2)
        three.servers["b3"].hold = True
        with pytest.raises(QuorumLost, match="add_quorum_timeout"):
            await ledger.append(b"one rack")
        three.servers["b3"].release()


async def test_no_ledger_where_no_add_could_be_acknowledged(three):
    async with spread_client(three, racks=(1, 1, 1)) as client:
        with pytest.raises(NotEnoughBookies, match="enforce_fault_domains; rack-aware"):
            await client.create(write_quorum=3, ack_quorum=2)


def test_what_suffices_is_asked_once_while_locations_stay():
    asked = []

    class Rule:
        def acknowledgements_suffice(self, bookies, quorums, topology):
            asked.append((bookies, topology))
            return two_racks(bookies)

    context, near, far = SimpleNamespace(topology="before"), frozenset("AB"), frozenset("AC")
    check = DomainCheck(context, Quorums(3, 3, 2), Rule())
    assert [check(near), check(far), check(near), check(far)] == [False, True, False, True]
    assert asked == [(near, "before"), (far, "before")]
    context.topology = "after"
    assert (check(near), check(near)) == (False, False)
    assert asked[2:] == [(near, "after")]
