"""Frames: cutting a stream, limits, and cost."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_protocol.errors import ProtocolViolation
from bookie_protocol.wire.framing import DEFAULT_MAX_FRAME_SIZE, FrameReader, frame
from tests.support import golden_frames

BODIES = st.lists(st.binary(min_size=1, max_size=60), max_size=12)


@given(BODIES, st.lists(st.integers(1, 40), min_size=1, max_size=100))
def test_pieces_of_any_size_give_the_same_frames(bodies, sizes):
    stream = b"".join(map(frame, bodies))
    reader = FrameReader()
    found = []
    position = 0
    for index in range(len(stream)):
        size = sizes[index % len(sizes)]
        found += reader.feed(stream[position : position + size])
        position += size
        if position >= len(stream):
            break
    assert found == bodies
    assert reader.pending == 0


def test_frames_that_nobody_took_come_first_the_next_time():
    reader = FrameReader()
    first = reader.feed(frame(b"one") + frame(b"two") + b"\0\0")
    assert next(first) == b"one"
    assert list(reader.feed(b"\0\5three")) == [b"two", b"three"]
    assert list(first) == []


@pytest.mark.parametrize("length", [0, 0xFFFFFFFF, 0x80000000, DEFAULT_MAX_FRAME_SIZE - 3])
def test_an_illegal_length_is_refused_at_its_fourth_byte(length):
    reader = FrameReader()
    word = length.to_bytes(4)
    assert list(reader.feed(word[:3])) == []
    with pytest.raises(ProtocolViolation, match=f"length {length}"):
        list(reader.feed(word[3:]))
    with pytest.raises(ProtocolViolation):
        list(reader.feed(b"more"))


def test_frames_in_front_of_an_illegal_length_are_handed_out():
    frames = FrameReader().feed(frame(b"good") + bytes(4))
    assert next(frames) == b"good"
    with pytest.raises(ProtocolViolation):
        next(frames)


def test_the_largest_legal_frame_passes():
    body = bytes(DEFAULT_MAX_FRAME_SIZE - 4)
    assert list(FrameReader().feed(frame(body))) == [body]


@pytest.mark.parametrize("case", ["v2_zero_length_frame", "v2_oversize_length", "v2_negative_length"])
def test_what_made_the_reference_close_the_connection(case):
    (found,) = [item for item in golden_frames.edge_cases() if item["case"] == case]
    assert found["closedByBookie"]
    with pytest.raises(ProtocolViolation):
        list(FrameReader().feed(found["sent"][0]))


def test_a_large_frame_in_small_pieces_costs_linear_time():
    # 5 MB in 512-byte pieces: copying the buffer at every piece would move 26 GB.
    body = bytes(DEFAULT_MAX_FRAME_SIZE - 4)
    stream = memoryview(frame(body))
    reader = FrameReader()
    began = time.perf_counter()
    found = [item for at in range(0, len(stream), 512) for item in reader.feed(stream[at : at + 512])]
    assert time.perf_counter() - began < 2
    assert found == [body]
