"""A ledger's record is read the same from its usual fields in their usual order as from any fields."""

from __future__ import annotations

from dataclasses import astuple

from hypothesis import given
from hypothesis import strategies as st

from bookie_pod.storage.index import ledger_data
from bookie_pod.storage.index.ledger_data import LedgerRecord, decode, encode
from bookie_protocol.errors import StorageFault
from bookie_protocol.keys import life_of, life_of_copies, with_unnamed

NAMED = st.builds(
    lambda make, token: make(token), st.sampled_from([life_of, life_of_copies]), st.integers(0, 2**64 - 1)
)
LIVES = NAMED | NAMED.map(with_unnamed)
RECORDS = st.builds(
    LedgerRecord,
    st.sampled_from([b"", b"k", bytes(20), b"k" * 127, b"k" * 128]),
    st.booleans(),
    explicit_lac=st.none() | st.just(b"lac"),
    first_log=st.integers(0, 2**31 - 1),
    life=LIVES,
)


@given(RECORDS)
def test_what_was_written_is_read(record: LedgerRecord) -> None:
    assert astuple(decode(encode(record))) == astuple(record)


@given(RECORDS, st.data())
def test_damage_is_read_alike(record: LedgerRecord, data: st.DataObject) -> None:
    value = bytearray(encode(record))
    at = data.draw(st.integers(0, len(value) - 1))
    if data.draw(st.booleans()):
        del value[at:]
    else:
        value[at] = data.draw(st.integers(0, 255))
    assert _read(decode, bytes(value)) == _read(ledger_data._decode_fields, bytes(value))


def _read(read, value: bytes) -> object:
    try:
        return astuple(read(value))
    except StorageFault:
        return StorageFault
