"""Which shard has a key: by the hash of Oxia's clients, and never by a guess."""

from __future__ import annotations

import pytest

from bookie_protocol.metadata_service.oxia import keys
from bookie_protocol.metadata_service.oxia import oxia_pb2 as messages
from bookie_protocol.metadata_service.oxia.sessions import owner_of
from bookie_protocol.metadata_service.oxia.shards import Shard, ShardMap
from bookie_protocol.metadata_service.tree.nodes import ConnectionLost

LAST = 2**32 - 1
HALVES = ShardMap([Shard(1, "b:1", 2**31, LAST), Shard(0, "a:1", 0, 2**31 - 1)])


def test_hashes_are_those_of_oxias_clients() -> None:
    """The low half of XXH3 with 64 bits and no seed."""
    assert [keys.hash_of(key) for key in ("", "a", "/ledgers/INSTANCEID")] == [0x38D394C2, 0x1E964E1F, 0xB250E1E0]


def test_each_key_is_in_one_shard() -> None:
    HALVES.check_complete()
    for number in range(100):
        key = f"/ledgers/{number}"
        assert HALVES.shard_of(key) == (keys.hash_of(key) >= 2**31)


def test_an_answer_is_read_with_the_leaders() -> None:
    hashes = messages.Int32HashRange(min_hash_inclusive=0, max_hash_inclusive=LAST)
    shard = messages.ShardAssignment(shard=7, leader="a:1", int32_hash_range=hashes)
    found = ShardMap.of_answer(messages.NamespaceShardsAssignment(assignments=[shard]))
    found.check_complete()
    assert (found.numbers, found.leaders) == ({7}, {7: "a:1"})


@pytest.mark.parametrize(
    "shards",
    [
        [],
        [Shard(0, "a:1", 0, LAST - 1)],
        [Shard(0, "a:1", 1, LAST)],
        [Shard(0, "a:1", 0, 9), Shard(1, "a:1", 11, LAST)],
    ],
)
def test_a_map_with_a_gap_is_not_complete(shards: list[Shard]) -> None:
    with pytest.raises(ConnectionLost):
        ShardMap(shards).check_complete()


def test_a_key_in_a_gap_has_no_shard_for_now() -> None:
    for shards in ([], [Shard(0, "a:1", 0, 0)], [Shard(0, "a:1", LAST, LAST)]):
        with pytest.raises(ConnectionLost):
            ShardMap(shards).shard_of("/ledgers")


def test_a_shard_that_came_of_a_split_knows_which() -> None:
    after = ShardMap(
        [Shard(0, "a:1", 0, 2**31 - 1), Shard(4, "b:1", 2**31, 2**31 + 9), Shard(5, "c:1", 2**31 + 10, LAST)]
    )
    assert [after.parent_in(HALVES, each) for each in (4, 5)] == [1, 1]
    merged = ShardMap([Shard(6, "a:1", 0, LAST)])
    assert merged.parent_in(HALVES, 6) is None


def test_sessions_of_one_id_in_two_shards_are_told_apart() -> None:
    """Their ids are places in the histories of their shards."""
    ours = messages.Version(session_id=5, client_identity="one")
    assert owner_of(0, ours) == owner_of(1, messages.Version(session_id=8, client_identity="one"))
    assert owner_of(0, ours) != owner_of(1, messages.Version(session_id=5, client_identity="two"))
    assert owner_of(0, messages.Version(session_id=5)) != owner_of(1, messages.Version(session_id=5))
    assert owner_of(0, messages.Version(client_identity="one")) == 0


def test_the_children_of_a_node_are_one_range() -> None:
    assert keys.children("/ledgers") == ("/ledgers/", "/ledgers//")
    assert keys.children("/") == ("/", "//")


def test_a_canary_is_beside_the_tree() -> None:
    assert not keys.canary("me", 0).startswith("/")
