"""Offsets of a streaming query, as the checkpoint keeps them.

    {"v":1,"start":"latest"}                                         where a new query begins; never moves
    {"v":1,"s":{"orders":{"l":7,"e":120,"n":5120}}}                  streams: ledger, next entry, ordinal of that entry
    {"v":1,"w":12,"o":{"3":40},"f":[3],"c":{"3":[7,9]},"sel":"x:9f"} ledgers: watermark, next entry of each, finished,
                                                                     and the selection that they are of

`start` is `earliest`, `latest`, or the text of the option `startingPosition`. It is resolved once, by the batch that
leaves it, whose end offset says in `from` where the batch begins: Spark does not keep the start of the first batch, and
may ask for the very first offset again after a crash. `from` also holds the beginnings of streams that were found
later, and of those that start again because what came next is lost; it counts more than the offset before.

Of ledgers, those below the watermark `w` that `o` does not name are closed and read to their end; those from `w` on
that `o` does not name were not begun. Every ledger that a batch reads is named by its end offset, so what is in a batch
follows from its two offsets alone. `f` are those of `o` that were closed and read to their end: their deletion takes
nothing from the query. `c` tells which ledger of its number each of them is: its creation and its token. The watermark
means nothing for another selection: `sel` is the fingerprint of the one that it was made for (`options.fingerprint`);
offsets of earlier releases have none. `l` is -1 in front of a stream that has no ledger yet.

Invariants
- Spark compares offsets as texts: equal offsets have equal texts (one order of keys: streams by name, ledgers by id).
- What cannot be read as an offset is refused with its text, never guessed at.

Pure; any process.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from zlib import crc32

from bookie_protocol.versioned import LedgerLife
from pyspark_bookie.common.errors import PodkeeperSparkError

OFFSET: Final = "OFFSET"
VERSION: Final = 1
_LEAST_CREATION: Final = -(2**64)
"""Creations of metadata that moved to another service are negative (`bookie_protocol.versioned.moved`)."""
Document = dict[str, Any]
"""An offset as PySpark takes it: the value of a JSON text."""


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a stream; `ledger_id` -1: in front of all that is listed. `ordinal`: of the entry that is read
    next, in the count of the whole stream."""

    ledger_id: int
    entry_id: int
    ordinal: int

    @property
    def position(self) -> tuple[int, int]:
        """Return the position as a `StreamPosition` has it: without a ledger its second number is the ordinal."""
        return (self.ledger_id, self.entry_id) if self.ledger_id >= 0 else (-1, self.ordinal)


@dataclass(frozen=True, slots=True)
class Start:
    """The place in front of the first batch."""

    position: str

    def document(self) -> Document:
        return {"v": VERSION, "start": self.position}


@dataclass(frozen=True)
class StreamsOffset:
    """`begin`: places where the batch that ends here began and that the offset before it does not hold."""

    places: Mapping[str, Place]
    begin: Mapping[str, Place] = field(default_factory=dict)

    def document(self) -> Document:
        made: Document = {"v": VERSION, "s": _places(self.places)}
        if self.begin:
            made["from"] = _places(self.begin)
        return made


@dataclass(frozen=True)
class LedgersOffset:
    """`begin`: where the batch that ends here began, if it was the first. `finished`: those of `next_entries` that were
    closed and read to their end. `selection`: its fingerprint; None: an earlier release wrote the offset, or it is
    another one's beginning. `lives`: which ledgers those of `next_entries` are, where that is known."""

    watermark: int
    next_entries: Mapping[int, int]
    begin: LedgersOffset | None = None
    finished: frozenset[int] = frozenset()
    selection: str | None = None
    lives: Mapping[int, LedgerLife] = field(default_factory=dict)

    def document(self) -> Document:
        made: Document = {
            "v": VERSION,
            "w": self.watermark,
            "o": {str(ledger_id): self.next_entries[ledger_id] for ledger_id in sorted(self.next_entries)},
        }
        if self.finished:
            made["f"] = sorted(self.finished)
        if self.lives:
            made["c"] = {str(each): [life.creation, life.token] for each, life in sorted(self.lives.items())}
        if self.selection is not None:
            made["sel"] = self.selection
        if self.begin is not None:
            made["from"] = {key: value for key, value in self.begin.document().items() if key not in ("v", "sel")}
        return made

    def next_entry(self, ledger_id: int) -> int | None:
        """The entry of a ledger that is read next; None: it was read to its end."""
        return self.next_entries.get(ledger_id, 0 if ledger_id >= self.watermark else None)


Offset = Start | StreamsOffset | LedgersOffset


def parse_offset(document: object) -> Offset:
    """An offset of the checkpoint. Raises `PodkeeperSparkError` (OFFSET)."""
    try:
        return _parsed(document)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _refused(
            document, "is not an offset of this source: the checkpoint is damaged or another source's"
        ) from None


def stream_ranges(start: StreamsOffset | Start, end: StreamsOffset) -> list[tuple[str, Place, Place]]:
    """The streams that a batch reads: name, from where, to where. Raises `PodkeeperSparkError` (OFFSET) when the two
    are not ends of one batch."""
    before = start.places if isinstance(start, StreamsOffset) else {}
    found = []
    for name, place in sorted(end.places.items()):
        begin = end.begin.get(name) or before.get(name)
        if begin is None:
            raise _refused(end.document(), f"does not say where stream {name} begins: the checkpoint is damaged")
        if place.ordinal < begin.ordinal:
            raise _refused(end.document(), f"is before {start.document()} in stream {name}: the checkpoint is damaged")
        if place.ordinal > begin.ordinal:
            found.append((name, begin, place))
    return found


def ledger_ranges(start: LedgersOffset | Start, end: LedgersOffset) -> list[tuple[int, int, int]]:
    """The ledgers that a batch reads: id, first and last entry, both included. Raises as `stream_ranges`."""
    before = start if isinstance(start, LedgersOffset) else end.begin
    if before is None:
        raise _refused(end.document(), "does not say where its batch begins: the checkpoint is damaged")
    found = []
    for ledger_id, next_entry in sorted(end.next_entries.items()):
        first = before.next_entry(ledger_id)
        if first is None or next_entry < first:
            raise _refused(end.document(), f"is before {before.document()} in ledger {ledger_id}")
        if next_entry > first:
            found.append((ledger_id, first, next_entry - 1))
    return found


def turn_of(offset: Offset) -> int:
    """A number that differs from batch to batch and is always the same for one offset."""
    return crc32(json.dumps(offset.document()).encode())


def other_selection(offset: Offset, selected: str) -> PodkeeperSparkError:
    """A checkpoint of a query that selected otherwise."""
    return _refused(offset.document(), f"is not of {selected}: the query read something else when it was checkpointed")


# --- inside ---------------------------------------------------------------------------------------------------


def _places(places: Mapping[str, Place]) -> Document:
    return {
        name: {"l": place.ledger_id, "e": place.entry_id, "n": place.ordinal} for name, place in sorted(places.items())
    }


def _parsed(document: object) -> Offset:
    if not isinstance(document, dict):
        raise TypeError
    if document["v"] != VERSION:
        raise _refused(document, f"was written by another version of this source, which knows version {VERSION}")
    if "start" in document:
        _only(document, ("v", "start"))
        return Start(_text(document["start"]))
    if "s" in document:
        _only(document, ("v", "s", "from"))
        return StreamsOffset(_stream_places(document["s"]), _stream_places(document.get("from", {})))
    begin = document.get("from")
    own = {key: value for key, value in document.items() if key not in ("v", "from")}
    return _ledgers(own, None if begin is None else _ledgers(begin))


def _ledgers(document: Mapping[str, Any], begin: LedgersOffset | None = None) -> LedgersOffset:
    _only(document, ("w", "o", "f", "c", "sel"))
    next_entries = _next_entries(document["o"])
    finished = frozenset(map(_number, document.get("f", ())))
    if not finished <= set(next_entries):
        raise ValueError
    selection = document.get("sel")
    lives = {int(each): _life(int(each), life) for each, life in document.get("c", {}).items()}
    if not lives.keys() <= set(next_entries):
        raise ValueError
    selection = None if selection is None else _text(selection)
    return LedgersOffset(_number(document["w"]), next_entries, begin, finished, selection, lives)


def _life(ledger_id: int, document: Any) -> LedgerLife:
    creation, token = document
    return LedgerLife(ledger_id, _number(creation, _LEAST_CREATION), _number(token))


def _only(document: Iterable[str], keys: tuple[str, ...]) -> None:
    if not set(document) <= set(keys):
        raise ValueError


def _stream_places(document: Mapping[str, Any]) -> dict[str, Place]:
    return {name: _place(place) for name, place in document.items()}


def _place(document: Mapping[str, Any]) -> Place:
    _only(document, ("l", "e", "n"))
    return Place(_number(document["l"], -1), _number(document["e"]), _number(document["n"]))


def _next_entries(document: Mapping[str, Any]) -> dict[int, int]:
    return {_number(int(ledger_id)): _number(entry_id) for ledger_id, entry_id in document.items()}


def _number(value: object, least: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _refused(document: object, why: str) -> PodkeeperSparkError:
    text = json.dumps(document, default=repr)
    return PodkeeperSparkError(OFFSET, f"offset {text[:500]} {why}")
