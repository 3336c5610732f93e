"""Quantities of Kubernetes in bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_operator.planner.quantity import bytes_of, known_bytes, readable


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0", 0),
        ("1Gi", 1 << 30),
        ("1024Mi", 1 << 30),
        ("1.5Ti", 3 << 39),
        ("100G", 100_000_000_000),
        ("128974848", 128974848),
        ("129e6", 129_000_000),
        ("129E6", 129_000_000),
        ("2E", 2 * 10**18),
        ("123Mi", 123 << 20),
        (".5k", 500),
        ("1m", 1),
        ("1500m", 2),
    ],
)
def test_as_kubernetes_reads_them(text: str, count: int) -> None:
    assert bytes_of(text) == count


@pytest.mark.parametrize("text", ["", "Gi", "1GB", "1 Gi", "1ki", "ten", "1e", "--1", "1Gi2"])
def test_what_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="is no quantity such as 100Gi"):
        bytes_of(text)
    assert known_bytes(text) is None


@given(st.integers(0, 1 << 60))
def test_bytes_are_themselves(count: int) -> None:
    assert bytes_of(str(count)) == count
    assert readable(count).split()[1] in ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
