"""The entries in the answer to a batch read, as they came: taken apart by whoever knows what they are for.

Format: entry after entry, each a length (int32, big-endian) and so many bytes.

To take entries apart and to look at each later costs two passes over the bytes and twice the memory. A reader that
verifies entries does both in one pass; it finds `body` and `start` here.

Pure; any thread.

Source: reference wire protocol, section 3.6.
"""

from __future__ import annotations

from bookie_protocol.errors import ProtocolViolation
from bookie_protocol.wire.v2_layout import ENTRY_LENGTH


class PackedEntries:
    """`body[start:]` holds the entries. Nothing was looked at yet. `stepped`: see `Flag.STEPPED`."""

    __slots__ = ("body", "start", "stepped")

    def __init__(self, body: bytes, start: int = 0, *, stepped: bool = False) -> None:
        self.body = body
        self.start = start
        self.stepped = stepped

    @property
    def is_empty(self) -> bool:
        return len(self.body) <= self.start

    def split(self) -> list[bytes]:
        """Raises `ProtocolViolation` for lengths that do not fit."""
        body, start, end = self.body, self.start, len(self.body)
        entries: list[bytes] = []
        append, unpack, length_size = entries.append, ENTRY_LENGTH.unpack_from, ENTRY_LENGTH.size
        while start < end:
            if start + length_size > end:
                raise ProtocolViolation("the answer to a batch read ends within the length of an entry")
            (length,) = unpack(body, start)
            start += length_size
            if length < 0 or start + length > end:
                raise ProtocolViolation(f"the answer to a batch read holds an entry of {length} bytes beyond its end")
            append(body[start : start + length])
            start += length
        return entries
