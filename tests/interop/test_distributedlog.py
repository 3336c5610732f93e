"""Logs that Apache DistributedLog wrote onto bookies, read by Spark: what its own reader reads, record for record."""

from __future__ import annotations

import base64
import json

import pytest

from tests.interop.java_programs import run_program
from tests.spark.ledgers import load
from tests.support.spark import SparkSessions

LONG = pytest.mark.timeout(600)
"""For whichever test comes first: Java, Spark and a query that starts its workers."""
LOGS = ("plain", "lz4", "uncounted", "bare", "sealed", "open")
COLUMNS = ("transaction_id", "value", "ledger_id", "entry_id", "slot_id", "position")


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    sessions = SparkSessions(tmp_path_factory.mktemp("spark"))
    yield sessions.get()
    sessions.stop()


@pytest.fixture(scope="module")
def logs(class_path, cluster, tmp_path_factory):
    """What the Java program tells of each log."""
    file = tmp_path_factory.mktemp("logs") / "logs"
    run_program(class_path, "DistributedLogs", cluster.metadata_uri, f"{cluster.root}-dlog", str(file))
    found = {each["log"]: each for each in map(json.loads, file.read_text().splitlines())}
    assert tuple(found) == LOGS
    return found


def ledgers_of(log):
    """Ledgers of its log segments, by sequence number."""
    return {number: ledger_id for ledger_id, number, *_ in log["segments"]}


def records_of(log):
    """As rows, in the order of the log."""
    ledgers = ledgers_of(log)
    return [
        (transaction, base64.b64decode(payload), ledgers[segment], entry, slot, position)
        for transaction, payload, segment, entry, slot, position, _ in log["records"]
    ]


def read(spark, cluster, log, **options):
    return load(spark, cluster.metadata_uri, ledgers=",".join(map(str, ledgers_of(log).values())), **options)


@LONG
@pytest.mark.parametrize("name", LOGS)
def test_spark_reads_what_the_reader_of_distributedlog_reads(spark, cluster, logs, name):
    log = logs[name]
    rows = read(spark, cluster, log, decode="dlog").orderBy("transaction_id", "entry_id", "slot_id").collect()
    found = [tuple(row[column] for column in COLUMNS) for row in rows]
    expected = records_of(log)
    assert found == expected
    assert len(found) > 2 * 500
    assert {b""} < {row.value for row in rows}
    assert max(row.slot_id for row in rows) > 100, "many records in an entry"
    assert [in_progress for *_, in_progress in log["segments"]] == [False, name == "open"]
    entries = read(spark, cluster, log).count()
    assert entries > len({(row.ledger_id, row.entry_id) for row in rows}), "some have control records alone"


def test_positions_give_the_sequence_ids_of_a_log(logs):
    """As docs/spark.md says, where the metadata of the log segments are at hand."""
    log = logs["plain"]
    start = {number: first for _, number, first, _ in log["segments"]}
    for _, _, segment, _, _, position, sequence in log["records"]:
        assert sequence == start[segment] + position - 1


@LONG
def test_the_kinds_of_entries_are_those_that_are_meant(spark, cluster, logs):
    """Otherwise all of the above would be of one kind."""
    first = {name: [bytes(row.value) for row in read(spark, cluster, logs[name]).collect()] for name in LOGS}
    compressed = {name: {value[4] & 3 for value in values} for name, values in first.items() if name != "bare"}
    assert compressed == {"plain": {0}, "lz4": {1}, "uncounted": {0}, "sealed": {0}, "open": {0}}
    assert {value[0] for value in first["bare"]} == {0}, "no envelopes"
    assert {value[0] for name, values in first.items() if name != "bare" for value in values} == {1}
    assert any(b"endOfStream" in value for value in first["sealed"])
    assert all(position == 0 for *_, position, _ in logs["uncounted"]["records"][:10])
