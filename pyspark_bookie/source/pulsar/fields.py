"""The fields of a protobuf message by number, for the few messages of Pulsar that stand in entries.

Pure; any thread.
"""

from __future__ import annotations

from typing import Final

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_SHIFT: Final = 63


class Fields:
    """Integers and byte strings; raises `ValueError` for bytes that are no such message."""

    def __init__(self, data: bytes) -> None:
        self._integers: dict[int, int] = {}
        self._bytes: dict[int, list[bytes]] = {}
        at = 0
        while at < len(data):
            tag, at = _varint(data, at)
            number, kind = tag >> 3, tag & 7
            if kind == _VARINT:
                self._integers[number], at = _varint(data, at)
                continue
            if kind == _BYTES:
                size, at = _varint(data, at)
            elif kind in (_FIXED32, _FIXED64):
                size = 4 if kind == _FIXED32 else 8
            else:
                raise ValueError(f"wire type {kind}")
            if at + size > len(data):
                raise ValueError(f"field {number} ends behind the message")
            if kind == _BYTES:
                self._bytes.setdefault(number, []).append(data[at : at + size])
            at += size

    def __contains__(self, number: int) -> bool:
        return number in self._integers or number in self._bytes

    def integer(self, number: int, default: int = 0) -> int:
        """An unsigned integer or an enumeration."""
        return self._integers.get(number, default)

    def text(self, number: int) -> str | None:
        """The last one; None: the field is not there. Raises `ValueError` for what is no UTF-8."""
        found = self._bytes.get(number)
        return found[-1].decode() if found else None

    def all(self, number: int) -> list[bytes]:
        """A repeated field."""
        return self._bytes.get(number, [])


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > _MAX_SHIFT:
            raise ValueError("a number that does not end")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
