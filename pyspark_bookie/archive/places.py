"""The place of a ledger in a stream, by which what was archived is put in order again.

Ids do not tell the order: tasks of Spark fill ledgers side by side, and a stream lists them as they were published.
The ordinal of a ledger's first entry does. It never changes while the stream exists, and the next ledger's is larger
by the entries of this one, so that a gap and a double show.

Pure; any thread.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bookie_protocol.archive import LONG_MAX, Counts, whole
from bookie_protocol.errors import UNREADABLE

PLACE_KEY: Final = "podkeeper/place"
"""Custom metadata of a ledger that a transfer has put into a stream: the place that the source ledger had."""


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """The place of a ledger in one life of a stream."""

    stream: str
    created_ms: int
    """Creation time of the stream, which tells it from another one of its name."""
    generation: int
    """Number of times the stream had been overwritten."""
    ordinal: int
    """Number of entries that the stream had before the ledger's first one."""

    def is_comparable(self, other: StreamPlace) -> bool:
        """Return True if the ordinals of both count the same entries."""
        return (self.stream, self.created_ms, self.generation) == (other.stream, other.created_ms, other.generation)

    def as_json(self) -> dict[str, Any]:
        return {
            "stream": self.stream,
            "created_ms": self.created_ms,
            "generation": self.generation,
            "ordinal": self.ordinal,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> StreamPlace:
        """Raises one of `UNREADABLE` for a row of another form."""
        return cls(
            str(row["stream"]),
            whole(row["created_ms"], -LONG_MAX - 1),
            whole(row["generation"]),
            whole(row["ordinal"]),
        )

    def encode(self) -> bytes:
        """Return the value of `PLACE_KEY`."""
        return json.dumps(self.as_json()).encode()

    @classmethod
    def decode(cls, value: bytes | None) -> StreamPlace | None:
        """Return the place in custom metadata, which any client may write; None if it cannot be read."""
        try:
            return None if value is None else cls.from_json(json.loads(value))
        except UNREADABLE:
            return None


@dataclass(frozen=True, slots=True)
class PlacedLedger:
    """A ledger as a stream lists it: its place and its content. None: the list does not know how its writer ended."""

    place: StreamPlace
    entries: int | None
    nbytes: int | None
    crc: int | None

    def place_of(self, counts: Counts) -> StreamPlace | None:
        """Return the place, if this is the ledger with that content; an id alone may be another life's."""
        is_same = (self.entries, self.nbytes) == (counts.entries, counts.nbytes)
        return self.place if is_same and self.crc in (None, counts.payload_crc) else None
