"""The tree of versioned nodes that a driver offers, in ZooKeeper's terms.

Invariants
- A node has bytes, a data version (0 when created, +1 with each write) and a child version that grows with
  each create and delete of a child. An ephemeral node ends with the session that made it.
- A sequential node's name ends in ten digits that no later sibling gets again.
- A watch fires at most once, on the event loop, when what was read may have changed. It may also fire for no
  reason (a lost connection): whoever watches reads again.
- `ConnectionLost` means: not answered, worth another try. Any other `MetadataUnavailable` is final for this
  call.

Threads: event loop only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from bookie_protocol.errors import MetadataError, MetadataUnavailable, SessionEnded
from bookie_protocol.metadata_service.interface import ANY_VERSION, Session

Watch = Callable[[], None]

NODES_AT_ONCE: Final = 64
"""A request for so many is far below what a server takes (ZooKeeper's `jute.maxbuffer`, 1 MiB), and its answer a few
hundred kilobytes at most in practice."""
NO_SESSION: Final = -1
"""The session id while there is none: no node has it as its owner."""


class ConnectionLost(MetadataUnavailable):
    """The connection or the session ended before the answer came: the request may have been carried out."""


@dataclass(frozen=True, slots=True)
class NodeStat:
    """`ctime_ms` since the epoch; `owner` is the session of an ephemeral node, 0 for a persistent one."""

    version: int
    child_version: int
    ctime_ms: int
    owner: int
    children: int


@dataclass(frozen=True, slots=True)
class Node:
    data: bytes
    stat: NodeStat


@dataclass(frozen=True, slots=True)
class Children:
    """Names in no particular order, and the parent's child version and time of creation: a parent that is made again
    counts its versions from 0 again."""

    names: tuple[str, ...]
    child_version: int
    ctime_ms: int


class NodeTree(Protocol):
    """One session with a tree. Paths are absolute; `timeout` is in seconds.

    Every call may raise `MetadataUnavailable` (or `ConnectionLost`); the further errors are named.
    """

    @property
    def session(self) -> Session: ...
    @property
    def session_id(self) -> int:
        """The id that our ephemeral nodes have as `owner`. A lost connection does not change it, a new session does."""
        ...

    async def create(
        self,
        path: str,
        data: bytes,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        open_to_all: bool = False,
        timeout: float,
    ) -> str:
        """The path created. `MetadataExists`; `MetadataNotFound`: the parent is missing.

        `open_to_all`: everybody may change it, also where the driver gives other nodes to their creator alone.
        """
        ...

    async def create_all(self, nodes: Sequence[tuple[str, bytes]], *, timeout: float) -> None:
        """Create persistent nodes, all or none, in this order. `MetadataExists`, `MetadataNotFound`."""
        ...

    async def get(self, path: str, *, watch: Watch | None = None, timeout: float) -> Node:
        """`MetadataNotFound` (then the watch is not set)."""
        ...

    async def get_each(self, paths: Sequence[str], *, timeout: float) -> list[Node | MetadataError]:
        """What `get` gives or raises for each of at most `NODES_AT_ONCE`: one request, where the driver can."""
        ...

    async def exists(self, path: str, *, watch: Watch | None = None, timeout: float) -> NodeStat | None:
        """None if there is no such node; the watch then waits for its creation."""
        ...

    async def children(self, path: str, *, watch: Watch | None = None, timeout: float) -> Children:
        """`MetadataNotFound` (then the watch is not set)."""
        ...

    async def set(self, path: str, data: bytes, version: int, *, session_id: int | None = None, timeout: float) -> int:
        """The new version. `MetadataNotFound`, `MetadataVersionConflict`; `SessionEnded`: the session of now is not
        the one that is named, so that nothing is sent in it."""
        ...

    async def delete(
        self, path: str, version: int = ANY_VERSION, *, session_id: int | None = None, timeout: float
    ) -> None:
        """`MetadataNotFound`, `MetadataVersionConflict`, `MetadataNotEmpty`; `SessionEnded` as for `set`."""
        ...

    async def sync(self, path: str, *, timeout: float) -> None:
        """Later reads see everything that was written, by anybody, before this call."""
        ...

    async def close(self) -> None: ...


def check_session(path: str, wanted: int | None, now: int) -> None:
    """Raises `SessionEnded` unless a request that depends on a session is sent in that one; None: on no session."""
    if wanted is not None and wanted != now:
        raise SessionEnded(f"{path}: the session {wanted:#x} that this depends on has ended")


def parent_of(path: str) -> str:
    """The path one level up."""
    return path.rpartition("/")[0] or "/"
