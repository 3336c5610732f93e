"""The tree of versioned nodes that a driver offers.

Invariants
- A node has bytes, a creation (opaque; another one for each node that is made, also under a name that was used before)
  and a version (0 when created, +1 with each write). An ephemeral node ends with the session that made it.
- A conditional write or delete compares creation and version. What was created before it was called, under a name that
  was used before, is never changed in the place of its predecessor.
- A sequential node's name ends in ten digits that no later sibling gets again. The digits of one that is made later
  are greater.
- A listing is complete, or an error. What it gives was so at one moment.
- A watch fires at most once, on the event loop, when what was read may have changed. It may also fire for no reason (a
  lost connection): the watcher reads again.
- `ConnectionLost` means: not answered, worth another try. Any other `MetadataUnavailable` is final for this
  call.

Threads: event loop only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from bookie_protocol.errors import MetadataError, MetadataUnavailable, SessionEnded
from bookie_protocol.metadata_service.interface import Session
from bookie_protocol.versioned import NO_SESSION as NO_SESSION
from bookie_protocol.versioned import Identity

Watch = Callable[[], None]

NODES_AT_ONCE: Final = 64
"""A request for so many is far below what a server takes (ZooKeeper's `jute.maxbuffer`, 1 MiB), and its answer a few
hundred kilobytes at most in practice."""
_CHILD_VERSION_BITS: Final = 32


class ConnectionLost(MetadataUnavailable):
    """The connection or the session ended before the answer came: the request may have been carried out."""


@dataclass(frozen=True, slots=True)
class NodeStat:
    """`ctime_ms` since the epoch, None where the service keeps no times; `owner` is the session of an ephemeral node, 0
    for a persistent one. `children`: their number; 1 where the driver does not count them, which says nothing."""

    version: int
    creation: int
    ctime_ms: int | None
    owner: int
    children: int

    def identity(self, session_id: int = NO_SESSION) -> Identity:
        """This state of the node, as read or written in a session."""
        return Identity(self.version, self.creation, session_id)


@dataclass(frozen=True, slots=True)
class Node:
    data: bytes
    stat: NodeStat


@dataclass(frozen=True, slots=True)
class Created:
    """The path of a new node, with its number if it is sequential, and its creation."""

    path: str
    creation: int


@dataclass(frozen=True, slots=True)
class Children:
    """Names in no particular order. `version` is greater than that of every listing of this path that showed others
    before, also where the parent was made again in between."""

    names: tuple[str, ...]
    version: int


class NodeTree(Protocol):
    """One session with a tree. Paths are absolute; `timeout` is in seconds.

    Every call may raise `MetadataUnavailable` (or `ConnectionLost`); the further errors are named.
    """

    @property
    def keeps_times(self) -> bool:
        """Return True if nodes have `ctime_ms`."""
        ...

    @property
    def removes_directories(self) -> bool:
        """Return True if the directories of ledgers go when they are empty. Not where a client of another kind may be
        making a ledger in one, and nothing would put the two in order: no listing would show that ledger."""
        ...

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
        session_id: int | None = None,
        timeout: float,
    ) -> Created:
        """`MetadataExists`; `MetadataNotFound`: the parent is missing; `SessionEnded` as for `set`.

        `open_to_all`: everybody may change it, or read it if it is ephemeral, also where the driver gives other nodes
        to their creator alone.
        """
        ...

    async def take_number(self, prefix: str, *, timeout: float) -> tuple[int, str | None]:
        """Return the number that a sequential node of this name would have got; it is given to no other caller.

        If a node had to be made for it, return that too: it goes with the session, or the caller deletes it.
        `MetadataNotFound`: the parent is missing.
        """
        ...

    async def create_all(
        self, nodes: Sequence[tuple[str, bytes]], *, session_id: int | None = None, timeout: float
    ) -> None:
        """Create persistent nodes, all or none, in this order. `MetadataExists`, `MetadataNotFound`, `SessionEnded` as
        for `set`."""
        ...

    async def get(self, path: str, *, watch: Watch | None = None, timeout: float) -> Node:
        """`MetadataNotFound` (then the watch is not set)."""
        ...

    async def get_each(
        self, paths: Sequence[str], *, childless: bool = False, timeout: float
    ) -> list[Node | MetadataError]:
        """Return what `get` returns or raises for each of at most `NODES_AT_ONCE`: by one request, if the driver
        can. `childless`: a driver that counts no children looks which of them have none, and says 0 of those."""
        ...

    async def exists(self, path: str, *, watch: Watch | None = None, timeout: float) -> NodeStat | None:
        """None if there is no such node; the watch then waits for its creation."""
        ...

    async def children(self, path: str, *, watch: Watch | None = None, timeout: float) -> Children:
        """`MetadataNotFound` (then the watch is not set)."""
        ...

    async def set(
        self, path: str, data: bytes, this: Identity | None, *, session_id: int | None = None, timeout: float
    ) -> NodeStat:
        """Return the node as written. `this`: what is replaced; None: whatever is there. `MetadataNotFound`,
        `MetadataVersionConflict`, `MetadataReplaced`; `SessionEnded`: the session of now is not the one that is named,
        so that nothing is sent in it."""
        ...

    async def delete(self, path: str, this: Identity | None, *, session_id: int | None = None, timeout: float) -> None:
        """`MetadataNotEmpty`, and as `set`."""
        ...

    async def sync(self, path: str, *, timeout: float) -> None:
        """Later reads see everything that was written, by anybody, before this call."""
        ...

    async def close(self) -> None: ...


async def number_by_node(tree: NodeTree, prefix: str, timeout: float) -> tuple[int, str | None]:
    """`NodeTree.take_number` where numbers come with nodes alone."""
    made = await tree.create(prefix, b"", ephemeral=True, sequential=True, timeout=timeout)
    return int(made.path.removeprefix(prefix)), made.path


def check_session(path: str, wanted: int | None, now: int) -> None:
    """Raises `SessionEnded` unless a request that depends on a session is sent in that one; None: on no session."""
    if wanted is not None and wanted != now:
        raise SessionEnded(f"{path}: the session {wanted:#x} that this depends on has ended")


def version_of_children(parent_ctime_ms: int, child_version: int) -> int:
    """`Children.version` out of the time at which the parent was made, and a count that begins with 0 then and grows
    with each child that is made or deleted."""
    return parent_ctime_ms << _CHILD_VERSION_BITS | child_version


def changes_of_children(version: int) -> int:
    """Return the count of children that came or went since the parent was made, out of such a version."""
    return version & ((1 << _CHILD_VERSION_BITS) - 1)


def parent_of(path: str) -> str:
    """Return the path one level up."""
    return path.rpartition("/")[0] or "/"
