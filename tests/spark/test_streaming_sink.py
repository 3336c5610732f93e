"""Queries that write to streams of ledgers: each batch once, whatever Spark does. Deaths: test_exactly_once.py."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.spark.ledgers import numbered
from tests.spark.streams import append, manifest, payloads, run, sink, source
from tests.support.faulty_sink import LOST, LostAnswers


def copy(spark, uri, start, end, checkpoint, entries=10, **options):
    """Copy what there is of one stream to another, so many entries in a batch."""
    read = {"stream": start, "startingPosition": "earliest", "maxEntriesPerTrigger": entries}
    return sink(source(spark, uri, read), uri, end, checkpoint, **options)


def forget(log, batch):
    """As if the driver had died before it wrote this file of the checkpoint."""
    (log / str(batch)).unlink()
    (log / f".{batch}.crc").unlink(missing_ok=True)


def test_a_batch_that_is_run_again_is_recognised(spark, uri, client, tmp_path):
    """The driver died after the sink's commit and before Spark's."""
    append(client, "again-in", numbered(20))
    run(copy(spark, uri, "again-in", "again-out", tmp_path / "c"))
    ledgers = set(client.list())
    forget(tmp_path / "c" / "commits", 1)
    run(copy(spark, uri, "again-in", "again-out", tmp_path / "c"))
    assert payloads(client, "again-out") == numbered(20)
    assert set(client.list()) == ledgers, "the ledgers of the second run are deleted"


def test_a_checkpoint_that_was_set_back_fails(spark, uri, client, tmp_path):
    """Going on would lose what the query has published beyond."""
    append(client, "back-in", numbered(20))
    run(copy(spark, uri, "back-in", "back-out", tmp_path / "c"))
    for kind in ("offsets", "commits"):
        forget(tmp_path / "c" / kind, 1)
    append(client, "back-in", numbered(40)[20:])
    with pytest.raises(Exception, match=r"BOOKIE_STREAM_TRANSACTION_CONFLICT\].*batch 1 .* had 10"):
        run(copy(spark, uri, "back-in", "back-out", tmp_path / "c", entries=30))
    assert payloads(client, "back-out") == numbered(20)


def test_another_content_with_as_many_rows_fails_too(spark, uri, client, tmp_path):
    append(client, "content-in", numbered(20))
    run(copy(spark, uri, "content-in", "content-out", tmp_path / "c"))
    for kind in ("offsets", "commits"):
        forget(tmp_path / "c" / kind, 1)
    offset = _offset(tmp_path / "c", 0)
    offset["s"]["content-in"].update(e=5, n=5)
    _write_offset(tmp_path / "c", 0, offset)
    with pytest.raises(Exception, match=r"TRANSACTION_CONFLICT\].*content"):
        run(copy(spark, uri, "content-in", "content-out", tmp_path / "c"))
    run(copy(spark, uri, "content-in", "content-out", tmp_path / "c", replayCheck="rows"))


def test_a_commit_whose_answer_is_lost_is_found_done(spark, uri, client, tmp_path):
    spark.dataSource.register(LostAnswers)
    append(client, "lost-in", numbered(20))
    (tmp_path / "lose").touch()

    def start():
        frame = source(spark, uri, {"stream": "lost-in", "startingPosition": "earliest", "maxEntriesPerTrigger": 10})
        writer = frame.writeStream.format("lost-answers").option("metadataServiceUri", uri).option("stream", "lost-out")
        writer = writer.option("metadata.lose", str(tmp_path / "lose")).option(
            "checkpointLocation", str(tmp_path / "c")
        )
        return run(writer.trigger(availableNow=True).start())

    with pytest.raises(Exception, match=LOST):
        start()
    assert payloads(client, "lost-out") == numbered(10), "abort has kept what is published"
    start()
    assert payloads(client, "lost-out") == numbered(20)


def test_another_checkpoint_is_another_query(spark, uri, client, tmp_path):
    append(client, "two-in", numbered(10))
    for name in ("one", "two"):
        run(copy(spark, uri, "two-in", "two-out", tmp_path / name))
    assert payloads(client, "two-out") == numbered(10) * 2
    assert len(manifest(client, "two-out").transactions) == 2


def test_complete_mode_replaces_the_stream_with_each_batch(spark, uri, client, tmp_path):
    append(client, "words-in", [b"a", b"b", b"a", b"c", b"a"])
    read = {"stream": "words-in", "startingPosition": "earliest", "maxEntriesPerTrigger": 3}
    counts = source(spark, uri, read).groupBy("value").count()
    frame = counts.selectExpr("concat(cast(value AS string), '=', count) AS value")
    writer = frame.writeStream.format("bookkeeper").outputMode("complete").option("metadataServiceUri", uri)
    writer = writer.option("stream", "words-out").option("checkpointLocation", str(tmp_path / "c"))
    run(writer.trigger(availableNow=True).start())
    assert sorted(payloads(client, "words-out")) == [b"a=3", b"b=1", b"c=1"]
    assert manifest(client, "words-out").generation == 2


def test_tiny_ledgers_of_a_batch_become_one_also_when_it_is_run_again(spark, uri, client, tmp_path):
    append(client, "tiny-in", numbered(40))
    read = {"stream": "tiny-in", "startingPosition": "earliest", "maxEntriesPerTrigger": 20, "minPartitions": 4}

    def start(**options):
        run(sink(source(spark, uri, read), uri, "tiny-out", tmp_path / "c", coalescePartitions="true", **options))
        return [ledger.ledger_id for ledger in manifest(client, "tiny-out").ledgers]

    listed = start()
    assert payloads(client, "tiny-out") == numbered(40)
    assert len(listed) == 2, "one for each batch"
    assert ledgers_of(client, "tiny-out") == listed, "the tasks' ledgers are gone"
    forget(tmp_path / "c" / "commits", 1)
    assert start() == listed
    assert ledgers_of(client, "tiny-out") == listed, "and so is what the repetition made"

    for kind in ("offsets", "commits"):
        forget(tmp_path / "c" / kind, 1)
    append(client, "tiny-in", numbered(45)[40:])
    read["maxEntriesPerTrigger"] = 30
    with pytest.raises(Exception, match="BOOKIE_STREAM_TRANSACTION_CONFLICT"):
        start()
    assert ledgers_of(client, "tiny-out") == listed, "what was refused is deleted, the copy as well"


def ledgers_of(client, name):
    """All that exist and were made for a stream."""
    tags = {each: client.metadata(each).custom_metadata.get("podkeeper/stream") for each in client.list()}
    return sorted(each for each, tag in tags.items() if tag == name.encode())


def test_asynchronous_progress_is_refused(spark, uri, client, tmp_path):
    """It would tell batches as done that may be run again."""
    append(client, "async-in", [b"a"])
    frame = source(spark, uri, {"stream": "async-in"}).selectExpr("value")
    writer = frame.writeStream.format("bookkeeper").option("metadataServiceUri", uri).option("stream", "x")
    writer = writer.option("asyncProgressTrackingEnabled", "true").option("checkpointLocation", str(tmp_path / "c"))
    with pytest.raises(Exception, match=r"(?i)async"):
        run(writer.start(), 30)


def test_update_mode_is_refused(spark, uri, client, tmp_path):
    append(client, "update-in", [b"a"])
    frame = source(spark, uri, {"stream": "update-in"}).selectExpr("value")
    writer = frame.writeStream.format("bookkeeper").outputMode("update").option("metadataServiceUri", uri)
    with pytest.raises(Exception, match=r"(?i)update"):
        run(writer.option("stream", "x").option("checkpointLocation", str(tmp_path / "c")).start(), 30)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"writeMode": "ledgerPerPartition"}, "writeMode=ledgerPerPartition"),
        ({"txnAppId": "a", "txnVersion": 1}, "txnAppId"),
        ({"maxLedgerByte": "1g"}, "maxledgerbyte: .* maxLedgerBytes"),
    ],
)
def test_options_that_make_no_sense_here(spark, uri, client, tmp_path, options, why):
    append(client, "senseless", [b"a"])
    with pytest.raises(Exception, match=rf"(?i)\[BOOKIE_OPTION\].*{why}"):
        run(copy(spark, uri, "senseless", "x", tmp_path / "c", **options))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("empty", "Incomplete"),
        ("foreign", r"\[BOOKIE_OFFSET\]"),
    ],
)
def test_a_damaged_checkpoint_is_told(spark, uri, client, tmp_path, damage, told):
    start, end = f"{damage}-in", f"{damage}-out"
    append(client, start, numbered(20))
    run(copy(spark, uri, start, end, tmp_path / "c"))
    forget(tmp_path / "c" / "commits", 1)
    if damage == "foreign":
        _write_offset(tmp_path / "c", 1, {"topic": {"0": 5}})
    else:
        _write(tmp_path / "c", 1, "")
    with pytest.raises(Exception, match=told):
        run(copy(spark, uri, start, end, tmp_path / "c"))
    assert payloads(client, end) == numbered(20)


@pytest.mark.parametrize(
    ("is_committed", "step", "place"),
    [
        (False, "planPartitions", "partitions_func"),
        (True, "latestOffset", "latest_offset_admission_control_func"),
    ],
    ids=["replayed", "committed"],
)
def test_an_offset_that_was_cut_is_told_by_spark(spark, uri, client, tmp_path, is_committed, step, place):
    """PySpark parses it before it calls the source, which never sees it. Without the file the batch is planned anew."""
    start, end = f"cut-{step}-in", f"cut-{step}-out"
    append(client, start, numbered(20))
    run(copy(spark, uri, start, end, tmp_path / "c"))
    if not is_committed:
        forget(tmp_path / "c" / "commits", 1)
    _write(tmp_path / "c", 1, (tmp_path / "c" / "offsets" / "1").read_text()[:-9])
    with pytest.raises(Exception, match=rf"(?s)perform {step}: .*\b{place}\b.*\.JSONDecodeError: ") as failure:
        run(copy(spark, uri, start, end, tmp_path / "c"))
    assert "BOOKIE_" not in str(failure.value)
    assert "pyspark_bookie" not in str(failure.value)
    assert payloads(client, end) == numbered(20)

    for kind in ("offsets", "commits") if is_committed else ("offsets",):
        forget(tmp_path / "c" / kind, 1)
    append(client, start, numbered(25)[20:])
    run(copy(spark, uri, start, end, tmp_path / "c"))
    assert payloads(client, end) == numbered(25)


def _offset(checkpoint, batch):
    return json.loads((checkpoint / "offsets" / str(batch)).read_text().splitlines()[2])


def _write_offset(checkpoint, batch, offset):
    path = checkpoint / "offsets" / str(batch)
    lines = path.read_text().splitlines()
    _write(checkpoint, batch, "\n".join([*lines[:2], json.dumps(offset)]))


def _write(checkpoint, batch, text):
    (checkpoint / "offsets" / str(batch)).write_text(text)
    (checkpoint / "offsets" / f".{batch}.crc").unlink(missing_ok=True)


def test_a_checkpoint_may_be_moved(spark, uri, client, tmp_path):
    """The query's id is in it."""
    append(client, "moved-in", numbered(10))
    run(copy(spark, uri, "moved-in", "moved-out", tmp_path / "c"))
    shutil.move(tmp_path / "c", tmp_path / "d")
    append(client, "moved-in", numbered(15)[10:])
    run(copy(spark, uri, "moved-in", "moved-out", tmp_path / "d"))
    assert payloads(client, "moved-out") == numbered(15)
