"""The nodes of the tree in the order of Oxia's keys: by the number of slashes, then by bytes with a slash above all.

The store has the children of a node side by side, by name. So the keys of one depth are found by going down the tree,
and the order is that of names with a slash behind them, except for the last ones: `ab/x` comes before `a/x`. Only what
lies between the bounds is looked at.

Invariant: a scan looks at as many rows as its `Budget` has, whether they are records or lead to some, and then ends
with the place where another one goes on (`Unfinished`). That is beyond the place where it began, so the last one
comes to the end. Every look into the store counts; a few for each level of the key come before the first place where
a scan can end.

Threads: one thread at a time (`commits.StoreThread`).
"""

from __future__ import annotations

from collections.abc import Iterator
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


class Unfinished(Exception):
    """The budget of a scan is spent. `rest`: where another one goes on."""

    def __init__(self, rest: Rest) -> None:
        super().__init__()
        self.rest = rest


class Budget:
    """The rows that all scans of one run may still look at; `ROWS` at first."""

    def __init__(self, rows: int | None = None) -> None:
        self._left = ROWS if rows is None else rows

    @property
    def is_spent(self) -> bool:
        return self._left <= 0

    def look(self) -> None:
        """Count a look into the store."""
        self._left -= 1

    def check(self, rest: Rest) -> None:
        """Raise `Unfinished` if the budget is spent: a scan calls it where it can go on later."""
        if self.is_spent:
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
                self._check(above + name + b"\0")
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
                self._check(above + name)
            return
        own, slash, below = (high or b"").partition(SLASH)
        if slash:  # most are found there
            yield from self.descending(above + own + SLASH, depth + 1, below)
        for name in self._parents_backwards(above, None if high is None else own, with_longer=bool(slash)):
            yield from self.descending(above + name + SLASH, depth + 1, None)
            self._check(above + name + SLASH)

    def _parents(self, above: bytes, low: bytes, high: bytes | None) -> Iterator[bytes]:
        """Yield the names of nodes that may have children between the bounds, in the order of these children."""
        own, slash, _ = low.partition(SLASH)
        if slash and high is not None and high.startswith(own + SLASH):
            yield own  # whether it is there or not
            return
        # A name's children come behind those of longer names that begin with it: it waits until these are over. So do
        # `own` and the names that it begins with, which are before the rows that are read: they are looked for then.
        waiting: list[bytes] = []
        for name, record in self._rows(above, own + (SLASH if slash else b"\0")):
            while waiting and not name.startswith(waiting[-1]):
                yield waiting.pop()
            if not name.startswith(own):
                common = _shared(own, name)
                yield from self._prefixes(above, own, len(common))
                own = common
            if high is not None and name > high:
                break
            if record.children:
                waiting.append(name)
            self._check(above + name + b"\0")
        yield from reversed(waiting)
        yield from self._prefixes(above, own, -1)

    def _prefixes(self, above: bytes, own: bytes, met: int) -> Iterator[bytes]:
        """Yield the names of parents that are prefixes of `own` and have more than `met` bytes, the longest first."""
        while (last := next(self._rows(above, own + b"\0", backwards=True), None)) is not None:
            name, record = last
            common = _shared(own, name)
            if len(common) <= met:
                return
            if name == common:
                if record.children:
                    yield name
                if not name:
                    return
                common = name[:-1]
            own = common  # no prefix lies between this and the name that was found
            if len(own) <= met:
                return
            self._check(above + own + SLASH)

    def _parents_backwards(self, above: bytes, end: bytes | None, *, with_longer: bool) -> Iterator[bytes]:
        """Yield the names of nodes that have children, the last children first: those whose children lie before those
        of `end`, or all. `with_longer`: also those of longer names, which begin with `end`."""
        start = SLASH if end is None else end + SLASH if with_longer else end
        before = end
        for name, record in self._rows(above, start, backwards=True):
            # The children of a name come after those of its longer names, so here before them: when the first of these
            # is met. A name that `before` begins with was met then.
            met = -1 if before is None else len(_shared(before, name))
            yield from self._prefixes_backwards(above, name, met)
            if record.children and len(name) > met:
                yield name
            self._check(above + name)
            before = name

    def _prefixes_backwards(self, above: bytes, own: bytes, met: int) -> Iterator[bytes]:
        """Yield the names of parents that `own`, the name of a row, begins with and that have more than `met` bytes,
        the shortest first, and not `own` itself."""
        while met + 1 < len(own):
            name, record = next(self._rows(above, own[: met + 1]))
            if name == own:
                return
            met = len(_shared(own, name))  # no prefix lies between: it would have been found
            if met == len(name) and record.children:
                yield name
            self._check(above + own[:met] + SLASH)

    def _rows(self, above: bytes, start: bytes, *, backwards: bool = False) -> Iterator[tuple[bytes, NodeRecord]]:
        prefix = self._prefix(above)
        self._budget.look()
        for row, raw in self._store.rows(prefix, start, backwards=backwards):
            self._budget.look()
            yield row[len(prefix) :], NodeRecord.decode(raw)

    def _prefix(self, above: bytes) -> bytes:
        return children_rows(path_of(key_at(above[:-1])) if above else None)

    def _check(self, rest: bytes) -> None:
        self._budget.check((self._depth, rest))


def _shared(one: bytes, other: bytes) -> bytes:
    """Return the longest prefix that both have."""
    length = min(len(one), len(other))
    differing = int.from_bytes(one[:length]) ^ int.from_bytes(other[:length])  # long keys are compared as numbers
    return one[: length - (differing.bit_length() + 7) // 8]
