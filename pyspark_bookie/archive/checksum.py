"""The checksum of a ledger's entries: their number, their bytes, and two CRC32C.

`payload_crc` is that of all payloads one after the other, `lengths_crc` that of their lengths, each as 4 bytes
big-endian. Together they tell every change of content, of borders between entries, and of order.

One thread uses a `Counted`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import google_crc32c

from bookie_protocol.archive import Counts
from bookie_protocol.errors import EntryDamaged

if TYPE_CHECKING:
    import pyarrow as pa

_LENGTH: Final = ">u4"


class Counter:
    """Counts entries in order, from `first` on."""

    def __init__(self, first: int = 0) -> None:
        self._entries = first
        self._nbytes = 0
        self._payload_crc = 0
        self._lengths_crc = 0

    def add(self, payloads: Sequence[bytes]) -> None:
        """The next entries, as they came from a ledger or go to one."""
        import numpy as np

        lengths = np.fromiter(map(len, payloads), dtype=_LENGTH, count=len(payloads))
        self._count(lengths, b"".join(payloads))

    def add_arrow(self, first_entry: int, entry_ids: pa.Array, values: pa.Array) -> None:
        """Count the next entries, as they are in a file. Raises `EntryDamaged` if they are not those that come next."""
        import numpy as np

        expected = np.arange(first_entry, first_entry + len(entry_ids))
        whole = not values.null_count and not entry_ids.null_count
        if not whole or not np.array_equal(entry_ids.to_numpy(), expected):
            raise EntryDamaged(f"entries from {first_entry} on: there are others in their place, or gaps")
        _, offsets_buffer, data = values.buffers()
        bounds = np.frombuffer(offsets_buffer, dtype=np.int32)[values.offset : values.offset + len(values) + 1]
        start, end = (int(bounds[0]), int(bounds[-1])) if len(values) else (0, 0)
        # `bytes`, because the CRC takes nothing else
        self._count(np.diff(bounds).astype(_LENGTH), memoryview(data)[start:end].tobytes() if end > start else b"")

    @property
    def entries(self) -> int:
        """Return the number of counted entries, which is the id of the next one."""
        return self._entries

    def counts(self) -> Counts:
        """The counts of all entries so far."""
        return Counts(self._entries, self._nbytes, self._payload_crc, self._lengths_crc)

    def _count(self, lengths: Any, payload: bytes) -> None:
        self._entries += len(lengths)
        self._nbytes += len(payload)
        self._payload_crc = google_crc32c.extend(self._payload_crc, payload)
        self._lengths_crc = google_crc32c.extend(self._lengths_crc, lengths.tobytes())
