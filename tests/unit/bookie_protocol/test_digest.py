"""Digests: every golden entry, worked hex of the reference, and what verification must refuse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.errors import BadRequest, DigestMismatch
from bookie_protocol.keys import master_key
from tests.support import golden_frames

GOLDEN = golden_frames.load("digests.json")
TYPES = list(DigestType)
I64 = st.integers(-(2**63), 2**63 - 1)


def test_golden_file_covers_every_type():
    assert {DigestType.parse(case["digestType"]) for case in GOLDEN} == set(DigestType)


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: f"{case['digestType']}-{case['payloadHex'][:8]}")
def test_golden_entry_and_lac_packet(case):
    password = bytes.fromhex(case["passwordUtf8Hex"])
    manager = digest_manager(DigestType.parse(case["digestType"]), password)
    payload = bytes.fromhex(case["payloadHex"])
    ledger_id, entry_id = case["ledgerId"], case["entryId"]
    entry = manager.encode(ledger_id, entry_id, case["lastAddConfirmed"], case["length"], payload)
    packet = manager.encode_lac(ledger_id, 3)
    assert entry.hex() == case["entry"]
    assert packet.hex() == case["lacPacketForLac3"]
    assert master_key(password).hex() == case["masterKey"]
    assert manager.verify(entry, ledger_id, entry_id) == payload
    assert manager.verify_lac(packet, ledger_id) == 3


def test_check_values_of_the_standards():
    crc32, crc32c = (digest_manager(kind, b"") for kind in (DigestType.CRC32, DigestType.CRC32C))
    assert crc32.digest(b"1234", b"56789").hex() == "00000000cbf43926"
    assert crc32c.digest(b"1234", b"56789").hex() == "e3069283"


def test_entry_sizes():
    sizes = {kind: digest_manager(kind, b"").overhead for kind in TYPES}
    assert sizes == {DigestType.CRC32: 40, DigestType.MAC: 52, DigestType.CRC32C: 36, DigestType.DUMMY: 32}


def test_names_and_numbers():
    assert [(kind.name, kind.value, kind.metadata_name) for kind in TYPES] == [
        ("CRC32", 1, "CRC32"),
        ("MAC", 2, "HMAC"),
        ("CRC32C", 3, "CRC32C"),
        ("DUMMY", 4, "DUMMY"),
    ]
    for kind in TYPES:
        assert DigestType.parse(kind.name.lower()) is DigestType.parse(kind.metadata_name) is kind
    with pytest.raises(BadRequest, match=r"'MD5'.*use CRC32"):
        DigestType.parse("MD5")


@given(st.sampled_from(TYPES), I64, I64, I64, I64, st.binary(max_size=300), st.binary(max_size=10))
def test_round_trip_from_every_kind_of_buffer(kind, ledger_id, entry_id, lac, length, payload, password):
    manager = digest_manager(kind, password)
    entry = manager.encode(ledger_id, entry_id, lac, length, payload)
    assert entry == manager.encode(ledger_id, entry_id, lac, length, memoryview(bytearray(payload)))
    assert manager.verify(entry, ledger_id, entry_id) == payload
    assert manager.verify(memoryview(entry), ledger_id, None) == payload
    assert manager.verify(bytearray(entry), ledger_id, entry_id) == payload
    assert manager.verify_lac(memoryview(manager.encode_lac(ledger_id, lac)), ledger_id) == lac


@given(st.sampled_from(TYPES), st.binary(max_size=50), st.data())
def test_one_flipped_bit_is_found(kind, payload, data):
    manager = digest_manager(kind, b"pw")
    entry = bytearray(manager.encode(7, 3, 2, 20, payload))
    # Without a digest only the ids are checked.
    limit = 16 if kind is DigestType.DUMMY else len(entry)
    bit = data.draw(st.integers(0, limit * 8 - 1))
    entry[bit // 8] ^= 1 << bit % 8
    with pytest.raises(DigestMismatch, match="entry 3 of ledger 7"):
        manager.verify(entry, 7, 3)


@pytest.mark.parametrize("kind", TYPES)
def test_every_truncation_is_refused_with_its_size(kind):
    manager = digest_manager(kind, b"")
    entry = manager.encode(7, 3, 2, 20, b"")
    for size in range(len(entry)):
        with pytest.raises(DigestMismatch, match=f"entry 3 of ledger 7: {size} bytes"):
            manager.verify(entry[:size], 7, 3)
    with pytest.raises(DigestMismatch, match="of 15 bytes"):
        manager.verify_lac(manager.encode_lac(7, 3)[:15], 7)


@pytest.mark.parametrize("kind", TYPES)
def test_an_undamaged_entry_of_another_place_is_refused_by_name(kind):
    manager = digest_manager(kind, b"")
    entry = manager.encode(7, 3, 2, 20, b"payload")
    with pytest.raises(DigestMismatch, match=r"entry 3 of ledger 8: .*ledger 7"):
        manager.verify(entry, 8, 3)
    with pytest.raises(DigestMismatch, match=r"entry 4 of ledger 7: .*entry 3"):
        manager.verify(entry, 7, 4)
    with pytest.raises(DigestMismatch, match="of ledger 8"):
        manager.verify(entry, 8, None)
    with pytest.raises(DigestMismatch, match=r"LAC .*ledger 7"):
        manager.verify_lac(manager.encode_lac(7, 3), 8)


def test_a_wrong_digest_is_named_but_never_a_right_mac():
    crc = digest_manager(DigestType.CRC32C, b"")
    entry = crc.encode(7, 3, 2, 20, b"hello")
    with pytest.raises(DigestMismatch, match=r"CRC32C.*e9857074"):
        crc.verify(entry[:-1] + b"0", 7, 3)
    mine, other = digest_manager(DigestType.MAC, b"mine"), digest_manager(DigestType.MAC, b"other")
    with pytest.raises(DigestMismatch) as caught:
        mine.verify(other.encode(7, 3, 2, 20, b"hello"), 7, 3)
    right = mine.encode(7, 3, 2, 20, b"hello")[32:52].hex()
    assert right not in str(caught.value)
    assert "another password" in str(caught.value)
