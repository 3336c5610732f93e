"""Entries of Pulsar topics as messages."""

from __future__ import annotations

import base64
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_bookie.common.errors import UndecodableEntry
from pyspark_bookie.source import pulsar
from pyspark_bookie.source.pulsar import MAX_MESSAGES, MAX_TIME, Fields, Message, PulsarDecoder, messages, topic_of
from tests.support.pulsar_entries import COMPRESSIONS, batch, entry, properties
from tests.support.pulsar_metadata import message

TIME = 1_700_000_000_000


def test_one_message_that_was_not_sent_in_a_batch():
    made = entry(b"value", (6, "key"), (12, 99), *properties(4, {"a": "1", "b": ""}))
    assert messages(made) == [Message("key", b"value", TIME, 99, {"a": "1", "b": ""}, None)]


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("broker_metadata", [None, b"", message((1, 5), (2, 6))])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_batch_in_every_wrapping(compression, checksum, broker_metadata):
    payload = batch([b"one", b"", b"x" * 1000], [(2, "k"), (5, 42), *properties(1, {"p": "q"})], [(9, 1), (10, 1)])
    made = entry(payload, (11, 3), compression=compression, checksum=checksum, broker_metadata=broker_metadata)
    assert messages(made) == [
        Message("k", b"one", TIME, 42, {"p": "q"}, 0),
        Message(None, None, TIME, None, {}, 1),
        Message(None, b"x" * 1000, TIME, None, {}, 2),
    ]


def test_a_batch_of_one_is_a_batch():
    assert messages(entry(batch([b"one"]), (11, 1))) == [Message(None, b"one", TIME, None, {}, 0)]


def test_what_is_no_message_is_left_out():
    assert messages(entry(b"", (20, 21))) == [], "a transaction's marker"
    found = messages(entry(batch([b"gone", b"there"], [(4, 1)]), (11, 2)))
    assert [(each.value, each.batch_index) for each in found] == [(b"there", 1)]


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (entry(b"x", (13, message((1, "k"), (2, b"secret")))), "encrypted"),
        (entry(b"x", (27, 3), (29, 1)), "chunk 2 of 3"),
        (entry(b"x", (8, 9)), "compression 9 is"),
        (entry(b"value")[:-1] + b"?", "checksum"),
        (b"just some bytes", "metadata of "),
        (b"", "Pulsar"),
        (entry(b"x", (8, 2), (9, 5)), "Pulsar"),
        (entry(batch([b"one"]), (11, 2)), "Pulsar"),
        (entry(batch([b"one", b"two"])[:-1], (11, 2)), "message 1 of"),
        (entry(b"x", (8, 3), (9, 2**40)), "uncompressed"),
        *[
            (entry(b"value" * 9, (9, size), compression=name), "it is not an entry of a Pulsar topic")
            for name in ("lz4", "zlib", "zstd", "snappy")
            for size in (44, 46)
        ],
    ],
)
def test_what_cannot_be_decoded_says_why(made, told):
    with pytest.raises(UndecodableEntry, match=re.escape(told)):
        messages(made)


def test_fields_of_every_width_are_passed_over_and_groups_refused():
    """Later releases may have fields that nobody here knows."""
    wide = bytes([5 << 3 | 1]) + b"\x0b" * 8 + bytes([6 << 3 | 5]) + b"\x0b" * 4
    assert Fields(wide + message((7, 9))).integer(7) == 9
    for damaged, told in ((wide[:-1], "field 6 ends"), (message((2, b"ab"))[:-1], "field 2 ends"), (b"\x0b", "type 3")):
        with pytest.raises(ValueError, match=told):
            Fields(damaged)


def test_numbers_have_at_most_ten_bytes():
    assert Fields(b"\x38" + b"\xff" * 9 + b"\x01").integer(7) == 2**64 - 1
    for damaged in (b"\x80", b"\x38\xff", b"\x38" + b"\xff" * 10 + b"\x01"):
        with pytest.raises(ValueError, match="number"):
            Fields(damaged)


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(data):
    try:
        messages(data)
    except UndecodableEntry:
        pass


@given(st.data())
def test_a_damaged_entry_is_decoded_or_refused(data):
    good = entry(batch([b"one", b"two"]), (11, 2), compression="zlib", checksum=False)
    place = data.draw(st.integers(0, len(good) - 1))
    damaged = good[:place] + bytes([data.draw(st.integers(0, 255))]) + good[place + 1 :]
    try:
        messages(damaged)
    except UndecodableEntry:
        pass


def test_topics():
    assert topic_of("tenant/ns/persistent/orders") == "persistent://tenant/ns/orders"
    assert topic_of("a-stream") == "a-stream"
    assert topic_of(None) is None


def test_a_time_that_spark_cannot_hold_is_told_of_the_entry():
    """`event_time` is any number that the producer likes, such as nanoseconds."""
    with pytest.raises(UndecodableEntry, match="Spark"):
        messages(entry(b"x", (12, TIME * 1_000_000)))
    (there,) = messages(entry(b"x", (12, MAX_TIME)))
    assert PulsarDecoder().columns(there)["event_time"] < 1 << 63


def test_what_an_entry_becomes_is_bounded(monkeypatch):
    """A batch of zeros, some KB on the wire, would be tens of millions of messages."""
    made = entry(bytes(4 * (MAX_MESSAGES + 1)), (11, MAX_MESSAGES + 1), compression="zstd")
    assert len(made) < 10_000
    with pytest.raises(UndecodableEntry, match="100001 messages"):
        messages(made)
    monkeypatch.setattr(pulsar, "MAX_MESSAGES", 2)
    assert len(messages(entry(bytes(4 * 2), (11, 2)))) == 2


@pytest.mark.parametrize(("of_batch", "key", "flag"), [(False, 6, 17), (True, 2, 6)])
def test_keys_of_bytes_are_told_from_text_that_looks_the_same(of_batch, key, flag):
    raw = b"\x00\xffk"
    text = base64.b64encode(raw)

    def keys(*fields):
        made = entry(batch([b"v"], fields), (11, 1)) if of_batch else entry(b"v", *fields)
        (found,) = messages(made)
        return found.key, found.key_bytes

    assert keys((key, text), (flag, 1)) == (text.decode(), raw)
    assert keys((key, text)) == keys((key, text), (flag, 0)) == (text.decode(), None)
    assert keys((key, b"\xff\xfe")) == ("\ufffd\ufffd", b"\xff\xfe")
    assert keys((key, "no base64!"), (flag, 1)) == ("no base64!", None)
    assert keys((flag, 1)) == (None, None)


def test_properties_that_are_not_text_end_no_query():
    pair = message((1, b"a\xff"), (2, b"\xfe"))
    (found,) = messages(entry(b"v", (4, pair)))
    assert found.properties == {"a\ufffd": "\ufffd"}
    assert PulsarDecoder().columns(found)["key_bytes"] is None
