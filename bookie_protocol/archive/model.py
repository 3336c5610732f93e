"""What is known of an archived ledger and its files.

Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of entries 0 to `entries` - 1."""

    entries: int
    nbytes: int
    payload_crc: int
    lengths_crc: int

    def as_json(self) -> dict[str, int]:
        return {
            "entries": self.entries,
            "bytes": self.nbytes,
            "payload_crc32c": self.payload_crc,
            "lengths_crc32c": self.lengths_crc,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Counts:
        """Raises `KeyError`, `ValueError`, `TypeError` for what is none."""
        return cls(int(row["entries"]), int(row["bytes"]), int(row["payload_crc32c"]), int(row["lengths_crc32c"]))


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """`path` is relative to the archive; entries `first_entry` to `first_entry` + `entries` - 1."""

    path: str
    nbytes: int
    first_entry: int
    entries: int

    def as_json(self) -> dict[str, Any]:
        return {"path": self.path, "bytes": self.nbytes, "first_entry": self.first_entry, "entries": self.entries}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> ArchivedFile:
        return cls(str(row["path"]), int(row["bytes"]), int(row["first_entry"]), int(row["entries"]))


@dataclass(frozen=True, slots=True)
class ArchivedLedger:
    """Where all entries of a ledger are, in the archive `target`, a URI. `created_ms`: of the ledger, since 1970."""

    ledger_id: int
    target: str
    uuid: str
    files: tuple[ArchivedFile, ...]
    counts: Counts
    created_ms: int | None = None
