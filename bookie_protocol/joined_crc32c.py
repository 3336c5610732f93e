"""CRC32C of strings of one size behind each other, out of the checksum of each: one check in place of many.

Checksums combine without the strings: `crc(a + b)` is `crc(a)`, moved by the bits of `b`, xor `crc(b)`. To move a
checksum is to multiply it by a power of x modulo CRC32C's polynomial, which is linear: what bit k of the checksum
with n strings behind it adds to the whole is one word of a table, the same for all strings of a size.

Invariants
- Where one string is not what its checksum says, the whole is not either: moving loses nothing. Where several are not,
  their differences cancel out once in 2**32 cases, as seldom as one difference escapes its own checksum.
- A table is made for a size that comes again and again, not for each that comes once: it takes as long as checking
  some thousand strings.

Pure; any thread. The array library is loaded at the first call.

Source: reference wire protocol, section 7 (digests); the polynomial is Castagnoli's.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

MOST: Final = 128
"""Strings at a time."""
_POLYNOMIAL: Final = 0x82F63B78
_BITS: Final = 32
_ONE: Final = 1 << 31
"""x to the power of 0: the highest bit belongs to the lowest power."""
_WORTH: Final = 32
"""Uses that a size has to see before its table is made."""


class JoinedCrc32c:
    """For strings of one size."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._uses = 0
        self._table: npt.NDArray[np.uint32] | None = None

    def is_worth_it(self) -> bool:
        """Whether this size was asked for so often by now that a table pays."""
        self._uses += 1
        return self._uses > _WORTH

    def join(self, checksums: npt.NDArray[np.uint8]) -> int:
        """CRC32C of all strings behind each other. `checksums`: of each, in their order, four bytes big-endian; shape
        (n, 4), n at most `MOST`."""
        import numpy as np

        if self._table is None:
            self._table = _table(self._size)
        bits = np.unpackbits(checksums)
        return int(np.bitwise_xor.reduce(self._table[-len(bits) :] * bits))


@lru_cache(maxsize=64)
def joined_crc32c(size: int) -> JoinedCrc32c:
    """Of the sizes that were asked for last: those that come seldom are forgotten before they have a table."""
    return JoinedCrc32c(size)


def _table(size: int) -> npt.NDArray[np.uint32]:
    """What each bit of `MOST` checksums adds, highest bit first: the last row belongs to the last string."""
    import numpy as np

    rows = np.left_shift(np.uint32(1), np.arange(_BITS - 1, -1, -1, dtype=np.uint32), dtype=np.uint32)
    behind = 1
    while behind < MOST:
        rows = np.concatenate((_multiplied(rows, _power_of_x(8 * size * behind)), rows))
        behind *= 2
    return rows


def _multiplied(rows: npt.NDArray[np.uint32], factor: int) -> npt.NDArray[np.uint32]:
    """Each of `rows` times `factor`, modulo the polynomial."""
    import numpy as np

    product, shifted = np.zeros_like(rows), rows
    for bit in range(_BITS):
        if factor & (_ONE >> bit):
            product = product ^ shifted
        shifted = (shifted >> np.uint32(1)) ^ ((shifted & np.uint32(1)) * np.uint32(_POLYNOMIAL))
    return product


def _power_of_x(exponent: int) -> int:
    """Modulo the polynomial."""
    import numpy as np

    def times(one: int, other: int) -> int:
        array: npt.NDArray[Any] = np.array([one], dtype=np.uint32)
        return int(_multiplied(array, other)[0])

    power, square = _ONE, _ONE >> 1
    while exponent:
        if exponent & 1:
            power = times(power, square)
        square = times(square, square)
        exponent >>= 1
    return power
