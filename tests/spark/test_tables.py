"""Metadata tables, from a real cluster."""

from __future__ import annotations

import pytest

from bookie_client import BlockingClient
from bookie_client.blocking.streams import BlockingStreams
from bookie_client.streams import StreamPosition, Streams, Txn
from tests.spark.ledgers import FULL, STRIPED, load, numbered, write_ledger
from tests.spark.streams import append, create
from tests.support.bookie_process import free_port
from tests.support.serve_cluster import ServeCluster
from tests.support.until import until_true


def table(spark, uri, name, **options):
    return load(spark, uri, table=name, **options)


def test_ledgers_fragments_and_replicas(spark, uri, client, cluster):
    closed = write_ledger(client, numbered(31), **STRIPED, metadata={"application": b"tables", "odd": b"\xff"})
    with client.create(**FULL, metadata={"application": b"tables"}) as opened:
        opened.append(b"x")
        both = {"ledgers": f"{closed},{opened.ledger_id}"}
        rows = {
            row.ledger_id: row for row in table(spark, uri, "ledgers", ledgerPattern="application=tables").collect()
        }
        assert set(rows) == {closed, opened.ledger_id}
        row = rows[closed]
        assert (row.state, row.entries, row.bytes, row.last_entry_id, row.fragments) == ("CLOSED", 31, 620, 30, 1)
        assert (row.ensemble_size, row.write_quorum_size, row.ack_quorum_size, row.digest_type) == (3, 2, 2, "CRC32C")
        assert row.bookies == sorted(cluster.bookies)
        assert row.custom_metadata == {"application": "tables", "odd": "\\xff"}
        assert row.created is not None
        row = rows[opened.ledger_id]
        assert (row.state, row.entries, row.bytes, row.last_entry_id) == ("OPEN", None, None, None)

        fragments = {row.ledger_id: row for row in table(spark, uri, "fragments", **both).collect()}
        row = fragments[closed]
        assert (row.fragment, row.last_entry_id, row.entries, row.bytes, row.is_last) == (0, 30, 31, 620, True)
        assert row.bookies == list(client.metadata(closed).last_ensemble)
        assert fragments[opened.ledger_id].entries is None

        replicas = table(spark, uri, "replicas", **both).collect()
        metadata = client.metadata(closed)
        for row in replicas:
            if row.ledger_id == closed:
                held = [entry for entry in range(31) if row.bookie in metadata.bookies_for(entry)]
                assert (row.entries, row.bookie_state) == (len(held), "writable")
        assert sorted((row.ledger_id, row.position) for row in replicas) == sorted(
            (ledger_id, place) for ledger_id in (closed, opened.ledger_id) for place in range(3)
        )


def test_streams(spark, uri, client):
    first = append(client, "tabled", numbered(10), Txn("etl", 7, 10))
    last = append(client, "tabled", numbered(5), Txn("nightly", 3, 5))
    create(client, "tabled-empty")
    create(client, "tabled-open")
    with BlockingStreams(client).writer("tabled-open") as writer:
        writer.append(b"x")
        found = table(spark, uri, "streams").where("stream LIKE 'tabled%'")
        rows = {row.stream: row for row in found.collect()}
        assert set(rows) == {"tabled", "tabled-empty", "tabled-open"}
        row = rows["tabled"]
        assert (row.generation, row.ledgers, row.entries, row.bytes) == (0, 2, 15, 300)
        assert (row.first_ledger, row.last_ledger, row.open_ledger) == (first, last, None)
        assert row.transactions == {"etl": 7, "nightly": 3}
        assert abs(row.created.timestamp() - client.metadata(first).ctime / 1000) < 600
        row = rows["tabled-empty"]
        assert (row.ledgers, row.entries, row.bytes, row.transactions) == (0, 0, 0, {})
        assert (row.first_ledger, row.last_ledger, row.open_ledger) == (None, None, None)
        row = rows["tabled-open"]
        assert row.ledgers == 1
        assert row.open_ledger == row.last_ledger == row.first_ledger is not None
    client.run(lambda each: Streams(each).truncate("tabled", StreamPosition(last, 0)))
    (row,) = table(spark, uri, "streams").where("stream = 'tabled'").collect()
    assert (row.ledgers, row.entries, row.first_ledger, row.last_ledger) == (1, 5, last, last)


def test_bookies_and_cookies(spark, uri, cluster):
    rows = {row.bookie: row for row in table(spark, uri, "bookies").collect()}
    assert set(rows) == set(cluster.bookies)
    for name, row in rows.items():
        assert (row.state, row.error) == ("writable", None)
        assert row.address == f"127.0.0.1:{cluster.bookies[name].port}"
        assert 0 < row.free_bytes <= row.total_bytes
    cookies = {row.bookie: row for row in table(spark, uri, "cookies").collect()}
    assert set(cookies) == set(cluster.bookies)
    assert len({row.instance_id for row in cookies.values()}) == 1
    assert all(row.instance_id in row.cookie for row in cookies.values())


def test_marks_of_underreplicated_ledgers(spark, uri, client):
    ledger_id = write_ledger(client, numbered(3))
    client.run(lambda each: each.metadata_service.under_replication.mark(ledger_id, ["bookie-9"], ctime_ms=86_400_000))
    (row,) = table(spark, uri, "underreplicated", ledgers=ledger_id).collect()
    assert (row.missing, row.locked_by) == (["bookie-9"], None)
    assert row.marked.timestamp() == 86_400
    client.run(lambda each: each.metadata_service.under_replication.unmark(ledger_id))
    assert table(spark, uri, "underreplicated", ledgers=ledger_id).count() == 0


def test_a_bookie_that_is_down_is_a_row(spark, uri, tmp_path):
    cluster = ServeCluster(tmp_path / "bookies", f"{uri.rsplit('/', 1)[0]}/tables")
    try:
        cluster.add(1)
        (name,) = cluster.bookies
        assert cluster.bookies[name].stop() == 0
        (row,) = table(spark, cluster.uri, "bookies").collect()
        assert (row.bookie, row.state, row.error, row.free_bytes) == (name, "down", "not registered", None)
    finally:
        cluster.stop()


def test_entry_logs_by_the_admin_api(spark, uri, tmp_path):
    settings = {"httpServerEnabled": "true", "httpServerHost": "127.0.0.1", "httpServerPort": str(free_port())}
    settings["flushInterval"] = "200"
    cluster = ServeCluster(tmp_path / "bookies", f"{uri.rsplit('/', 1)[0]}/entry-logs", settings)
    try:
        cluster.add(1)
        with BlockingClient(cluster.uri) as client, client.create(ensemble=1, write_quorum=1, ack_quorum=1) as ledger:
            ledger.append_many(numbered(100))
        until_true(lambda: list(tmp_path.rglob("*.log")), 60)
        rows = table(spark, cluster.uri, "entrylogs").collect()
        assert {row.bookie for row in rows} == set(cluster.bookies)
        for row in rows:
            assert row.error is None
            assert row.entry_log == f"{row.entry_log_id:x}.log"
            assert row.bytes >= 0
            assert row.reason
    finally:
        cluster.stop()


def test_bookies_without_an_http_server_are_told(spark, uri, cluster):
    rows = table(spark, uri, "entrylogs").collect()
    assert {row.bookie for row in rows} == set(cluster.bookies)
    assert all("httpServerEnabled" in row.error and row.entry_log is None for row in rows)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"table": "ledger"}, "table=ledger"),
        ({"table": "streams", "stream": "x"}, "table=streams"),
    ],
)
def test_bad_tables(spark, uri, options, told):
    with pytest.raises(Exception, match=rf"\[BOOKIE_OPTION\].*{told}"):
        load(spark, uri, **options)
    reader = spark.read.format("bookkeeper").option("metadataServiceUri", uri).option("table", "cookies")
    with pytest.raises(Exception, match=r"\[BOOKIE_SCHEMA\].* cookies .*nothing"):
        reader.schema("nothing int").load().collect()
