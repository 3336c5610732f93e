"""What a task does that Spark runs: whose ledgers it writes, and what it tells of them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, StructType

from bookie_client.streams import Streams, StreamSettings
from bookie_protocol.errors import NotEnoughBookies
from pyspark_bookie.common.access import AccessOptions
from pyspark_bookie.common.errors import PodkeeperSparkError
from pyspark_bookie.common.options import parse
from pyspark_bookie.sink import writing
from pyspark_bookie.sink.options import SinkOptions
from pyspark_bookie.sink.writers import BatchWriter, StreamingWriter
from pyspark_bookie.sink.writing import Owner, chunks, values
from tests.support.ledger_shelf import LedgerShelf

SCHEMA = StructType().add("value", BinaryType())
URI = {"metadataServiceUri": "zk://nowhere/ledgers"}
STREAM = {**URI, "stream": "s", "metadata.team": "us"}
ALONE = {**URI, "writeMode": "ledgerPerPartition", "ensembleSize": "1"}
QUERY = {"sql.streaming.queryId": "query", "streaming.sql.batchId": "12", "spark.jobGroup.id": "run"}


class Task:
    """Partition 3, at its second attempt."""

    def __init__(self, properties):
        self.getLocalProperty = properties.get

    def partitionId(self):
        return 3

    def attemptNumber(self):
        return 1

    def taskAttemptId(self):
        return 77


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    with LedgerShelf(tmp_path) as made:
        monkeypatch.setattr(AccessOptions, "client", lambda self, **_: made)
        made.run(lambda client: Streams(client).create("s", StreamSettings(ensemble=2, write_quorum=2, ack_quorum=1)))
        yield made


def rows(*columns):
    return iter([pa.RecordBatch.from_pydict({"value": pa.array(column, pa.binary())}) for column in columns])


def in_task(monkeypatch, properties):
    monkeypatch.setattr(TaskContext, "get", lambda: Task(properties))


def test_a_task_of_a_query_tells_its_batch_and_tags_its_ledgers(shelf, monkeypatch):
    in_task(monkeypatch, QUERY)
    found = StreamingWriter({**STREAM, "maxLedgerBytes": "4"}, SCHEMA, False).write(rows([b"ab", b"cd"], [b"e"]))
    assert (found.partition_id, found.attempt, found.query_id, found.batch_id, found.rows) == (3, 1, "query", 12, 3)
    assert [(each.entries, each.nbytes) for each in found.ledgers] == [(2, 4), (1, 1)]
    assert [shelf.payloads(each.ledger_id) for each in found.ledgers] == [[b"ab", b"cd"], [b"e"]]
    metadata = shelf.metadata(found.ledgers[0].ledger_id)
    assert (metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size) == (2, 2, 1)
    assert metadata.is_closed
    assert metadata.custom_metadata == {
        "application": b"podkeeper-stream",
        "podkeeper/stream": b"s",
        "team": b"us",
        **Owner(3, 1, 77, "run", "query", 12).tags(),
    }


def test_a_task_of_a_batch_write_is_of_that_write_whatever_spark_says(shelf, monkeypatch):
    in_task(monkeypatch, QUERY)
    writer = BatchWriter(ALONE, SCHEMA, False)
    found = writer.write(rows([b"ab"]))
    assert (found.query_id, found.batch_id) == (None, None)
    metadata = shelf.metadata(found.ledgers[0].ledger_id)
    assert metadata.ensemble_size == 1
    tags = metadata.custom_metadata
    assert tags["application"] == b"pyspark_bookie"
    assert tags["podkeeper/run-id"] == writer._write_id.encode()
    assert not {"podkeeper/stream", "podkeeper/query-id", "podkeeper/batch-id"} & tags.keys()
    in_task(monkeypatch, {})
    assert StreamingWriter(STREAM, SCHEMA, False).write(rows([])).batch_id is None


def test_outside_of_a_task_nothing_is_written(shelf, monkeypatch):
    monkeypatch.setattr(TaskContext, "get", lambda: None)
    with pytest.raises(RuntimeError, match="tasks"):
        BatchWriter(ALONE, SCHEMA, False).write(rows([b"ab"]))
    assert list(shelf.list()) == []


def test_what_goes_wrong_names_the_partition_and_the_stream(shelf, monkeypatch):
    in_task(monkeypatch, QUERY)
    writer = StreamingWriter(STREAM, SCHEMA, False)

    def failing(**_):
        raise NotEnoughBookies("none is left")

    monkeypatch.setattr(shelf, "create", failing)
    with pytest.raises(PodkeeperSparkError, match=r"\[BOOKIE_NOT_ENOUGH_BOOKIES\] .*left"):
        writer.write(rows([b"ab"]))
    shelf.run(lambda client: Streams(client).delete("s"))
    with pytest.raises(PodkeeperSparkError, match=r"\[BOOKIE_NO_SUCH_STREAM\] .*stream s"):
        writer.write(rows([b"ab"]))


@pytest.mark.parametrize(
    ("sizes", "most", "entries", "pieces"),
    [
        ([], 10, 3, []),
        ([5, 5], 10, 3, [2]),
        ([5, 6], 10, 3, [1, 1]),
        ([20, 1], 10, 3, [1, 1]),
        ([0] * 7, 10, 3, [3, 3, 1]),
        ([4, 4, 4, 2, 4, 4], 10, 3, [2, 3, 1]),
    ],
)
def test_values_go_in_pieces_of_so_many_bytes_and_entries(monkeypatch, sizes, most, entries, pieces):
    monkeypatch.setattr(writing, "CHUNK_ENTRIES", entries)
    given = [bytes([place]) * size for place, size in enumerate(sizes)]
    found = list(chunks(pa.array(given, pa.binary()), most))
    assert [len(each.payloads) for each in found] == pieces
    assert [payload for each in found for payload in each.payloads] == given
    assert [each.nbytes for each in found] == [sum(map(len, each.payloads)) for each in found]


def test_as_much_is_sorted_as_the_limit_says():
    batches = [
        pa.RecordBatch.from_pydict({"value": [b"b"], "at": [2]}),
        pa.RecordBatch.from_pydict({"value": [b"a"], "at": [1]}),
    ]
    nbytes = sum(each.nbytes for each in batches)
    limited = [
        parse({**STREAM, "orderBy": "at", "orderByMaxBytes": str(most)}, SinkOptions) for most in (nbytes, nbytes - 1)
    ]
    assert [column.to_pylist() for column in values(batches, limited[0])] == [[b"a", b"b"]]
    with pytest.raises(PodkeeperSparkError, match="ORDER_BY"):
        list(values(batches, limited[1]))
    assert list(values([], limited[0])) == []
