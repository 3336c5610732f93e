"""Base-128 numbers of protobuf: 7 bits a byte, lowest first, the top bit says that more follows.

int64 values below zero are sent as their 64-bit two's complement, which takes 10 bytes.

Pure functions; any thread.
"""

from __future__ import annotations

from typing import Final

from bookie_protocol.errors import ProtocolViolation

MAX_VARINT_SIZE: Final = 10
_WORD: Final = 1 << 64
_LOW: Final = (1 << 14) - 1


_ENDING: Final = [bytes((n,)) for n in range(0x80)]
_CONTINUED: Final = [bytes((n,)) for n in range(0x80, 0x100)]
# Two bytes at a time, because ids of transactions and entries are encoded for every request: the last 14 bits of
# a number in their shortest form, and 14 bits that others follow.
_LAST: Final = _ENDING + [low + high for high in _ENDING for low in _CONTINUED][0x80:]
_NOT_LAST: Final = [low + high for high in _CONTINUED for low in _CONTINUED]


def encode_varint(value: int) -> bytes:
    """Return the shortest form of an int64 or uint64. ValueError for what 64 bits cannot hold."""
    if 0 <= value <= _LOW:
        return _LAST[value]
    if 0 < value < 1 << 28:
        return _NOT_LAST[value & _LOW] + _LAST[value >> 14]
    if not -(1 << 63) <= value < _WORD:
        raise ValueError(f"{value} does not fit 64 bits")
    value %= _WORD
    out = b""
    while value > _LOW:
        out += _NOT_LAST[value & _LOW]
        value >>= 14
    return out + _LAST[value]


def consecutive_varints(first: int, count: int) -> list[bytes]:
    """`encode_varint` of `count` numbers from `first` on; much cheaper than one by one. ValueError as there."""
    last = first + count - 1
    if first >= 0 and last <= _LOW:
        return _LAST[first : last + 1]
    if 0 < first >> 14 == last >> 14 <= _LOW:
        behind = _LAST[first >> 14]
        return [front + behind for front in _NOT_LAST[first & _LOW : (last & _LOW) + 1]]
    return [encode_varint(value) for value in range(first, first + count)]


def decode_int64(raw: bytes) -> int:
    """Return the value of one whole varint as int64. Bits above the 64th are dropped, as protobuf does.

    Raises ProtocolViolation when `raw` is not exactly one varint of at most 10 bytes.
    """
    value = decode_uint64(raw)
    return value - _WORD if value >> 63 else value


def decode_uint64(raw: bytes) -> int:
    """Decode an unsigned number as `decode_int64` does a signed one."""
    size = varint_size(raw, 0)
    if not size or size != len(raw):
        raise ProtocolViolation(f"{raw.hex()} is not one varint")
    value = 0
    for byte in reversed(raw):
        value = value << 7 | byte & 0x7F
    return value % _WORD


def varint_size(data: bytes, offset: int) -> int:
    """Bytes of the varint at `offset`; 0 when it does not end within 10 bytes or within the data."""
    for index in range(offset, min(offset + MAX_VARINT_SIZE, len(data))):
        if data[index] < 0x80:
            return index - offset + 1
    return 0
