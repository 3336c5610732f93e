"""Verification of the entries of a batch, in one loop.

Pure; any thread.

Source: reference client protocol, sections 5 and 11.5.
"""

from __future__ import annotations

from collections.abc import Sequence

from bookie_client.reading.entry import LedgerEntry
from bookie_protocol.digest import DigestManager
from bookie_protocol.entry import ENTRY_HEADER
from bookie_protocol.errors import DigestMismatch

Verified = list[LedgerEntry | DigestMismatch]


def verify_run(digest: DigestManager, ledger_id: int, first: int, entries: Sequence[bytes]) -> Verified:
    """The k-th of `entries` as entry `first + k`; one that is not that entry becomes its error."""
    verify, header, made = digest.verify, ENTRY_HEADER.unpack_from, tuple.__new__
    result: Verified = []
    append = result.append
    for entry_id, entry in enumerate(entries, first):
        try:
            payload = verify(entry, ledger_id, entry_id)
        except DigestMismatch as error:
            append(error)
        else:
            # The constructor of a named tuple costs three times as much.
            append(made(LedgerEntry, (ledger_id, entry_id, header(entry)[3], payload)))
    return result
