"""Fuzz: the decoders that do without message objects agree with protobuf on every input, or leave it to protobuf;
detection and parsing never raise anything but the error that closes the connection."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bookie_protocol.errors import ProtocolViolation
from bookie_protocol.wire import v3, v3_hot
from tests.support import golden_frames
from tests.support.mutations import mutated
from tests.support.v3_frames import add_frames, hot_add, hot_read, parsed_add, parsed_read, read_frames

REQUESTS = [item.body for item in golden_frames.exchanged("request") if item.is_v3]
RESPONSES = [item.body for item in golden_frames.exchanged("response") if item.is_v3]
BODIES = st.one_of(st.sampled_from(REQUESTS), add_frames().map(lambda f: f[4:]), read_frames().map(lambda f: f[4:]))


def agree(body: bytes) -> bool:
    """Checks both decoders on one frame body; True when one of them took it."""
    buffer = b"before" + body + b"behind"
    start, end = 6, 6 + len(body)
    taken = False
    for _ in range(2):
        add = hot_add(buffer, start, end)
        if add is not None:
            assert add == parsed_add(body)
            taken = True
        read = hot_read(buffer, start, end)
        if read is not None:
            assert read == parsed_read(body)
            taken = True
    return taken


@settings(max_examples=600, suppress_health_check=[HealthCheck.too_slow])
@given(st.data(), BODIES)
def test_hot_decoders_agree_with_protobuf(data, body):
    # The good frame first, so that its shape is known when the damaged one comes.
    agree(body)
    agree(data.draw(mutated(body)))


@pytest.mark.parametrize("each", [8, pytest.param(1, marks=pytest.mark.slow)], ids=["every eighth", "all"])
@pytest.mark.parametrize("golden", REQUESTS, ids=lambda body: body.hex()[:40])
def test_every_single_byte_change_in_the_head_agrees(golden, each):
    """Of every eighth value at each place, other ones at the next place, and whatever one bit makes of it."""
    agree(golden)
    for at in range(min(len(golden), 64)):
        for value in {*range(at % each, 256, each), *(golden[at] ^ 1 << bit for bit in range(8))}:
            agree(golden[:at] + bytes((value,)) + golden[at + 1 :])


@pytest.mark.parametrize("golden", REQUESTS, ids=lambda body: body.hex()[:40])
def test_every_truncation_and_extension_agrees(golden):
    for size in range(len(golden)):
        agree(golden[:size])
    for extra in (b"\0", b"\x28\1", b"\xa0\6\1", b"\x28\1\xa0\6\1", golden, b"\x20\x64"):
        agree(golden + extra)


@settings(max_examples=250)
@given(st.binary(max_size=120))
def test_random_bytes(body):
    agree(body)


@settings(max_examples=400)
@given(st.sampled_from(RESPONSES).flatmap(mutated) | st.binary(max_size=80))
def test_responses_raise_nothing_else(body):
    try:
        response = v3.parse_response(body)
    except ProtocolViolation:
        return
    assert response.IsInitialized()
    assert v3.parse_response(v3.encode_frame(response)[4:]) == response


@settings(max_examples=250)
@given(st.data(), st.sampled_from(REQUESTS))
def test_detection_raises_nothing_and_what_it_takes_is_whole(data, golden):
    body = data.draw(mutated(golden))
    request = v3.parse_request(body)
    if request is not None:
        assert request.IsInitialized()
        assert v3.parse_request(v3.encode_frame(request)[4:]) == request


def test_nested_groups_do_not_exhaust_the_stack():
    assert v3.parse_request(REQUESTS[0] + b"\xbb\x3e" * 100_000) is None
    assert v3.parse_request(REQUESTS[0] + b"\xbb\x3e" * 50 + b"\xbc\x3e" * 50) is None


def test_the_caches_are_bounded_after_all_this():
    assert len(v3_hot._add_shapes) <= v3_hot.MAX_SHAPES
    assert len(v3_hot._add_families) <= v3_hot.MAX_SHAPES
    assert len(v3_hot._read_layouts) <= v3_hot.MAX_SHAPES
    assert len(v3_hot._read_shapes) < 60
