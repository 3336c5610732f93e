"""What a look at a ledger asks, and what it sees.

Any thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from bookie_protocol.digest import DigestType
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from pyspark_bookie.jobs.replicas.findings import Finding

ALL: Final = 100
"""Percent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookOptions:
    """How to look. `sample`: percent of the blocks of entries that are read, chosen by `seed` alike at all replicas."""

    digests: bool = False
    checksums: bool = False
    sample: int = ALL
    seed: int = 0
    extra: bool = False
    """Tell copies that nobody asks for, of closed ledgers."""
    digest: DigestType | None = None
    """For ledgers that recorded none; None: of these only ids are verified."""
    password: bytes = b""
    """For ledgers that recorded none."""


@dataclass(frozen=True, slots=True)
class BlockSum:
    """A checksum of `entries` entries of one replica; equal blocks of two replicas have equal ones."""

    ledger_id: int
    fragment: int
    block: int
    place: int
    bookie: str
    position: int
    entries: int
    checksum: int


@dataclass(slots=True)
class Look:
    """`last_entry`: the end that was looked up to; `replicas`: of fragments, at bookies. `metadata` None: it was
    deleted, or cannot be read."""

    ledger_id: int
    metadata: LedgerMetadata | None = None
    last_entry: int = -1
    findings: list[Finding] = field(default_factory=list)
    replicas: int = 0
    entries: int = 0
    nbytes: int = 0
    blocks: list[BlockSum] = field(default_factory=list)

    @property
    def is_deleted(self) -> bool:
        return self.metadata is None and not self.findings
