"""Reading a partition: ranges of ledgers in, Arrow record batches out.

    for batch in read(partition, options, arrow_schema(schema)):
        ...

Invariants
- Only entries whose digest was verified become values.
- What is under way or waits is bounded: the client's read window of a range, some MB between its thread and this one,
  and one record batch.
- Dropping the iterator ends the reads.

A worker keeps the memory that is freed while entries stream through, and collects few cycles. Some MB are allocated and
freed for each batch of entries. By default the C library gives such memory back to the system each time, and takes it
again page by page, which cost a tenth of a worker's processor time. Entries under way are no garbage, and with its
usual threshold the collector that looks at them again and again takes a quarter of the time of a read.

The thread of a task; the client has its own.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pyspark_bookie.common.throttle import Throttle
from pyspark_bookie.source.options import Decode

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_bookie.source.options import SourceOptions
    from pyspark_bookie.source.planning import LostLedger, ReadPartition
    from pyspark_bookie.source.pulsar_schema.types import Schemas
    from pyspark_bookie.source.reading.arrow import Decoder
    from pyspark_bookie.source.reading.chunk import Chunk

BATCHES_PER_SECOND: Final = 32
"""Maximum record batches per second of a task whose rate is limited. Bookies are asked for more whenever a batch
is full, so small batches keep the reading even.
"""


def read(partition: ReadPartition, options: SourceOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a partition. `schema`: the columns wanted, see `pyspark_bookie.source.schema`. Raises
    `PodkeeperSparkError`."""
    from bookie_client.replication.throttle import piece_bytes

    throttle = Throttle(partition.bytes_per_second)
    limit = piece_bytes(partition.bytes_per_second, options.arrow_batch_bytes, BATCHES_PER_SECOND)
    freeze_imports()
    keep_freed_memory()
    with fewer_collections():
        decoder = None if options.decode is Decode.RAW else _decoder(options.decode, partition.schemas)
        for batch in _batches(read_chunks(partition, options), decoder, options, schema, limit):
            throttle.take(batch.nbytes)
            yield batch


def read_chunks(partition: ReadPartition, options: SourceOptions) -> Iterator[Chunk]:
    """The same rows as Python objects. Raises as `read`."""
    from pyspark_bookie.source.reading.ranges import range_chunks

    for lost in partition.lost:
        yield _lost_chunk(lost, options)
    if partition.ranges:
        client = options.client()
        yield from client.iterate(
            lambda each: range_chunks(each, partition.ranges, options), lambda chunk: chunk.nbytes
        )


def _batches(
    chunks: Iterator[Chunk], decoder: Decoder[Any] | None, options: SourceOptions, schema: pa.Schema, limit: int
) -> Iterator[pa.RecordBatch]:
    if decoder is not None:
        from pyspark_bookie.source.reading.arrow import decoded_batches

        return decoded_batches(chunks, decoder, schema, limit, strict=options.fail_on_data_loss)
    from pyspark_bookie.source.reading.arrow import batches

    return batches(chunks, schema, limit)


def _decoder(decode: Decode, schemas: Schemas | None) -> Decoder[Any]:
    if decode is Decode.DLOG:
        from pyspark_bookie.source.dlog import DlogDecoder

        return DlogDecoder()
    from pyspark_bookie.source.pulsar import PulsarDecoder
    from pyspark_bookie.source.pulsar_schema.values import ValueReader

    return PulsarDecoder(None if schemas is None else ValueReader(schemas))


def _lost_chunk(lost: LostLedger, options: SourceOptions) -> Chunk:
    """One row for a ledger that is not there."""
    from bookie_client.reading.entry import LedgerEntry
    from pyspark_bookie.source.planning import without_bookies
    from pyspark_bookie.source.reading.chunk import Chunk

    nothing = without_bookies(lost.ledger_id, options.digest_type, lost.stream)
    text = f"[BOOKIE_{lost.code}] {lost.text}"
    return Chunk(nothing, [LedgerEntry(lost.ledger_id, -1, 0, b"")], corrupt=[text])


KEPT_BYTES: Final = 64 * 1024 * 1024
"""Freed memory at the end of a heap that the process keeps."""
LARGEST_BYTES: Final = 32 * 1024 * 1024
"""Allocations up to this size come from a heap, the most that the C library allows."""
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
"""Parameters of `mallopt`, from glibc's malloc.h."""


def keep_freed_memory() -> bool:
    """Keep freed memory in a worker of Spark until it ends. False: in other processes, which may have other wishes,
    or where the C library offers no such thing."""
    from pyspark import TaskContext

    return TaskContext.get() is not None and set_thresholds()


def set_thresholds() -> bool:
    """Set the thresholds of this process, whatever it is."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(
        mallopt(_TRIM_THRESHOLD, KEPT_BYTES) and mallopt(_MMAP_THRESHOLD, LARGEST_BYTES)
    )


YOUNG_OBJECTS: Final = 50_000
"""New objects between two runs."""


@contextmanager
def fewer_collections() -> Iterator[None]:
    """Within the block; afterwards the threshold is as it was. A collector that is off stays off."""
    young, *older = gc.get_threshold()
    if young:
        gc.set_threshold(max(young, YOUNG_OBJECTS), *older)
    try:
        yield
    finally:
        gc.set_threshold(young, *older)


def freeze_imports() -> None:
    """Freeze what a worker of Spark has imported by its first read, once and until it ends: it is never garbage.
    PySpark runs the collector after each task, and would look at all of it. Nothing happens in other processes."""
    from pyspark import TaskContext

    if TaskContext.get() is not None and not gc.get_freeze_count():
        gc.freeze()
