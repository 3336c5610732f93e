"""Telling one changed bit from a torn write.

A disk that tears a write loses the ends of sectors; one that rots changes bits. CRC32C finds each single bit of up to
256 MiB by itself: the difference of two checksums names its place.

Pure functions: any thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_POLYNOMIAL: Final = 0x82F63B78
"""Of CRC32C, its bits reversed."""


def _forward(byte: int) -> int:
    crc = byte
    for _ in range(8):
        crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
    return crc


_TABLE: Final = [_forward(byte) for byte in range(256)]
_ONE_BIT: Final = frozenset(_TABLE[1 << bit] for bit in range(8))
"""How a checksum differs if one bit of the last byte does."""

_BACK: Final = {value >> 24: (value << 8 & 0xFFFFFFFF) | byte for byte, value in enumerate(_TABLE)}
"""By the top byte of a checksum: what undoes one byte of zeros."""


def is_one_bit(difference: int, length: int) -> bool:
    """Whether the checksums of two texts of so many bytes, which differ by this, can differ by one bit of the text."""
    for _ in range(length):
        if difference in _ONE_BIT:
            return True
        difference = (difference << 8 & 0xFFFFFFFF) ^ _BACK[difference >> 24]
    return False


def with_one_bit_changed(data: bytes) -> Iterator[bytes]:
    """`data` with each of its bits changed, one at a time."""
    number = int.from_bytes(data)
    for bit in range(len(data) * 8):
        yield (number ^ 1 << bit).to_bytes(len(data))
