"""Conversion of chunks of entries to Arrow record batches, also of records inside entries (`decoded_batches`).

A decoder finds the records of each entry, row by row.

Values are copied into one buffer and described by offsets; nothing is converted entry by entry that a whole column can
do at once (`EntryColumns`).

An entry that cannot be decoded ends the read, or with `failOnDataLoss=false` becomes a row with its bytes as value and
the reason in `_corrupt`.

Invariants
- Every batch has exactly the schema that was asked for, and at most `limit` bytes of values; a single larger entry
  makes a batch of its own.

Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from bookie_client.reading.entry import EntryBatch, LedgerEntry
from pyspark_bookie.common.errors import DECODE, PodkeeperSparkError, UndecodableEntry
from pyspark_bookie.source.planning import LedgerSnapshot
from pyspark_bookie.source.reading.chunk import UNKNOWN_LAC, Chunk, RowOrigin
from pyspark_bookie.source.schema import CORRUPT_COLUMN, METADATA_COLUMN, VALUE_JSON

LARGE: Final = 4096
"""Bytes of an average payload from which a view of each costs less than gathering all by their offsets."""
NOTHING: Final = RowOrigin()
Record = TypeVar("Record")
_ROW_BYTES = 64
"""Bytes that a row counts for beyond its value."""


@runtime_checkable
class EntryColumns(Protocol):
    """The columns of some entries, in their order, each made for all of them at once.

    Entries of a batch read lie one behind the other in the answer that brought them: their payloads are copied out of
    it by one operation where they are of one size, as those of most ledgers are, and by Arrow's gathering where they
    are not. An object for each entry, or only a view of each payload, would cost several times the copy of a payload
    of 1 KB.
    """

    def sizes(self) -> npt.NDArray[np.int32]:
        """Bytes of each payload."""

    def copy_payloads(self, into: npt.NDArray[np.uint8]) -> None:
        """One behind the other; `into` is as long as all of them."""

    def lacs(self) -> npt.NDArray[np.int64]:
        """The last add confirmed that each carries."""


def columns_of(entries: Sequence[LedgerEntry]) -> EntryColumns:
    """Return the columns of a batch in its answer, of entries that have them, or of any entries."""
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
        """Size of each entry with all that precedes its payload; None: they differ."""

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
        """Return the payloads, gathered by Arrow: it takes every other item of a column of headers and payloads."""
        count = len(self._batch)
        offsets = np.empty(2 * count + 1, np.int32)
        offsets[::2] = self._starts
        offsets[1::2] = self._starts[:-1] + self._batch.payload_at
        parts = [None, pa.py_buffer(offsets), pa.py_buffer(self._batch.body)]
        column = pa.Array.from_buffers(pa.binary(), 2 * count, parts)
        payloads = column.take(pa.array(np.arange(1, 2 * count, 2, dtype=np.int32)))
        return np.frombuffer(payloads.buffers()[2], np.uint8)


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
    """Return the digest that verified the entries; None for archived ones, which have other checksums."""
    return chunk.ledger.digest_type.name if chunk.ledger.archive is None else None


_COLUMNS: Final[dict[str, Callable[[Sequence[Chunk], pa.DataType], pa.Array]]] = {
    "ledger_id": _ledger_id,
    "entry_id": _entry_id,
    "stream": _stream,
    METADATA_COLUMN: _metadata,
    CORRUPT_COLUMN: lambda chunks, kind: pa.array(_corrupt(chunks), kind),
}


class Decoder(Protocol[Record]):
    """A format of entries, and the columns of its own; `value` is one of them."""

    def records(self, entry: bytes) -> Sequence[Record]:
        """All of an entry, in order. Raises `UndecodableEntry`."""

    def columns(self, record: Record) -> Mapping[str, Any]:
        """Return the columns of a row that come from its record."""

    def ledger_columns(self, ledger: LedgerSnapshot) -> Mapping[str, Any]:
        """Return the columns of a row that come from its ledger, good or not."""


def decoded_batches(
    chunks: Iterable[Chunk], decoder: Decoder[Record], schema: pa.Schema, limit: int, *, strict: bool
) -> Iterator[pa.RecordBatch]:
    """About `limit` bytes of values in each; the records of an entry may be more. `strict`: what cannot be decoded ends
    the read with `PodkeeperSparkError` (DECODE)."""
    rows: list[dict[str, Any]] = []
    nbytes = 0
    for chunk in chunks:
        origins: Iterable[RowOrigin] = chunk.origins or repeat(RowOrigin())
        corrupt: Iterable[str | None] = chunk.corrupt or repeat(None)
        of_ledger = decoder.ledger_columns(chunk.ledger)
        for entry, origin, text in zip(chunk.entries, origins, corrupt, strict=False):
            common = {**of_ledger, **_entry_columns(chunk, entry.entry_id, origin)}
            for columns in _decoded(decoder, entry.payload, entry.ledger_id, entry.entry_id, text, strict=strict):
                rows.append({**common, **columns})
                nbytes += len(columns.get("value") or b"") + len(columns.get(VALUE_JSON) or "") + _ROW_BYTES
            if nbytes >= limit:
                yield _batch(rows, schema)
                rows, nbytes = [], 0
    if rows:
        yield _batch(rows, schema)


def _decoded(
    decoder: Decoder[Record], payload: bytes, ledger_id: int, entry_id: int, text: str | None, *, strict: bool
) -> Iterator[Mapping[str, Any]]:
    if text is not None:
        yield {CORRUPT_COLUMN: text}
        return
    try:
        found = decoder.records(payload)
    except UndecodableEntry as error:
        reason = f"entry {entry_id} of ledger {ledger_id}: {error}"
        if strict:
            remedy = "read it with decode=raw, or set failOnDataLoss=false to get it as a row"
            raise PodkeeperSparkError(DECODE, f"{reason}; {remedy}") from None
        yield {"value": payload, CORRUPT_COLUMN: f"[BOOKIE_{DECODE}] {reason}"}
        return
    for record in found:
        columns = decoder.columns(record)
        problem = columns.get(CORRUPT_COLUMN)
        if problem is not None:
            reason = f"entry {entry_id} of ledger {ledger_id}: {problem}"
            if strict:
                remedy = "leave the columns of the schema out, or set failOnDataLoss=false to get it as a row"
                raise PodkeeperSparkError(DECODE, f"{reason}; {remedy}")
            columns = {**columns, CORRUPT_COLUMN: f"[BOOKIE_{DECODE}] {reason}"}
        yield columns


def _entry_columns(chunk: Chunk, entry_id: int, origin: RowOrigin) -> dict[str, Any]:
    ledger = chunk.ledger
    return {
        "ledger_id": ledger.ledger_id,
        "entry_id": entry_id,
        METADATA_COLUMN: {
            "bookie": origin.bookie,
            "fragment": ledger.fragment_of(entry_id),
            "replica_index": origin.replica_index,
            "digest_type": _digest_type(chunk),
            "read_latency_us": origin.latency_us,
        },
    }


def _batch(rows: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
