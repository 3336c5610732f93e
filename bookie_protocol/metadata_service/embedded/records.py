"""Values of the embedded store: nodes and sessions.

A node is a header of six numbers (version, child version, creation time in ms, owner, number of children, next
sequence number) and its bytes. A session is its time-out in ms, its password of 16 bytes, one byte (1: a session of
the owner's own process) and the name of its process (`processes`). Numbers are big-endian 64-bit.

Any thread.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from bookie_protocol.metadata_service.tree.nodes import NodeStat

_NODE: Final = struct.Struct(">qqqqqq")
_SESSION: Final = struct.Struct(">q16s")
assert (_NODE.size, _SESSION.size) == (48, 24)


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """`local`: of the owner's own process. `process`: its name, empty where nothing can be told of it."""

    session_id: int
    password: bytes
    timeout_ms: int
    local: bool = False
    process: str = ""

    def encode(self) -> bytes:
        return _SESSION.pack(self.timeout_ms, self.password) + bytes([self.local]) + self.process.encode()

    @staticmethod
    def decode(session_id: int, raw: bytes) -> SessionRecord:
        timeout_ms, password = _SESSION.unpack_from(raw)
        rest = raw[_SESSION.size :]  # empty in stores of the first release
        return SessionRecord(session_id, password, timeout_ms, rest[:1] == b"\1", rest[1:].decode())


@dataclass(frozen=True, slots=True)
class NodeRecord:
    version: int
    child_version: int
    ctime_ms: int
    owner: int
    children: int
    sequence: int
    data: bytes

    def encode(self) -> bytes:
        header = (self.version, self.child_version, self.ctime_ms, self.owner, self.children, self.sequence)
        return _NODE.pack(*header) + self.data

    @staticmethod
    def decode(raw: bytes) -> NodeRecord:
        version, child_version, ctime_ms, owner, children, sequence = _NODE.unpack_from(raw)
        return NodeRecord(version, child_version, ctime_ms, owner, children, sequence, raw[_NODE.size :])

    @property
    def stat(self) -> NodeStat:
        return NodeStat(self.version, self.child_version, self.ctime_ms, self.owner, self.children)
