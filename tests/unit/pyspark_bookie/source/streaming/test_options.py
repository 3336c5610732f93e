from __future__ import annotations

import pickle

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxFiles, ReadMaxRows, ReadMinRows

from pyspark_bookie.common.errors import PodkeeperSparkError
from pyspark_bookie.common.options import parse
from pyspark_bookie.source.batch import batch_reader
from pyspark_bookie.source.options import StreamingOptions
from pyspark_bookie.source.planning import Range
from pyspark_bookie.source.positions import positions
from pyspark_bookie.source.schema import schema_for
from pyspark_bookie.source.streaming import reader
from pyspark_bookie.source.streaming.admission import Limit
from pyspark_bookie.source.streaming.offsets import Start
from pyspark_bookie.source.streaming.progress import TriggerLimit
from tests.unit.pyspark_bookie.source.snapshots import ledger

URI = {"metadataServiceUri": "zk://nowhere/ledgers"}


def options(**given):
    return parse({**URI, **given}, StreamingOptions)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"scope": "all", "cursor": "etl"}, "cursor needs stream, streams or streamPattern"),
        ({"managedLedger": "a/b/persistent/c", "cursor": "etl"}, "cursor needs stream"),
        ({"stream": "s", "openLedgers": "recover"}, "must not lock writers out"),
        ({"stream": "s", "endingPosition": '{"5": 1}'}, "endingPosition is for batch reads"),
        ({"table": "ledgers"}, "table=ledgers is for batch reads"),
        ({"stream": "s", "maxEntriesPerTrigger": "0"}, "must be a whole number of at least 1"),
        ({"stream": "s", "metadataRefresh": "soon"}, "must be a time"),
        ({"stream": "s", "minEntriesPerTrigger": "9", "maxEntriesPerTrigger": "8"}, "minEntriesPerTrigger=9 is more"),
        ({"stream": "s", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "minEntriesPerTrigger=9 is more"),
        ({"stream": "s", "minOffsetsPerTrigger": "0"}, "option minOffsetsPerTrigger=0: must be a whole number"),
        ({"stream": "s", "maxRecordsPerPartition": "9", "maxEntriesPerPartition": "9"}, "are one option"),
    ],
)
def test_what_is_wrong_is_told(given, why):
    with pytest.raises(PodkeeperSparkError, match=r"^\[BOOKIE_OPTION\] ") as error:
        options(**given)
    assert why in str(error.value)


@pytest.mark.parametrize("start", ["latest", "earliest", '{"5": 100, "17": -2}'])
def test_the_first_offset_tells_the_starting_position(start):
    told = options(stream="s", startingPosition=start).start_text
    assert told == start
    assert positions(told) == positions(start)


@pytest.mark.parametrize(
    ("given", "limit", "read"),
    [
        ({"ledgers": "1-9"}, ReadMaxFiles(1_000), TriggerLimit(Limit(), 1_000)),
        ({"ledgers": "1-9", "maxLedgersPerTrigger": "7"}, ReadMaxFiles(7), TriggerLimit(Limit(), 7)),
        (
            {"ledgers": "1-9", "maxLedgersPerTrigger": "7", "maxEntriesPerTrigger": "5", "maxBytesPerTrigger": "2k"},
            ReadMaxRows(5),
            TriggerLimit(Limit(5, 2048), 7),
        ),
        ({"stream": "s", "maxBytesPerTrigger": "2k"}, ReadMaxBytes(2048), TriggerLimit(Limit(None, 2048), 1_000)),
    ],
)
def test_all_limits_of_a_batch_count_whichever_spark_is_told(monkeypatch, given, limit, read):
    asked = []

    class Followed:
        def passed(self, offset):
            asked.append(offset)

        def latest(self, _, limit):
            asked.append(limit)

    monkeypatch.setattr(reader, "_progress", lambda _: Followed())
    made = reader.StreamingReader({**URI, **given}, schema_for({**URI, **given}))
    found = made.getDefaultReadLimit()
    assert (type(found), vars(found)) == (type(limit), vars(limit))
    start = made.initialOffset()
    assert made.latestOffset(start, found) == start, "nothing is new"
    assert asked == [Start("latest"), read], "what lies before it has been committed"


@pytest.mark.parametrize(("selection", "order"), [({"stream": "s"}, [3, 2, 1]), ({"ledgers": "1-9"}, [3, 1, 2])])
def test_what_spark_calls_goes_to_whatever_is_followed(monkeypatch, selection, order):
    asked, start = [], {"v": 1, "start": "earliest"}

    class Followed:
        def stop_here(self):
            asked.append("stop")

        def passed(self, offset):
            asked.append(offset)

        def latest(self, *_):
            return None

        def tail(self, offset):
            return offset and offset.document()

        def ranges(self, *given):
            asked.append(given)
            return [
                Range(ledger(number, 10, ensemble=bookies), 0, 9)
                for number, bookies in ((3, "ab"), (2, "ab"), (1, "ba"))
            ]

    monkeypatch.setattr(reader, "_progress", lambda _: Followed())
    raw = {**URI, **selection, "maxLedgersPerPartition": "1"}
    made = reader.StreamingReader(raw, schema_for(raw))
    assert made.reportLatestOffset() is None
    made.latestOffset(start, made.getDefaultReadLimit())
    assert made.reportLatestOffset() == {**start, "behind": {}}
    asked.clear()
    made.prepareForTriggerAvailableNow()
    made.commit(start)
    parts = made.partitions(start, start)
    assert asked == ["stop", Start("earliest"), (Start("earliest"), Start("earliest"))]
    assert [part.ranges[0].ledger_id for part in parts] == order
    assert vars(pickle.loads(pickle.dumps(made))) == {**vars(made), "_progress": None, "_start": None, "_end": None}
    assert list(made.read(InputPartition(0))) == [], "of an empty plan"


def test_options_have_the_names_of_sparks_kafka_source_too():
    given = options(stream="s", minOffsetsPerTrigger="3", maxOffsetsPerTrigger="8", maxRecordsPerPartition="4")
    found = given.min_entries_per_trigger, given.max_entries_per_trigger, given.max_entries_per_partition
    assert found == (3, 8, 4)


def test_options_of_streams_are_refused_in_batch_reads():
    raw = {**URI, "stream": "s", "maxTriggerDelay": "1m"}
    with pytest.raises(PodkeeperSparkError, match="option maxTriggerDelay"):
        batch_reader(raw, schema_for(raw))


def test_a_stream_begins_at_its_end_by_default():
    assert options(stream="s").start_text == "latest"


def test_spark_asks_for_the_schema_before_it_says_what_kind_of_read_it_is():
    assert schema_for({**URI, "stream": "s", "maxEntriesPerTrigger": "5", "cursor": "etl"}).fieldNames()
    assert schema_for({**URI, "ledgers": "5", "endingPosition": "latest", "openLedgers": "recover"}).fieldNames()


def test_a_batch_waits_for_its_least_entries_no_longer_than_the_delay_and_never_in_a_run_that_ends(monkeypatch):
    asked, now = [], [1000.0]

    class Followed:
        def passed(self, offset):
            pass

        def stop_here(self):
            pass

        def latest(self, offset, limit):
            asked.append(limit.least)
            return {"v": 1, "s": {}}

    monkeypatch.setattr(reader, "_progress", lambda _: Followed())
    monkeypatch.setattr(reader.time, "monotonic", lambda: now[0])
    raw = {**URI, "stream": "s", "minEntriesPerTrigger": "50", "maxTriggerDelay": "60s"}
    one = reader.StreamingReader(raw, schema_for(raw))
    limit = one.getDefaultReadLimit()
    assert limit == ReadMinRows(50)
    for seconds in (0, 59, 60):
        now[0] += seconds
        one.latestOffset(one.initialOffset(), limit)
    assert asked == [0, 50, 0], "the first batch of a run does not wait"
    one.latestOffset(one.initialOffset(), ReadAllAvailable())
    one.prepareForTriggerAvailableNow()
    one.latestOffset(one.initialOffset(), limit)
    assert asked[3:] == [0, 0]
