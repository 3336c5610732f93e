"""The nodes of the tree in the order of Oxia's keys: by the number of slashes, then by bytes with a slash above all.

The store has the children of a node side by side, by name. So the keys of one depth are found by going down the tree,
and the order is that of names with a slash behind them, except for the last ones: `ab/x` comes before `a/x`. Only what
lies between the bounds is looked at.

Threads: one thread at a time (`commits.StoreThread`).
"""

from __future__ import annotations

from collections.abc import Iterator

from bookie_protocol.metadata_service.embedded.oxia_keys import MAX_DEPTH, SLASH, Place, key_at, place
from bookie_protocol.metadata_service.embedded.records import NodeRecord, children_rows, path_of
from bookie_protocol.metadata_service.embedded.store import NodeStore

Found = tuple[str, NodeRecord]
"""A record, and its key."""


def ascending(store: NodeStore, start: Place, end: Place | None = None) -> Iterator[Found]:
    """Yield the records from `start` up to `end`, or to the last."""
    for depth in range(start[0], (MAX_DEPTH if end is None else min(MAX_DEPTH, end[0])) + 1):
        low = start[1] if depth == start[0] else b""
        high = end[1] if end is not None and depth == end[0] else None
        is_empty = True
        for key, record in _Level(store, depth).ascending(b"", 0, low, high):
            is_empty = False
            if not record.is_implied and key:
                yield key, record
        if is_empty and not low and high is None:
            return  # and nothing is deeper


def descending(store: NodeStore, end: Place) -> Iterator[Found]:
    """Yield the records below `end`, from the last to the first."""
    for depth in range(min(end[0], MAX_DEPTH), -1, -1):
        high = end[1] if depth == end[0] else None
        for key, record in _Level(store, depth).descending(b"", 0, high):
            if not record.is_implied and key:
                yield key, record


def after(key: str) -> Place:
    """Return the place right behind a record's: no key has a NUL."""
    depth, coded = place(key)
    return depth, coded + b"\0"


class _Level:
    """The nodes whose keys have so many slashes. `above` is the encoded key of a node with a slash behind it, or empty;
    `low` and `high` are bounds of what comes behind that."""

    def __init__(self, store: NodeStore, depth: int) -> None:
        self._store = store
        self._depth = depth

    def ascending(self, above: bytes, depth: int, low: bytes, high: bytes | None) -> Iterator[Found]:
        if depth == self._depth:
            for name, record in self._rows(above, low):
                if high is not None and name >= high:
                    return
                yield key_at(above + name), record
            return
        for name in self._parents(above, low, high):
            coded = name + SLASH
            if high is not None and coded >= high:
                return
            below = low[len(coded) :] if low.startswith(coded) else b""
            limit = high[len(coded) :] if high is not None and high.startswith(coded) else None
            yield from self.ascending(above + coded, depth + 1, below, limit)

    def descending(self, above: bytes, depth: int, high: bytes | None) -> Iterator[Found]:
        if depth == self._depth:
            for name, record in self._rows(above, SLASH if high is None else high, backwards=True):
                yield key_at(above + name), record
            return
        own = b"" if high is None else high.partition(SLASH)[0]
        if high is not None and SLASH in high:  # most are found there
            yield from self.descending(above + own + SLASH, depth + 1, high[len(own) + 1 :])
        limit = None if high is None else own + SLASH if SLASH in high else high
        names = [name for name, record in self._rows(above, b"") if record.children]
        for name in sorted(names, key=_as_parent, reverse=True):
            if limit is None or name + SLASH < limit:
                yield from self.descending(above + name + SLASH, depth + 1, None)

    def _parents(self, above: bytes, low: bytes, high: bytes | None) -> Iterator[bytes]:
        """Yield the names of nodes that may have children between the bounds, in the order of these children."""
        own, slash, _ = low.partition(SLASH)
        if slash and high is not None and high.startswith(own + SLASH):
            yield own  # whether it is there or not
            return
        # A name's children come behind those of longer names that begin with it: it waits until these are over.
        waiting = self._prefixes(above, own, with_own=bool(slash))
        for name, record in self._rows(above, own + SLASH if slash else own):
            while waiting and not name.startswith(waiting[-1]):
                yield waiting.pop()
            if record.children:
                waiting.append(name)
        yield from reversed(waiting)

    def _prefixes(self, above: bytes, own: bytes, *, with_own: bool) -> list[bytes]:
        """Return the names of parents that are prefixes of `own`, the shortest first."""
        found = []
        limit = own + b"\0" if with_own else own
        while (last := next(self._rows(above, limit, backwards=True), None)) is not None:
            name, record = last
            if not own.startswith(name):  # nor with a name between this one and the common prefix
                limit = _shared(name, own) + b"\0"
                continue
            if record.children:
                found.append(name)
            limit = name
        return found[::-1]

    def _rows(self, above: bytes, start: bytes, *, backwards: bool = False) -> Iterator[tuple[bytes, NodeRecord]]:
        prefix = self._prefix(above)
        for row, raw in self._store.rows(prefix, start, backwards=backwards):
            yield row[len(prefix) :], NodeRecord.decode(raw)

    def _prefix(self, above: bytes) -> bytes:
        return children_rows(path_of(key_at(above[:-1])) if above else None)


def _as_parent(name: bytes) -> bytes:
    return name + SLASH


def _shared(one: bytes, other: bytes) -> bytes:
    """Return the longest prefix that both have."""
    length = 0
    for here, there in zip(one, other, strict=False):
        if here != there:
            break
        length += 1
    return one[:length]
