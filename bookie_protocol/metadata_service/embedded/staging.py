"""The writes of one call, before they are one atomic write.

Invariants
- Later steps of a call see its earlier ones.
- A node's parents exist; a parent's count of children is right; an implied node has children.
- The attributes that a client of Oxia gave a record end with that state of it, whichever client writes next.

Threads: one thread at a time (`commits.StoreThread`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from bookie_protocol.errors import MetadataNotFound, MetadataUnavailable
from bookie_protocol.metadata_service.embedded.oxia_extras import extras_row, index_rows
from bookie_protocol.metadata_service.embedded.records import (
    ROOT,
    Change,
    NodeRecord,
    key_of,
    node_row,
    owner_row,
    parent_path,
)
from bookie_protocol.metadata_service.oxia import oxia_pb2 as oxia

STEP: Final = 2_000
"""Rows that are read and written at a time: some tens of milliseconds."""
_DELETED: Final = oxia.Notification(type=oxia.KEY_DELETED)


class Staged:
    """The writes of one call. `read` returns the value of a row."""

    def __init__(self, read: Callable[[bytes], bytes | None]) -> None:
        self._read = read
        self.rows: dict[bytes, bytes | None] = {}
        """The rows to write, by their keys; None deletes a row."""
        self._records: dict[str, NodeRecord | None] = {}
        self.changes: set[tuple[Change, str]] = set()
        self.notices: dict[str, oxia.Notification] = {}
        """The notifications for clients of Oxia, by key."""
        self.sequences: dict[str, str] = {}
        """The highest key of each sequence that grew, by the sequence's prefix."""
        self.stored_sequences: dict[str, str | None] = {}
        """The highest key of each sequence in the store, of those that were looked for."""
        self._made: list[bytes] = []
        """The rows of records that this call puts, in order."""
        self._work = 0

    def is_step_over(self) -> bool:
        """Return True if so many rows were read and written since this was last True that others should have a turn."""
        if self._work < STEP:
            return False
        self._work = 0
        return True

    def last_made(self, first: bytes, limit: bytes) -> bytes | None:
        """Return the highest row from `first` up to `limit` of a record that this call puts; None: there is none."""
        place = bisect_left(self._made, limit)
        found = self._made[place - 1] if place else b""
        return found if found >= first else None

    def row(self, key: bytes) -> bytes | None:
        self._work += 1
        return self.rows[key] if key in self.rows else self._read(key)

    def load(self, path: str) -> NodeRecord | None:
        if path in self._records:
            return self._records[path]
        self._work += 1
        raw = self._read(node_row(path))
        return None if raw is None else NodeRecord.decode(raw)

    def keep(self, path: str, record: NodeRecord | None) -> None:
        """Write a node's record, and nothing that depends on it."""
        self._work += 1
        self._records[path] = record
        self.rows[node_row(path)] = None if record is None else record.encode()

    def create(self, path: str, record: NodeRecord, *, imply_parents: bool = False) -> None:
        """Add a node that is not there. `MetadataNotFound`: its parent is not there either, and is not implied."""
        if (parent := parent_path(path)) is not None:
            above = self.load(parent)
            if above is None:
                if not imply_parents:
                    raise MetadataNotFound(f"{parent} does not exist")
                self.create(parent, NodeRecord.implied(), imply_parents=True)
                above = self.load(parent)
                assert above is not None
            if above.owner and not imply_parents:
                raise MetadataUnavailable(f"{parent} is ephemeral and cannot have children")
            self.keep(parent, replace(above, child_version=above.child_version + 1, children=above.children + 1))
            self.changes.add((Change.CHILDREN, parent))
        self.write(path, None, record)

    def write(self, path: str, before: NodeRecord | None, after: NodeRecord | None) -> None:
        """Put another record in a node's place."""
        self.keep(path, after)
        if after is not None and not after.is_implied:
            insort(self._made, node_row(path))
        self._forget_extras(path)
        owner_before, owner = (0 if record is None else record.owner for record in (before, after))
        if owner_before and owner_before != owner:
            self.rows[owner_row(owner_before, path)] = None
        if owner:
            self.rows[owner_row(owner, path)] = b""
        self.changes.add((Change.NODE, path))
        self._notice(key_of(path), before, after)

    def remove(self, path: str) -> None:
        """Delete a node that exists; one with children is implied from then on. Parents that were only implied go with
        their last child."""
        while True:
            record = self.load(path)
            assert record is not None
            assert path != ROOT
            if record.children:
                self.write(path, record, record.unmade())
                return
            self.write(path, record, None)
            self.changes.add((Change.CHILDREN, path))
            if (parent := parent_path(path)) is None:
                return
            above = self.load(parent)
            assert above is not None
            self.keep(parent, replace(above, child_version=above.child_version + 1, children=above.children - 1))
            self.changes.add((Change.CHILDREN, parent))
            if not above.is_implied or above.children > 1:
                return
            path = parent

    def _notice(self, key: str, before: NodeRecord | None, after: NodeRecord | None) -> None:
        was_there = before is not None and not before.is_implied
        if after is None or after.is_implied:
            if was_there:
                self.notices[key] = _DELETED
            return
        earlier = self.notices.get(key)
        is_new = not was_there or (earlier is not None and earlier.type == oxia.KEY_CREATED)
        kind = oxia.KEY_CREATED if is_new else oxia.KEY_MODIFIED
        self.notices[key] = oxia.Notification(type=kind, version_id=after.version_id)

    def _forget_extras(self, path: str) -> None:
        if (raw := self.row(extras_row(path))) is not None:
            self.rows[extras_row(path)] = None
            for row in index_rows(path, raw):
                self.rows[row] = None
