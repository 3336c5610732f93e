from __future__ import annotations

import json
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_protocol.digest import DigestType
from bookie_protocol.errors import BadRequest, MetadataDamaged
from bookie_protocol.ledger_metadata.codec import decode_ledger_metadata, encode_ledger_metadata
from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState

GOLDEN = Path(__file__).parents[3] / "golden"
HEADER = b"BookieMetadataFormatVersion\t"


def golden_ledgers() -> Iterator[tuple[str, bytes]]:
    for name in ("znodes-four-bookies", "znodes-under-replication"):
        for node in json.loads((GOLDEN / f"{name}.json").read_text())["znodes"]:
            data = bytes.fromhex(node["dataHex"])
            if data.startswith(HEADER):
                yield node["path"], data


BOOKIES = ("10.0.0.1:3181", "10.0.0.2:3181", "10.0.0.3:3181")
WORKED = LedgerMetadata(
    ledger_id=1,
    ensemble_size=3,
    write_quorum_size=2,
    ack_quorum_size=2,
    ensembles={0: BOOKIES},
    digest_type=DigestType.CRC32C,
    password=b"pw",
    custom_metadata={"application": b"pulsar"},
    creation_token=1234567890,
)
WORKED_V3 = bytes.fromhex(
    "426f6f6b69654d65746164617461466f726d617456657273696f6e09330a6908021003180020ffffffffffffffffff01"
    "2801322f0a0d31302e302e302e313a333138310a0d31302e302e302e323a333138310a0d31302e302e302e333a33313831"
    "10003803420270774802"
    "5a150a0b6170706c69636174696f6e120670756c73617260d285d8cc04"
)
WORKED_V2 = b"""BookieMetadataFormatVersion	2
quorumSize: 2
ensembleSize: 3
length: 4200
lastEntryId: 41
state: CLOSED
segment {
  ensembleMember: "10.0.0.1:3181"
  ensembleMember: "10.0.0.2:3181"
  ensembleMember: "10.0.0.3:3181"
  firstEntryId: 0
}
digestType: CRC32C
password: "pw"
ackQuorumSize: 2
customMetadata {
  key: "application"
  value: "pulsar"
}
"""
WORKED_V1 = b"""BookieMetadataFormatVersion	1
2
3
4200
0	10.0.0.1:3181	10.0.0.2:3181	10.0.0.3:3181
17	10.0.0.1:3181	10.0.0.4:3181	10.0.0.3:3181
41	CLOSED"""


def test_golden_ledgers_come_back_byte_for_byte() -> None:
    ledgers = list(golden_ledgers())
    assert len(ledgers) == 11
    versions = set()
    for path, data in ledgers:
        metadata = decode_ledger_metadata(1, data)
        versions.add(metadata.format_version)
        assert encode_ledger_metadata(metadata) == data, path
    assert versions == {1, 2, 3}


def test_worked_examples() -> None:
    assert encode_ledger_metadata(WORKED) == WORKED_V3
    assert decode_ledger_metadata(1, WORKED_V3) == WORKED
    second = replace(WORKED.closed(41, 4200), format_version=2, creation_token=0)
    assert encode_ledger_metadata(second) == WORKED_V2
    assert decode_ledger_metadata(1, WORKED_V2) == second
    first = decode_ledger_metadata(1, WORKED_V1)
    assert first.ensembles == {0: BOOKIES, 17: ("10.0.0.1:3181", "10.0.0.4:3181", "10.0.0.3:3181")}
    assert (first.ack_quorum_size, first.last_entry_id, first.length) == (2, 41, 4200)
    assert (first.digest_type, first.password) == (None, None)
    assert encode_ledger_metadata(first) == WORKED_V1


def test_format_1_states() -> None:
    head = HEADER + b"1\n1\n1\n77\n0\ta:1"
    opened = decode_ledger_metadata(1, head + b"\n")
    assert (opened.state, opened.length) == (LedgerState.OPEN, 0)
    assert encode_ledger_metadata(opened) == HEADER + b"1\n1\n1\n0\n0\ta:1\n"
    recovering = decode_ledger_metadata(1, head + b"\n-102\tCLOSED")
    assert recovering.state is LedgerState.IN_RECOVERY
    assert encode_ledger_metadata(recovering).endswith(b"\n-102\tCLOSED")
    empty = decode_ledger_metadata(1, head + b"\n-1\tCLOSED")
    assert (empty.state, empty.last_entry_id) == (LedgerState.CLOSED, -1)


def test_reading_rules() -> None:
    body = """quorumSize: 2 ensembleSize: 2 length: 99 lastEntryId: 9 state: OPEN unknownField: 7
    segment { firstEntryId: 5 ensembleMember: 'c' ensembleMember: "b" }
    segment: < ensembleMember: "a\\x2e\\056" ensembleMember: "b\\?" firstEntryId: 0 >
    digestType: HMAC customMetadata { key: "k" value: "1" } customMetadata { key: "k" value: "\\303\\251" }
    """
    metadata = decode_ledger_metadata(3, HEADER + b"2\n" + body.encode(), node_ctime_ms=77)
    assert (metadata.last_entry_id, metadata.length, metadata.ack_quorum_size) == (-1, 0, 2)
    assert metadata.ensembles == {0: ("a..", "b?"), 5: ("c", "b")}
    assert (metadata.digest_type, metadata.password) == (None, None)  # no password: no recorded digest
    assert (metadata.ctime, metadata.store_ctime) == (77, False)
    assert metadata.custom_metadata == {"k": b"\xc3\xa9"}
    assert b"ctime" not in encode_ledger_metadata(metadata)
    with_both = decode_ledger_metadata(3, HEADER + b"2\n" + body.encode() + b"password: '' ctime: 5", node_ctime_ms=77)
    assert (with_both.digest_type, with_both.password) == (DigestType.MAC, b"")
    assert (with_both.ctime, with_both.store_ctime) == (5, True)
    assert b"ctime: 5\n" in encode_ledger_metadata(with_both)


def test_format_1_cannot_hold_an_ack_quorum_of_its_own() -> None:
    with pytest.raises(BadRequest, match="no ack"):
        encode_ledger_metadata(replace(WORKED, format_version=1, ack_quorum_size=1))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "start"),
        (b"BookieMetadataFormatVersion 3\n", "start"),
        (HEADER + b"3", "no format"),
        (HEADER + b"12345678901\n", "no format"),
        (HEADER + b"x\n", "no format"),
        (HEADER + b"4\n\x00", "version 4"),
        (HEADER + b"1\n2\n3", "lines"),
        (HEADER + b"1\n1\n1\n0\nzero\ta", "number"),
        (HEADER + b"1\n1\n1\n0\n0\ta\n0\ta\n", "ensembles"),
        (HEADER + b"1\n1\n1\n0\n0\ta\n1\tCLOSED\n5\tb", "follow"),
        (HEADER + b"2\nquorumSize: 1", "required"),
        (HEADER + b"2\nquorumSize: {", "protobuf"),
        (HEADER + b"3\n\xff\xff\xff\xff\xff\xff", "message"),
        (HEADER + b"3\n\x05\x08\x02", "2 of 5"),
        (HEADER + b"3\n\x02\x08\x02", "required"),
        (WORKED_V3.replace(b"\x38\x03\x42", b"\x38\x09\x42"), "digest"),
        (WORKED_V3.replace(b"\x28\x01\x32", b"\x28\x09\x32"), "state"),
        (WORKED_V3.replace(b"\x08\x02\x10\x03", b"\x08\x02\x10\x04"), "3 bookies"),
    ],
)
def test_damage_is_named(data: bytes, message: str) -> None:
    with pytest.raises(MetadataDamaged, match=message):
        decode_ledger_metadata(5, data)


@pytest.mark.parametrize("password", [b"geheim", b'"geheim', b'"geheim\\777"', b'"geheim" "geheim'])
def test_damage_in_a_password_is_named_without_it(password: bytes) -> None:
    with pytest.raises(MetadataDamaged, match="protobuf") as raised:
        decode_ledger_metadata(5, HEADER + b"2\nquorumSize: 1\npassword: " + password + b"\n")
    assert "geheim" not in "".join(traceback.format_exception(raised.value))


ids = st.text(st.sampled_from("abcXYZ019:_.-"), min_size=1, max_size=20)


@st.composite
def ledgers(draw: st.DrawFn) -> LedgerMetadata:
    version = draw(st.sampled_from([1, 2, 3]))
    ensemble = draw(st.integers(1, 5))
    write = draw(st.integers(1, ensemble))
    starts = draw(st.sets(st.integers(1, 2**62), max_size=4)) | {0}
    state = draw(st.sampled_from(LedgerState))
    closed = state is LedgerState.CLOSED
    rich = version > 1
    password = draw(st.none() | st.binary(max_size=8)) if rich else None
    ctime = draw(st.none() | st.integers(0, 2**60)) if rich else None
    return LedgerMetadata(
        ledger_id=draw(st.integers(0, 2**63 - 1)),
        ensemble_size=ensemble,
        write_quorum_size=write,
        ack_quorum_size=draw(st.integers(1, write)) if rich else write,
        ensembles={start: draw(st.lists(ids, min_size=ensemble, max_size=ensemble)) for start in starts},
        state=state,
        last_entry_id=draw(st.integers(-1, 2**62)) if closed else -1,
        length=draw(st.integers(0, 2**62)) if closed else 0,
        digest_type=None if password is None else draw(st.sampled_from(DigestType)),
        password=password,
        ctime=ctime,
        store_ctime=ctime is not None,
        custom_metadata=draw(st.dictionaries(st.text(max_size=8), st.binary(max_size=8), max_size=3)) if rich else {},
        creation_token=draw(st.integers(0, 2**63 - 1)) if version == 3 else 0,
        format_version=version,
    )


@given(ledgers())
def test_round_trip(metadata: LedgerMetadata) -> None:
    data = encode_ledger_metadata(metadata)
    assert decode_ledger_metadata(metadata.ledger_id, data) == metadata
    assert encode_ledger_metadata(decode_ledger_metadata(metadata.ledger_id, data)) == data


SEEDS = [data for _, data in golden_ledgers()] + [WORKED_V1, WORKED_V2, WORKED_V3]


@given(st.sampled_from(SEEDS), st.data())
def test_mutations_are_read_or_called_damaged(seed: bytes, data: st.DataObject) -> None:
    mutated = bytearray(seed)
    for _ in range(data.draw(st.integers(1, 6))):
        where = data.draw(st.integers(0, len(mutated)))
        mutated[where : where + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    try:
        metadata = decode_ledger_metadata(1, bytes(mutated))
    except MetadataDamaged:
        return
    assert decode_ledger_metadata(1, encode_ledger_metadata(metadata)) == metadata


@given(st.sampled_from([b"", b"1\n", b"2\n", b"3\n"]), st.binary(max_size=200))
def test_noise_is_read_or_called_damaged(version: bytes, body: bytes) -> None:
    try:
        decode_ledger_metadata(1, HEADER + version + body)
    except MetadataDamaged:
        return
