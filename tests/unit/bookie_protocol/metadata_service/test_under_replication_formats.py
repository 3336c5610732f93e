"""Names and bytes of auto-recovery's nodes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_protocol.errors import MetadataDamaged
from bookie_protocol.metadata_service.tree.under_replication import formats
from bookie_protocol.metadata_service.under_replication import AuditorCheck, UnderreplicatedLedger

ids = st.integers(0, 2**63 - 1)
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30)


@pytest.mark.parametrize(
    ("ledger_id", "path"),
    [
        (7, "/0000/0000/0000/0007/urL0000000007"),
        (123456789, "/0000/0000/075b/cd15/urL0123456789"),
        (4294967301, "/0000/0001/0000/0005/urL4294967301"),
        (2**63 - 1, "/7fff/ffff/ffff/ffff/urL9223372036854775807"),
    ],
)
def test_paths(ledger_id: int, path: str) -> None:
    assert formats.mark_path(ledger_id) == path


@given(ids)
def test_a_path_names_its_ledger(ledger_id: int) -> None:
    directory, _, leaf = formats.mark_path(ledger_id).rpartition("/")
    assert formats.directory_ledger_id(directory) == ledger_id
    assert formats.lock_ledger_id(leaf) == ledger_id
    assert all(formats.is_group(group) for group in directory.split("/")[1:])


def test_other_names() -> None:
    for name in ("urL1", "L0000000001", "urL000000000x", "urL0000000001 ", "urL١٢٣٤٥٦٧٨٩٠"):
        assert formats.lock_ledger_id(name) is None
    assert not any(formats.is_group(name) for name in ("000", "00000", "00AB", "000g", "LAYOUT"))
    assert formats.directory_ledger_id("/8000/0000/0000/0000") is None
    assert [formats.vote_number(name) for name in ("V_0000000012", "V_-2147483648", "V_", "X_1")] == [
        *(12, -(2**31)),
        *(None, None),
    ]
    for ledger_id in (-1, 2**63):
        with pytest.raises(ValueError, match="outside 0"):
            formats.mark_path(ledger_id)


def test_worked_bytes() -> None:
    marked = formats.encode_mark(["10.0.0.2:3181", "10.0.0.3:3181"], 1700000000000)
    assert marked == b'replica: "10.0.0.2:3181"\nreplica: "10.0.0.3:3181"\nctime: 1700000000000\n'
    assert formats.encode_layout() == b'type: "BASIC"\nversion: 1\n'
    assert formats.encode_lock("host") == formats.encode_vote("host") == b'bookieId: "host"\n'
    for check in AuditorCheck:
        assert formats.encode_check_time(check, 1700000000000).hex() == "0880d095ffbc31"
    assert formats.encode_delay(0) == b"0"
    assert formats.decode_delay(b"120", "x") == 120
    assert formats.decode_mark(1, b"replica: 'a\\'s'\n# a comment\nctime: 5", "x") == UnderreplicatedLedger(
        1, ("a's",), 5
    )


@given(ids, st.lists(texts, max_size=5, unique=True), st.none() | st.integers(0, 2**62))
def test_marks_come_back(ledger_id: int, replicas: list[str], ctime_ms: int | None) -> None:
    data = formats.encode_mark(replicas, ctime_ms)
    assert formats.decode_mark(ledger_id, data, "x") == UnderreplicatedLedger(ledger_id, tuple(replicas), ctime_ms)


def test_a_mark_that_cannot_be_read_tells_where_it_is_and_what_helps() -> None:
    with pytest.raises(MetadataDamaged, match=r"^/a/urL0000000001 .*force-auditor-checks"):
        formats.decode_mark(1, b"{", "/a/urL0000000001")


@pytest.mark.parametrize(
    "decode",
    [
        lambda data: formats.decode_mark(1, data, "the node"),
        lambda data: formats.decode_lock(data, "the node"),
        lambda data: formats.decode_vote(data, "the node"),
        lambda data: formats.decode_check_time(data, "the node"),
        lambda data: formats.decode_delay(data, "the node"),
        lambda data: formats.check_layout(data, "the node"),
    ],
)
@given(data=st.binary(max_size=60) | texts.map(str.encode))
def test_whatever_stands_there_is_read_or_damaged(decode: Callable[[bytes], object], data: bytes) -> None:
    with suppress(MetadataDamaged):
        decode(data)
