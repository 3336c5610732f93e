"""The nodes of the virtual metadata service, at all times.

Invariants
- Changes are numbered; a state is what stands after one of them, and any earlier state can still be read.
- A change of the set of a node's children is a change of that node, too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace

from bookie_protocol.errors import (
    MetadataExists,
    MetadataNotEmpty,
    MetadataNotFound,
    MetadataReplaced,
    MetadataVersionConflict,
)
from bookie_protocol.metadata_service.tree.nodes import Children, NodeStat, parent_of, version_of_children
from bookie_protocol.versioned import Identity


@dataclass(frozen=True, slots=True)
class NodeRecord:
    creation: int
    version: int
    child_version: int
    ctime_ms: int
    owner: int
    children: int
    sequence: int
    data: bytes

    @property
    def stat(self) -> NodeStat:
        return NodeStat(self.version, self.creation, self.ctime_ms, self.owner, self.children)


class NodeHistory:
    """All nodes at all times. `now` counts changes; `at` looks at an earlier state."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._versions: dict[str, list[tuple[int, NodeRecord | None]]] = {}
        self._children: dict[str, dict[str, None]] = {}
        self._times: list[float] = []
        self.on_change: Callable[[str, int], None] = lambda path, change: None
        self.now = 0
        self._put("/", NodeRecord(0, 0, 0, 0, 0, 0, 0, b""))

    # --- reading --------------------------------------------------------------------------------------------

    def change_at(self, time: float) -> int:
        """The last change made by that time."""
        return bisect_right(self._times, time)

    def at(self, path: str, change: int) -> NodeRecord | None:
        versions = self._versions.get(path)
        if not versions:
            return None
        if versions[-1][0] <= change:
            return versions[-1][1]
        at = bisect_right(versions, change, key=lambda version: version[0])
        return versions[at - 1][1] if at else None

    def changed_after(self, path: str, change: int) -> int | None:
        """The first later change of this node."""
        for number, _ in self._versions.get(path, ()):
            if number > change:
                return number
        return None

    def require(self, path: str, change: int | None = None) -> NodeRecord:
        record = self.at(path, self.now if change is None else change)
        if record is None:
            raise MetadataNotFound(f"{path} does not exist")
        return record

    def children(self, path: str, change: int) -> Children:
        record = self.require(path, change)
        prefix = "" if path == "/" else path
        names = tuple(name for name in self._children.get(path, ()) if self.at(f"{prefix}/{name}", change) is not None)
        return Children(names, version_of_children(record.ctime_ms, record.child_version))

    # --- writing --------------------------------------------------------------------------------------------

    def create(self, path: str, data: bytes, owner: int, sequential: bool) -> str:
        parent_path = parent_of(path)
        parent = self.require(parent_path)
        sequence = parent.sequence
        if sequential:
            path, sequence = f"{path}{sequence:010d}", sequence + 1
        if self.at(path, self.now) is not None:
            raise MetadataExists(f"{path} exists already")
        self._children.setdefault(parent_path, {})[path.rpartition("/")[2]] = None
        self._put(path, NodeRecord(self.now + 1, 0, 0, int(self._clock() * 1000), owner, 0, 0, data))
        more = replace(parent, child_version=parent.child_version + 1, children=parent.children + 1, sequence=sequence)
        self._put(parent_path, more)
        return path

    def set(self, path: str, data: bytes, this: Identity | None) -> NodeStat:
        record = self.require(path)
        _check(path, record, this)
        written = replace(record, version=record.version + 1, data=data)
        self._put(path, written)
        return written.stat

    def delete(self, path: str, this: Identity | None) -> None:
        record = self.require(path)
        _check(path, record, this)
        if record.children:
            raise MetadataNotEmpty(f"{path} has children")
        parent_path = parent_of(path)
        parent = self.require(parent_path)
        self._put(path, None)
        self._put(parent_path, replace(parent, child_version=parent.child_version + 1, children=parent.children - 1))

    def _put(self, path: str, record: NodeRecord | None) -> None:
        self.now += 1
        self._times.append(self._clock())
        self._versions.setdefault(path, []).append((self.now, record))
        self.on_change(path, self.now)


def _check(path: str, record: NodeRecord, this: Identity | None) -> None:
    if this is None:
        return
    if record.creation != this.creation:
        raise MetadataReplaced(f"{path} was deleted, and another node has its name")
    if record.version != this.version:
        raise MetadataVersionConflict(f"{path} has version {record.version}, not {this.version}")
