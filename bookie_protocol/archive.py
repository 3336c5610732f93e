"""The metadata service's records of archived ledgers, which `bookie job offload` writes.

A record says where all entries of a ledger are, and how far its offload is.

A record of kind `offload`, by the ledger's id:

    PREPARED    an attempt with a uuid of its own has begun: all files with this uuid in the archive are its own
    UPLOADED    all files are in the attempt's temporary folder; sizes and checksums are recorded
    VERIFIED    they were read again and are what the ledger held
    COMPLETE    files and manifest are where readers find them
    BK_DELETED  the ledger was deleted from the cluster, after the lag

Invariants
- A record changes by compare-and-set only, and every state is written after what it claims is durable.
- An attempt that is taken over gets a new uuid, and the old one is remembered in `abandoned` until its files are gone.
- `ledger` identifies the ledger: another one may be made later with the same id. What the archive has of a ledger that
  was complete is never given up for a later one: that gets an attempt, files and a manifest of its own.
- A ledger is in the archive on the record's word alone (`metadata_service.records.archived_ledger`); without one, on
  the metadata service's word, it is not. An unknown state raises, and is never "not there". That bookies still hold the
  ledger, or do not, is another matter.

Pure; any thread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from bookie_protocol.errors import UNREADABLE, MetadataDamaged
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.shown import one_line

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
KIND: Final = "offload"
"""The kind of the records."""
MAX_ABANDONED: Final = 32
_UUID: Final = re.compile(r"[0-9a-f]{32}")
_VERSION: Final = 1


def whole(value: Any, least: int = 0, most: int = LONG_MAX) -> int:
    """Return a number that columns and ledgers take. Raises what is `UNREADABLE` for what is none."""
    number = int(value)
    if not least <= number <= most:
        raise ValueError(f"a number is not between {least} and {most}")
    return number


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
        """Raises one of `UNREADABLE` for a row of another form."""
        return cls(*(whole(row[name]) for name in ("entries", "bytes", "payload_crc32c", "lengths_crc32c")))


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
        return cls(str(row["path"]), whole(row["bytes"]), whole(row["first_entry"]), whole(row["entries"]))


@dataclass(frozen=True, slots=True)
class ArchivedLedger:
    """The place of all entries of a ledger, in the archive `target`, a URI. `created_ms`: of the ledger, since 1970."""

    ledger_id: int
    target: str
    uuid: str
    files: tuple[ArchivedFile, ...]
    counts: Counts
    created_ms: int | None = None


class OffloadState(Enum):
    """See the module."""

    PREPARED = "PREPARED"
    UPLOADED = "UPLOADED"
    VERIFIED = "VERIFIED"
    COMPLETE = "COMPLETE"
    BK_DELETED = "BK_DELETED"

    @property
    def is_archived(self) -> bool:
        """Readers find it in the archive."""
        return self in (OffloadState.COMPLETE, OffloadState.BK_DELETED)


@dataclass(frozen=True, slots=True)
class LedgerIdentity:
    """The properties of a closed ledger that never change, unlike its ensembles.

    `created_ms`: as the ledger recorded it, or as the metadata service knows it; None in records of older versions
    where no ledger recorded it. `token`: the creation token; 0 if there is none.
    """

    last_entry_id: int
    length: int
    created_ms: int | None
    token: int = 0

    @classmethod
    def of(cls, metadata: LedgerMetadata) -> LedgerIdentity:
        return cls(metadata.last_entry_id, metadata.length, metadata.ctime, metadata.creation_token)

    def is_surely(self, other: LedgerIdentity) -> bool:
        """Return True if this is the same ledger, by its creation. False: it is another one of the same id, or
        only the content can tell."""
        if not self.has_size_of(other):
            return False
        if self.token and other.token:
            return self.token == other.token
        return self.created_ms is not None and self.created_ms == other.created_ms

    def has_size_of(self, other: LedgerIdentity) -> bool:
        """Return True if the content can be the same."""
        return (self.last_entry_id, self.length) == (other.last_entry_id, other.length)


@dataclass(frozen=True, slots=True)
class Abandoned:
    """An attempt that was given up, and may have left files."""

    target: str
    uuid: str
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadRecord:
    """`target`: the archive's URI. `folder`: where in it the files go. `files` have the paths at which readers find
    them, and are known from UPLOADED on, as are `counts`."""

    ledger_id: int
    state: OffloadState
    target: str
    uuid: str
    folder: str
    ledger: LedgerIdentity
    files: tuple[ArchivedFile, ...] = ()
    counts: Counts | None = None
    completed_ms: int | None = None
    deleted_ms: int | None = None
    abandoned: tuple[Abandoned, ...] = ()
    tables: tuple[str, ...] = ()
    """UUIDs of the Iceberg tables that have this attempt's files."""
    is_placed: bool = False
    """True if the archive's manifest has the place of the ledger in its stream."""

    @property
    def key(self) -> str:
        return str(self.ledger_id)

    @property
    def attempt(self) -> Abandoned:
        """Return what is left of this attempt when it is given up."""
        return Abandoned(self.target, self.uuid, self.folder)

    @property
    def archived(self) -> ArchivedLedger | None:
        """Return the ledger as readers find it in the archive; None: not yet."""
        if not self.state.is_archived or self.counts is None:
            return None
        return ArchivedLedger(self.ledger_id, self.target, self.uuid, self.files, self.counts, self.ledger.created_ms)

    # --- transitions ------------------------------------------------------------------------------------------

    def restarted(self, target: str, uuid: str, folder: str, ledger: LedgerIdentity) -> OffloadRecord:
        """Return the record for a new attempt. The current one is abandoned, unless it was complete: then it is
        the archive's copy of an earlier ledger of this id, and stays.

        Very many attempts are not all kept: the sweep finds what the oldest left.
        """
        left = self.abandoned if self.state.is_archived else (*self.abandoned, self.attempt)[-MAX_ABANDONED:]
        return OffloadRecord(
            ledger_id=self.ledger_id,
            state=OffloadState.PREPARED,
            target=target,
            uuid=uuid,
            folder=folder,
            ledger=ledger,
            abandoned=left,
        )

    def uploaded(self, files: tuple[ArchivedFile, ...], counts: Counts) -> OffloadRecord:
        return self._after(OffloadState.PREPARED, state=OffloadState.UPLOADED, files=files, counts=counts)

    def verified(self) -> OffloadRecord:
        return self._after(OffloadState.UPLOADED, state=OffloadState.VERIFIED)

    def complete(self, now_ms: int) -> OffloadRecord:
        return self._after(OffloadState.VERIFIED, state=OffloadState.COMPLETE, completed_ms=now_ms)

    def placed(self) -> OffloadRecord:
        return replace(self, is_placed=True)

    def deleted(self, now_ms: int) -> OffloadRecord:
        return self._after(OffloadState.COMPLETE, state=OffloadState.BK_DELETED, deleted_ms=now_ms)

    def of_life(self, ledger: LedgerIdentity, now_ms: int) -> OffloadRecord:
        """Return the record for another ledger with the archived content; the lag before its deletion begins now."""
        if not self.state.is_archived:
            raise ValueError(f"ledger {self.ledger_id} is {self.state.value}, and not archived")
        return replace(self, state=OffloadState.COMPLETE, ledger=ledger, completed_ms=now_ms, deleted_ms=None)

    def in_table(self, table_uuid: str) -> OffloadRecord:
        """The files of this attempt are in the table."""
        return self if table_uuid in self.tables else replace(self, tables=(*self.tables, table_uuid))

    def without_abandoned(self, cleaned: frozenset[Abandoned]) -> OffloadRecord:
        """The files of these attempts are gone."""
        return replace(self, abandoned=tuple(each for each in self.abandoned if each not in cleaned))

    def _after(self, before: OffloadState, **changes: Any) -> OffloadRecord:
        if self.state is not before:
            raise ValueError(f"ledger {self.ledger_id} is {self.state.value}, not {before.value}")
        return replace(self, **changes)

    # --- bytes ------------------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        row: dict[str, Any] = {
            "v": _VERSION,
            "ledger_id": self.ledger_id,
            "state": self.state.value,
            "target": self.target,
            "uuid": self.uuid,
            "folder": self.folder,
            "ledger": [self.ledger.last_entry_id, self.ledger.length, self.ledger.created_ms],
            "token": self.ledger.token,
            "files": [file.as_json() for file in self.files],
            "counts": None if self.counts is None else self.counts.as_json(),
            "completed_ms": self.completed_ms,
            "deleted_ms": self.deleted_ms,
            "abandoned": [[each.target, each.uuid, each.folder] for each in self.abandoned],
            "placed": self.is_placed,
            "tables": list(self.tables),
        }
        return json.dumps(row).encode()

    @classmethod
    def decode(cls, data: bytes) -> OffloadRecord:
        """Raises `MetadataDamaged`."""
        try:
            return cls._from_row(json.loads(data))
        except UNREADABLE as error:
            raise MetadataDamaged(f"a record of kind {KIND} cannot be read: {one_line(repr(error))}") from None

    @classmethod
    def _from_row(cls, row: Mapping[str, Any]) -> OffloadRecord:
        if row["v"] != _VERSION:
            raise ValueError(f"version {row['v']}")
        last, length, created = row["ledger"]
        counts = row["counts"]
        return cls(
            ledger_id=int(row["ledger_id"]),
            state=OffloadState(row["state"]),
            target=str(row["target"]),
            uuid=_uuid(row["uuid"]),
            folder=str(row["folder"]),
            ledger=LedgerIdentity(int(last), int(length), created, int(row.get("token", 0))),
            files=tuple(ArchivedFile.from_json(file) for file in row["files"]),
            counts=None if counts is None else Counts.from_json(counts),
            completed_ms=row["completed_ms"],
            deleted_ms=row["deleted_ms"],
            abandoned=tuple(
                Abandoned(str(target), _uuid(uuid), str(folder)) for target, uuid, folder in row["abandoned"]
            ),
            is_placed=bool(row.get("placed", False)),
            tables=tuple(str(each) for each in row.get("tables", ())),
        )


def _uuid(value: Any) -> str:
    """Check the name of an attempt: folders that are deleted have it."""
    if _UUID.fullmatch(value) is None:
        raise ValueError("the name of an attempt is not a UUID")
    return str(value)
