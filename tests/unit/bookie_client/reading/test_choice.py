"""Which replica is asked first, and the reasons for it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_client.placement.topology import Topology, parse_location
from bookie_client.reading.choice import (
    NOTHING_KNOWN,
    Rank,
    ReplicaView,
    Standing,
    least_busy_first,
    rank,
    replica_order,
)


def topology(local, **locations):
    places = {bookie: parse_location(text) for bookie, text in locations.items()}
    return Topology({bookie: place for bookie, place in places.items() if place}, parse_location(local))


def test_the_order_of_the_striping_stays_when_nothing_is_known():
    assert replica_order("BCA", NOTHING_KNOWN) == ["B", "C", "A"]


def test_each_reason_has_its_rank():
    view = ReplicaView(
        unreachable=frozenset("U"),
        troubled=frozenset("Tt"),
        slow=frozenset("S"),
        writable=frozenset("LRTtSU"),
        read_only=frozenset("O"),
        topology=topology(
            "/east/r1", L="/east/r1", T="/east/r2", R="/west/r1", t="/west/r1", S="/east/r1", O="/east/r1"
        ),
    )
    assert {bookie: rank(bookie, view).standing for bookie in "LTRtOSUX"} == {
        "L": Standing.LOCAL,
        "T": Standing.LOCAL_TROUBLED,
        "R": Standing.REMOTE,
        "t": Standing.REMOTE_TROUBLED,
        "O": Standing.READ_ONLY,
        "S": Standing.SLOW,
        "U": Standing.UNREACHABLE,
        "X": Standing.UNREACHABLE,  # not registered
    }
    assert replica_order("XUSOtRTL", view) == ["L", "T", "R", "t", "O", "S", "X", "U"]


def test_the_worst_reason_counts():
    everything = dict.fromkeys(("unreachable", "troubled", "slow", "read_only"), frozenset("A"))
    assert rank("A", ReplicaView(**everything)).standing is Standing.UNREACHABLE
    del everything["unreachable"]
    assert rank("A", ReplicaView(**everything)).standing is Standing.SLOW
    del everything["slow"]
    assert rank("A", ReplicaView(**everything)).standing is Standing.READ_ONLY


def test_nobody_counts_as_not_registered_before_the_registry_has_told():
    assert rank("A", ReplicaView(writable=None)).standing is Standing.LOCAL
    assert rank("A", ReplicaView(writable=frozenset())).standing is Standing.UNREACHABLE


def test_near_replicas_come_first():
    view = ReplicaView(
        topology=topology("/east/z1/r1", A="/west/z1/r1", B="/east/z2/r1", C="/east/z1/r9", D="/east/z1/r1")
    )
    assert [rank(bookie, view) for bookie in "ABCD"] == [
        Rank(Standing.REMOTE, 3),
        Rank(Standing.LOCAL, 2),
        Rank(Standing.LOCAL, 1),
        Rank(Standing.LOCAL, 0),
    ]
    assert replica_order("ABCD", view) == ["D", "C", "A", "B"]  # A: a dead region costs two tries at most
    assert replica_order("ABC", view) == ["C", "B", "A"]


def test_without_regions_the_rack_only_breaks_ties():
    view = ReplicaView(topology=topology("/r1", A="/r2", B="/r1"), slow=frozenset("B"))
    assert replica_order("AB", view) == ["A", "B"]
    assert replica_order("AB", ReplicaView(topology=view.topology)) == ["B", "A"]


def test_a_bookie_without_a_location_counts_as_remote_where_there_are_regions():
    assert rank("A", ReplicaView(topology=topology("/east/r1"))) == Rank(Standing.REMOTE, 2)
    assert rank("A", ReplicaView(topology=topology("/r1"))) == Rank(Standing.LOCAL, 1)
    assert rank("A", ReplicaView(topology=topology("", A="/west/r1"))) == Rank(Standing.LOCAL, 0)


@pytest.mark.parametrize("replicas", ["ABCDE", "EDCBA"])
def test_a_remote_replica_comes_third_at_the_latest_and_only_a_healthy_one(replicas):
    places = {"A": "/east/r1", "B": "/east/r2", "C": "/east/r3", "D": "/east/r4", "E": "/west/r1"}
    view = ReplicaView(topology=topology("/east/r1", **places))
    assert replica_order(replicas, view)[2] == "E"
    sick = ReplicaView(topology=view.topology, troubled=frozenset("E"))
    assert replica_order(replicas, sick)[4] == "E"


def test_a_busy_replica_gives_way_to_the_least_busy_one():
    waiting = {"A": 100, "B": 40, "C": 30}.__getitem__
    assert least_busy_first("ABC", waiting, 0) == ["A", "B", "C"]
    assert least_busy_first("ABC", waiting, 71) == ["A", "B", "C"]
    assert least_busy_first("ABC", waiting, 70) == ["C", "A", "B"]
    assert least_busy_first("CAB", waiting, 1) == ["C", "A", "B"]


some = st.frozensets(st.sampled_from("ABCDE"))
places = st.sampled_from(["", "/east/r1", "/east/r2", "/west/r1", "/r1"])


@given(
    st.permutations("ABCDE"), some, some, some, st.none() | some, some, places, st.lists(places, min_size=5, max_size=5)
)
def test_every_replica_comes_exactly_once(replicas, unreachable, troubled, slow, writable, read_only, local, locations):
    view = ReplicaView(
        unreachable=unreachable,
        troubled=troubled,
        slow=slow,
        writable=writable,
        read_only=read_only,
        topology=topology(local, **dict(zip("ABCDE", locations, strict=True))),
    )
    assert sorted(replica_order(replicas, view)) == list("ABCDE")
