"""How background work reads ledgers of which it knows no password: with what the ledger itself recorded.

Invariants
- The recorded digest type and password count, always.
- Of a ledger that recorded none, the configured ones; without them only ids are verified, never a digest of a kind that
  is a guess: each replica would look damaged.

Pure; any thread.

Source: reference client protocol, section 13 (administrative open); reference auto-recovery, section 1.
"""

from __future__ import annotations

from bookie_client.access import LedgerAccess, access_to
from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.keys import master_key
from bookie_protocol.ledger_metadata.model import LedgerMetadata


def replica_access(metadata: LedgerMetadata, digest: DigestType | None, password: bytes) -> LedgerAccess:
    """The digest to verify copies with, and the master key to store them with."""
    if metadata.digest_type is not None:
        return access_to(metadata, None, metadata.digest_type)
    return LedgerAccess(digest_manager(digest or DigestType.DUMMY, password), master_key(password))
