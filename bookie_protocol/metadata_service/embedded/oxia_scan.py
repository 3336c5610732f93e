"""The nodes of the tree in the order of Oxia's keys: by the number of slashes, then by bytes with a slash above all.

The store has the children of a node side by side, by name. So the keys of one depth are found by going down the tree,
and the order is that of names with a slash behind them, except for the last ones: `ab/x` comes before `a/x`. Only what
lies between the bounds is looked at.

Invariant: a scan looks at as many rows as its `Budget` has, whether they are records or lead to some, and then ends
with the place where another one goes on (`Unfinished`). That is beyond the place where it began, so the last one
comes to the end. A row that is looked at may take some look-ups more, but no more than its key has bytes.

Threads: one thread at a time (`commits.StoreThread`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, pairwise
from typing import Final, cast

from bookie_protocol.metadata_service.embedded.oxia_keys import MAX_DEPTH, SLASH, Place, key_at, place
from bookie_protocol.metadata_service.embedded.records import NodeRecord, children_rows, path_of
from bookie_protocol.metadata_service.embedded.store import NodeStore

ROWS: Final = 1_000
"""The rows that one run of the store looks at: some tens of milliseconds, in which all other calls wait."""
Resumed = tuple[int, bytes, bool]
"""A place, and True if no node was found before it that has as many slashes."""
Rest = Place | Resumed | bytes
"""The beginning of the rest of a scan: a place among the keys, or a row of an index."""
Found = tuple[str, NodeRecord]
"""A record, and its key."""
_NOTHING: Final = NodeRecord.implied()


class Unfinished(Exception):
    """The budget of a scan is spent. `rest`: where another one goes on."""

    def __init__(self, rest: Rest) -> None:
        super().__init__()
        self.rest = rest


class Budget:
    """The rows that all scans of one run may still look at; `ROWS` at first."""

    def __init__(self, rows: int | None = None) -> None:
        self._left = ROWS if rows is None else rows

    def spend(self, rest: Rest) -> None:
        """Count a row that has been dealt with. Raises `Unfinished` if it was the last."""
        self._left -= 1
        if self._left <= 0:
            raise Unfinished(rest)


def ascending(store: NodeStore, start: Place | Resumed, end: Place | None, budget: Budget) -> Iterator[Found]:
    """Yield the records from `start` up to `end`, or to the last."""
    low, is_empty = start[1], start[2] if len(start) == 3 else not start[1]
    for depth in range(start[0], (MAX_DEPTH if end is None else min(MAX_DEPTH, end[0])) + 1):
        high = end[1] if end is not None and depth == end[0] else None
        try:
            for key, record in _Level(store, depth, budget).ascending(b"", 0, low, high):
                is_empty = False
                if not record.is_implied and key:
                    yield key, record
        except Unfinished as left:
            _, coded = cast("Place", left.rest)  # of this level
            raise Unfinished((depth, coded, is_empty)) from None
        if is_empty and high is None:
            return  # and nothing is deeper
        low, is_empty = b"", True


def descending(store: NodeStore, end: Place | Resumed, budget: Budget) -> Iterator[Found]:
    """Yield the records below `end`, from the last to the first."""
    for depth in range(min(end[0], MAX_DEPTH), -1, -1):
        high = end[1] if depth == end[0] else None
        for key, record in _Level(store, depth, budget).descending(b"", 0, high):
            if not record.is_implied and key:
                yield key, record


def after(key: str) -> Place:
    """Return the place right behind a record's: no key has a NUL."""
    depth, coded = place(key)
    return depth, coded + b"\0"


class _Level:
    """The nodes whose keys have so many slashes. `above` is the encoded key of a node with a slash behind it, or empty;
    `low` and `high` are bounds of what comes behind that."""

    def __init__(self, store: NodeStore, depth: int, budget: Budget) -> None:
        self._store = store
        self._depth = depth
        self._budget = budget

    def ascending(self, above: bytes, depth: int, low: bytes, high: bytes | None) -> Iterator[Found]:
        if depth == self._depth:
            for name, record in self._rows(above, low):
                if high is not None and name >= high:
                    return
                yield key_at(above + name), record
                self._spend(above + name + b"\0")
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
                self._spend(above + name)
            return
        own, slash, below = (high or b"").partition(SLASH)
        if slash:  # most are found there
            yield from self.descending(above + own + SLASH, depth + 1, below)
        for name in self._parents_backwards(above, None if high is None else own, with_longer=bool(slash)):
            yield from self.descending(above + name + SLASH, depth + 1, None)
            self._spend(above + name + SLASH)

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
            if high is not None and name > high:
                break
            if record.children:
                waiting.append(name)
            self._spend(above + name + b"\0")
        yield from reversed(waiting)

    def _parents_backwards(self, above: bytes, end: bytes | None, *, with_longer: bool) -> Iterator[bytes]:
        """Yield the names of nodes that have children, the last children first: those whose children lie before those
        of `end`, or all. `with_longer`: also those of longer names, which begin with `end`."""
        start = SLASH if end is None else end + SLASH if with_longer else end
        before = end
        rows = self._rows(above, start, backwards=True)
        for (name, record), (following, _) in pairwise(chain(rows, [(b"", _NOTHING)])):
            # The children of a name come after those of its longer names, so here before them: when the first of these
            # is met. A name that `before` begins with was met then.
            met = -1 if before is None else len(_shared(before, name))
            for length in range(met + 1, min(len(name) - 1, len(_shared(name, following))) + 1):
                if self._has_children(above, name[:length]):
                    yield name[:length]
            if len(name) > met:
                if record.children:
                    yield name
                else:
                    self._spend(above + name + SLASH)
            before = name

    def _has_children(self, above: bytes, name: bytes) -> bool:
        raw = self._store.row(self._prefix(above) + name)
        return raw is not None and NodeRecord.decode(raw).children > 0

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

    def _spend(self, rest: bytes) -> None:
        self._budget.spend((self._depth, rest))


def _shared(one: bytes, other: bytes) -> bytes:
    """Return the longest prefix that both have."""
    length = 0
    for here, there in zip(one, other, strict=False):
        if here != there:
            break
        length += 1
    return one[:length]
