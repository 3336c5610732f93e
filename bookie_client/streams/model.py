"""Streams of ledgers: what a stream is, as values.

A stream is an ordered list of ledgers, its *manifest*. All of them are closed, but the last one may be open: then a
`StreamWriter` appends to it. A *position* names a ledger of the stream and the entry in it that is to be read next.

Invariants
- A manifest is a snapshot: it never changes. Two manifests of one stream with equal `version` are equal.
- Positions are ordered by the manifest, not by ledger ids. Behind the last entry of a ledger comes entry 0 of the next
  one: both names are the same place.
- *Ordinals* count the entries of a stream since it was created. They never go back, not even by an overwrite.

Values only: any thread.

Source: docs/internals/client-protocol.md, section 25.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from bookie_client.distribution import Quorums
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import BadRequest

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}")

GIB: Final = 1024 * 1024 * 1024
AT_ONCE: Final = 16
"""Requests for one stream that are under way at the same time."""

APPLICATION: Final = "podkeeper-stream"
"""Value of the custom metadata `application` of a stream's ledgers."""
STREAM_KEY: Final = "podkeeper/stream"
"""Custom metadata that names the stream of a ledger."""
WRITER_KEY: Final = "podkeeper/writer"
"""Custom metadata that names the `StreamWriter` that created a ledger."""
GOING_KEY: Final = "podkeeper/going"
"""Custom metadata key of a ledger that is about to be deleted because nothing refers to it: no stream takes it any
more.
"""


def check_stream_name(name: str) -> str:
    """Return the name, if a stream or a cursor may have it; `BadRequest` otherwise."""
    if not _NAME.fullmatch(name):
        raise BadRequest(
            f"{name[:100]!r} is not a valid name of a stream or cursor: letters, digits, '_', '.' and '-', at most 200,"
            " and neither '.' nor '-' first"
        )
    return name


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """A place between two entries: `entry_id` of ledger `ledger_id` is the next one to be read.

    Written "ledger:entry". Which of two positions comes first only a manifest can tell (`Manifest.ordinal`). With -1
    for the ledger the second number is an ordinal: so the beginning of a stream without ledgers has a name too.
    """

    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"

    @classmethod
    def parse(cls, text: str) -> StreamPosition:
        """Return the position that `str` wrote. `BadRequest` for any other text."""
        match = re.fullmatch(r"(-1|\d{1,19}):(\d{1,19})", text)
        if match is None:
            raise BadRequest(f"{text[:100]!r} is not a position in a stream: it looks like LEDGER:ENTRY, as 7:120")
        return cls(int(match[1]), int(match[2]))


START: Final = StreamPosition(-1, 0)
"""Position before the first entry that a stream ever had; gone when that is removed."""


@dataclass(frozen=True, slots=True)
class StreamLedger:
    """A ledger as a manifest lists it."""

    ledger_id: int
    first_ordinal: int
    """Ordinal of its entry 0: how many entries the stream had before."""
    entries: int | None
    """None: open; only the last ledger may be."""
    nbytes: int | None
    """Payload bytes; None: open."""
    closed_ms: int | None
    """Time of closing or publishing it, in ms since 1970; None: open."""
    crc: int | None = None
    """CRC32C of all its payloads one after the other, if its writer gave it."""

    @property
    def is_open(self) -> bool:
        return self.entries is None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """Settings of a stream's ledgers: quorums, roll-over and retention. Raises `BadRequest` for settings that make
    no sense.

    The defaults of the limits are those of a Pulsar broker, section 25.
    """

    ensemble: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2
    digest: DigestType = DigestType.CRC32C
    max_ledger_entries: int = 50_000
    """A writer begins the next ledger behind so many entries,"""
    max_ledger_bytes: int = 2 * GIB
    """or so many payload bytes,"""
    max_ledger_seconds: float = 4 * 3600.0
    """or when the ledger is so old and not empty;"""
    min_ledger_seconds: float = 600.0
    """but none of the three counts before the ledger is so old."""
    retention_seconds: float | None = None
    """Ledgers that were closed longer ago may be removed by retention. None: age removes nothing."""
    retention_bytes: int | None = None
    """Oldest ledgers may be removed by retention while the rest has at least so many bytes. None: size removes
    nothing."""
    deletion_lag_seconds: float = 3600.0
    """Seconds for which readers that began before an overwrite can still read the ledgers that it replaced."""

    def __post_init__(self) -> None:
        Quorums(self.ensemble, self.write_quorum, self.ack_quorum)  # raises when they do not fit
        for name in ("max_ledger_entries", "max_ledger_bytes", "max_ledger_seconds"):
            if getattr(self, name) <= 0:
                raise BadRequest(f"setting {name} of a stream must be positive, not {getattr(self, name)}")
        for name in ("min_ledger_seconds", "retention_seconds", "retention_bytes", "deletion_lag_seconds"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise BadRequest(f"setting {name} of a stream must not be negative: {value}")


@dataclass(frozen=True, slots=True)
class Transaction:
    """The last batch that an application has published to a stream."""

    batch_id: int
    rows: int
    checksum: int | None = None
    """Checksum of the content, independent of its order, if the application gives one."""
    published_ms: int = 0


@dataclass(frozen=True, slots=True)
class Txn:
    """The batch that is published now: `app_id` (a Spark query's id) publishes each `batch_id` once, ascending.

    `checksum` must not depend on the order of rows, and must be the same when the batch is made again; None if the
    application cannot promise that.
    """

    app_id: str
    batch_id: int
    rows: int
    checksum: int | None = None

    def __post_init__(self) -> None:
        if not self.app_id or len(self.app_id) > 256:
            raise BadRequest("an application that publishes needs an id of 1 to 256 characters")
        if self.batch_id < 0 or self.rows < 0:
            raise BadRequest(f"batch {self.batch_id} of {self.rows} rows: neither may be negative")


@dataclass(frozen=True, slots=True)
class PublishedLedger:
    """A closed ledger that its writer gives to a stream."""

    ledger_id: int
    entries: int
    nbytes: int
    crc: int | None = None


@dataclass(frozen=True, slots=True)
class RetiredLedgers:
    """Ledgers that no longer belong to the stream and are deleted once `due_ms` has come (in ms since 1970)."""

    due_ms: int
    ledger_ids: tuple[int, ...]
