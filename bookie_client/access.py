"""The access to a ledger: the digest type and the keys that follow from its password.

Invariants
- A password that the ledger recorded is compared before anything is sent to a bookie.
- The recorded digest type counts; the caller's only where none was recorded.
- Background work, which knows no password (`replica_access`), goes by what the ledger recorded. Where it recorded
  nothing the configured digest type counts, and without one only ids are verified, never a digest of a kind that is a
  guess: each replica would look damaged.

Pure; any thread.

Source: docs/internals/client-protocol.md, sections 5 and 13; docs/internals/auto-recovery.md, section 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hmac import compare_digest

from bookie_protocol.digest import DigestManager, DigestType, digest_manager
from bookie_protocol.errors import Unauthorized
from bookie_protocol.keys import master_key
from bookie_protocol.ledger_metadata.model import LedgerMetadata


@dataclass(frozen=True, slots=True)
class LedgerAccess:
    """Made by `access_to`."""

    digest: DigestManager
    master_key: bytes = field(repr=False)


def check_password(metadata: LedgerMetadata, password: bytes) -> None:
    """Raises `Unauthorized` when the ledger has recorded another one; not all ledgers have recorded any."""
    if metadata.password is not None and not compare_digest(metadata.password, password):
        raise Unauthorized(f"ledger {metadata.ledger_id} has another password")


def access_to(metadata: LedgerMetadata, password: bytes | None, digest: DigestType) -> LedgerAccess:
    """Access with this password; None: with the recorded one, for administration. Raises `Unauthorized`."""
    if password is None:
        password = metadata.password or b""
    else:
        check_password(metadata, password)
    return LedgerAccess(digest_manager(metadata.digest_type or digest, password), master_key(password))


def replica_access(metadata: LedgerMetadata, digest: DigestType | None, password: bytes) -> LedgerAccess:
    """Return the digest to verify copies with, and the master key to store them with."""
    if metadata.digest_type is not None:
        return access_to(metadata, None, metadata.digest_type)
    return LedgerAccess(digest_manager(digest or DigestType.DUMMY, password), master_key(password))
