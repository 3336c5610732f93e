"""Pulsar's managed ledgers as they are read."""

import sys
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_client.streams import StreamPosition
from bookie_client.streams.managed_ledgers import (
    decode_managed_ledger,
    managed_cursors,
    managed_ledger,
    managed_ledger_names,
    stored_name,
    uncompressed,
)
from bookie_protocol.errors import BadRequest, BookieUnavailable, MetadataDamaged, NoSuchStream
from tests.support.pulsar_metadata import KINDS, compressed, ledger_info, message

TOPIC = "public/default/persistent/orders"
OFFLOAD = message((1, -1), (2, 2), (3, 1), (4, 1), (5, 99))
INFO = message(
    (1, ledger_info(10, 50_000, 1_000_000, 1_700_000_000_000, OFFLOAD)),
    (1, ledger_info(12, 3, 30, 1_700_000_000_001)),
    (1, ledger_info(15)),
    (3, message((1, "owner"), (2, "shop"))),
)


async def test_ledgers_positions_and_what_was_offloaded(client, three):
    three.metadata.pulsar.nodes[TOPIC] = INFO
    topic = await managed_ledger(client, "persistent://public/default/orders")
    assert topic.name == TOPIC
    manifest = topic.manifest
    assert [(each.ledger_id, each.entries, each.is_open) for each in manifest.ledgers] == [
        (10, 50_000, False),
        (12, 3, False),
        (15, None, True),
    ]
    assert manifest.ordinal(StreamPosition(12, 1)) == 50_001
    assert [span.ledger.ledger_id for span in manifest.spans(StreamPosition(10, 50_000))] == [12, 15]
    (offloaded,) = topic.offloaded.values()
    assert (offloaded.ledger_id, offloaded.is_complete, offloaded.is_deleted) == (10, True, True)
    assert offloaded.uuid == "ffffffff-ffff-ffff-0000-000000000002"
    assert topic.properties == {"owner": "shop"}
    assert topic.terminated is None


async def test_a_terminated_topic_and_one_without_ledgers(client, three):
    three.metadata.pulsar.nodes[TOPIC] = message((1, ledger_info(5, 3, 9, 1)), (2, message((1, 5), (2, 2))))
    assert (await managed_ledger(client, TOPIC)).terminated == StreamPosition(5, 3)
    three.metadata.pulsar.nodes[TOPIC] = b""
    topic = await managed_ledger(client, TOPIC)
    assert topic.manifest.ledgers == ()
    assert topic.manifest.spans(topic.manifest.earliest) == ()


async def test_cursors_in_the_node_and_in_their_own_ledger(client, three):
    async with client.create(write_quorum=3) as ledger:
        await ledger.append(message((1, 10), (2, 6)))
        await ledger.append(message((1, 12), (2, 0)))
    async with client.create(write_quorum=3) as empty:
        pass
    nodes = three.metadata.pulsar.nodes
    nodes[TOPIC] = INFO
    nodes[f"{TOPIC}/inline+sub"] = message((1, -1), (2, 10), (3, 41))
    nodes[f"{TOPIC}/own%2Fsub"] = message((1, ledger.ledger_id), (2, 10), (3, 1))
    nodes[f"{TOPIC}/fresh"] = message((1, empty.ledger_id), (2, 10), (3, -1))
    nodes[f"{TOPIC}/lost"] = message((1, 4711))
    assert await managed_cursors(client, TOPIC) == {
        "inline sub": StreamPosition(10, 42),
        "own/sub": StreamPosition(12, 1),
        "fresh": StreamPosition(10, 0),
    }


async def test_a_cursor_that_its_broker_has_open_is_where_its_newest_entry_says(client, three):
    """No later entry confirms it."""
    nodes = three.metadata.pulsar.nodes
    nodes[TOPIC] = INFO
    async with client.create(write_quorum=3) as ledger:
        nodes[f"{TOPIC}/sub"] = message((1, ledger.ledger_id), (2, 10), (3, -1))
        assert await managed_cursors(client, TOPIC) == {"sub": StreamPosition(10, 0)}
        for entry_id in (6, 8, 9):
            await ledger.append(message((1, 10), (2, entry_id)))
            assert await managed_cursors(client, TOPIC) == {"sub": StreamPosition(10, entry_id + 1)}
    assert await managed_cursors(client, TOPIC) == {"sub": StreamPosition(10, 10)}


async def test_an_unreadable_cursor_is_its_own_failure_and_keeps_nobody_from_the_topic(client, three):
    nodes = three.metadata.pulsar.nodes
    nodes[TOPIC] = INFO
    ledger = await client.create(write_quorum=3, ack_quorum=2)
    await ledger.append(message((1, 12), (2, 0)))
    nodes[f"{TOPIC}/lost"] = message((1, ledger.ledger_id), (2, 10), (3, 1))
    nodes[f"{TOPIC}/damaged"] = b"\x0f"
    nodes[f"{TOPIC}/inline"] = message((1, -1), (2, 10), (3, 41))
    for server in three.servers.values():
        await server.stop()
    topic = await managed_ledger(client, TOPIC)
    assert topic.manifest.ledgers
    assert not any(bookie.reads for bookie in map(three.bookie, three.servers))
    cursors = await managed_cursors(client, TOPIC)
    assert isinstance(cursors["lost"], BookieUnavailable)
    assert isinstance(cursors["damaged"], MetadataDamaged)
    assert cursors["inline"] == StreamPosition(10, 42)


async def test_names(client, three):
    nodes = three.metadata.pulsar.nodes
    for name in (TOPIC, "public/default/persistent/a%2Fb", "public/other/persistent/c", "x/y/persistent/d"):
        nodes[name] = INFO
        nodes[f"{name}/subscription"] = b""
    nodes["public/default/non-persistent/e"] = b""
    assert await managed_ledger_names(client) == (
        "public/default/persistent/a%2Fb",
        "public/default/persistent/orders",
        "public/other/persistent/c",
        "x/y/persistent/d",
    )
    assert await managed_ledger_names(client, "public/other") == ("public/other/persistent/c",)
    assert await managed_ledger_names(client, "nobody") == ()


async def test_no_topic(client):
    with pytest.raises(NoSuchStream):
        await managed_ledger(client, TOPIC)


def test_names_of_topics():
    assert stored_name("persistent://a/b/c/d e") == "a/b/persistent/c%2Fd+e"
    for wrong in ("orders", "a/b/c", "a//persistent/b", "persistent://a/b"):
        with pytest.raises(BadRequest, match="tenant/namespace"):
            stored_name(wrong)


@pytest.mark.parametrize("kind", KINDS)
def test_every_compression(kind):
    stored = decode_managed_ledger("t", compressed(INFO, kind))
    assert stored == decode_managed_ledger("t", INFO)


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_that_ends_early_is_damage(kind):
    stored = compressed(INFO, kind)
    told = stored.replace(message((2, len(INFO))), message((2, len(INFO) + 1)), 1)
    assert told != stored
    with pytest.raises(MetadataDamaged, match="compressed"):
        uncompressed("t", told)


def test_a_compression_without_pyarrow_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert uncompressed("t", compressed(INFO, "ZLIB")) == INFO
    with pytest.raises(MetadataDamaged, match="pyarrow"):
        uncompressed("t", compressed(INFO, "ZSTD"))


@pytest.mark.parametrize("kind", KINDS)
@given(cut=st.integers(0, 60), flip=st.integers(0, 60))
def test_damage_is_told_and_nothing_else(kind, cut, flip):
    data = bytearray(compressed(INFO, kind))
    data[min(flip, len(data) - 1)] ^= 0x55
    for damaged in (bytes(data), compressed(INFO, kind)[: -cut or None]):
        with suppress(MetadataDamaged):
            decode_managed_ledger("t", damaged)
