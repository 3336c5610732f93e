"""Bytes that a buffered protocol receives as event loops give them to it."""

from __future__ import annotations

import asyncio


def receive(protocol: asyncio.BufferedProtocol, data: bytes) -> None:
    """Into the protocol's own memory, each time as much as there is room for."""
    rest = memoryview(data)
    while rest:
        room = protocol.get_buffer(-1)
        assert isinstance(room, memoryview)
        piece, rest = rest[: len(room)], rest[len(room) :]
        assert piece
        room[: len(piece)] = piece
        protocol.buffer_updated(len(piece))
