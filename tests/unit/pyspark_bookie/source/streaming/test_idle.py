"""What a query that has nothing to do asks of the metadata service, and how soon it finds what is new.

Spark's calls, without Spark: 64 triggers a second, on a clock that goes by them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial

import pytest

from bookie_client.streams import PublishedLedger, Streams, StreamSettings, encoding
from pyspark_bookie.common.access import AccessOptions
from pyspark_bookie.source.schema import schema_for
from pyspark_bookie.source.streaming import ledgers, streams
from pyspark_bookie.source.streaming.reader import StreamingReader
from tests.unit.pyspark_bookie.source.reads import BlockingHere, write

TRIGGER = 1 / 64
REFRESH, DISCOVERY, IDLE = 0.5, 2.0, 4.0
TIMES = {"metadataRefresh": f"{REFRESH}s", "discoveryInterval": f"{DISCOVERY}s", "startingPosition": "earliest"}
DISCOVERIES = {"ledgers": IDLE / DISCOVERY, "offload names": IDLE / DISCOVERY}
"""While nothing comes: the lists of ledgers, and of those that are in an archive."""
THREE = {"ensemble": 3, "write_quorum": 3, "ack_quorum": 3}


class Query:
    """`now`: seconds. `asked`: what the metadata service was asked for, and how often."""

    def __init__(self, **options):
        raw = {"metadataServiceUri": "memory://", **TIMES, **options}
        self.now = 100.0
        self.asked = Counter()
        self._reader = StreamingReader(raw, schema_for(raw))
        self._at = self._reader.initialOffset()
        self._limit = self._reader.getDefaultReadLimit()

    def trigger(self):
        """Entries of the batch that Spark would run; the clock goes on."""
        end = self._reader.latestOffset(self._at, self._limit)
        found = 0
        if end != self._at:
            parts = self._reader.partitions(self._at, end)
            found = sum(each.last - each.first + 1 for part in parts for each in part.ranges)
            self._at = end
        self._reader.reportLatestOffset()
        self.now += TRIGGER
        return found

    async def idle(self, seconds):
        """Nothing comes; returns how often what was asked for meanwhile."""
        self.asked.clear()
        for _ in range(round(seconds / TRIGGER)):
            assert await asyncio.to_thread(self.trigger) == 0
        return Counter(self.asked)

    async def until_found(self, entries):
        """After how many seconds there were so many entries more."""
        began = self.now
        while entries > 0:
            assert self.now < began + 60, f"{entries} entries were not found"
            entries -= await asyncio.to_thread(self.trigger)
        return self.now - TRIGGER - began


def noted(monkeypatch, query, owner, name, what):
    """`owner.name(...)` is noted as `what`, with its argument."""
    call = getattr(owner, name)

    def calling(*given, **more):
        query.asked[" ".join([what, *map(str, given)])] += 1
        return call(*given, **more)

    monkeypatch.setattr(owner, name, calling)


@pytest.fixture
def following(client, three, monkeypatch):
    """Makes a query of these options and has it read what there is."""

    async def make(entries, **options):
        query = Query(**options)
        here = BlockingHere(client)
        monkeypatch.setattr(AccessOptions, "client", lambda self, **_: here)
        for module, name in ((streams, "StreamTails"), (ledgers, "SelectedLedgers")):
            monkeypatch.setattr(module, name, partial(getattr(module, name), clock=lambda: query.now))
        noted(monkeypatch, query, three.metadata.ledgers, "read", "ledger")
        noted(monkeypatch, query, three.metadata.ledgers, "ranges", "ledgers")
        records = three.metadata.records

        def noting_records(kind):
            store = records(kind)
            noted(monkeypatch, query, store, "read", kind)
            noted(monkeypatch, query, store, "names", f"{kind} names")
            return store

        monkeypatch.setattr(three.metadata, "records", noting_records)
        await query.until_found(entries)
        return query

    return make


async def appended(client, name, entries):
    """A further ledger of a stream, which is created if there is none."""
    streams = Streams(client)
    await streams.create(name, StreamSettings(**THREE), if_absent=True)
    metadata = await client.metadata(await write(client, [b"entry"] * entries))
    await streams.publish(name, [PublishedLedger(metadata.ledger_id, entries, metadata.length)])


async def test_a_stream(client, following):
    await appended(client, "orders", 3)
    query = await following(3, stream="orders")
    assert await query.idle(IDLE) == {"stream orders": IDLE / REFRESH}
    await appended(client, "orders", 2)
    assert await query.until_found(2) <= REFRESH
    async with Streams(client).writer("orders") as writer:
        await writer.append(b"first")
        await writer.append(b"second")
        assert await query.until_found(1) <= REFRESH, "what is confirmed of the open ledger"
        assert await query.idle(IDLE) == {"stream orders": IDLE / REFRESH}
        await writer.append(b"third")
        assert await query.until_found(1) <= REFRESH


async def test_streams_by_a_pattern(client, following):
    for name in ("orders.a", "orders.b"):
        await appended(client, name, 3)
    query = await following(6, streamPattern=r"orders\..")
    each = {"stream orders.a": IDLE / REFRESH, "stream orders.b": IDLE / REFRESH}
    names = {"stream names": IDLE / DISCOVERY, "stream-grave names": IDLE / DISCOVERY}
    assert await query.idle(IDLE) == {**each, **names}
    await appended(client, "orders.b", 2)
    assert await query.until_found(2) <= REFRESH
    await appended(client, "orders.c", 4)
    assert await query.until_found(4) <= DISCOVERY + REFRESH


async def test_ledgers(client, following):
    for entries in (3, 4):
        await write(client, [b"entry"] * entries)
    async with client.create(**THREE) as ledger:
        await ledger.append(b"first")
        await ledger.append(b"second")
        query = await following(8, scope="all")
        assert await query.idle(IDLE) == DISCOVERIES, "and no ledger again, not even the open one"
        await ledger.append(b"third")
        assert await query.until_found(1) <= REFRESH
    assert await query.until_found(1) <= REFRESH, "it is closed"
    await query.idle(0.9)
    await write(client, [b"entry"] * 5)
    assert await query.until_found(5) <= DISCOVERY + REFRESH


async def test_open_ledgers_that_are_left_out_are_asked_after(client, following):
    await write(client, [b"entry"])
    async with client.create(**THREE) as ledger:
        await ledger.append_many([b"first", b"second"])
        query = await following(1, scope="all", openLedgers="skip")
        assert await query.idle(IDLE) == {**DISCOVERIES, f"ledger {ledger.ledger_id}": IDLE / REFRESH}
    assert await query.until_found(2) <= REFRESH


async def test_a_long_list_is_read_once(client, following, monkeypatch):
    """Of a stream of many ledgers only the head is read again: its segments never change."""
    monkeypatch.setattr(encoding, "SEGMENT_LEDGERS", 2)
    for _ in range(7):
        await appended(client, "long", 1)
    query = await following(7, stream="long")
    assert await query.idle(IDLE) == {"stream long": IDLE / REFRESH}
    await appended(client, "long", 2)
    assert await query.until_found(2) <= REFRESH


async def test_without_a_pause_it_asks_with_each_of_sparks_calls(client, following):
    await appended(client, "orders", 3)
    query = await following(3, stream="orders", metadataRefresh="0s")
    assert await query.idle(10 * TRIGGER) == {"stream orders": 20}
    await appended(client, "orders", 1)
    assert await query.until_found(1) == 0
