"""The digest of one entry, and what all checks of the scrubber share: where findings and costs go.

Invariants
- Nothing raises for what is damaged; `ScrubStopped` ends a check, a `StorageFault` says that it could not be made.

Threads: the scrubber's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from bookie_pod.storage.entry_log.format import split_location
from bookie_pod.storage.integrity.quarantine import Damage, DamageKind
from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.errors import DigestMismatch

Report = Callable[[Damage], None]
Pay = Callable[[int, int], None]
"""`pay(entries, bytes)` waits until that much may be read; raises `ScrubStopped`."""


class DigestTypes(Protocol):
    """The digest type that a ledger's metadata names."""

    def digest_type(self, ledger_id: int, *, fresh: bool = False) -> DigestType | None:
        """None: unknown, or nobody could tell now. May wait for the metadata service; never raises, but for
        `ScrubStopped`. `fresh`: of the ledger that has this id now, for whoever is about to call an entry damaged; what
        was learnt before may be of an earlier one. Any thread."""
        ...


@dataclass(slots=True)
class ScrubCounts:
    """What one pass did so far."""

    entries: int = 0
    """Entries that were read."""
    digests: int = 0
    """Of them those whose digest was checked."""
    restored: int = 0
    """Index rows that were put back."""
    logs: int = 0
    journals: int = 0
    rows: int = 0
    faults: int = 0
    """Checks that could not be made."""


class EntryCheck:
    """The digest of one entry, as far as it can be checked without the ledger's password."""

    def __init__(self, digests: DigestTypes, counts: ScrubCounts) -> None:
        self._digests = digests
        self._counts = counts

    def problem(self, ledger_id: int, entry_id: int, entry: bytes) -> str | None:
        """What is wrong with the entry; None: nothing that can be seen."""
        for fresh in (False, True):
            digest_type = self._digests.digest_type(ledger_id, fresh=fresh)
            if digest_type is None or digest_type is DigestType.MAC:
                return None
            problem = digest_problem(digest_type, ledger_id, entry_id, entry)
            if problem is None:
                self._counts.digests += 1
                return None
        return problem


def digest_problem(digest_type: DigestType, ledger_id: int, entry_id: int, entry: bytes) -> str | None:
    """What is wrong with an entry of a ledger with this type, not MAC; None: nothing."""
    try:
        digest_manager(digest_type, b"").verify(entry, ledger_id, entry_id)
    except DigestMismatch as error:
        return str(error)
    return None


def entry_damage(detail: str, ledger_id: int, entry_id: int, location: int) -> Damage:
    """A finding about one entry."""
    return Damage(
        DamageKind.ENTRY,
        detail,
        file_id=split_location(location)[0],
        ledger_id=ledger_id,
        entry_id=entry_id,
        location=location,
    )
