"""What a reader gets."""

from __future__ import annotations

from typing import NamedTuple


class LedgerEntry(NamedTuple):
    """One entry whose digest, ledger id and entry id were verified."""

    ledger_id: int
    entry_id: int
    length: int
    """Payload bytes of the ledger up to and including this entry."""
    payload: bytes
