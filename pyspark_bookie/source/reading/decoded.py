"""Records that lie in entries, as Arrow record batches: what a decoder finds in each entry, row by row.

An entry that cannot be decoded ends the read, or with `failOnDataLoss=false` becomes a row with its bytes as value and
the reason in `_corrupt`.

Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from pyspark_bookie.common.errors import DECODE, PodkeeperSparkError, UndecodableEntry
from pyspark_bookie.source.planning import LedgerSnapshot
from pyspark_bookie.source.reading.chunk import Chunk, RowOrigin
from pyspark_bookie.source.schema import CORRUPT_COLUMN, METADATA_COLUMN

Record = TypeVar("Record")
_ROW_BYTES = 64
"""That a row counts for beyond its value."""


class Decoder(Protocol[Record]):
    """A format of entries, and the columns of its own; `value` is one of them."""

    def records(self, entry: bytes) -> Sequence[Record]:
        """All of an entry, in order. Raises `UndecodableEntry`."""

    def columns(self, record: Record) -> Mapping[str, Any]:
        """What a row has of its record."""

    def ledger_columns(self, ledger: LedgerSnapshot) -> Mapping[str, Any]:
        """What a row has of its ledger, good or not."""


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
                nbytes += len(columns.get("value") or b"") + _ROW_BYTES
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
        yield decoder.columns(record)


def _entry_columns(chunk: Chunk, entry_id: int, origin: RowOrigin) -> dict[str, Any]:
    ledger = chunk.ledger
    return {
        "ledger_id": ledger.ledger_id,
        "entry_id": entry_id,
        METADATA_COLUMN: {
            "bookie": origin.bookie,
            "fragment": ledger.fragment_of(entry_id),
            "replica_index": origin.replica_index,
            "digest_type": ledger.digest_type.name,
            "read_latency_us": origin.latency_us,
        },
    }


def _batch(rows: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
