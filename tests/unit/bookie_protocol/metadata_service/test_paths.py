from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_protocol.errors import MetadataDamaged
from bookie_protocol.metadata_service.interface import LedgerLayout
from bookie_protocol.metadata_service.tree import paths
from bookie_protocol.metadata_service.tree.cluster import decode_layout, encode_layout

GOLDEN = Path(__file__).parents[3] / "golden"

TABLE = [
    (0, "/L0000000000", "/00/0000/L0000", "/000/0000/0000/0000/L0000", "short"),
    (1, "/L0000000001", "/00/0000/L0001", "/000/0000/0000/0000/L0001", "short"),
    (123456789, "/L0123456789", "/01/2345/L6789", "/000/0000/0001/2345/L6789", "short"),
    (2147483646, "/L2147483646", "/21/4748/L3646", "/000/0000/0021/4748/L3646", "short"),
    (2147483647, "/L2147483647", None, "/000/0000/0021/4748/L3647", "long"),
    (4294967296, "/L4294967296", None, "/000/0000/0042/9496/L7296", "long"),
    (2**63 - 1, "/L9223372036854775807", None, "/922/3372/0368/5477/L5807", "long"),
]


@pytest.mark.parametrize(("ledger_id", "flat", "short", "long", "hybrid"), TABLE)
def test_paths_of_each_layout(ledger_id: int, flat: str, short: str | None, long: str, hybrid: str) -> None:
    assert paths.ledger_path(LedgerLayout.FLAT, ledger_id) == flat
    assert paths.ledger_path(LedgerLayout.LONG_HIERARCHICAL, ledger_id) == long
    assert paths.ledger_path(LedgerLayout.HIERARCHICAL, ledger_id) == (short if hybrid == "short" else long)
    if short is None:
        with pytest.raises(ValueError, match="fit"):
            paths.ledger_path(LedgerLayout.LEGACY_HIERARCHICAL, ledger_id)
    else:
        assert paths.ledger_path(LedgerLayout.LEGACY_HIERARCHICAL, ledger_id) == short
    assert paths.flat_ledger_id(flat[1:]) == ledger_id


@given(st.integers(0, 2**63 - 1))
def test_paths_lead_back_to_the_id(ledger_id: int) -> None:
    directory, _, name = paths.ledger_path(LedgerLayout.HIERARCHICAL, ledger_id).rpartition("/")
    assert paths.leaf_ledger_id(directory, name) == ledger_id
    levels = directory.split("/")[1:]
    patterns = paths.SHORT_LEVELS if ledger_id < paths.SHORT_ID_LIMIT else paths.LONG_LEVELS
    assert [bool(p.fullmatch(level)) for p, level in zip(patterns, levels, strict=True)] == [True] * len(levels)


def test_names_that_are_no_ledgers() -> None:
    for name in ("LAYOUT", "INSTANCEID", "idgen", "ID-0000000001", "00", "L123", "L٠٠٠٠٠٠٠٠٠٠"):
        assert paths.flat_ledger_id(name) is None
    assert paths.leaf_ledger_id("/00/0000", "L00001") is None


@pytest.mark.parametrize("ledger_id", [-1, 2**63])
def test_ids_outside_the_range_have_no_path(ledger_id: int) -> None:
    with pytest.raises(ValueError, match="outside"):
        paths.ledger_path(LedgerLayout.FLAT, ledger_id)


@pytest.mark.parametrize("layout", LedgerLayout)
def test_layouts_come_back(layout: LedgerLayout) -> None:
    assert decode_layout(encode_layout(layout), "/ledgers/LAYOUT") is layout


def test_golden_layout() -> None:
    nodes = json.loads((GOLDEN / "znodes-four-bookies.json").read_text())["znodes"]
    golden = next(bytes.fromhex(node["dataHex"]) for node in nodes if node["path"] == "/ledgers/LAYOUT")
    assert encode_layout(LedgerLayout.HIERARCHICAL) == golden


@pytest.mark.parametrize(
    ("data", "layout"),
    [(b"1\nflat:1", LedgerLayout.FLAT), (b"1\nhierarchical:1\n", LedgerLayout.LEGACY_HIERARCHICAL)],
)
def test_layout_format_1(data: bytes, layout: LedgerLayout) -> None:
    assert decode_layout(data, "/x") is layout


@pytest.mark.parametrize(
    "data",
    [b"", b"2", b"2\nx", b"2\na:b:1", b"x\na:1", b"3\n" + b"a:1", b"2\norg.example.Layout:1", b"2\n\xff:1"],
)
def test_other_layouts_are_named(data: bytes) -> None:
    with pytest.raises(MetadataDamaged, match="/ledgers/LAYOUT"):
        decode_layout(data, "/ledgers/LAYOUT")
