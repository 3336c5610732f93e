"""Log records of DistributedLog in batch and as a stream, without DistributedLog: tests/interop has that."""

from __future__ import annotations

import pytest

from tests.spark.ledgers import load, write_ledger
from tests.spark.streams import append, payloads, run, sink, source
from tests.support.dlog_entries import control, end_of_stream, entry, record, record_set

pytestmark = pytest.mark.timeout(600)
"""Several queries a test, each of which may take its time."""

FIRST = [
    entry(record(1, b"one", 1), record_set(2, [b"two", b""], 2, "lz4"), compression="lz4"),
    entry(control(2, 3)),
]
SECOND = [entry(record(3, b"three", 1), end_of_stream(1))]


def test_log_records_are_decoded_in_both(spark, uri, client, tmp_path):
    ids = [append(client, "log", entries) for entries in (FIRST, SECOND)]
    rows = load(spark, uri, stream="log", decode="dlog").orderBy("transaction_id", "slot_id").collect()
    found = [(row.transaction_id, bytes(row.value), row.ledger_id, row.entry_id, row.slot_id) for row in rows]
    expected = [(1, b"one", 0, 0), (2, b"two", 0, 1), (2, b"", 0, 2), (3, b"three", 1, 0)]
    assert found == [(transaction, value, ids[place], 0, slot) for transaction, value, place, slot in expected]
    assert [row.position for row in rows] == [1, 2, 3, 1]
    assert {row.stream for row in rows} == {"log"}
    frame = source(spark, uri, {"stream": "log", "startingPosition": "earliest", "decode": "dlog"}).select("value")
    run(sink(frame, uri, "log-copy", tmp_path / "c"))
    assert payloads(client, "log-copy") == [b"one", b"two", b"", b"three"]


def test_what_is_no_log_record_is_told(spark, uri, client):
    ledger_id = write_ledger(client, [*SECOND, b"no entry of a log"])
    with pytest.raises(Exception, match=rf"\[BOOKIE_DECODE\] entry 1 of ledger {ledger_id}: .* Dist"):
        load(spark, uri, ledgers=ledger_id, decode="dlog").count()
    rows = load(spark, uri, ledgers=ledger_id, decode="dlog", failOnDataLoss="false", includeMetadata="true")
    good, bad = rows.orderBy("entry_id").collect()
    assert (bytes(good.value), good._corrupt, good._metadata.fragment) == (b"three", None, 0)
    assert (bytes(bad.value), bad.transaction_id, bad.slot_id) == (b"no entry of a log", None, None)
    assert bad._corrupt.startswith(f"[BOOKIE_DECODE] entry 1 of ledger {ledger_id}: ")
