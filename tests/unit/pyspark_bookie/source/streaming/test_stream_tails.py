"""Streams that change, or go, between the looks of a query at them."""

from __future__ import annotations

import pytest

from bookie_client.streams import Streams
from bookie_protocol.errors import NoSuchLedger, NoSuchStream
from pyspark_bookie.common.options import parse
from pyspark_bookie.source.options import StreamingOptions
from pyspark_bookie.source.streaming.streams import StreamTails
from tests.unit.pyspark_bookie.source.test_selection import stream


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
