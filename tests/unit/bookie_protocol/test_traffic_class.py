"""The mark of the traffic class `batch` in both dialects: what bears it is the same read; the rest has not changed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_client.connection.dialect_v2 import V2Dialect
from bookie_client.connection.dialect_v3 import V3Dialect
from bookie_protocol.traffic_class import CONTEXT_KEY, TrafficClass, is_batch
from bookie_protocol.wire import bookkeeper_pb2 as pb
from bookie_protocol.wire import v2, v3, v3_encode, v3_hot
from bookie_protocol.wire.v2 import Flag
from tests.support.v3_frames import ID, TXN, hot_read

KEY = bytes(range(20))
SMALL = st.integers(min_value=0, max_value=2**40)
MARK = bytes.fromhex("c20c1f 0a16") + b"podkeeper.trafficClass" + bytes.fromhex("1205") + b"batch"
"""Field 200 of a request: a pair of key (1) and value (2)."""


def test_the_bytes_of_both_dialects():
    ids = bytes.fromhex("0000000000000007 0000000000000003")
    _, marked = V2Dialect().read(1, 7, 3, batch_class=True)
    assert marked == bytes.fromhex("00000014 02020008") + ids
    _, marked = V2Dialect().batch_read(11, 7, 0, 10, 1 << 20, recovery=False, batch_class=True)
    assert marked[:8] == bytes.fromhex("00000028 02070008")
    plain = bytes.fromhex("0a06 08031001 1801 a20604 08071003")
    assert V3Dialect().read(1, 7, 3)[1] == bytes.fromhex("0000000f") + plain
    assert V3Dialect().read(1, 7, 3, batch_class=True)[1] == bytes((0, 0, 0, 15 + len(MARK))) + plain + MARK


def test_what_is_not_marked_has_the_bytes_it_always_had():
    """The worked frames of the protocol's page."""
    assert V2Dialect().read(1, 7, 3)[1] == bytes.fromhex("00000014 02020000 0000000000000007 0000000000000003")
    batch = V2Dialect().batch_read(11, 7, 0, 10, 1 << 20, recovery=False)[1]
    assert batch == bytes.fromhex(
        "00000028 02070000 0000000000000007 0000000000000000 000000000000000b 0000000a 0000000000100000"
    )
    for dialect in (V2Dialect(), V3Dialect()):
        assert dialect.read(1, 7, 3) == dialect.read(1, 7, 3, batch_class=False)


@pytest.mark.parametrize("dialect", [V2Dialect(), V3Dialect()], ids=["v2", "v3"])
def test_priority_is_never_marked_and_the_key_finds_the_answer(dialect):
    assert dialect.read(1, 7, 3, recovery=True, batch_class=True) == dialect.read(1, 7, 3, recovery=True)
    assert dialect.read(1, 7, 3, batch_class=True)[0] == dialect.read(1, 7, 3)[0]


def test_version_2_carries_it_beside_what_else_a_read_says():
    request = v2.decode_request(v2.encode_read_request(7, 3, Flag.BATCH_CLASS | Flag.DO_FENCING, KEY)[4:])
    assert (request.flags, request.master_key) == (Flag.BATCH_CLASS | Flag.DO_FENCING, KEY)


@given(TXN, ID, ID)
def test_a_marked_read_of_version_3_is_the_same_read(txn, ledger_id, entry_id):
    plain = v3.parse_request(v3_encode.read_request(txn, ledger_id, entry_id)[4:])
    marked = v3.parse_request(v3_encode.read_request(txn, ledger_id, entry_id, v3_encode.BATCH_CLASS)[4:])
    assert (is_batch(plain), is_batch(marked)) == (False, True)
    marked.ClearField("requestContext")
    assert marked == plain


@given(SMALL, SMALL, SMALL)
def test_the_hot_decoder_leaves_marked_reads_to_the_cold_path(txn, ledger_id, entry_id):
    plain = v3_encode.read_request(txn, ledger_id, entry_id)
    marked = v3_encode.read_request(txn, ledger_id, entry_id, v3_encode.BATCH_CLASS)
    v3_hot._read_shapes.clear()
    for _ in range(2):
        assert hot_read(plain, 4, len(plain)) is not None
        assert hot_read(marked, 4, len(marked)) is None


@pytest.mark.parametrize(
    ("pairs", "batch"),
    [
        ([], False),
        ([("trace", "x"), (CONTEXT_KEY, "batch")], True),
        ([(CONTEXT_KEY, "online")], False),
        ([(CONTEXT_KEY, "a class of later")], False),
        ([("batch", CONTEXT_KEY)], False),
    ],
)
def test_what_counts_as_the_mark(pairs, batch):
    request = pb.Request(requestContext=[pb.ContextPair(key=key, value=value) for key, value in pairs])
    assert is_batch(request) is batch


def test_the_names_of_the_classes():
    assert [str(each) for each in TrafficClass] == ["online", "batch"]
