"""Chunks as record batches: the schema that PySpark demands, bounded, nothing lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_client.reading.entry import LedgerEntry
from bookie_protocol.archive import ArchivedLedger, Counts
from bookie_protocol.digest import DigestType
from pyspark_bookie.common.errors import PodkeeperSparkError
from pyspark_bookie.source.dlog import DlogDecoder
from pyspark_bookie.source.planning import without_bookies
from pyspark_bookie.source.pulsar import PulsarDecoder
from pyspark_bookie.source.reading import arrow
from pyspark_bookie.source.reading.arrow import LARGE, batches, decoded_batches
from pyspark_bookie.source.reading.chunk import Chunk, RowOrigin
from tests.support import dlog_entries
from tests.support.packed import batch_of
from tests.support.pulsar_entries import batch, entry
from tests.unit.pyspark_bookie.source.reading.columns import schema, taken
from tests.unit.pyspark_bookie.source.snapshots import ledger


@st.composite
def some_chunks(draw):
    found = []
    for ledger_id in range(draw(st.integers(0, 5))):
        sizes = draw(st.lists(st.integers(0, 50), min_size=1, max_size=30))
        ids = sorted(draw(st.sets(st.integers(0, 100), min_size=len(sizes), max_size=len(sizes))))
        entries = [
            LedgerEntry(ledger_id, entry_id, 0, bytes([entry_id]) * size, entry_id - 1)
            for entry_id, size in zip(ids, sizes, strict=True)
        ]
        wrong = None
        if draw(st.booleans()):
            wrong = [None if draw(st.booleans()) else "lost" for _ in entries]
        origins = [RowOrigin("b", 1, 5)] * len(entries) if draw(st.booleans()) else None
        found.append(Chunk(ledger(ledger_id, 101, starts=(0, 50)), entries, origins, wrong))
    return found


def row(chunk, place):
    made, wrong = chunk.entries[place], chunk.corrupt[place] if chunk.corrupt else None
    origin = chunk.origins[place] if chunk.origins else RowOrigin()
    good = wrong is None
    return {
        "ledger_id": chunk.ledger.ledger_id,
        "entry_id": made.entry_id,
        "value": made.payload if good else None,
        "length": len(made.payload) if good else None,
        "lac": made.lac if good else None,
        "stream": None,
        "_metadata": {
            "bookie": origin.bookie,
            "fragment": 50 if made.entry_id >= 50 else 0,
            "replica_index": origin.replica_index,
            "digest_type": "CRC32C",
            "read_latency_us": origin.latency_us,
        },
        "_corrupt": wrong,
    }


@given(some_chunks(), st.integers(1, 400))
def test_every_row_is_there_once_in_bounded_batches(chunks, limit):
    wanted = schema(includeMetadata="true", failOnDataLoss="false")
    made = list(batches(chunks, wanted, limit))
    assert all(each.schema == wanted for each in made)
    for each in made:
        each.validate(full=True)
        sizes = [len(value or b"") for value in each.column("value").to_pylist()]
        assert sum(sizes) <= limit or len(sizes) == 1
    expected = [row(chunk, place) for chunk in chunks for place in range(len(chunk.entries))]
    assert [found for each in made for found in each.to_pylist()] == expected


def test_columns_that_are_not_asked_for_are_not_made():
    wanted = schema()
    wanted = wanted.remove(wanted.get_field_index("value"))
    chunk = Chunk(ledger(1, 1), [LedgerEntry(1, 0, 3, b"abc")])
    (made,) = batches([chunk], wanted, 100)
    assert made.to_pylist() == [{"ledger_id": 1, "entry_id": 0, "length": 3, "lac": -1, "stream": None}]


def pulsar_chunk():
    payloads = [entry(b"single", (6, "k")), entry(batch([b"one", b"two"]), (11, 2)), b"no message"]
    return Chunk(
        ledger(1, 3), [LedgerEntry(1, number, 0, payload) for number, payload in enumerate(payloads)], None, None
    )


def test_messages_are_rows():
    wanted = schema(decode="pulsar", failOnDataLoss="false")
    made = list(decoded_batches([pulsar_chunk()], PulsarDecoder(), wanted, 10, strict=False))
    assert all(each.schema == wanted for each in made)
    rows = [found for each in made for found in each.to_pylist()]
    assert [(each["entry_id"], each["batch_index"], each["value"]) for each in rows] == [
        (0, None, b"single"),
        (1, 0, b"one"),
        (1, 1, b"two"),
        (2, None, b"no message"),
    ]
    assert rows[0]["publish_time"].timestamp() == 1_700_000_000
    assert [each["_corrupt"] is None for each in rows] == [True, True, True, False]
    assert rows[-1]["_corrupt"].startswith("[BOOKIE_DECODE] entry 2 of ledger 1: it is not an entry of a Pulsar topic")


def test_what_is_no_message_ends_a_strict_read():
    with pytest.raises(PodkeeperSparkError, match=r"\[BOOKIE_DECODE\] entry 2 of ledger 1: .*decode=raw"):
        list(decoded_batches([pulsar_chunk()], PulsarDecoder(), schema(decode="pulsar"), 10, strict=True))


def dlog_chunk():
    payloads = [
        dlog_entries.entry(dlog_entries.record(10, b"one", 1), dlog_entries.record_set(11, [b"two", b""], 2)),
        dlog_entries.entry(dlog_entries.control(11, 3)),
        b"no record",
        b"",
    ]
    entries = [LedgerEntry(1, number, 0, payload) for number, payload in enumerate(payloads)]
    return Chunk(ledger(1, 4, starts=(0, 2)), entries, [RowOrigin("b", 1, 5)] * 4, [None, None, None, "lost"])


def test_log_records_are_rows():
    wanted = schema(decode="dlog", failOnDataLoss="false", includeMetadata="true")
    made = list(decoded_batches([dlog_chunk()], DlogDecoder(), wanted, 10, strict=False))
    assert all(each.schema == wanted for each in made)
    rows = [found for each in made for found in each.to_pylist()]
    columns = ["transaction_id", "value", "stream", "ledger_id", "entry_id", "slot_id", "position"]
    assert [tuple(each[name] for name in columns) for each in rows] == [
        (10, b"one", None, 1, 0, 0, 1),
        (11, b"two", None, 1, 0, 1, 2),
        (11, b"", None, 1, 0, 2, 3),
        (None, b"no record", None, 1, 2, None, None),
        (None, None, None, 1, 3, None, None),
    ]
    assert [each["_metadata"]["fragment"] for each in rows] == [0, 0, 0, 2, 2]
    assert {each["_metadata"]["bookie"] for each in rows} == {"b"}
    told = (
        "[BOOKIE_DECODE] entry 2 of ledger 1: it is not an entry of a DistributedLog log: its envelope has version 110"
    )
    assert [each["_corrupt"] for each in rows] == [None, None, None, told, "lost"]


@pytest.mark.parametrize("decode", ["raw", "pulsar"])
def test_what_is_archived_was_verified_by_no_digest_and_lay_in_no_fragment(decode):
    there = ArchivedLedger(1, "file:///a", "u", (), Counts(1, 1, 0, 0))
    chunk = Chunk(without_bookies(1, DigestType.MAC, None, there), [LedgerEntry(1, 0, 0, entry(b"x"))])
    wanted = schema(decode=decode, includeMetadata="true")
    made = (
        batches([chunk], wanted, 10)
        if decode == "raw"
        else decoded_batches([chunk], PulsarDecoder(), wanted, 10, strict=True)
    )
    ((row,),) = [each.to_pylist() for each in made]
    assert set(row["_metadata"].values()) == {None}


def test_what_is_no_log_record_ends_a_strict_read():
    with pytest.raises(PodkeeperSparkError, match=r"\[BOOKIE_DECODE\] entry 2 of ledger 1: .*decode=raw"):
        list(decoded_batches([dlog_chunk()], DlogDecoder(), schema(decode="dlog"), 10, strict=True))


ANY = st.lists(st.binary(max_size=40), min_size=1, max_size=12)
OF_ONE_SIZE = st.integers(0, 40).flatmap(
    lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=12)
)


@given(
    payloads=ANY | OF_ONE_SIZE, in_front=st.binary(max_size=9), cut=st.tuples(st.integers(0, 11), st.integers(1, 12))
)
def test_they_are_those_of_the_entries(payloads, in_front, cut):
    batch, expected = batch_of(payloads, in_front)
    wanted = [len(each) for each in payloads], b"".join(payloads), [entry.lac for entry in expected]
    assert taken(batch) == taken(expected) == wanted
    start, stop = min(cut[0], len(batch) - 1), max(cut[0] + 1, cut[1])
    assert taken(batch[start:stop]) == taken(expected[start:stop])


@pytest.mark.parametrize("sizes", [[LARGE, LARGE + 1], [3 * LARGE, 0, 1]])
def test_large_ones_of_different_sizes(monkeypatch, sizes):
    monkeypatch.setattr(arrow._Packed, "_gathered", lambda self: pytest.fail("large payloads are not gathered"))
    batch, expected = batch_of([bytes([number + 1]) * size for number, size in enumerate(sizes)])
    assert taken(batch) == taken(expected)
