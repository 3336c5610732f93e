"""Amounts of bytes as Kubernetes writes them.

Bytes as people read them.
"""

from __future__ import annotations

import pytest

from bookie_operator.crds.quantity import bytes_of, known_bytes, readable


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("1024", 1024),
        ("1Ki", 1024),
        ("100Gi", 100 * 2**30),
        ("1.5Gi", 3 * 2**29),
        (".5k", 500),
        ("1E", 10**18),
        ("1e9", 10**9),
        ("12E3", 12_000),
        ("1Ei", 2**60),
        ("1m", 1),
        ("-1Gi", -(2**30)),
    ],
)
def test_amounts(text: str, count: int) -> None:
    assert bytes_of(text) == count


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1gi", "1K", "1Gib", "ten", "1e", "0x10", "1,5Gi", "１Gi"])
def test_what_is_none(text: str) -> None:
    assert known_bytes(text) is None
    with pytest.raises(ValueError, match="100Gi"):
        bytes_of(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (1536 << 20, "1.5 GiB"),
        (3 << 50, "3.0 PiB"),
        (5000 << 50, "5000.0 PiB"),
    ],
)
def test_bytes_as_people_read_them(count: int, text: str) -> None:
    assert readable(count) == text
