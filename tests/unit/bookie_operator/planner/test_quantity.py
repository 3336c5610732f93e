"""Bytes as people read them."""

from __future__ import annotations

import pytest

from bookie_operator.planner.quantity import readable


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
