"""What a reader gets: an entry of which everything is verified. Immutable; any thread."""

from __future__ import annotations

from typing import NamedTuple


class LedgerEntry(NamedTuple):
    """One entry whose digest, ledger id and entry id were verified."""

    ledger_id: int
    entry_id: int
    length: int
    """Payload bytes of the ledger up to and including this entry."""
    payload: bytes
    lac: int = -1
    """The last add confirmed that the writer knew when it sent this entry; -1 if none."""
