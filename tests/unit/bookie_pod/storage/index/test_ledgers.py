"""The ledger index: `LedgerData` bytes, loading, keys, dirty sets, flags."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_pod.storage.index import ledger_data
from bookie_pod.storage.index.ledger_data import (
    MAX_EXPLICIT_LAC_BYTES,
    MAX_KEY_BYTES,
    LedgerRecord,
    Shared,
    check_storable,
    decode,
    encode,
)
from bookie_pod.storage.index.ledgers import FLAGS_KEY, NEEDS_INTEGRITY_CHECK, LedgerIndex
from bookie_pod.storage.index.store import OrderedStore, StoreKind
from bookie_protocol.errors import BadRequest, StorageFault, Unauthorized
from tests.support.memory_store import MemoryStores

GOLDEN = json.loads((Path(__file__).parents[4] / "golden/disk-db/rocksdb.json").read_text())
ROWS = [(bytes.fromhex(row["key"]), bytes.fromhex(row["value"])) for row in GOLDEN["ledgers"]["rows"]]
KEY = bytes(range(20))


def _store(*rows: tuple[bytes, bytes]) -> OrderedStore:
    store = MemoryStores().open("/ledgers", StoreKind.LEDGERS)
    batch = store.batch()
    for key, value in rows:
        batch.put(key, value)
    batch.commit()
    return store


def _id(ledger_id: int) -> bytes:
    return struct.pack(">q", ledger_id)


def test_rows_of_the_reference_are_read_and_written_byte_for_byte() -> None:
    index = LedgerIndex(_store(*ROWS))
    wanted = [(key, value) for key, value in ROWS if key[0] < 0x80]
    assert len(index) == len(wanted) > 0
    store = _store()
    copy = LedgerIndex(store)
    for ledger_id in index.ledger_ids():
        record = index.get(ledger_id)
        assert record is not None
        copy.put(ledger_id, record)
    copy.write(copy.records(copy.take_dirty()))
    assert list(store.scan()) == wanted


def test_worked_examples_of_the_reference() -> None:
    lac = bytes(20)
    assert encode(LedgerRecord(KEY)) == bytes.fromhex("080110001a14") + KEY
    full = LedgerRecord(KEY, fenced=True, limbo=True, explicit_lac=lac)
    assert encode(full) == bytes.fromhex("080110011a14") + KEY + bytes.fromhex("2214") + lac + bytes.fromhex("2801")


@given(st.binary(max_size=300), st.booleans(), st.booleans(), st.one_of(st.none(), st.binary(max_size=300)))
def test_ledger_data_round_trip(key: bytes, fenced: bool, limbo: bool, lac: bytes | None) -> None:
    record = LedgerRecord(key, fenced, limbo, lac)
    assert decode(encode(record)) == record


@given(st.binary(max_size=80))
def test_arbitrary_bytes_are_decoded_or_refused(data: bytes) -> None:
    try:
        record = decode(data)
    except StorageFault:
        return
    assert decode(encode(record)) == record


@pytest.mark.parametrize(
    "value",
    [
        b"",
        bytes.fromhex("08011000"),  # no master key
        bytes.fromhex("08011a00"),  # no fenced
        bytes.fromhex("10001a00"),  # no exists
        bytes.fromhex("080110001a14") + bytes(19),  # cut off
        bytes.fromhex("08011000") + bytes.fromhex("1801"),  # master key as a varint
    ],
)
def test_a_row_that_does_not_parse_fails_the_start_and_names_the_ledger(value: bytes) -> None:
    with pytest.raises(StorageFault, match="ledger 77"):
        LedgerIndex(_store((_id(77), value)))


def test_unknown_fields_and_other_orders_are_accepted() -> None:
    value = (
        bytes.fromhex("1a03")
        + b"key"
        + bytes.fromhex("1001 0801 3a0178 31")
        + bytes(8)
        + bytes.fromhex("45")
        + bytes(4)
    )
    assert decode(value) == LedgerRecord(b"key", fenced=True)


def test_long_keys_of_the_repair_tool_are_read_and_replaced() -> None:
    both = [(_id(1), encode(LedgerRecord(KEY))), (_id(1) + bytes(8), encode(LedgerRecord(b"", fenced=True)))]
    store = _store(*both, (_id(2) + bytes(8), encode(LedgerRecord(b"", fenced=True))))
    index = LedgerIndex(store)
    assert index.get(1) == LedgerRecord(KEY)
    assert index.get(2) == LedgerRecord(b"", fenced=True)
    assert index.set_master_key(2, KEY) == LedgerRecord(KEY, fenced=True)
    index.delete(1)
    index.write(index.records(index.take_dirty()))
    assert [key for key, _ in store.scan()] == [_id(2)]


def test_negative_ids_are_no_ledgers_and_other_lengths_are_damage() -> None:
    assert LedgerIndex(_store((FLAGS_KEY, _id(0)))).ledger_ids() == []
    with pytest.raises(StorageFault, match="9 bytes"):
        LedgerIndex(_store((b"\0" * 9, encode(LedgerRecord(KEY)))))


def test_ledgers_that_differ_only_in_their_id_share_one_record() -> None:
    index = LedgerIndex(_store(*((_id(n), encode(LedgerRecord(KEY))) for n in range(100))))
    assert len({id(index.get(n)) for n in range(100)}) == 1
    index.put(5, LedgerRecord(bytes(KEY)))
    assert index.get(5) is index.get(6)


def test_the_dirty_set_is_taken_once_and_written_with_the_newest_record() -> None:
    store = _store()
    index = LedgerIndex(store)
    index.set_master_key(1, KEY)
    index.set_master_key(2, KEY)
    dirty = index.take_dirty()
    assert dirty == {1, 2}
    assert index.take_dirty() == set()
    index.put(1, LedgerRecord(KEY, fenced=True))
    index.delete(2)
    index.write(index.records(dirty))
    assert LedgerIndex(store).get(1) == LedgerRecord(KEY, fenced=True)
    assert LedgerIndex(store).get(2) is None
    assert index.take_dirty() == {1, 2}


def test_setting_a_key_that_changes_nothing_writes_nothing() -> None:
    index = LedgerIndex(_store((_id(1), encode(LedgerRecord(KEY)))))
    index.set_master_key(1, KEY)
    index.set_master_key(1, b"")
    index.delete(9)
    assert index.take_dirty() == set()


def test_flags() -> None:
    store = _store()
    index = LedgerIndex(store)
    assert index.flags() == 0
    index.set_flags(NEEDS_INTEGRITY_CHECK)
    assert LedgerIndex(store).flags() == NEEDS_INTEGRITY_CHECK
    with pytest.raises(StorageFault, match="flags 0x2"):
        LedgerIndex(_store((FLAGS_KEY, _id(2))))


def test_a_row_of_flags_that_has_another_length_is_a_fault() -> None:
    with pytest.raises(StorageFault, match=r"flags .* 5 bytes"):
        LedgerIndex(_store((FLAGS_KEY, b"short")))


@pytest.mark.parametrize("length", [0, 1, 127, 128, 200, 16_383, 16_384])
def test_lengths_that_take_more_than_a_byte(length: int) -> None:
    for record in (LedgerRecord(b"k" * length), LedgerRecord(b"k", True, True, b"l" * length)):
        assert decode(encode(record)) == record


def test_a_varint_has_an_end() -> None:
    with pytest.raises(StorageFault, match=r"\bten\b"):
        decode(bytes.fromhex("08011000 1a00 38") + b"\x80" * 10 + b"\1")
    assert decode(bytes.fromhex("08011000 1a00 38") + b"\x80" * 9 + b"\1").key == b""


def test_a_key_is_refused_that_is_another_or_longer_than_a_bookie_takes() -> None:
    index = LedgerIndex(_store((_id(1), encode(LedgerRecord(KEY)))))
    with pytest.raises(Unauthorized):
        index.set_master_key(1, bytes(19) + b"x")
    with pytest.raises(BadRequest, match=f"key of {MAX_KEY_BYTES + 1} bytes"):
        index.set_master_key(2, b"k" * (MAX_KEY_BYTES + 1))
    assert index.take_dirty() == set()
    assert index.set_master_key(2, b"k" * MAX_KEY_BYTES).key == b"k" * MAX_KEY_BYTES
    assert index.set_master_key(3, bytes(20)) == LedgerRecord(bytes(20))
    assert index.set_master_key(3, KEY) == LedgerRecord(KEY), "nobody had told one"


def test_an_explicit_lac_is_no_longer_than_a_bookie_takes() -> None:
    check_storable(KEY, b"l" * MAX_EXPLICIT_LAC_BYTES)
    check_storable(KEY, None)
    with pytest.raises(BadRequest, match=f"an explicit LAC of {MAX_EXPLICIT_LAC_BYTES + 1} bytes"):
        check_storable(KEY, b"l" * (MAX_EXPLICIT_LAC_BYTES + 1))


def test_what_is_shared_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_data, "_MOST_SHARED", 2)
    shared = Shared[bytes]()
    first = [shared(bytes([number]) * 3) for number in range(4)]
    again = [shared(bytes([number]) * 3) for number in range(4)]
    assert again == first
    assert [one is other for one, other in zip(first, again, strict=True)] == [True, True, False, False]
