"""Writing DataFrames to streams of ledgers, on real bookies."""

from __future__ import annotations

import json

import pytest

from bookie_client.streams import Streams
from bookie_protocol.digest import DigestType
from tests.spark.ledgers import load
from tests.spark.streams import manifest, payloads, save
from tests.support.faulty_sink import LOST, LostAnswers


def rows(spark, count, partitions=2, first=0):
    """Rows "first" to "first + count - 1" as strings, in order."""
    return spark.range(first, first + count, 1, partitions).selectExpr("cast(id AS string) AS value")


def texts(*spans):
    return [b"%d" % number for first, end in spans for number in range(first, end)]


def test_rows_become_entries_in_the_order_of_partitions(spark, uri, client, tmp_path):
    ids_file = tmp_path / "ids.json"
    save(rows(spark, 5_000, 3), uri, stream="plain", idsFile=ids_file)
    written = manifest(client, "plain")
    assert payloads(client, "plain") == texts((0, 5_000))
    assert len(written.ledgers) == 3
    assert [(each["ledger_id"], each["entries"]) for each in json.loads(ids_file.read_text())["ledgers"]] == [
        (each.ledger_id, each.entries) for each in written.ledgers
    ]
    tags = client.metadata(written.ledgers[1].ledger_id).custom_metadata
    assert (tags["application"], tags["podkeeper/stream"]) == (b"podkeeper-stream", b"plain")
    assert (tags["podkeeper/partition-id"], tags["podkeeper/attempt"]) == (b"1", b"0")
    save(rows(spark, 10, 1), uri, stream="plain")
    assert payloads(client, "plain") == texts((0, 5_000), (0, 10))


def test_tasks_begin_further_ledgers_and_empty_ones_none(spark, uri, client):
    frame = rows(spark, 400, 1).union(rows(spark, 0, 1))
    small = {"maxLedgerBytes": 300, "maxInflightBytes": "1k", "ensembleSize": 2, "ackQuorum": 2}
    save(frame, uri, stream="rolled", digestType="CRC32", **small)
    written = manifest(client, "rolled")
    assert payloads(client, "rolled") == texts((0, 400))
    assert len(written.ledgers) >= 4
    assert all((each.nbytes or 0) <= 300 for each in written.ledgers)
    sizes = client.metadata(written.ledgers[0].ledger_id)
    assert (sizes.ensemble_size, sizes.write_quorum_size, sizes.ack_quorum_size) == (2, 2, 2)
    assert (sizes.digest_type, written.settings.digest) == (DigestType.CRC32, DigestType.CRC32)


def test_a_task_gets_its_rows_in_many_pieces(spark, uri, client):
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "7")
    try:
        save(rows(spark, 100, 2), uri, stream="pieces")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert payloads(client, "pieces") == texts((0, 100))
    assert len(manifest(client, "pieces").ledgers) == 2


def test_a_frame_without_rows_makes_a_stream_without_ledgers(spark, uri, client):
    save(rows(spark, 0, 1), uri, stream="nothing", txnAppId="etl", txnVersion=1)
    assert manifest(client, "nothing").ledgers == ()
    assert manifest(client, "nothing").transactions["etl"].rows == 0


def test_sql_inserts_into_a_view(spark, uri, client):
    options = f"metadataServiceUri '{uri}', stream 'inserted'"
    spark.sql(f"CREATE TEMPORARY VIEW target (value BINARY) USING bookkeeper OPTIONS ({options})")
    try:
        spark.sql("INSERT INTO target SELECT cast(cast(id AS string) AS binary) FROM range(0, 5, 1, 1)")
        assert sorted(bytes(row.value) for row in spark.table("target").collect()) == texts((0, 5))
    finally:
        spark.catalog.dropTempView("target")
    assert payloads(client, "inserted") == texts((0, 5))


def test_what_was_read_can_be_written(spark, uri, client):
    save(rows(spark, 100, 2), uri, stream="original")
    save(
        load(spark, uri, stream="original").repartition(1).sortWithinPartitions("ledger_id", "entry_id"),
        uri,
        stream="again",
    )
    assert sorted(payloads(client, "again")) == sorted(texts((0, 100)))


def test_overwrite_is_a_new_generation(spark, uri, client):
    save(rows(spark, 10), uri, stream="replaced", deletionLag="2h")
    before = [ledger.ledger_id for ledger in manifest(client, "replaced").ledgers]
    save(rows(spark, 5), uri, mode="overwrite", stream="replaced", deletionLag="0s")
    assert payloads(client, "replaced") == texts((0, 5))
    found = manifest(client, "replaced")
    assert found.generation == 1
    assert found.settings.deletion_lag_seconds == 7200, "that of the stream counts, once it is there"
    assert [ledger_id for group in found.retired for ledger_id in group.ledger_ids] == before
    assert {client.metadata(ledger_id).is_closed for ledger_id in before} == {True}, "who reads them may finish"
    save(rows(spark, 1, 1), uri, stream="replaced-later")
    assert manifest(client, "replaced-later").settings.deletion_lag_seconds == 3600


def test_a_batch_with_a_number_counts_once(spark, uri, client, tmp_path):
    numbered_batch = {"stream": "etl", "txnAppId": "nightly", "txnVersion": 7, "idsFile": tmp_path / "ids.json"}
    save(rows(spark, 10), uri, **numbered_batch)
    save(rows(spark, 10), uri, **numbered_batch)
    assert payloads(client, "etl") == texts((0, 10))
    told = [each["ledger_id"] for each in json.loads((tmp_path / "ids.json").read_text())["ledgers"]]
    assert told == [ledger.ledger_id for ledger in manifest(client, "etl").ledgers], "not those of the repetition"
    ledgers = set(client.list())
    with pytest.raises(Exception, match=r"BOOKIE_STREAM_TRANSACTION_CONFLICT\].* 11 .* 10"):
        save(rows(spark, 11), uri, **numbered_batch)
    with pytest.raises(Exception, match=r"BOOKIE_STREAM_TRANSACTION_CONFLICT\].*content"):
        save(rows(spark, 10, first=1), uri, **numbered_batch)
    save(rows(spark, 10, first=1), uri, **numbered_batch, replayCheck="rows")
    with pytest.raises(Exception, match=r"batch 6 .* 7"):
        save(rows(spark, 10), uri, **{**numbered_batch, "txnVersion": 6})
    assert payloads(client, "etl") == texts((0, 10))
    assert set(client.list()) == ledgers, "what was refused is deleted"
    save(rows(spark, 1), uri, **{**numbered_batch, "txnVersion": 8})
    assert payloads(client, "etl") == texts((0, 10), (0, 1))


def test_a_commit_whose_answer_is_lost_keeps_what_it_published(spark, uri, client, tmp_path):
    """Spark calls `abort` with the ledgers of the batch that is committed."""
    spark.dataSource.register(LostAnswers)
    lose = tmp_path / "lose"
    options = {"metadataServiceUri": uri, "stream": "lost-batch", "metadata.lose": str(lose), "txnAppId": "etl"}

    def write():
        rows(spark, 50).write.format("lost-answers").mode("append").options(**options, txnVersion="1").save()

    lose.touch()
    with pytest.raises(Exception, match=LOST):
        write()
    assert payloads(client, "lost-batch") == texts((0, 50))
    write()
    assert payloads(client, "lost-batch") == texts((0, 50))


def test_a_task_that_fails_leaves_nothing_to_be_seen(spark, uri, client):
    """Another task may have written, or be writing, when `abort` comes with empty slots."""
    client.run(lambda each: Streams(each).create("failing"))

    value = "IF(id = 0, raise_error('this task fails'), cast(id AS string)) AS value"
    frame = spark.range(0, 200_000, 1, 4).selectExpr(value)
    with pytest.raises(Exception, match="fails"):
        save(frame, uri, stream="failing")
    assert payloads(client, "failing") == []


def test_ledgers_may_stand_alone(spark, uri, client, tmp_path):
    ids_file = tmp_path / "ids.json"
    options = {"writeMode": "ledgerPerPartition", "idsFile": ids_file, "metadata.dataset": "probe", "ensembleSize": 1}
    save(rows(spark, 30, 3), uri, **options)
    told = json.loads(ids_file.read_text())
    assert (told["rows"], [each["entries"] for each in told["ledgers"]]) == (30, [10, 10, 10])
    found = load(spark, uri, ledgerPattern="application=pyspark_bookie,dataset=probe").orderBy("ledger_id", "entry_id")
    assert {row.ledger_id for row in found.collect()} == {each["ledger_id"] for each in told["ledgers"]}


def test_tiny_ledgers_become_one(spark, uri, client):
    save(rows(spark, 300, 3), uri, stream="coalesced", coalescePartitions="true")
    assert payloads(client, "coalesced") == texts((0, 300))
    (ledger,) = manifest(client, "coalesced").ledgers
    tagged = [each for each in client.list() if _is_of(client, each, b"coalesced")]
    assert tagged == [ledger.ledger_id], "the tasks' ledgers are gone"


def test_rows_are_sorted_within_a_task(spark, uri, client):
    frame = spark.range(0, 100, 1, 1).selectExpr("cast(id AS string) AS value", "-id AS at")
    save(frame, uri, stream="sorted", orderBy="at")
    assert payloads(client, "sorted") == texts((0, 100))[::-1]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"strem": "x"}, r"\[BOOKIE_OPTION\].* strem: .* stream"),
        ({"stream": "x", "createStream": "false"}, r"\[BOOKIE_NO_SUCH_STREAM\] .*stream x"),
        ({"stream": "x", "ensembleSize": 5}, r"\[BOOKIE_NOT_ENOUGH_BOOKIES\]"),
    ],
)
def test_what_will_not_do_is_told(spark, uri, options, why):
    with pytest.raises(Exception, match=why):
        save(rows(spark, 10), uri, **options)


def test_a_frame_that_does_not_fit_is_refused(spark, uri):
    with pytest.raises(Exception, match=r"\[BOOKIE_SCHEMA\].* value"):
        save(spark.range(3), uri, stream="unfit")
    with pytest.raises(Exception, match=r"\[BOOKIE_SCHEMA\] column id .*lost"):
        save(spark.range(3).selectExpr("id", "cast(id AS string) AS value"), uri, stream="unfit")
    with pytest.raises(Exception, match=r"\[BOOKIE_SCHEMA\].* row 1 .*null"):
        save(spark.sql("SELECT * FROM VALUES ('a'), (NULL) AS t(value)").coalesce(1), uri, stream="unfit")


def test_save_modes(spark, uri):
    writer = rows(spark, 3).write.format("bookkeeper").option("metadataServiceUri", uri).option("stream", "modes")
    with pytest.raises(Exception, match="UNSUPPORTED_DATA_SOURCE_SAVE_MODE"):
        writer.save()
    with pytest.raises(Exception, match=r"(?i)partition"):
        writer.mode("append").partitionBy("value").save()


def _is_of(client, ledger_id, stream):
    return client.metadata(ledger_id).custom_metadata.get("podkeeper/stream") == stream


def test_entries_may_be_empty(spark, uri, client):
    save(spark.sql("SELECT * FROM VALUES (''), ('a') AS t(value)").coalesce(1), uri, stream="empty")
    assert payloads(client, "empty") == [b"", b"a"]
