"""Bytes to entries and back."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_client import LedgerEntry
from bookie_pod.cli.entry_formats import INPUT_FORMATS, OUTPUT_FORMATS, encoder, splitter
from bookie_protocol.errors import BadRequest

BIG = 1 << 20


def cut(data, sizes):
    """`data` in pieces of these sizes, the last one with the rest."""
    pieces, start = [], 0
    for size in sizes:
        pieces.append(data[start : start + size])
        start += size
    return [piece for piece in [*pieces, data[start:]] if piece]


def split(name, data, sizes=(), size=3, max_bytes=BIG):
    reading = splitter(name, size, max_bytes)
    entries = [entry for piece in cut(data, sizes) for entry in reading.feed(piece)]
    return entries + reading.end()


def put_out(name, payloads):
    return encoder(name)([LedgerEntry(7, i, 0, payload) for i, payload in enumerate(payloads)])


@given(st.binary(max_size=60), st.lists(st.integers(1, 9), max_size=12))
def test_lines_are_those_of_the_stream_however_it_arrives(data, sizes):
    expected = data.split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    lines = split("lines", data, sizes)
    assert lines == expected
    written = put_out("lines", lines)
    assert written == data or written == data + b"\n"


@given(st.binary(max_size=60), st.lists(st.integers(1, 9), max_size=12), st.integers(1, 20))
def test_fixed_entries_have_the_size_and_the_bytes_of_the_stream(data, sizes, size):
    entries = split("fixed", data, sizes, size)
    assert all(len(entry) == size for entry in entries[:-1])
    assert b"" not in entries
    assert put_out("raw", entries) == data


@given(st.lists(st.binary(max_size=20), max_size=12), st.lists(st.integers(1, 9), max_size=30))
def test_prefixed_entries_come_back(payloads, sizes):
    data = put_out("prefixed", payloads)
    assert split("prefixed", data, sizes) == payloads


@given(st.binary(max_size=60), st.lists(st.integers(1, 9), max_size=12))
def test_the_whole_is_one_entry(data, sizes):
    assert split("whole", data, sizes) == [data]


def test_an_empty_stream_has_no_entries():
    assert [split(name, b"") for name in ("lines", "fixed", "prefixed")] == [[], [], []]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("lines", b"ab\n" + b"c" * 11, "line 2 is"),
        ("prefixed", struct.pack(">I", 11) + b"x", "says 11 bytes"),
        ("prefixed", struct.pack(">I", 2) + b"ab\0\0", "byte 6"),
        ("whole", b"x" * 11, "the 10 bytes"),
    ],
)
def test_what_fits_no_entry_is_refused_with_its_place(name, data, message):
    with pytest.raises(BadRequest, match=message):
        split(name, data, (3, 3), max_bytes=10)


def test_json_has_one_object_a_line():
    lines = put_out("json", [b"a\n", b"\xff"]).splitlines()
    assert [json.loads(line) for line in lines] == [
        {"ledger_id": 7, "entry_id": 0, "ledger_length": 0, "payload_base64": "YQo="},
        {"ledger_id": 7, "entry_id": 1, "ledger_length": 0, "payload_base64": "/w=="},
    ]


def test_the_command_line_offers_what_there_is():
    from bookie_pod.cli.ledger import commands

    assert (commands.INPUT_FORMATS, commands.OUTPUT_FORMATS) == (INPUT_FORMATS, OUTPUT_FORMATS)
