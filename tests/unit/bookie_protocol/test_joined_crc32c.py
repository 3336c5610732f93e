"""Checksums of many strings as one."""

from __future__ import annotations

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_protocol.joined_crc32c import MOST, JoinedCrc32c, joined_crc32c

ALIKE = st.integers(0, 200).flatmap(
    lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=MOST)
)


def checksums(strings: list[bytes]) -> np.ndarray:
    words = b"".join(google_crc32c.value(string).to_bytes(4, "big") for string in strings)
    return np.frombuffer(words, np.uint8).reshape(len(strings), 4)


@given(strings=ALIKE)
def test_it_is_the_checksum_of_all_together(strings: list[bytes]) -> None:
    joined = JoinedCrc32c(len(strings[0])).join(checksums(strings))
    assert joined == google_crc32c.value(b"".join(strings))


@pytest.mark.parametrize("size", [1, 32, 1056, 2**20])
def test_as_many_as_go_at_a_time(size: int) -> None:
    strings = [bytes((number,)) * size for number in range(MOST)]
    whole = 0
    for string in strings:
        whole = google_crc32c.extend(whole, string)
    assert JoinedCrc32c(size).join(checksums(strings)) == whole


@given(place=st.integers(0, MOST - 1), bit=st.integers(0, 31))
def test_one_wrong_bit_of_any_checksum_shows(place: int, bit: int) -> None:
    right = checksums([bytes((number,)) * 10 for number in range(MOST)])
    wrong = right.copy()
    wrong[place, bit // 8] ^= 1 << bit % 8
    assert joined_crc32c(10).join(right) != joined_crc32c(10).join(wrong)


def test_a_size_has_to_come_again_and_again() -> None:
    of_one_size = JoinedCrc32c(10)
    assert [of_one_size.is_worth_it() for _ in range(40)] == [False] * 32 + [True] * 8


def test_sizes_that_come_seldom_are_forgotten() -> None:
    joined_crc32c.cache_clear()
    assert not any(joined_crc32c(size).is_worth_it() for _ in range(100) for size in range(65))
    assert any(joined_crc32c(size).is_worth_it() for _ in range(100) for size in range(64))
