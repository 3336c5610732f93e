"""Messages of Pulsar as Arrow record batches.

An entry that cannot be decoded ends the read, or with `failOnDataLoss=false` becomes a row with its bytes as value and
the reason in `_corrupt`.

Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa

from pyspark_bookie.common.errors import DECODE, PodkeeperSparkError
from pyspark_bookie.source.pulsar.entries import Message, UndecodableEntry, messages
from pyspark_bookie.source.reading.chunk import Chunk, RowOrigin
from pyspark_bookie.source.schema import CORRUPT_COLUMN, METADATA_COLUMN

_NOTHING = Message(None, None, 0, None, {}, None)


def message_batches(
    chunks: Iterable[Chunk], schema: pa.Schema, limit: int, *, strict: bool
) -> Iterator[pa.RecordBatch]:
    """About `limit` bytes of values in each; an entry's messages may be more. `strict`: what cannot be decoded ends the
    read with `PodkeeperSparkError` (DECODE)."""
    rows: list[dict[str, Any]] = []
    nbytes = 0
    for chunk in chunks:
        origins: Iterable[RowOrigin] = chunk.origins or repeat(RowOrigin())
        corrupt: Iterable[str | None] = chunk.corrupt or repeat(None)
        for entry, origin, text in zip(chunk.entries, origins, corrupt, strict=False):
            for message, reason in _decoded(entry.payload, entry.ledger_id, entry.entry_id, text, strict=strict):
                rows.append(_row(chunk, entry.entry_id, message, origin, reason))
                nbytes += len(message.value or b"") + 64
            if nbytes >= limit:
                yield _batch(rows, schema)
                rows, nbytes = [], 0
    if rows:
        yield _batch(rows, schema)


def _decoded(
    payload: bytes, ledger_id: int, entry_id: int, text: str | None, *, strict: bool
) -> Iterator[tuple[Message, str | None]]:
    if text is not None:
        yield _NOTHING, text
        return
    try:
        found = messages(payload)
    except UndecodableEntry as error:
        reason = f"entry {entry_id} of ledger {ledger_id}: {error}"
        if strict:
            remedy = "read it with decode=raw, or set failOnDataLoss=false to get it as a row"
            raise PodkeeperSparkError(DECODE, f"{reason}; {remedy}") from None
        yield _NOTHING._replace(value=payload), f"[BOOKIE_{DECODE}] {reason}"
        return
    for message in found:
        yield message, None


def _row(chunk: Chunk, entry_id: int, message: Message, origin: RowOrigin, reason: str | None) -> dict[str, Any]:
    ledger = chunk.ledger
    is_message = reason is None
    return {
        "key": message.key,
        "value": message.value,
        "topic": topic_of(ledger.stream),
        "publish_time": message.publish_time * 1000 if is_message else None,
        "event_time": None if message.event_time is None else message.event_time * 1000,
        "properties": list(message.properties.items()) if is_message else None,
        "ledger_id": ledger.ledger_id,
        "entry_id": entry_id,
        "batch_index": message.batch_index,
        METADATA_COLUMN: {
            "bookie": origin.bookie,
            "fragment": ledger.fragment_of(entry_id),
            "replica_index": origin.replica_index,
            "digest_type": ledger.digest_type.name,
            "read_latency_us": origin.latency_us,
        },
        CORRUPT_COLUMN: reason,
    }


def topic_of(stream: str | None) -> str | None:
    """`persistent://tenant/namespace/topic` of the managed ledger `tenant/namespace/persistent/topic`."""
    parts = stream.split("/") if stream is not None else []
    if len(parts) != 4:
        return stream
    tenant, namespace, domain, topic = parts
    return f"{domain}://{tenant}/{namespace}/{topic}"


def _batch(rows: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.array([row[field.name] for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
