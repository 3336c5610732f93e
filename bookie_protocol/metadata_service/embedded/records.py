"""Nodes and sessions as the embedded store keeps them, and the names of its rows. Pure.

Rows: `n` parent NUL name -> node; `e` owner path -> nothing (an ephemeral node of a session); `s` session -> session;
`x` path -> other attributes of a record of Oxia; `i` index NUL secondary key SOH path -> record (`oxia_extras`);
`w` offset -> a batch of notices (`notices`). Numbers are big-endian 64-bit; all children of a node lie side by side.

A node is a header of eight numbers (-1, creation, version, child version, creation time in ms, owner, number of
children, next sequence number) and its bytes; stores of the first release have nodes without the first two, whose
creation is 0. A session is its time-out in ms, its password of 16 bytes, one byte (1: a session of the owner's own
process) and the name of its process (`processes`).

A node is *implied* if no client made it, but nodes below it exist: clients of Oxia write keys without their parents. It
has no bytes, goes with its last child, and clients of Oxia do not see it.

A key of Oxia is the path of its node. Other keys have nodes too, which our own clients cannot name: a key without a
slash has no parent, and a key of slashes alone gets one more slash as its path, since `/` is the root.
"""

from __future__ import annotations

import secrets
import struct
import time
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from bookie_protocol.metadata_service.tree.nodes import NodeStat

ROOT: Final = "/"
ANY_VERSION: Final = -1
_NODE: Final = struct.Struct(">qqqqqq")
_LIFE: Final = struct.Struct(">qq")
_WITH_CREATION: Final = -1
"""Marker in the place of the version, with which nodes of the first release begin."""
_SESSION: Final = struct.Struct(">q16s")
assert (_NODE.size, _LIFE.size, _SESSION.size) == (48, 16, 24)
_IMPLIED: Final = -1
"""The version of an implied node."""
NUMBER: Final = struct.Struct(">q")
assert NUMBER.size == 8


class Change(Enum):
    """The change that a watch waits for: the node itself (made, written, deleted), or the set of its children."""

    NODE = "node"
    CHILDREN = "children"


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A stored session. `local`: of the owner's own process. `process`: its name, empty if it is unknown."""

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
    creation: int

    @staticmethod
    def new(data: bytes, owner: int = 0) -> NodeRecord:
        return NodeRecord(0, 0, time.time_ns() // 1_000_000, owner, 0, 0, data, secrets.randbits(62) + 1)

    @staticmethod
    def implied() -> NodeRecord:
        return replace(NodeRecord.new(b""), version=_IMPLIED)

    def encode(self) -> bytes:
        header = (self.version, self.child_version, self.ctime_ms, self.owner, self.children, self.sequence)
        return _LIFE.pack(_WITH_CREATION, self.creation) + _NODE.pack(*header) + self.data

    @staticmethod
    def decode(raw: bytes) -> NodeRecord:
        mark, creation = _LIFE.unpack_from(raw)
        start, creation = (_LIFE.size, creation) if mark == _WITH_CREATION else (0, 0)
        version, child_version, ctime_ms, owner, children, sequence = _NODE.unpack_from(raw, start)
        data = raw[start + _NODE.size :]
        return NodeRecord(version, child_version, ctime_ms, owner, children, sequence, data, creation)

    @property
    def is_implied(self) -> bool:
        return self.version == _IMPLIED

    @property
    def writes(self) -> int:
        """The number of writes since the node was made."""
        return max(self.version, 0)

    @property
    def version_id(self) -> int:
        """A number that no other state of this node, or of another one under its name, has."""
        return self.creation + self.version

    @property
    def stat(self) -> NodeStat:
        return NodeStat(self.writes, self.creation, self.ctime_ms, self.owner, self.children)

    def unmade(self) -> NodeRecord:
        """Return the node that is left of one that is deleted although it has children."""
        left = NodeRecord.implied()
        return replace(left, child_version=self.child_version, children=self.children, sequence=self.sequence)


def path_of(key: str) -> str:
    """Return the path of the node of a key of Oxia."""
    return key if key.strip("/") else key + "/"


def key_of(path: str) -> str:
    return path if path.strip("/") else path[:-1]


def parent_path(path: str) -> str | None:
    """Return the path one level up; None: the node has no parent."""
    parent, slash, _ = key_of(path).rpartition("/")
    return path_of(parent) if slash else None


def node_row(path: str) -> bytes:
    parent = parent_path(path)
    name = key_of(path).rpartition("/")[2]
    return children_rows(parent) + name.encode()


def children_rows(path: str | None) -> bytes:
    """Return the prefix of the rows of a node's children, before their names. None: of the nodes without a parent."""
    return b"n" + (path or "").encode() + b"\0"


def owner_row(owner: int, path: str) -> bytes:
    return b"e" + NUMBER.pack(owner) + path.encode()


def session_row(session_id: int) -> bytes:
    return b"s" + NUMBER.pack(session_id)
