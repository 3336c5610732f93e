"""Keys derived from a ledger's password (reference wire protocol, section 7.4).

- The master key (20 bytes) goes to bookies with adds, fencing reads and WRITE_LAC; a bookie learns it from
  the first request that names the ledger and demands equality from then on. It is the same for every digest
  type.
- The MAC key (20 bytes) never leaves the client; it keys the HMAC-SHA1 digest.
- The life (10 bytes) goes to bookies with the adds of a writer that chose the id of its ledger, and with copies of
  entries of any ledger; only in version 3. Ledgers that have one id and one password, one after the other, have the
  same master key; their lives differ. It is a field of protobuf as it lies on the wire, which Apache's bookies skip:
  tag, then the ledger's creation token. Podkeeper's bookies store it in the same form.

Writers and copies have a field of their own, because a copy does not tell whether the ledger's writer names its life.
Those of Apache's clients do not, nor those of ledgers whose id the cluster gave: they may go on where a copy was first.
Two more fields, which are stored and never sent, say the same of a life under which something came that names none:
that may be the next ledger's, so the one that is stored is never taken for dead.

Pure functions; any thread.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final

MASTER_KEY_SIZE: Final = 20
NO_KEY: Final = bytes(MASTER_KEY_SIZE)
"""Key that counts for a client that presents none: one as good as any other, and not the next one's. It is not the
same as no bytes, which a bookie stores if it does not know the key.
"""
LIFE_TAG: Final = b"\x89\x7d"
"""Tag of the field `life`: number 2001, 64 bits."""
COPIES_TAG: Final = b"\x91\x7d"
"""Tag of the field `lifeOfCopies`: number 2002, 64 bits."""
_LIFE_AND_UNNAMED: Final = b"\x99\x7d"
_COPIES_AND_UNNAMED: Final = b"\xa1\x7d"
STORED_LIFE_TAGS: Final = {2001: LIFE_TAG, 2002: COPIES_TAG, 2003: _LIFE_AND_UNNAMED, 2004: _COPIES_AND_UNNAMED}
"""The tags that a stored life may have, by their numbers."""
_LIFE: Final = struct.Struct("<2sQ")
_UNSIGNED: Final = (1 << 64) - 1
LIFE_SIZE: Final = _LIFE.size
NO_LIFE: Final = b""
"""Life that counts for a client that presents none."""


def life_of(creation_token: int) -> bytes:
    """Return the life of the ledger with this creation token; `NO_LIFE` for 0, which metadata of older formats have."""
    return _LIFE.pack(LIFE_TAG, creation_token & _UNSIGNED) if creation_token else NO_LIFE


def life_of_copies(creation_token: int) -> bytes:
    """Return the same life as copies name it."""
    return _LIFE.pack(COPIES_TAG, creation_token & _UNSIGNED) if creation_token else NO_LIFE


def is_named_by_copies(life: bytes) -> bool:
    """Return whether copies named this life, and no writer has."""
    return life.startswith((COPIES_TAG, _COPIES_AND_UNNAMED))


def has_unnamed(life: bytes) -> bool:
    """Return whether something that names no life came under this stored life."""
    return life.startswith((_LIFE_AND_UNNAMED, _COPIES_AND_UNNAMED))


def with_unnamed(life: bytes) -> bytes:
    """Return a stored life as it is when something that names none has come under it."""
    return life and (_COPIES_AND_UNNAMED if is_named_by_copies(life) else _LIFE_AND_UNNAMED) + life[len(LIFE_TAG) :]


def as_named(life: bytes) -> bytes:
    """Return a stored life as those who named it present it."""
    return life and (COPIES_TAG if is_named_by_copies(life) else LIFE_TAG) + life[len(LIFE_TAG) :]


def named_again(stored: bytes, life: bytes) -> bytes:
    """Return the life to store when `life` is named where `stored`, the same one or none, is. A writer's name wins."""
    named = as_named(stored) if stored and not is_named_by_copies(stored) else life
    return with_unnamed(named) if has_unnamed(stored) else named


def is_same_life(one: bytes, other: bytes) -> bool:
    """Return whether both name the same ledger, whether its writer or copies named it, or both name none."""
    return one[len(LIFE_TAG) :] == other[len(LIFE_TAG) :]


def creation_token_of(life: bytes) -> int:
    """Return the creation token that makes this life."""
    return int(_LIFE.unpack(life)[1])


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
