"""Formats by which entries are cut out of a stream of bytes, and put into one.

    lines     one entry a line; the newline is not part of the entry
    fixed     so many bytes each, the last one shorter
    prefixed  a length of 4 bytes, big-endian, before each entry
    whole     everything is one entry
    raw       (output only) entries one after the other, nothing between
    json      (output only) one object a line, the payload in base64

What was written from lines, fixed or prefixed and is put out as lines, raw or prefixed has the same bytes, but for a
newline after a last line that had none.

Pure; any thread.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from bookie_client.reading.entry import LedgerEntry
from bookie_protocol.errors import BadRequest

LENGTH: Final = struct.Struct(">I")
INPUT_FORMATS: Final = ("lines", "fixed", "prefixed", "whole")


class Splitter(Protocol):
    """Turns pieces of a stream into entries."""

    def feed(self, piece: bytes) -> list[bytes]:
        """The entries that are complete with this piece. Raises `BadRequest` for one that is too large."""
        ...

    def end(self) -> list[bytes]:
        """Return the rest at the end of the stream. Raises `BadRequest` if it ends inside an entry."""
        ...


class LineSplitter:
    """`max_bytes`: the longest line that is taken."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._partial: list[bytes] = []
        self._partial_bytes = 0
        self._lines = 0

    def feed(self, piece: bytes) -> list[bytes]:
        *lines, rest = piece.split(b"\n")
        if lines:
            lines[0] = b"".join((*self._partial, lines[0]))
            self._partial, self._partial_bytes = [], 0
            self._lines += len(lines)
        if rest:
            self._partial.append(rest)
            self._partial_bytes += len(rest)
        if self._partial_bytes > self._max_bytes:
            raise BadRequest(
                f"line {self._lines + 1} is longer than the {self._max_bytes} bytes that an entry may have:"
                " use --format fixed or prefixed"
            )
        return lines

    def end(self) -> list[bytes]:
        return [b"".join(self._partial)] if self._partial else []


class FixedSplitter:
    """Entries of `size` bytes."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._partial = b""

    def feed(self, piece: bytes) -> list[bytes]:
        data, size = self._partial + piece, self._size
        whole = len(data) - len(data) % size
        self._partial = data[whole:]
        return [data[start : start + size] for start in range(0, whole, size)]

    def end(self) -> list[bytes]:
        return [self._partial] if self._partial else []


class PrefixedSplitter:
    """Entries after their lengths, none longer than `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._partial = bytearray()
        self._offset = 0

    def feed(self, piece: bytes) -> list[bytes]:
        partial = self._partial
        partial += piece
        entries, start = [], 0
        while len(partial) - start >= LENGTH.size:
            (length,) = LENGTH.unpack_from(partial, start)
            if length > self._max_bytes:
                raise BadRequest(
                    f"the length at byte {self._offset + start} says {length} bytes and an entry may have"
                    f" {self._max_bytes}: is the input length-prefixed?"
                )
            end = start + LENGTH.size + length
            if end > len(partial):
                break
            entries.append(bytes(partial[start + LENGTH.size : end]))
            start = end
        del partial[:start]
        self._offset += start
        return entries

    def end(self) -> list[bytes]:
        if self._partial:
            raise BadRequest(f"the input ends inside the entry that begins at byte {self._offset}")
        return []


class WholeSplitter:
    """One entry, even if it is empty."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._pieces: list[bytes] = []
        self._nbytes = 0

    def feed(self, piece: bytes) -> list[bytes]:
        self._pieces.append(piece)
        self._nbytes += len(piece)
        if self._nbytes > self._max_bytes:
            raise BadRequest(f"the input is larger than the {self._max_bytes} bytes that an entry may have")
        return []

    def end(self) -> list[bytes]:
        return [b"".join(self._pieces)]


def splitter(name: str, size: int, max_bytes: int) -> Splitter:
    """The splitter of one of `INPUT_FORMATS`; `size` counts for `fixed`, in bytes."""
    if name == "fixed":
        return FixedSplitter(size)
    kinds: dict[str, Callable[[int], Splitter]] = {
        "lines": LineSplitter,
        "prefixed": PrefixedSplitter,
        "whole": WholeSplitter,
    }
    return kinds[name](max_bytes)


# --- output -----------------------------------------------------------------------------------------------


def _lines(entries: Iterable[LedgerEntry]) -> bytes:
    return b"".join(part for entry in entries for part in (entry.payload, b"\n"))


def _raw(entries: Iterable[LedgerEntry]) -> bytes:
    return b"".join(entry.payload for entry in entries)


def _prefixed(entries: Iterable[LedgerEntry]) -> bytes:
    return b"".join(part for entry in entries for part in (LENGTH.pack(len(entry.payload)), entry.payload))


def _json(entries: Iterable[LedgerEntry]) -> bytes:
    return b"".join(json.dumps(_fields(entry)).encode() + b"\n" for entry in entries)


def _fields(entry: LedgerEntry) -> dict[str, object]:
    return {
        "ledger_id": entry.ledger_id,
        "entry_id": entry.entry_id,
        "ledger_length": entry.length,
        "payload_base64": base64.b64encode(entry.payload).decode(),
    }


_WRITERS: Final[dict[str, Callable[[Sequence[LedgerEntry]], bytes]]] = {
    "lines": _lines,
    "raw": _raw,
    "prefixed": _prefixed,
    "json": _json,
}
OUTPUT_FORMATS: Final = tuple(_WRITERS)


def encoder(name: str) -> Callable[[Sequence[LedgerEntry]], bytes]:
    """Return the encoder of entries into one of `OUTPUT_FORMATS`."""
    return _WRITERS[name]
