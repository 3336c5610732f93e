from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_protocol.errors import MetadataDamaged
from bookie_protocol.metadata_service.service_info import (
    BookieServiceInfo,
    Endpoint,
    decode_service_info,
    encode_service_info,
    is_readable_bookie_id,
    is_valid_bookie_id,
)

GOLDEN = Path(__file__).parents[3] / "golden"


def test_golden_registrations_come_back_byte_for_byte() -> None:
    seen = 0
    for node in json.loads((GOLDEN / "znodes-four-bookies.json").read_text())["znodes"]:
        if node["ephemeral"] and "/available/" in node["path"]:
            bookie_id = node["path"].rpartition("/")[2]
            info = decode_service_info(bookie_id, bytes.fromhex(node["dataHex"]))
            assert [endpoint.id for endpoint in info.endpoints] == ["httpserver", "bookie"]
            assert info.bookie_address() == ("127.0.0.1", int(bookie_id.rpartition(":")[2]))
            assert encode_service_info(info).hex() == node["dataHex"]
            seen += 1
    assert seen == 4


def test_worked_bytes() -> None:
    info = BookieServiceInfo((Endpoint("bookie", "10.0.0.1", 3181, "bookie-rpc"),))
    expected = "32210a06626f6f6b696510ed181a0831302e302e302e31220a626f6f6b69652d727063"
    assert encode_service_info(info).hex() == expected
    assert decode_service_info("any", bytes.fromhex(expected)) == info


def test_legacy_registration_is_the_id() -> None:
    info = decode_service_info("10.0.0.1:3181", b"")
    assert info.endpoints == (Endpoint("10.0.0.1:3181", "10.0.0.1", 3181, "bookie-rpc"),)
    for bookie_id in ("bookie-0", ":1", "host:", "host:99999", "host:²"):
        with pytest.raises(MetadataDamaged, match="address"):
            decode_service_info(bookie_id, b"")


def test_an_info_without_the_protocol_has_no_address() -> None:
    info = BookieServiceInfo((Endpoint("x", "h", 1, "grpc"),), {"b": "2", "a": "1"})
    assert info.bookie_address() is None
    assert info.endpoint("grpc") == info.endpoints[0]
    assert decode_service_info("x", encode_service_info(info)) == info


text = st.text(max_size=10)
endpoints = st.builds(
    Endpoint,
    text,
    text,
    st.integers(0, 65535),
    text,
    st.lists(text, max_size=2).map(tuple),
    st.lists(text, max_size=2).map(tuple),
)
infos = st.builds(
    BookieServiceInfo,
    st.lists(endpoints, min_size=1, max_size=3).map(tuple),
    st.dictionaries(text, text, max_size=3),
)


@given(infos)
def test_round_trip(info: BookieServiceInfo) -> None:
    data = encode_service_info(info)
    assert decode_service_info("b", data) == info
    assert encode_service_info(decode_service_info("b", data)) == data


@given(st.binary(min_size=1, max_size=80))
def test_noise_is_read_or_called_damaged(data: bytes) -> None:
    try:
        info = decode_service_info("b:1", data)
    except MetadataDamaged:
        return
    if info.endpoints or info.properties:
        assert decode_service_info("b:1", encode_service_info(info)) == info


def test_bookie_ids() -> None:
    for good in ("10.0.0.1:3181", "bookie-0", "a_b.c"):
        assert is_valid_bookie_id(good)
        assert is_readable_bookie_id(good)
    for bad in ("", "readonly", "ReadOnly", "a/b", "a b", "é", "a\n"):
        assert not is_valid_bookie_id(bad)
        assert not is_readable_bookie_id(bad)
    assert is_readable_bookie_id("a@b")
    assert not any(map(is_readable_bookie_id, (".", "..")))
    assert not is_valid_bookie_id("a@b")
