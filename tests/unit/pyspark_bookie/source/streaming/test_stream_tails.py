"""Streams that change, or go, between the looks of a query at them."""

from __future__ import annotations

import asyncio

import pytest

from bookie_client.streams import Streams
from bookie_client.streams.model import StreamPosition
from bookie_protocol.errors import NoSuchLedger, NoSuchStream
from pyspark_bookie.common.access import AccessOptions
from pyspark_bookie.common.options import parse
from pyspark_bookie.source.options import StreamingOptions
from pyspark_bookie.source.streaming.offsets import Place
from pyspark_bookie.source.streaming.streams import StreamTails
from tests.support.pulsar_metadata import ledger_info, message
from tests.unit.pyspark_bookie.source.reads import BlockingHere, write
from tests.unit.pyspark_bookie.source.streams import TOPIC, stream


def following(**raw):
    return StreamTails(parse({"metadataServiceUri": "memory://", "discoveryInterval": "1h", **raw}, StreamingOptions))


async def test_one_that_is_deleted_is_left_out_of_a_pattern_and_missed_by_its_name(client):
    for name in ("orders.a", "orders.b"):
        await stream(client, name, [b"a"])
    pattern, named = following(streamPattern=r"orders\.."), following(streams="orders.a,orders.b")
    for tails in (pattern, named):
        assert list(await tails._all_now(client)) == ["orders.a", "orders.b"]
    await Streams(client).delete("orders.b")
    assert list(await pattern._all_now(client)) == ["orders.a"], "though its name is known a while longer"
    with pytest.raises(NoSuchStream):
        await named._all_now(client)


async def test_an_open_ledger_that_is_gone_is_a_loss_only_if_it_is_still_listed(client, monkeypatch):
    await stream(client, "orders", [b"a"])
    tails = following(stream="orders")
    async with Streams(client).writer("orders") as writer:
        await writer.append(b"b")
        before = await tails._listed_now(client, "orders")
        opened = before.manifest.open_ledger
    answers, listed_now = [before], tails._listed_now

    async def late(*given):
        return answers.pop() if answers else await listed_now(*given)

    monkeypatch.setattr(tails, "_listed_now", late)
    await client.delete(opened.ledger_id)
    now = await tails._view_now(client, "orders")
    assert (now.manifest.open_ledger, now.end_ordinal) == (None, 2)
    answers += [before, before]
    with pytest.raises(NoSuchLedger):
        await tails._view_now(client, "orders")


async def test_a_topic_of_pulsar_says_what_it_moved_away_and_what_left_it(client, three):
    here = await write(client, [b"x", b"y"])
    away = ledger_info(900, 5, 50, 1, message((1, -1), (2, 2), (3, 1), (4, 1)))
    there = ledger_info(here, 2, 2, 1)
    nodes, tails = three.metadata.pulsar.nodes, following(managedLedger=TOPIC)
    nodes[TOPIC] = message((1, away), (1, there), (1, ledger_info(901)))
    opened = following(managedLedger=TOPIC, openLedgers="skip")
    (seen,) = (await opened._all_now(client)).values()
    assert (seen.unreadable, seen.is_counted, seen.left, seen.end_ordinal) == ({900}, False, None, 7)
    nodes[TOPIC] = message((1, away), (1, there))
    (seen,) = (await tails._all_now(client)).values()
    assert (seen.unreadable, seen.left, seen.end_ordinal) == ({900}, None, 7)
    nodes[TOPIC] = message((1, there))
    (seen,) = (await tails._all_now(client)).values()
    assert (seen.unreadable, seen.left, seen.end_ordinal) == (set(), StreamPosition(900, 5), 2)


async def test_a_cursor_is_told_to_the_stream(client, monkeypatch):
    ids = await stream(client, "orders", [b"a"] * 3, [b"b"] * 3)
    here = BlockingHere(client)
    monkeypatch.setattr(AccessOptions, "client", lambda self, **_: here)
    tails = following(stream="orders", cursor="etl")
    assert await asyncio.to_thread(tails.move_cursor, "orders", Place(ids[1], 1, 4)) == 4
    assert await asyncio.to_thread(tails.move_cursor, "orders", Place(ids[0], 1, 1)) == 4, "it only goes forwards"
    cursors = await Streams(client).cursors("orders")
    assert {name: each.ordinal for name, each in cursors.items()} == {"etl": 4}


async def test_handles_are_kept_of_what_is_open_alone(client):
    await stream(client, "orders", [b"a"])
    tails = following(stream="orders")
    async with Streams(client).writer("orders") as writer:
        await writer.append(b"b")
        await tails._all_now(client)
        (kept,) = tails._open._known
        assert kept == (await Streams(client).manifest("orders")).open_ledger.ledger_id
    await tails._all_now(client)
    assert tails._open._known == {}
