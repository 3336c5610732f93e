"""Chunks of entries as Arrow record batches.

Values are copied into one buffer and described by offsets; nothing is converted entry by entry that a whole column can
do at once (`columns`).

Invariants
- Every batch has exactly the schema that was asked for, and at most `limit` bytes of values; a single larger entry
  makes a batch of its own.

Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pyspark_bookie.source.reading.archived_entries import UNKNOWN_LAC
from pyspark_bookie.source.reading.chunk import Chunk, RowOrigin
from pyspark_bookie.source.reading.columns import columns_of
from pyspark_bookie.source.schema import CORRUPT_COLUMN, METADATA_COLUMN

NOTHING: Final = RowOrigin()


def batches(chunks: Iterable[Chunk], schema: pa.Schema, limit: int) -> Iterator[pa.RecordBatch]:
    """The rows of all chunks, in order."""
    waiting: list[Chunk] = []
    nbytes = 0
    for chunk in chunks:
        for piece in [chunk] if chunk.nbytes <= limit else chunk.slices(limit):
            size = piece.nbytes
            if waiting and nbytes + size > limit:
                yield record_batch(waiting, schema)
                waiting, nbytes = [], 0
            waiting.append(piece)
            nbytes += size
    if waiting:
        yield record_batch(waiting, schema)


def record_batch(chunks: Sequence[Chunk], schema: pa.Schema) -> pa.RecordBatch:
    """All rows of the chunks in one batch."""
    entries = _Entries(chunks)
    made = [
        entries.column(field.name) if field.name in _Entries.NAMES else _COLUMNS[field.name](chunks, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(made, schema=schema)


class _Entries:
    """The columns that are taken from the entries themselves. A row that is only an error has none of them."""

    NAMES: Final = frozenset(("value", "length", "lac"))

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self._chunks = chunks
        self._columns = [columns_of(chunk.entries) for chunk in chunks]
        self._sizes = np.concatenate([each.sizes() for each in self._columns])
        self._mask = _mask(chunks)

    def column(self, name: str) -> pa.Array:
        count = len(self._sizes)
        if name == "lac":
            lacs = np.concatenate([each.lacs() for each in self._columns])
            unknown = lacs == UNKNOWN_LAC
            return pa.array(lacs, mask=unknown if self._mask is None else unknown | ~np.array(self._mask))
        valid = None if self._mask is None else pa.array(self._mask).buffers()[1]
        if name == "length":
            return pa.Array.from_buffers(pa.int32(), count, [valid, pa.py_buffer(self._sizes)])
        offsets = np.zeros(count + 1, np.int32)
        np.cumsum(self._sizes, out=offsets[1:])
        return pa.Array.from_buffers(pa.binary(), count, [valid, pa.py_buffer(offsets), pa.py_buffer(self._values())])

    def _values(self) -> npt.NDArray[np.uint8]:
        """All payloads, one behind the other."""
        values = np.empty(int(self._sizes.sum(dtype=np.int64)), np.uint8)
        start = 0
        for chunk, each in zip(self._chunks, self._columns, strict=True):
            stop = start + chunk.nbytes
            each.copy_payloads(values[start:stop])
            start = stop
        return values


def _mask(chunks: Sequence[Chunk]) -> list[bool] | None:
    """Which rows are entries; None: all of them."""
    if all(chunk.corrupt is None for chunk in chunks):
        return None
    return [text is None for text in _corrupt(chunks)]


def _corrupt(chunks: Sequence[Chunk]) -> list[str | None]:
    parts: Iterable[Iterable[str | None]] = (
        repeat(None, len(chunk.entries)) if chunk.corrupt is None else chunk.corrupt for chunk in chunks
    )
    return list(chain.from_iterable(parts))


def _ledger_id(chunks: Sequence[Chunk], _: pa.DataType) -> pa.Array:
    counts = [len(chunk.entries) for chunk in chunks]
    return pa.array(np.repeat(np.array([chunk.ledger.ledger_id for chunk in chunks], np.int64), counts))


def _entry_id(chunks: Sequence[Chunk], _: pa.DataType) -> pa.Array:
    return pa.array(np.concatenate([_ids(chunk) for chunk in chunks]))


def _ids(chunk: Chunk) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    entries = chunk.entries
    count, first = len(entries), entries[0].entry_id
    if entries[-1].entry_id - first == count - 1:
        return np.arange(first, first + count, dtype=np.int64)
    return np.fromiter([entry.entry_id for entry in entries], np.int64, count)


def _stream(chunks: Sequence[Chunk], kind: pa.DataType) -> pa.Array:
    if all(chunk.ledger.stream is None for chunk in chunks):
        return pa.nulls(sum(len(chunk.entries) for chunk in chunks), kind)
    parts = [
        pa.nulls(len(chunk.entries), kind)
        if chunk.ledger.stream is None
        else pa.repeat(pa.scalar(chunk.ledger.stream, kind), len(chunk.entries))
        for chunk in chunks
    ]
    return pa.concat_arrays(parts)


def _metadata(chunks: Sequence[Chunk], kind: pa.StructType) -> pa.Array:
    origins: list[RowOrigin] = []
    for chunk in chunks:
        origins += [NOTHING] * len(chunk.entries) if chunk.origins is None else chunk.origins
    columns = {
        "bookie": [origin.bookie for origin in origins],
        "fragment": [chunk.ledger.fragment_of(entry.entry_id) for chunk in chunks for entry in chunk.entries],
        "replica_index": [origin.replica_index for origin in origins],
        "digest_type": [_digest_type(chunk) for chunk in chunks for _ in chunk.entries],
        "read_latency_us": [origin.latency_us for origin in origins],
    }
    arrays = [pa.array(columns[field.name], field.type) for field in kind]
    return pa.StructArray.from_arrays(arrays, fields=list(kind))


def _digest_type(chunk: Chunk) -> str | None:
    """What has verified the entries; of archived ones it was not the ledger's digest."""
    return chunk.ledger.digest_type.name if chunk.ledger.archive is None else None


_COLUMNS: Final[dict[str, Callable[[Sequence[Chunk], pa.DataType], pa.Array]]] = {
    "ledger_id": _ledger_id,
    "entry_id": _entry_id,
    "stream": _stream,
    METADATA_COLUMN: _metadata,
    CORRUPT_COLUMN: lambda chunks, kind: pa.array(_corrupt(chunks), kind),
}
