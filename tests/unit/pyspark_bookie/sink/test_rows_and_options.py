from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, IntegerType, StringType, StructType, TimestampType

from bookie_client.streams.model import PublishedLedger, StreamSettings
from bookie_protocol.digest import DigestType
from pyspark_bookie.common.errors import PodkeeperSparkError
from pyspark_bookie.common.options import parse
from pyspark_bookie.sink.options import SinkOptions
from pyspark_bookie.sink.writing import (
    OF_THE_SOURCE,
    Owner,
    Written,
    batch_of,
    check_input,
    collected,
    settings_of,
    values,
)
from pyspark_bookie.source.options import SourceOptions
from pyspark_bookie.source.schema import full_schema

URI = {"metadataServiceUri": "zk://nowhere/ledgers"}


def options(**given):
    return parse({**URI, "stream": "s", **{name: str(value) for name, value in given.items()}}, SinkOptions)


def batch(**columns):
    return pa.RecordBatch.from_pydict(columns)


def schema_of(columns):
    made = StructType()
    for name, kind in columns.items():
        made.add(name, kind)
    return made


# --- options --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"maxLedgerByte": "1g"}, "there is no option maxLedgerByte: did you mean maxLedgerBytes"),
        ({"stream": "a/b"}, "is not a valid name of a stream"),
        ({"txnAppId": "etl"}, "txnAppId and txnVersion come together"),
        ({"ensembleSize": "2", "writeQuorum": "3"}, "must not ascend: 2, 3, 2"),
        ({"writeMode": "ledgerPerPartition"}, "stream and writeMode=ledgerPerPartition exclude each other"),
        ({"password": "secret"}, "write it to a file and set passwordFile"),
        ({"recordedPasswords": "true"}, "recordedPasswords=true is for reading"),
        ({"replayCheck": "none"}, "option replayCheck=none: must be one of content, rows"),
        ({"maxInflightBytes": "0"}, "must be a positive number of bytes"),
        ({"digestType": "md5"}, "option digestType=md5"),
        ({"deletionLag": "-1s"}, "option deletionLag=-1s: must be a time"),
    ],
)
def test_what_is_wrong_is_told(given, why):
    with pytest.raises(PodkeeperSparkError, match=r"^\[BOOKIE_OPTION\] ") as error:
        options(**given)
    assert why in str(error.value)
    assert "secret" not in str(error.value)


def test_a_stream_or_the_other_mode():
    with pytest.raises(PodkeeperSparkError, match=r"stream.*missing"):
        parse(URI, SinkOptions)
    assert parse({**URI, "writeMode": "ledgerPerPartition"}, SinkOptions).stream is None
    with pytest.raises(PodkeeperSparkError, match=r"deletionLag .*writeMode=ledgerPerPartition"):
        parse({**URI, "writeMode": "ledgerPerPartition", "deletionLag": "0s"}, SinkOptions)


def test_sizes_that_are_not_given_follow_those_that_are():
    assert options().quorums == (3, 3, 2)
    assert options(ensembleSize=1).quorums == (1, 1, 1)
    assert options(ensembleSize=5).quorums == (5, 3, 2)
    assert options(writeQuorum=4).quorums == (4, 4, 2)
    assert options(ackQuorum=3).quorums == (3, 3, 3)
    stream = StreamSettings(ensemble=2, write_quorum=2, ack_quorum=1, digest=DigestType.CRC32)
    assert settings_of(options(), stream) == stream
    own = StreamSettings(ensemble=3, write_quorum=3, ack_quorum=2, digest=DigestType.CRC32C)
    assert settings_of(options(ackQuorum=2, digestType="CRC32C"), stream) == own
    assert settings_of(options(), None) == own


# --- rows -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"key": StringType()}, "value"),
        ({"value": IntegerType()}, "is int"),
        ({"value": BinaryType(), "user": StringType()}, "user"),
    ],
)
def test_input_that_does_not_fit_is_refused(schema, why):
    with pytest.raises(PodkeeperSparkError, match=rf"\[BOOKIE_SCHEMA\].*{why}"):
        check_input(schema_of(schema), options())


def test_what_the_source_gives_can_be_written():
    read = full_schema(
        parse({**URI, "scope": "all", "includeMetadata": "true", "failOnDataLoss": "false"}, SourceOptions)
    )
    check_input(read, options())
    assert set(read.fieldNames()) == OF_THE_SOURCE | {"value"}
    check_input(schema_of({"value": StringType(), "at": TimestampType()}), options(orderBy="at"))
    with pytest.raises(PodkeeperSparkError, match=r"column.*order"):
        check_input(schema_of({"value": StringType()}), options(orderBy="at"))


def test_strings_are_stored_as_utf_8():
    found = list(values([batch(value=["a", "ü"]), batch(value=[b"\xff"])], options()))
    assert [column.to_pylist() for column in found] == [[b"a", "ü".encode()], [b"\xff"]]


def test_a_null_is_an_error_that_names_the_row():
    with pytest.raises(PodkeeperSparkError, match=r"row 3 .*null"):
        list(values([batch(value=["a", "b"]), batch(value=["c", None])], options()))


def test_order_by_sorts_a_task_and_keeps_equal_rows_as_they_came():
    batches = [batch(value=["a", "b", "c"], at=[3, 1, 3]), batch(value=["d"], at=[1])]
    assert [value for column in values(batches, options(orderBy="at")) for value in column.to_pylist()] == [
        b"b",
        b"d",
        b"a",
        b"c",
    ]
    with pytest.raises(PodkeeperSparkError, match="orderByMaxBytes=10"):
        list(values(batches, options(orderBy="at", orderByMaxBytes="10")))


# --- messages ---------------------------------------------------------------------------------------------------


def written(partition, rows=2, query="q", number=4, checksum=5):
    return Written(partition, 0, query, number, (PublishedLedger(100 - partition, rows, 10, 1),), rows, checksum)


def test_ledgers_come_in_the_order_of_partitions_whatever_the_order_of_messages():
    found = batch_of(collected([written(2), None, written(0, checksum=2**64 - 1), written(1)]))
    assert [ledger.ledger_id for ledger in found.ledgers] == [100, 99, 98]
    assert (found.query_id, found.rows, found.checksum, found.nbytes) == ("q", 6, 9, 30)
    assert batch_of(collected([None, None])).query_id is None


def test_messages_that_do_not_belong_together_are_refused():
    with pytest.raises(ValueError, match="different"):
        batch_of([written(0), written(1, number=5)])
    with pytest.raises(ValueError, match="several"):
        batch_of([written(1), written(1)])


def test_ledgers_tell_whose_they_are():
    tags = Owner(3, 1, 77, "run", "query", 12).tags()
    assert tags == {
        "podkeeper/sink": b"pyspark_bookie",
        "podkeeper/query-id": b"query",
        "podkeeper/batch-id": b"12",
        "podkeeper/partition-id": b"3",
        "podkeeper/attempt": b"1",
        "podkeeper/task-attempt-id": b"77",
        "podkeeper/run-id": b"run",
    }
    assert "podkeeper/batch-id" not in Owner(0, 0, 1, "run").tags()
