"""Verifying a batch of consecutive entries as a whole: the digests of all in one pass, compared at once.

A batch in which everything is right costs two slices and two calls for each entry, and no object that outlives the
pass. Only where something differs is the batch looked at entry by entry.

Invariants
- A batch counts as good only when for each entry length, digest, ledger id and entry id are all right.
- `fingerprints` of two replicas are equal where their entries are; they may differ although what the writer appended is
  the same, since recovery rewrites headers (`compare` settles that).

Pure; any thread.

Source: reference wire protocol, section 7.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import google_crc32c
import numpy as np

from bookie_protocol.digest import DigestManager, DigestType
from bookie_protocol.entry import ENTRY_HEADER, ENTRY_HEADER_SIZE, ENTRY_IDS

FINGERPRINT_SIZE: Final = 4

_value: Final = google_crc32c.value
_extend: Final = google_crc32c.extend


class BatchVerifier:
    """Verifies entries of one ledger."""

    def __init__(self, digest: DigestManager, ledger_id: int) -> None:
        self._digest = digest
        self._ledger_id = ledger_id
        self._is_crc32c = digest.type is DigestType.CRC32C
        self._payload_at = ENTRY_HEADER_SIZE + digest.size

    def is_good(self, first: int, entries: Sequence[bytes]) -> bool:
        """Whether the k-th of `entries` is entry `first + k`, undamaged, for all of them."""
        payload_at, header_size = self._payload_at, ENTRY_HEADER_SIZE
        if min(map(len, entries), default=payload_at) < payload_at:
            return False
        if b"".join([entry[:16] for entry in entries]) != self._ids(first, len(entries)):
            return False
        if self._is_crc32c:
            sums = [_extend(_value(entry[:header_size]), entry[payload_at:]) for entry in entries]
            expected = np.array(sums, dtype=">u4").tobytes()
        else:
            digest = self._digest.digest
            expected = b"".join([digest(entry[:header_size], entry[payload_at:]) for entry in entries])
        return expected == b"".join([entry[header_size:payload_at] for entry in entries])

    def fingerprints(self, entries: Sequence[bytes]) -> bytes:
        """`FINGERPRINT_SIZE` bytes for each entry, from what `is_good` accepted."""
        if self._is_crc32c:
            return b"".join([entry[ENTRY_HEADER_SIZE : self._payload_at] for entry in entries])
        start = ENTRY_HEADER_SIZE if not self._digest.size else 0
        return np.array([_value(entry[start:]) for entry in entries], dtype=">u4").tobytes()

    def content(self, entry: bytes) -> tuple[int, bytes]:
        """What the writer appended: the ledger's length up to this entry, and the payload. The rest of the header may
        differ between good replicas."""
        length = ENTRY_HEADER.unpack_from(entry)[3]
        return int(length), entry[self._payload_at :]

    def _ids(self, first: int, count: int) -> bytes:
        ids = np.empty((count, 2), dtype=">i8")
        ids[:, 0] = self._ledger_id
        ids[:, 1] = np.arange(first, first + count)
        return ids.tobytes()


assert ENTRY_IDS.size == 16


def checksum(fingerprints: Sequence[bytes]) -> int:
    """One number for a block of entries."""
    return int(_value(b"".join(fingerprints)))
