"""The layout of an archive, and the manifest of a ledger in it: its properties, and the files that hold it.

    data/date=2026-11-21/ledger-7-<uuid>-0.parquet    what engines read: `.../data` as one partitioned table
    _manifests/ledger-7-<uuid>.json                   what there is of a ledger; written last
    _instances/<id>                                   the cluster whose archive it is
    _tmp/<uuid>/...                                   what is being written

Engines overlook names that begin with an underscore. The uuid is that of the attempt which wrote a file, so that files
that an attempt left behind differ from those that count, and a ledger's files are not replaced by those of another
ledger with the same number. Older versions wrote `_manifests/ledger-7.json`.

A ledger without a manifest is not in the archive. It is JSON; the numbers of entries are those of the ledger, and paths
are relative to the archive:

    {"format": "podkeeper-archive", "version": 1, "ledger_id": 7, "uuid": "...", "instance_id": "...",
     "first_entry": 0, "last_entry": 999, "entries": 1000, "bytes": 1000000, "payload_crc32c": 1, "lengths_crc32c": 2,
     "files": [{"path": "data/date=2026-11-21/ledger-7-...-0.parquet", "bytes": 50, "first_entry": 0, "entries": 9}],
     "ledger": {"ensemble_size": 3, "write_quorum_size": 3, "ack_quorum_size": 2, "digest_type": "CRC32C",
                "created_ms": 1, "length": 1000000, "custom_metadata": {"application": "YmFzZTY0"}},
     "place": {"stream": "orders", "created_ms": 1, "generation": 0, "ordinal": 5000},
     "archived": "2026-11-21T20:15:00Z"}

`place` is null for a ledger that no stream listed; older versions wrote none.

There is no password in it: readers of archives need not be readers of ledgers.

Pure; any thread.
"""

from __future__ import annotations

import base64
import json
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from bookie_protocol.archive import INT_MAX, LONG_MAX, ArchivedFile, Counts, whole
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import UNREADABLE, MetadataDamaged
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.shown import moment, one_line
from pyspark_bookie.archive.places import StreamPlace

DATA: Final = "data"
MANIFESTS: Final = "_manifests"
INSTANCES: Final = "_instances"
TEMPORARY: Final = "_tmp"
PARTITIONS: Final = ("date", "stream", "none")
_NOTHING: Final = "__HIVE_DEFAULT_PARTITION__"
NUMBER: Final = r"(0|[1-9][0-9]{0,18})"
"""The id of a ledger in names of files, as it is written there and not otherwise: one ledger, one name."""
_DATA_FILE: Final = re.compile(rf"ledger-{NUMBER}-([0-9a-f]{{32}})-\d+\.parquet", re.ASCII)
_MANIFEST: Final = re.compile(rf"ledger-{NUMBER}(?:-([0-9a-f]{{32}}))?\.json")


def matched(pattern: re.Pattern[str], name: str) -> re.Match[str] | None:
    """Return the match of a file's name that begins with `ledger-` and `NUMBER`, if a ledger can have the number."""
    found = pattern.fullmatch(name)
    return found if found is not None and int(found[1]) <= LONG_MAX else None


def data_file(ledger_id: int, uuid: str, part: int) -> str:
    return f"ledger-{ledger_id}-{uuid}-{part}.parquet"


def parse_data_file(name: str) -> tuple[int, str] | None:
    """Ledger and uuid that a file name tells; None: it is no file of ours."""
    found = matched(_DATA_FILE, name)
    return (int(found[1]), found[2]) if found else None


def temporary_folder(uuid: str) -> str:
    return f"{TEMPORARY}/{uuid}"


def manifest_file(ledger_id: int, uuid: str | None) -> str:
    """`uuid` None: as older versions named it."""
    return f"{MANIFESTS}/ledger-{ledger_id}.json" if uuid is None else f"{MANIFESTS}/ledger-{ledger_id}-{uuid}.json"


def parse_manifest_file(name: str) -> tuple[int, str | None] | None:
    """Ledger and uuid of a manifest by its name; None: it is no manifest."""
    found = matched(_MANIFEST, name)
    return (int(found[1]), found[2]) if found else None


def data_folder(partition: str, created_ms: int | None, stream: str | None) -> str:
    """Return the folder of a ledger's files, in the way in which Hive names partitions."""
    if partition == "none":
        return DATA
    if partition == "stream":
        return f"{DATA}/stream={urllib.parse.quote(stream, safe='') if stream else _NOTHING}"
    created = moment(created_ms)
    return f"{DATA}/date={_NOTHING if created is None else f'{created:%Y-%m-%d}'}"


_FORMAT: Final = "podkeeper-archive"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class LedgerShape:
    """The properties of a ledger besides its entries; enough to make another like it."""

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
            whole(row["ensemble_size"], most=INT_MAX),
            whole(row["write_quorum_size"], most=INT_MAX),
            whole(row["ack_quorum_size"], most=INT_MAX),
            DigestType[row["digest_type"]],
            None if created is None else whole(created, -LONG_MAX - 1),
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
    place: StreamPlace | None = None
    """Place in the stream that listed the ledger; None: there was no such stream, or it is unknown."""

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
            "place": None if self.place is None else self.place.as_json(),
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
                whole(row["ledger_id"]),
                str(row["uuid"]),
                None if row["instance_id"] is None else str(row["instance_id"]),
                Counts.from_json(row),
                tuple(ArchivedFile.from_json(file) for file in row["files"]),
                LedgerShape.from_json(row["ledger"]),
                str(row["archived"]),
                StreamPlace.from_json(place) if (place := row.get("place")) is not None else None,
            )
        except UNREADABLE as error:
            raise MetadataDamaged(f"{name} is not a manifest of an archived ledger: {one_line(repr(error))}") from None
