"""Sharp edges of the source: bad input, losses, open ledgers, what PySpark does with plans."""

from __future__ import annotations

import time

import pytest

from bookie_client import BlockingClient
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import LedgerFenced
from pyspark_bookie.source.batch import BatchReader
from pyspark_bookie.source.tables.reader import TableReader
from tests.spark.ledgers import FULL, STRIPED, load, numbered, write_ledger
from tests.support.bookie_process import free_port
from tests.support.serve_cluster import ServeCluster


def entry_ids(frame):
    return sorted(row.entry_id for row in frame.select("entry_id").collect())


# --- what PySpark does with plans --------------------------------------------------------------------------------


def test_no_filter_is_accepted_so_scans_of_one_load_do_not_spoil_each_other(spark, uri, client):
    """PySpark 4.3 shares one plan between them: an accepted filter would stay in it."""
    assert "pushFilters" not in vars(BatchReader)
    assert "pushFilters" not in vars(TableReader)
    ledger_id = write_ledger(client, numbered(10))
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = load(spark, uri, ledgers=ledger_id)
        assert entry_ids(frame.filter("entry_id = 3").union(frame.filter("entry_id = 4"))) == [3, 4]
        assert frame.filter("entry_id = 3").count() == 1
        assert frame.count() == 10
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_data_frame_is_a_snapshot_until_the_next_load(spark, uri, client):
    with client.create(**FULL) as ledger:
        ledger.append_many(numbered(10))
        ledger.append(b"confirms what is in front of it")
        frame = load(spark, uri, ledgers=ledger.ledger_id)
        assert entry_ids(frame) == list(range(10))
        ledger.append_many(numbered(10))
        ledger.append(b"and again")
        assert entry_ids(frame) == list(range(10))
        assert entry_ids(load(spark, uri, ledgers=ledger.ledger_id)) == list(range(21))


def test_batches_are_bounded_in_bytes(uri, client):
    from pyspark_bookie.common.options import parse
    from pyspark_bookie.source.batch import plan_batch
    from pyspark_bookie.source.options import SourceOptions
    from pyspark_bookie.source.reading import read
    from pyspark_bookie.source.schema import arrow_schema, full_schema

    sizes = [10] * 2000 + [300_000] * 5 + [0] * 50 + [70_000] * 20
    ledger_id = write_ledger(client, [b"x" * size for size in sizes])
    raw = {"metadataServiceUri": uri, "ledgers": str(ledger_id), "arrowBatchBytes": "128k"}
    options = parse(raw, SourceOptions)
    schema = arrow_schema(full_schema(options))
    found = [batch for partition in plan_batch(options) for batch in read(partition, options, schema)]
    assert all(batch.schema == schema for batch in found)
    values = [batch.column("value").to_pylist() for batch in found]
    assert [len(value) for batch in values for value in batch] == sizes
    assert all(len(batch) == 1 or sum(map(len, batch)) <= 128 * 1024 for batch in values)
    assert len(found) < 40, "small ones are joined"


# --- positions and selections ------------------------------------------------------------------------------------


def test_positions_are_inclusive_and_exclusive(spark, uri, client):
    one, two = (write_ledger(client, numbered(20)) for _ in range(2))
    chosen = {"ledgers": f"{one},{two}"}
    frame = load(spark, uri, **chosen, startingPosition=f'{{"{one}": 5}}', endingPosition=f'{{"{one}": 8, "{two}": 2}}')
    assert [(row.ledger_id, row.entry_id) for row in frame.orderBy("ledger_id", "entry_id").collect()] == [
        (one, 5),
        (one, 6),
        (one, 7),
        (two, 0),
        (two, 1),
    ]
    assert load(spark, uri, **chosen, startingPosition="latest").count() == 0
    assert load(spark, uri, **chosen, startingPosition=f'{{"{one}": 100, "{two}": -1}}').count() == 0


def test_ledgers_by_their_custom_metadata_and_by_ranges_of_ids(spark, uri, client):
    ours = [write_ledger(client, numbered(2), metadata={"application": b"edges", "n": b"%d" % n}) for n in range(3)]
    found = load(spark, uri, ledgerPattern="application=edges, n=[12]").select("ledger_id").distinct().collect()
    assert sorted(row.ledger_id for row in found) == ours[1:]
    found = load(spark, uri, ledgers=f"{ours[0]}-{ours[-1]}").select("ledger_id").distinct().collect()
    assert sorted(row.ledger_id for row in found) == ours, "an id in a range need not exist"


def test_everything_that_there_is(spark, uri, tmp_path):
    """In a root of its own: what other tests leave in theirs, with or without copies and passwords, is chance."""
    cluster = ServeCluster(tmp_path / "bookies", f"{uri.rsplit('/', 1)[0]}/everything")
    alone = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}
    try:
        cluster.add(1)
        with BlockingClient(cluster.uri) as client:
            locked = write_ledger(client, numbered(2), password=b"another", **alone)
            plain = write_ledger(client, numbered(2), **alone)
            with client.create(**alone) as opened:
                opened.append(b"x")
                with pytest.raises(Exception, match=rf"\[BOOKIE_UNAUTHORIZED\] ledger {locked}"):
                    load(spark, cluster.uri, scope="all").count()
                frame = load(spark, cluster.uri, scope="all", recordedPasswords="true", openLedgers="skip")
                assert {row.ledger_id for row in frame.select("ledger_id").distinct().collect()} == {locked, plain}
    finally:
        cluster.stop()


# --- passwords ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("digest", list(DigestType))
def test_passwords_come_from_a_file_and_stand_in_no_plan(spark, uri, client, tmp_path, digest):
    ledger_id = write_ledger(client, numbered(5), password=b"s3cret", digest=digest)
    file = tmp_path / "password"
    file.write_text("s3cret\n")
    frame = load(spark, uri, ledgers=ledger_id, passwordFile=file)
    assert entry_ids(frame) == list(range(5))
    plan = frame._jdf.queryExecution().toString()
    assert "s3cret" not in plan
    file.write_text("wrong")
    with pytest.raises(Exception, match=rf"\[BOOKIE_UNAUTHORIZED\] ledger {ledger_id} .* pass"):
        load(spark, uri, ledgers=ledger_id, passwordFile=file).count()


# --- open ledgers ------------------------------------------------------------------------------------------------


def test_open_ledgers_are_read_without_fencing_left_out_or_recovered(spark, uri, client):
    writer = client.create(**FULL)
    for payload in numbered(10):
        writer.append(payload)
    chosen = {"ledgers": writer.ledger_id}
    assert load(spark, uri, **chosen, openLedgers="skip").count() == 0
    assert entry_ids(load(spark, uri, **chosen)) == list(range(9)), "the newest is confirmed by the next"
    writer.append(b"the writer noticed nothing")
    assert entry_ids(load(spark, uri, **chosen, openLedgers="recover")) == list(range(11))
    assert client.metadata(writer.ledger_id).is_closed
    with pytest.raises(LedgerFenced):
        writer.append(b"too late")


# --- losses ------------------------------------------------------------------------------------------------------


def test_a_ledger_that_does_not_exist(spark, uri, client):
    there, missing = write_ledger(client, numbered(3)), 10**12
    with pytest.raises(Exception, match=rf"\[BOOKIE_NO_SUCH_LEDGER\] ledger {missing} .*; set failOn"):
        load(spark, uri, ledgers=f"{there},{missing}").count()
    rows = load(spark, uri, ledgers=f"{there},{missing}", failOnDataLoss="false").orderBy("ledger_id").collect()
    assert [(row.ledger_id, row.entry_id) for row in rows] == [(there, 0), (there, 1), (there, 2), (missing, -1)]
    assert rows[-1]["_corrupt"] == f"[BOOKIE_NO_SUCH_LEDGER] ledger {missing} does not exist"
    assert rows[-1].value is rows[-1].length is rows[-1].lac is None
    assert {row["_corrupt"] for row in rows[:-1]} == {None}


def only_metadata(client, entries):
    """A ledger whose metadata speak of entries that no bookie ever got."""
    with client.create(**FULL) as ledger:
        ledger_id = ledger.ledger_id

    async def pretend(each):
        stored = await each.stored_metadata(ledger_id)
        service = each.metadata_service.ledgers
        await service.write(stored.value.in_recovery().closed(entries - 1, 0), stored.identity)

    client.run(pretend)
    return ledger_id


def test_entries_that_no_bookie_has(spark, uri, client):
    ledger_id = only_metadata(client, 3)
    with pytest.raises(
        Exception, match=rf"\[BOOKIE_DATA_LOSS\] .* of ledger {ledger_id}: lost: .*failOnDataLoss=false"
    ):
        load(spark, uri, ledgers=ledger_id).count()
    rows = load(spark, uri, ledgers=ledger_id, failOnDataLoss="false").collect()
    assert rows
    assert all(f"ledger {ledger_id}: lost" in row["_corrupt"] and row.value is None for row in rows)
    rows = load(spark, uri, ledgers=ledger_id, readMode="replica").collect()
    assert len(rows) == 9
    assert {row["_corrupt"].partition(":")[0] for row in rows} == {"MISSING"}


def test_a_ledger_that_was_deleted_after_planning(spark, uri, client):
    """Bookies give the space back later; until then a planned read may still succeed. It never hangs."""
    ledger_id = write_ledger(client, numbered(1000), **STRIPED)
    frame = load(spark, uri, ledgers=ledger_id)
    assert frame.count() == 1000
    client.delete(ledger_id)
    assert frame.count() == 1000
    with pytest.raises(Exception, match=rf"\[BOOKIE_NO_SUCH_LEDGER\] ledger {ledger_id}"):
        load(spark, uri, ledgers=ledger_id).count()


def test_no_metadata_service_is_one_clear_error_and_no_hang(spark):
    uri = f"embedded://127.0.0.1:{free_port()}/ledgers"
    with pytest.raises(Exception, match=r"\[BOOKIE_METADATA_UNAVAILABLE\]"):
        load(spark, uri, ledgers="1", metadataTimeout="3s").count()


def test_a_rate_is_kept(spark, uri, client):
    ledger_id = write_ledger(client, [b"x" * 100_000] * 40)
    seconds = {}
    for rate in ("1g", "1m"):
        limits = {"rateLimit.bytesPerSecond": rate, "arrowBatchBytes": "256k"}
        frame = load(spark, uri, ledgers=ledger_id, **limits)
        frame.count()
        began = time.monotonic()
        assert frame.count() == 40
        seconds[rate] = time.monotonic() - began
    assert seconds["1m"] > max(0.7 * (4_000_000 / (1 << 20) - 1), seconds["1g"])
