"""Reading streams and ledgers as a stream, from real bookies."""

from __future__ import annotations

import json

import pytest

from bookie_client.blocking.streams import BlockingStreams
from bookie_client.streams import START, StreamPosition, Streams
from tests.spark.ledgers import FULL, numbered, write_ledger
from tests.spark.streams import append, copy, create, manifest, offset_of, payloads, run, sink, source
from tests.support.until import until_true

EARLIEST = {"startingPosition": "earliest"}


def rows_of(query):
    """Rows of each batch that had some."""
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def batches_of(checkpoint):
    return len([path for path in (checkpoint / "commits").iterdir() if path.name.isdecimal()])


def test_a_stream_is_copied_in_order_and_each_entry_once(spark, uri, client, tmp_path):
    expected = numbered(250)
    for start in range(0, 250, 50):
        append(client, "copied", expected[start : start + 50])
    query = copy(spark, uri, "copy", tmp_path / "c", stream="copied", maxEntriesPerTrigger=70, **EARLIEST)
    assert rows_of(query) == [70, 70, 70, 40]
    assert payloads(client, "copy") == expected
    assert manifest(client, "copy").transactions[query.id].batch_id == 3
    again = copy(spark, uri, "copy", tmp_path / "c", stream="copied", maxEntriesPerTrigger=70, **EARLIEST)
    assert rows_of(again) == [], "nothing is new: no batch"
    assert batches_of(tmp_path / "c") == 4


def test_latest_is_written_down_before_anything_is_read(spark, uri, client, tmp_path):
    """What comes while the query is down is read, although nothing was read before."""
    append(client, "later", numbered(10))
    copy(spark, uri, "later-copy", tmp_path / "c", stream="later")
    assert offset_of(tmp_path / "c", 0)["from"]["later"]["n"] == 10
    append(client, "later", numbered(15)[10:])
    copy(spark, uri, "later-copy", tmp_path / "c", stream="later")
    assert payloads(client, "later-copy") == numbered(15)[10:]


def test_a_first_batch_that_was_not_committed_begins_where_it_began(spark, uri, client, tmp_path):
    """Spark does not keep the start of the first batch, and asks for the very first offset again."""
    append(client, "crashed", numbered(10))
    copy(spark, uri, "crashed-copy", tmp_path / "c", stream="crashed")
    for name in ("0", ".0.crc"):
        (tmp_path / "c" / "commits" / name).unlink(missing_ok=True)
    append(client, "crashed", numbered(15)[10:])
    copy(spark, uri, "crashed-copy", tmp_path / "c", stream="crashed")
    assert payloads(client, "crashed-copy") == numbered(15)[10:]


def test_limits_in_bytes(spark, uri, client, tmp_path):
    append(client, "heavy", numbered(100, size=1_000))
    query = copy(spark, uri, "heavy-copy", tmp_path / "c", stream="heavy", maxBytesPerTrigger="30k", **EARLIEST)
    assert rows_of(query) == [30, 30, 30, 10]
    assert payloads(client, "heavy-copy") == numbered(100, size=1_000)


def test_several_streams_share_the_limit_and_new_ones_are_found(spark, uri, client, tmp_path):
    append(client, "many.a", numbered(50))
    append(client, "many.b", numbered(5))
    options = {"streamPattern": r"many\..*", "maxEntriesPerTrigger": 20, "discoveryInterval": "0s", **EARLIEST}
    query = copy(spark, uri, "many-copy", tmp_path / "c", **options)
    assert rows_of(query) == [20, 20, 15]
    assert offset_of(tmp_path / "c", 0)["s"]["many.b"]["n"] == 5, "the small one is not held up by the large one"
    append(client, "many.c", numbered(3))
    copy(spark, uri, "many-copy", tmp_path / "c", **options)
    assert sorted(payloads(client, "many-copy")) == sorted([*numbered(50), *numbered(5), *numbered(3)])


def test_a_stream_that_is_being_written_is_followed(spark, uri, client, tmp_path):
    """Over a roll-over, without fencing the writer."""
    create(client, "open")
    create(client, "open-copy")
    frame = source(spark, uri, {"stream": "open", **EARLIEST})
    writer = frame.writeStream.format("bookkeeper").option("metadataServiceUri", uri).option("stream", "open-copy")
    query = writer.option("checkpointLocation", str(tmp_path / "c")).start()
    try:
        for first in range(0, 60, 20):
            _write(client, "open", numbered(60)[first : first + 20])
            until_true(lambda end=first + 20: manifest(client, "open-copy").entries >= end, 100)
    finally:
        query.stop()
    assert payloads(client, "open-copy") == numbered(60)


def test_a_batch_waits_for_the_least_number_of_entries(spark, uri, client, tmp_path):
    append(client, "few", numbered(5))
    create(client, "few-copy")
    given = {"stream": "few", "minEntriesPerTrigger": 20, "maxTriggerDelay": "1h", **EARLIEST}
    spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "100ms")
    writer = source(spark, uri, given).writeStream.format("bookkeeper").option("metadataServiceUri", uri)
    query = writer.option("stream", "few-copy").option("checkpointLocation", str(tmp_path / "c")).start()

    def sees(entries):
        told = [progress.sources[0].latestOffset for progress in query.recentProgress]
        return bool(told) and json.loads(told[-1])["s"]["few"]["n"] == entries

    try:
        until_true(lambda: sees(5) and rows_of(query) == [5], 100)
        append(client, "few", numbered(10)[5:])
        until_true(lambda: sees(10), 100)
        append(client, "few", numbered(25)[10:])
        until_true(lambda: len(rows_of(query)) > 1, 100)
    finally:
        query.stop()
        spark.conf.unset("spark.sql.streaming.noDataProgressEventInterval")
    assert rows_of(query) == [5, 20]
    assert payloads(client, "few-copy") == numbered(25)


def _write(client, name, entries):
    """As a writer does, which closes its ledger at the end."""

    async def write(each):
        async with Streams(each).writer(name) as writer:
            await writer.append_many(entries)

    client.run(write)


def test_open_ledgers_may_be_left_out_until_they_are_closed(spark, uri, client, tmp_path):
    """Of a stream, and alone. Otherwise all but the last entry of each would be read."""
    entries = numbered(12)
    tags = {"metadata": {"application": b"skipped"}}
    skip = {"openLedgers": "skip", **EARLIEST}
    alone = {"ledgerPattern": "application=skipped", "settlingTime": "0s", **skip}
    append(client, "skipped", entries[:5])
    write_ledger(client, entries[:5], **tags)
    with client.create(**FULL, **tags) as ledger, BlockingStreams(client).writer("skipped") as writer:
        for each in (ledger, writer):
            each.append_many(entries[5:11])
            each.append(entries[11])
        assert rows_of(copy(spark, uri, "skipped-copy", tmp_path / "c", stream="skipped", **skip)) == [5]
        assert rows_of(copy(spark, uri, "skipped-alone", tmp_path / "d", **alone)) == [5]
    assert rows_of(copy(spark, uri, "skipped-copy", tmp_path / "c", stream="skipped", **skip)) == [7]
    assert rows_of(copy(spark, uri, "skipped-alone", tmp_path / "d", **alone)) == [7]
    for name in ("skipped-copy", "skipped-alone"):
        assert payloads(client, name) == entries


def test_a_cursor_tells_the_stream_how_far_the_query_is(spark, uri, client, tmp_path):
    """Also of the last batch of a run, of which Spark tells the source nothing."""
    ledger_id = append(client, "watched", numbered(20))
    copy(
        spark, uri, "watched-copy", tmp_path / "c", stream="watched", cursor="etl", maxEntriesPerTrigger=15, **EARLIEST
    )
    cursor = client.run(lambda each: Streams(each).cursor("watched", "etl"))
    assert (cursor.position, cursor.ordinal) == (StreamPosition(ledger_id, 20), 20)
    later = append(client, "watched", numbered(30)[20:])
    client.run(lambda each: Streams(each).truncate("watched", StreamPosition(later, 0)))
    copy(spark, uri, "watched-copy", tmp_path / "c", stream="watched", cursor="etl", **EARLIEST)
    assert payloads(client, "watched-copy") == numbered(30)


def test_what_was_truncated_unread_is_a_loss(spark, uri, client, tmp_path):
    append(client, "cut", numbered(10))
    copy(spark, uri, "cut-copy", tmp_path / "c", stream="cut", **EARLIEST)
    append(client, "cut", numbered(20)[10:])
    last = append(client, "cut", numbered(30)[20:])
    client.run(lambda each: Streams(each).truncate("cut", StreamPosition(last, 4)))
    with pytest.raises(Exception, match=r"\[BOOKIE_DATA_LOSS\].* cut: 14 entries"):
        copy(spark, uri, "cut-copy", tmp_path / "c", stream="cut", **EARLIEST)
    options = {"stream": "cut", "failOnDataLoss": "false", **EARLIEST}
    frame = source(spark, uri, options).select("value")
    run(sink(frame, uri, "cut-copy", tmp_path / "c"))
    assert payloads(client, "cut-copy") == [*numbered(10), *numbered(30)[24:]]


def test_ledgers_without_a_stream(spark, uri, client, tmp_path):
    ids = [write_ledger(client, numbered(count), metadata={"application": b"streamed"}) for count in (10, 0, 20, 5)]
    options = {"ledgerPattern": "application=streamed", "settlingTime": "0s", "maxEntriesPerTrigger": 12, **EARLIEST}
    query = copy(spark, uri, "gathered", tmp_path / "c", **options)
    assert rows_of(query) == [12, 12, 11]
    assert payloads(client, "gathered") == [*numbered(10), *numbered(20), *numbered(5)]
    last = offset_of(tmp_path / "c", 2)
    assert (last["w"], set(last["o"])) == (ids[3] + 1, {str(ids[2]), str(ids[3])}), (
        "what was finished before is not named"
    )
    ids.append(write_ledger(client, numbered(7), metadata={"application": b"streamed"}))
    copy(spark, uri, "gathered", tmp_path / "c", **options)
    assert sorted(payloads(client, "gathered")) == sorted([n for k in (10, 20, 5, 7) for n in numbered(k)])


def test_nothing_new_costs_no_batches(spark, uri, client, tmp_path):
    """Spark compares offsets as texts, and asks again and again."""
    append(client, "idle-a", numbered(5))
    append(client, "idle-b", numbered(5))
    frame = source(spark, uri, {"streams": "idle-b,idle-a", **EARLIEST})
    writer = frame.writeStream.format("bookkeeper").option("metadataServiceUri", uri).option("stream", "idle-copy")
    query = writer.option("checkpointLocation", str(tmp_path / "c")).start()
    try:
        until_true(lambda: (tmp_path / "c" / "commits" / "0").exists(), 100)
        append(client, "idle-a", numbered(6)[5:])
        until_true(lambda: (tmp_path / "c" / "commits" / "1").exists(), 100)
    finally:
        query.stop()
    assert batches_of(tmp_path / "c") == 2
    assert manifest(client, "idle-copy").entries == 11


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"maxEntriesPerTriger": 5}, "maxEntriesPerTrigger"),
        ({"openLedgers": "recover"}, "openLedgers=recover"),
        ({"endingPosition": "earliest"}, "endingPosition"),
        ({"maxBytesPerTrigger": "much"}, "maxBytesPerTrigger=much"),
    ],
)
def test_options_that_make_no_sense(spark, uri, client, tmp_path, options, why):
    create(client, "any")
    with pytest.raises(Exception, match=rf"(?i)\[BOOKIE_OPTION\] .*{why}"):
        copy(spark, uri, "any-copy", tmp_path / "c", stream="any", **options)


def test_a_stream_that_is_not_there(spark, uri, client, tmp_path):
    with pytest.raises(Exception, match=r"\[BOOKIE_NO_SUCH_STREAM\].*nowhere"):
        copy(spark, uri, "any-copy", tmp_path / "c", stream="nowhere")
    with pytest.raises(Exception, match=r"\[BOOKIE_NO_SUCH_LEDGER\] ledger 987654321"):
        copy(spark, uri, "any-copy", tmp_path / "d", ledgers=987654321)


def test_a_query_of_something_else_is_refused(spark, uri, client, tmp_path):
    append(client, "first", numbered(5))
    copy(spark, uri, "first-copy", tmp_path / "c", stream="first", **EARLIEST)
    ledger_id = write_ledger(client, numbered(5))
    with pytest.raises(Exception, match=r"\[BOOKIE_OFFSET\].* ledgers"):
        copy(spark, uri, "first-copy", tmp_path / "c", ledgers=ledger_id)
    assert manifest(client, "first").earliest != START
