"""What each bookie really holds of a ledger, beside what the metadata say.

Asks every bookie for its list of entries; reads no entry, verifies no digest.

Event loop only.

Source: reference wire protocol, section 8.8; reference auto-recovery, section 4.3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from bookie_client.client import Client
from bookie_client.replication.registration import Registration
from bookie_protocol.ledger_metadata.model import LedgerMetadata

MAX_RUNS: Final = 1_000
"""Runs of entries that one list names; `count` is of all."""


@dataclass(frozen=True, slots=True)
class EntryRuns:
    """Entries as runs (first, last), ascending; the first `MAX_RUNS` of them."""

    count: int
    runs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class BookieReplicas:
    """One bookie's copies. `error`: why it could not tell; then `held`, `missing` and `surplus` are None.

    `missing`: by the metadata it should hold them. `surplus`: it holds them and the metadata do not say so, such as
    entries behind the end, or copies of an attempt that failed.
    """

    bookie: str
    registration: Registration
    expected: EntryRuns
    held: EntryRuns | None
    missing: EntryRuns | None
    surplus: EntryRuns | None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class LedgerReplicas:
    """`last_entry`: the last known entry; of an open ledger whose last add confirmed nobody could tell, the last one in
    front of its last segment."""

    ledger_id: int
    metadata: LedgerMetadata
    last_entry: int
    bookies: tuple[BookieReplicas, ...]


async def replicas_of(client: Client, ledger_id: int, *, everywhere: bool = False) -> LedgerReplicas:
    """Ask every bookie that the ledger names; `everywhere`: every registered one as well.

    Raises `NoSuchLedger`, `MetadataUnavailable`.
    """
    raise AssertionError("committed for its signature")
