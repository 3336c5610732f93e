"""What a column takes of each of some entries, taken of all of them at once.

Entries of a batch read lie one behind the other in the answer that brought them: their payloads are copied out of it by
one operation where they are of one size, as those of most ledgers are, and by Arrow's gathering where they are not. An
object for each entry, or only a view of each payload, would cost several times the copy of a payload of 1 KB.

Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bookie_client.reading.entry import EntryBatch, LedgerEntry

LARGE: Final = 4096
"""Bytes of an average payload from which a view of each costs less than gathering all by their offsets."""


@runtime_checkable
class EntryColumns(Protocol):
    """The columns of some entries, in their order."""

    def sizes(self) -> npt.NDArray[np.int32]:
        """Bytes of each payload."""

    def copy_payloads(self, into: npt.NDArray[np.uint8]) -> None:
        """One behind the other; `into` is as long as all of them."""

    def lacs(self) -> npt.NDArray[np.int64]:
        """The last add confirmed that each carries."""


def columns_of(entries: Sequence[LedgerEntry]) -> EntryColumns:
    """The columns of a batch in its answer, of entries that have them, or of any entries."""
    if isinstance(entries, EntryBatch):
        return _Packed(entries)
    return entries if isinstance(entries, EntryColumns) else _Listed(entries)


class _Listed:
    """Entries that are objects already."""

    def __init__(self, entries: Sequence[LedgerEntry]) -> None:
        self._entries = entries

    def sizes(self) -> npt.NDArray[np.int32]:
        return np.fromiter([len(entry.payload) for entry in self._entries], np.int32, len(self._entries))

    def copy_payloads(self, into: npt.NDArray[np.uint8]) -> None:
        into[:] = np.frombuffer(b"".join([entry.payload for entry in self._entries]), np.uint8)

    def lacs(self) -> npt.NDArray[np.int64]:
        return np.fromiter([entry.lac for entry in self._entries], np.int64, len(self._entries))


class _Packed:
    """Entries in their answer."""

    def __init__(self, batch: EntryBatch) -> None:
        self._batch = batch
        self._bytes = np.frombuffer(batch.body, np.uint8)
        self._starts = np.fromiter(batch.starts, np.int64, len(batch) + 1)
        self._lengths = np.diff(self._starts)
        first = int(self._lengths[0])
        self._length = first if (self._lengths == first).all() else None
        """Of each entry with all that stands in front of its payload; None: they differ."""

    def sizes(self) -> npt.NDArray[np.int32]:
        return (self._lengths - self._batch.payload_at).astype(np.int32)

    def copy_payloads(self, into: npt.NDArray[np.uint8]) -> None:
        count, payload_at = len(self._batch), self._batch.payload_at
        if self._length is not None:
            into.reshape(count, self._length - payload_at)[:] = self._rows(self._length)[:, payload_at:]
        elif len(into) >= LARGE * count:
            into[:] = np.frombuffer(b"".join(self._batch.payloads()), np.uint8)
        else:
            into[:] = self._gathered()

    def lacs(self) -> npt.NDArray[np.int64]:
        at = self._batch.lac_at
        if self._length is not None:
            words = self._rows(self._length)[:, at : at + 8]
        else:
            words = self._bytes[self._starts[:-1, None] + np.arange(at, at + 8)]
        return np.ascontiguousarray(words).view(">i8").ravel().astype(np.int64)

    def _rows(self, length: int) -> npt.NDArray[np.uint8]:
        """An entry in each, where all are of one length."""
        return self._bytes[self._starts[0] : self._starts[-1]].reshape(len(self._batch), length)

    def _gathered(self) -> npt.NDArray[np.uint8]:
        """To Arrow the answer is a column of what stands in front of a payload, a payload, and so on; every other one
        is taken."""
        count = len(self._batch)
        offsets = np.empty(2 * count + 1, np.int32)
        offsets[::2] = self._starts
        offsets[1::2] = self._starts[:-1] + self._batch.payload_at
        parts = [None, pa.py_buffer(offsets), pa.py_buffer(self._batch.body)]
        column = pa.Array.from_buffers(pa.binary(), 2 * count, parts)
        payloads = column.take(pa.array(np.arange(1, 2 * count, 2, dtype=np.int32)))
        return np.frombuffer(payloads.buffers()[2], np.uint8)
