"""The usual answer to an add in protocol version 3, recognised without a message object, one or many.

Such a frame is header{VERSION_THREE, ADD_ENTRY, transaction id}, status EOK, addResponse{status EOK, ledger id, entry
id}, in this order. Anything else is no such answer here, and is decoded as a message.

Invariants
- In frames that are whole messages `added_run` finds what `added_key` finds in each; only how they look differs.

Pure functions; any thread.

Source: reference wire protocol, section 4.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from bookie_protocol.columns import byte_column
from bookie_protocol.wire.framing import LENGTH, LENGTH_SIZE

_HEADER: Final = b"\x08\x03\x10\x02\x18"
_KEY_OFFSET: Final = LENGTH_SIZE + 2 + len(_HEADER)
_STATUS_SIZE: Final = 7
"""Bytes behind the transaction id up to the ledger id: both states, and what is around them."""
MIN_COLUMNS: Final = 32
"""Answers from which looking at their columns costs less than a look at each."""

_VARINT: Final = rb"[\x80-\xff]*[\x00-\x7f]"
_FRAME: Final = re.compile(
    rb"\x00\x00\x00([\x00-\x7f])\x0a[\x00-\x7f]"
    + re.escape(_HEADER)
    + b"("
    + _VARINT
    + rb")\x10\x00\xaa\x06[\x00-\x7f]\x08\x00\x10"
    + _VARINT
    + rb"\x18"
    + _VARINT
)


def added_key(data: bytes, start: int, end: int) -> bytes | None:
    """The transaction id, when the frame body `data[start:end]` is such an answer."""
    if data[start + 2 : start + 7] != _HEADER:
        return None
    body = start + 2 + data[start + 1]
    if body + 7 > end or data[body : body + 4] != b"\x10\x00\xaa\x06" or data[body + 5 : body + 7] != b"\x08\x00":
        return None
    return data[start + 7 : body]


def added_run(data: bytes) -> tuple[Sequence[bytes], int] | None:
    """The transaction ids, when `data` begins with whole frames that are such answers, and how many bytes these take;
    None: look at each frame."""
    if not data.startswith(_HEADER, LENGTH_SIZE + 2):
        return None
    return run_of_one_shape(data) or run_of_any_shape(data)


def run_of_one_shape(data: bytes) -> tuple[Sequence[bytes], int] | None:
    """As `added_run`, for many frames that are all as long as the first one, which is the usual case: with the same
    bytes wherever `added_key` looks, they are what the first one is."""
    size = LENGTH_SIZE + LENGTH.unpack_from(data)[0]
    count = len(data) // size
    key = added_key(data, LENGTH_SIZE, size) if count >= MIN_COLUMNS else None
    if key is None:
        return None
    taken, key_end = count * size, _KEY_OFFSET + len(key)
    for column in (*range(_KEY_OFFSET), *range(key_end, key_end + _STATUS_SIZE)):
        if data[column:taken:size] != data[column : column + 1] * count:
            return None
    return byte_column(data, _KEY_OFFSET, len(key), size, count), taken


def run_of_any_shape(data: bytes) -> tuple[Sequence[bytes], int] | None:
    """As `added_run`, for few frames, or frames of several lengths."""
    parts = _FRAME.split(data)
    rest = parts.pop()
    # What was found must be all of it, from the start and without a gap, and the length words must agree.
    taken = len(data) - len(rest)
    lengths = parts[1::3]
    if not lengths or any(parts[::3]) or sum(b"".join(lengths)) + LENGTH_SIZE * len(lengths) != taken:
        return None
    return parts[2::3], taken
