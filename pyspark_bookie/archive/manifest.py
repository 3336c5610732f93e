"""The manifest of an archived ledger: what it was, and the files that hold it. It is written last: a ledger without one
is not in the archive.

JSON; the numbers of entries are those of the ledger, and paths are relative to the archive:

    {"format": "podkeeper-archive", "version": 1, "ledger_id": 7, "uuid": "...", "instance_id": "...",
     "first_entry": 0, "last_entry": 999, "entries": 1000, "bytes": 1000000, "payload_crc32c": 1, "lengths_crc32c": 2,
     "files": [{"path": "data/date=2026-11-21/ledger-7-...-0.parquet", "bytes": 50, "first_entry": 0, "entries": 9}],
     "ledger": {"ensemble_size": 3, "write_quorum_size": 3, "ack_quorum_size": 2, "digest_type": "CRC32C",
                "created_ms": 1, "length": 1000000, "custom_metadata": {"application": "YmFzZTY0"}},
     "archived": "2026-11-21T20:15:00Z"}

There is no password in it: who reads archives need not be who reads ledgers.

Pure; any thread.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from bookie_protocol.archive import ArchivedFile, Counts
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import MetadataDamaged
from bookie_protocol.ledger_metadata.model import LedgerMetadata

_FORMAT: Final = "podkeeper-archive"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class LedgerShape:
    """What a ledger is besides its entries; enough to make another like it."""

    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    digest_type: DigestType
    created_ms: int | None
    custom_metadata: Mapping[str, bytes] = field(hash=False)

    @classmethod
    def of(cls, metadata: LedgerMetadata) -> LedgerShape:
        return cls(
            metadata.ensemble_size,
            metadata.write_quorum_size,
            metadata.ack_quorum_size,
            metadata.digest_type or DigestType.CRC32C,
            metadata.ctime,
            dict(metadata.custom_metadata),
        )

    def as_json(self) -> dict[str, Any]:
        custom = {key: base64.b64encode(value).decode() for key, value in self.custom_metadata.items()}
        return {
            "ensemble_size": self.ensemble_size,
            "write_quorum_size": self.write_quorum_size,
            "ack_quorum_size": self.ack_quorum_size,
            "digest_type": self.digest_type.name,
            "created_ms": self.created_ms,
            "custom_metadata": custom,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> LedgerShape:
        custom = {key: base64.b64decode(value, validate=True) for key, value in row["custom_metadata"].items()}
        created = row["created_ms"]
        return cls(
            int(row["ensemble_size"]),
            int(row["write_quorum_size"]),
            int(row["ack_quorum_size"]),
            DigestType[row["digest_type"]],
            None if created is None else int(created),
            custom,
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """The manifest of one ledger."""

    ledger_id: int
    uuid: str
    instance_id: str | None
    counts: Counts
    files: tuple[ArchivedFile, ...]
    shape: LedgerShape
    archived: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))

    def encode(self) -> bytes:
        row = {
            "format": _FORMAT,
            "version": _VERSION,
            "ledger_id": self.ledger_id,
            "uuid": self.uuid,
            "instance_id": self.instance_id,
            "first_entry": 0,
            "last_entry": self.counts.entries - 1,
            **self.counts.as_json(),
            "files": [file.as_json() for file in self.files],
            "ledger": self.shape.as_json(),
            "archived": self.archived,
        }
        return json.dumps(row, indent=1).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes, name: str) -> Manifest:
        """Raises `MetadataDamaged`, naming the file."""
        try:
            row = json.loads(data)
            if (row["format"], row["version"]) != (_FORMAT, _VERSION):
                raise ValueError(f"format {row['format']} {row['version']}")
            return cls(
                int(row["ledger_id"]),
                str(row["uuid"]),
                row["instance_id"],
                Counts.from_json(row),
                tuple(ArchivedFile.from_json(file) for file in row["files"]),
                LedgerShape.from_json(row["ledger"]),
                str(row["archived"]),
            )
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise MetadataDamaged(f"{name} is not a manifest of an archived ledger: {error!r}") from error
