"""Adds as frames and as what the frames say: both are the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_protocol.digest import DigestType
from bookie_protocol.wire import v3_encode
from bookie_protocol.wire.add_frames import added_answers
from bookie_protocol.wire.v3_hot import decode_add_request
from tests.support.add_frames import add_frames
from tests.support.frames import cut

LEDGER = 300
KEY = bytes(range(1, 21))
EDGES = (1 << 7, 1 << 14, 1 << 21, 1 << 28, 1 << 35)
NUMBER = st.integers(0, 2**40) | st.builds(lambda edge, back: edge - back, st.sampled_from(EDGES), st.integers(0, 40))
"""Ids, often such that they get longer on the way."""


@given(
    bodies=st.lists(st.binary(max_size=40), min_size=1, max_size=60),
    first=NUMBER,
    txn=NUMBER,
    lac=st.integers(-1, 2**40),
    digest_type=st.sampled_from(list(DigestType)),
)
def test_what_frames_say_is_what_is_decoded_from_them(bodies, first, txn, lac, digest_type):
    adds = add_frames(LEDGER, KEY, first, bodies, lac=lac, txn=txn, digest_type=digest_type)
    decoded = []
    for frame in cut(adds.frames):
        fields = decode_add_request(frame, 4, len(frame))
        assert fields is not None
        answer, ledger_id, entry_id, carried, key, begin, end, flags = fields
        decoded.append((answer, entry_id, frame[begin:end]))
        assert (ledger_id, key, carried, flags) == (LEDGER, KEY, lac, 0)
    assert [entry_id for _, entry_id, _ in decoded] == [*range(first, first + len(bodies))]
    assert [entry for _, _, entry in decoded] == adds.entries(adds.common)
    assert b"".join(answer for answer, _, _ in decoded) == added_answers(
        LEDGER, adds.common.txns, adds.common.entry_ids
    )
    assert adds.common[:4] == (LEDGER, KEY, first, lac)


@given(bodies=st.lists(st.binary(max_size=40), min_size=1, max_size=20), flags=st.sampled_from([0, 4, 0x10000]))
def test_sizes_are_those_of_the_frames(bodies, flags):
    adds = add_frames(LEDGER, KEY, 0, bodies, flags=flags)
    assert len(adds) == len(adds.frames)
    assert max(map(len, cut(adds.frames))) <= adds.longest
    assert adds.frames is adds.frames  # joined once


@pytest.mark.parametrize("flags", [v3_encode.RECOVERY_ADD, v3_encode.HIGH_PRIORITY, v3_encode.DEFERRED_SYNC])
def test_adds_with_flags_are_frames_only(flags):
    adds = add_frames(LEDGER, KEY, 0, [b"one", b"two"], flags=flags)
    assert adds.common is None
    assert len(cut(adds.frames)) == 2
