"""The rows of the metadata tables, as Spark gets them: from real metadata."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import LongType, StructType

from bookie_client.streams import Streams
from bookie_client.streams.model import PublishedLedger, Txn
from bookie_protocol.errors import MetadataNotFound, MetadataUnavailable
from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState
from bookie_protocol.metadata_service.interface import BookieGroup
from bookie_protocol.metadata_service.service_info import BOOKIE_RPC, Endpoint
from pyspark_bookie.common.errors import PodkeeperSparkError
from pyspark_bookie.source.batch import batch_reader
from pyspark_bookie.source.tables import reader, rows
from tests.support.model_bookie import ModelBookie, ModelBookieServer
from tests.unit.pyspark_bookie.source.tables.tables import reader_of, register, service_of, table, values

CREATED = 1_700_000_000_000
WHEN = datetime.fromtimestamp(CREATED // 1000, UTC)


def stored(shelf, ledger_id, ensembles, end=None, **more):
    """A ledger of 3 bookies and 2 copies; `end`: last entry and length; None: it is open."""
    state, (last, length) = (LedgerState.OPEN, (-1, 0)) if end is None else (LedgerState.CLOSED, end)
    made = LedgerMetadata(
        ledger_id, 3, 2, 2, {first: tuple(bookies) for first, bookies in ensembles.items()}, state, last, length, **more
    )
    shelf.run(lambda client: client.metadata_service.ledgers.create(made))


# --- of ledgers -----------------------------------------------------------------------------------------------------


def test_ledgers(shelf):
    shelf.put(5, [b"abc", b"de"], custom={"owner": b"us", "odd": b"\xff"}, created_ms=CREATED)
    stored(shelf, 6, {0: "cab", 7: "dab"}, format_version=2, ctime=CREATED)
    closed, still_open = table("ledgers")
    assert closed == {
        "ledger_id": 5,
        "state": "CLOSED",
        "entries": 2,
        "bytes": 5,
        "last_entry_id": 1,
        "ensemble_size": 1,
        "write_quorum_size": 1,
        "ack_quorum_size": 1,
        "digest_type": "CRC32C",
        "created": WHEN,
        "fragments": 1,
        "bookies": ["bookie-1"],
        "custom_metadata": [("owner", "us"), ("odd", "\\xff")],
        "metadata_format": 3,
    }
    unknown = dict.fromkeys(("entries", "bytes", "last_entry_id", "digest_type"))
    sizes = {"ensemble_size": 3, "write_quorum_size": 2, "ack_quorum_size": 2, "fragments": 2, "metadata_format": 2}
    wanted = {"ledger_id": 6, "state": "OPEN", "bookies": ["a", "b", "c", "d"], "custom_metadata": []}
    assert {**still_open, "created": None} == {**unknown, **sizes, **wanted, "created": None}


@pytest.mark.parametrize(
    ("ms", "micros"), [(None, None), (-(1 << 53), None), (1 - (1 << 53), (1 - (1 << 53)) * 1000), (1 << 53, None)]
)
def test_a_time_that_spark_cannot_hold_is_none(ms, micros):
    assert rows._microseconds(ms) == micros


def test_ledgers_are_read_some_at_a_time_and_those_that_match(shelf, monkeypatch):
    monkeypatch.setattr(rows, "READ_AT_A_TIME", 2)
    monkeypatch.setattr(reader, "LEDGERS_PER_PARTITION", 4)
    for number in range(5):
        shelf.put(number, [], custom={"owner": b"us" if number % 2 else b"them"})
    assert values(table("ledgers"), "ledger_id") == [(0,), (1,), (2,), (3,), (4,)]
    assert values(table("ledgers", ledgers="1,4"), "ledger_id") == [(1,), (4,)]
    assert values(table("ledgers", ledgerPattern="owner=us"), "ledger_id") == [(1,), (3,)]
    made = reader_of("ledgers")
    first, last = made.partitions()
    shelf.run(lambda client: client.delete(0))
    shelf.run(lambda client: client.delete(4))
    assert [batch.num_rows for batch in made.read(first)] == [1, 2]
    assert list(made.read(last)) == [], "what was deleted meanwhile has no row, and no rows are no batch"


def test_fragments(shelf):
    stored(shelf, 1, {0: "abc", 10: "abd"}, (14, 150))
    stored(shelf, 2, {0: "abc", 10: "abd"})
    stored(shelf, 3, {0: "abc"}, (-1, 0))
    columns = "ledger_id", "fragment", "last_entry_id", "entries", "bytes", "is_last", "state", "bookies"
    assert values(table("fragments"), *columns) == [
        (1, 0, 9, 10, 100, False, "CLOSED", ["a", "b", "c"]),
        (1, 10, 14, 5, 50, True, "CLOSED", ["a", "b", "d"]),
        (2, 0, 9, 10, None, False, "OPEN", ["a", "b", "c"]),
        (2, 10, None, None, None, True, "OPEN", ["a", "b", "d"]),
        (3, 0, -1, 0, 0, True, "CLOSED", ["a", "b", "c"]),
    ]


def test_replicas(shelf):
    register(shelf, "a")
    register(shelf, "b", BookieGroup.READ_ONLY)
    stored(shelf, 1, {0: "abc", 3: "abd"}, (3, 400))
    stored(shelf, 2, {0: "abc"})
    columns = "ledger_id", "fragment", "last_entry_id", "position", "bookie", "bookie_state", "entries", "bytes"
    assert values(table("replicas"), *columns) == [
        (1, 0, 2, 0, "a", "writable", 2, 200),
        (1, 0, 2, 1, "b", "read-only", 2, 200),
        (1, 0, 2, 2, "c", "down", 2, 200),
        (1, 3, 3, 0, "a", "writable", 1, 100),
        (1, 3, 3, 1, "b", "read-only", 1, 100),
        (1, 3, 3, 2, "d", "down", 0, 0),
        (2, 0, None, 0, "a", "writable", None, None),
        (2, 0, None, 1, "b", "read-only", None, None),
        (2, 0, None, 2, "c", "down", None, None),
    ]


@pytest.mark.parametrize("at_a_time", [2, 10])
def test_underreplicated(shelf, monkeypatch, at_a_time):
    monkeypatch.setattr(rows, "READ_AT_A_TIME", at_a_time)
    marks = shelf.run(lambda client: _marked(client, 5))
    host = marks[3]
    found = table("underreplicated")
    assert sorted(values(found, "ledger_id", "missing", "marked", "locked_by")) == [
        (number, ["b1", "b2"], WHEN, host if number == 3 else None) for number in range(5)
    ]
    assert sorted(values(table("underreplicated", ledgers="0,3-9"), "ledger_id")) == [(0,), (3,), (4,)]


async def _marked(client, count):
    """Who holds locks then."""
    service = client.metadata_service.under_replication
    for number in range(count):
        await service.mark(number, ["b2", "b1"], ctime_ms=CREATED)
    await service.lock(3)
    return await service.locks()


# --- of bookies and streams -----------------------------------------------------------------------------------------


def test_bookies(shelf):
    server = ModelBookieServer(ModelBookie("there"))
    server.bookie.total_bytes, server.bookie.free_bytes = 1000, 400
    shelf.run(lambda _: server.start())
    rpc = Endpoint("bookie", "127.0.0.1", server.port, BOOKIE_RPC)
    http = Endpoint("http", "here", 8000, "http")
    register(shelf, "there", endpoints=(rpc, http), properties={"zone": "z1"})
    register(shelf, "nowhere", BookieGroup.READ_ONLY, endpoints=(http,))
    service = service_of(shelf)
    shelf.run(lambda _: service.cookies.create("gone", b"x"))
    gone, nowhere, there = table("bookies")
    shelf.run(lambda _: server.stop())
    known = {"bookie": "there", "state": "writable", "address": f"127.0.0.1:{server.port}"}
    endpoints = [("bookie", f"bookie-rpc://127.0.0.1:{server.port}"), ("http", "http://here:8000")]
    assert there == {
        **known,
        "endpoints": endpoints,
        "properties": [("zone", "z1")],
        "total_bytes": 1000,
        "free_bytes": 400,
        "error": None,
    }
    nothing = dict.fromkeys(there)
    assert gone == {**nothing, "bookie": "gone", "state": "down", "error": "not registered"}
    assert nowhere["error"]
    assert {**nowhere, "error": None} == {
        **nothing,
        "bookie": "nowhere",
        "state": "read-only",
        "endpoints": endpoints[1:],
        "properties": [],
    }


def test_a_bookie_whose_registration_tells_nothing_is_a_row(shelf):
    register(shelf, "b1")
    (row,) = table("bookies")
    assert row["error"].startswith("bookie b1 registered without an address")
    assert row == {**dict.fromkeys(row), "bookie": "b1", "state": "writable", "error": row["error"]}


def test_cookies(shelf, monkeypatch):
    cookies = service_of(shelf).cookies
    for bookie, data in (("b1", b'4\ninstanceId: "of-one"\n'), ("b2", b"\xff"), ("b3", b"x")):
        shelf.run(lambda _, bookie=bookie, data=data: cookies.create(bookie, data))
    first = shelf.run(lambda _: cookies.read("b1"))
    version = shelf.run(lambda _: cookies.update("b1", first.value, first.identity)).version
    assert version > first.version
    read = cookies.read

    async def while_one_goes(bookie):
        if bookie == "b3":
            raise MetadataNotFound("it went")
        return await read(bookie)

    monkeypatch.setattr(cookies, "read", while_one_goes)
    assert values(table("cookies"), "bookie", "cookie", "instance_id", "version") == [
        ("b1", '4\ninstanceId: "of-one"\n', "of-one", version),
        ("b2", "\\xff", None, first.version),
    ]


def test_streams(shelf, monkeypatch):
    shelf.run(_streams)
    names = Streams.names

    async def and_one_that_went(self):
        return await names(self) | {"gone"}

    monkeypatch.setattr(Streams, "names", and_one_that_went)
    columns = "stream", "generation", "ledgers", "entries", "bytes", "first_ledger", "last_ledger", "open_ledger"
    empty, full = table("streams")
    assert values([empty, full], *columns, "created", "transactions") == [
        ("empty", 0, 0, 0, 0, None, None, None, WHEN, []),
        ("full", 0, 2, 5, 50, 7, 8, None, WHEN, [("etl", 4)]),
    ]


async def _streams(client):
    streams = Streams(client, clock=lambda: CREATED / 1000)
    await streams.create("empty")
    await streams.create("full")
    published = [PublishedLedger(7, 2, 20), PublishedLedger(8, 3, 30)]
    for each in published:
        made = LedgerMetadata(each.ledger_id, 1, 1, 1, {0: ("b",)}).closed(each.entries - 1, each.nbytes)
        await client.metadata_service.ledgers.create(made)
    await streams.publish("full", published, Txn("etl", 4, 5))


# --- what Spark asks for --------------------------------------------------------------------------------------------


def test_columns_in_the_order_that_is_asked_for(shelf):
    shelf.put(5, [b"abc"])
    raw = {"metadataServiceUri": "memory://", "table": "ledgers"}
    made = batch_reader(raw, StructType().add("bytes", LongType()).add("ledger_id", LongType()))
    (batch,) = made.read(*made.partitions())
    assert (batch.schema.names, batch.to_pylist()) == (["bytes", "ledger_id"], [{"bytes": 3, "ledger_id": 5}])
    assert list(made.read(InputPartition(0))) == [], "of an empty plan"
    with pytest.raises(PodkeeperSparkError, match=r"\[BOOKIE_SCHEMA\].* ledgers .* byte .*:"):
        batch_reader(raw, StructType().add("byte", LongType()))


def test_a_metadata_service_that_is_away_is_told(shelf, monkeypatch):
    async def away(*_, **__):
        raise MetadataUnavailable("it is away")

    shelf.put(5, [b"abc"])
    made = reader_of("ledgers")
    (part,) = made.partitions()
    monkeypatch.setattr(service_of(shelf).ledgers, "read", away)
    with pytest.raises(PodkeeperSparkError, match=r"\[BOOKIE_METADATA_UNAVAILABLE\] .*away"):
        list(made.read(part))
