"""The order of Oxia's keys, and which keys a record may have. Pure.

A key's place is the number of its slashes, then its bytes with a slash above all others. So all keys of one depth lie
together, and the children of P are exactly what lies from `P/` to `P//`: two slashes at the end of a bound count once.
"""

from __future__ import annotations

import struct
from typing import Final

SLASH: Final = b"\xff"
"""A slash in encoded keys, above each byte of UTF-8."""
MAX_KEY_BYTES: Final = 8 * 1024
MAX_DEPTH: Final = 64
"""Slashes of a key, at most: each stands for a node that may have to be implied."""
_INTERNAL: Final = "__oxia/"
_DEPTH: Final = struct.Struct(">H")
_DEEPEST: Final = 0x7FFF

Place = tuple[int, bytes]
"""The number of slashes, and the encoded key."""


def place(key: str) -> Place:
    """Return the place of a record's key."""
    return key.count("/"), key.encode().replace(b"/", SLASH)


def bound(key: str) -> Place:
    """Return the place of the beginning, or of the end, of a range."""
    depth, coded = place(key)
    return (depth - 1 if key.endswith("//") else depth), coded


def encoded(key: str) -> bytes:
    """Return a key's place as bytes that sort in the same order."""
    return packed(place(key))


def packed(at: Place) -> bytes:
    return _DEPTH.pack(min(at[0], _DEEPEST)) + at[1]


def key_at(coded: bytes) -> str:
    return coded.replace(SLASH, b"/").decode()


def refusal(key: str) -> str | None:
    """Return why no record may have this key; None: it may."""
    if not key:
        return "an empty key"
    if len(key.encode()) > MAX_KEY_BYTES:
        return f"a key of more than {MAX_KEY_BYTES} bytes"
    if key.count("/") > MAX_DEPTH:
        return f"a key with more than {MAX_DEPTH} slashes"
    if "\0" in key or key.endswith("//") or key.startswith(_INTERNAL):
        return f"the key {key[:200]!r}: keys have no NUL, do not end in two slashes, and do not begin with {_INTERNAL}"
    return None
