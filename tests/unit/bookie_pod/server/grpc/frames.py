"""Frames of HTTP/2, which a client may send without a library."""

from __future__ import annotations


def http2(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A frame."""
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload
