"""Keys derived from a ledger's password (reference wire protocol, section 7.4).

- The master key (20 bytes) goes to bookies with adds, fencing reads and WRITE_LAC; a bookie learns it from
  the first request that names the ledger and demands equality from then on. It is the same for every digest
  type.
- The MAC key (20 bytes) never leaves the client; it keys the HMAC-SHA1 digest.

Pure functions; any thread.
"""

from __future__ import annotations

import hashlib
from typing import Final

MASTER_KEY_SIZE: Final = 20
NO_KEY: Final = bytes(MASTER_KEY_SIZE)
"""Key that counts for a client that presents none: one as good as any other, and not the next one's. It is not the
same as no bytes, which a bookie stores if it does not know the key.
"""


def master_key(password: bytes) -> bytes:
    """SHA-1 of "ledger" followed by the raw password, which may be empty."""
    return hashlib.sha1(b"ledger" + password, usedforsecurity=False).digest()


def mac_key(password: bytes) -> bytes:
    """SHA-1 of "mac" followed by the raw password, which may be empty."""
    return hashlib.sha1(b"mac" + password, usedforsecurity=False).digest()


def is_unknown_key(key: bytes) -> bool:
    """True for a stored key that means "not known yet": no bytes, or zero bytes only (section 8)."""
    return not key.strip(b"\0")


def takes_the_place_of(key: bytes, stored: bytes) -> bool:
    """Return True if a journaled key replaces the stored one.

    A known key replaces an unknown one, and zeros, the key of a ledger that was begun without one, replace no bytes.
    """
    return is_unknown_key(stored) and (not is_unknown_key(key) or (not stored and bool(key)))


assert len(master_key(b"")) == MASTER_KEY_SIZE
