"""Reading a partition: ranges of ledgers in, Arrow record batches out.

    for batch in read(partition, options, arrow_schema(schema)):
        ...

Invariants
- Only entries whose digest was verified become values.
- What is under way or waits is bounded: the client's read window of a range, some MB between its thread and this one,
  and one record batch.
- Dropping the iterator ends the reads.

The thread of a task; the client has its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark_bookie.common.memory import fewer_collections, freeze_imports, keep_freed_memory
from pyspark_bookie.common.throttle import Throttle
from pyspark_bookie.source.options import Decode

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_bookie.source.options import SourceOptions
    from pyspark_bookie.source.planning import LostLedger, ReadPartition
    from pyspark_bookie.source.reading.chunk import Chunk
    from pyspark_bookie.source.reading.decoded import Decoder

BATCHES_PER_SECOND: Final = 32
"""Of a task whose rate is limited. Bookies are asked for more whenever a batch is full, so small batches keep the
reading even."""


def read(partition: ReadPartition, options: SourceOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of a partition. `schema`: the columns wanted, see `pyspark_bookie.source.schema`. Raises
    `PodkeeperSparkError`."""
    from bookie_client.replication.throttle import piece_bytes

    throttle = Throttle(partition.bytes_per_second)
    limit = piece_bytes(partition.bytes_per_second, options.arrow_batch_bytes, BATCHES_PER_SECOND)
    freeze_imports()
    keep_freed_memory()
    with fewer_collections():
        for batch in _batches(read_chunks(partition, options), options, schema, limit):
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
    chunks: Iterator[Chunk], options: SourceOptions, schema: pa.Schema, limit: int
) -> Iterator[pa.RecordBatch]:
    if options.decode is not Decode.RAW:
        from pyspark_bookie.source.reading.decoded import decoded_batches

        return decoded_batches(chunks, _decoder(options.decode), schema, limit, strict=options.fail_on_data_loss)
    from pyspark_bookie.source.reading.arrow import batches

    return batches(chunks, schema, limit)


def _decoder(decode: Decode) -> Decoder[Any]:
    if decode is Decode.DLOG:
        from pyspark_bookie.source.dlog import DlogDecoder

        return DlogDecoder()
    from pyspark_bookie.source.pulsar import PulsarDecoder

    return PulsarDecoder()


def _lost_chunk(lost: LostLedger, options: SourceOptions) -> Chunk:
    """One row for a ledger that is not there."""
    from bookie_client.reading.entry import LedgerEntry
    from pyspark_bookie.source.planning import without_bookies
    from pyspark_bookie.source.reading.chunk import Chunk

    nothing = without_bookies(lost.ledger_id, options.digest_type, lost.stream)
    text = f"[BOOKIE_{lost.code}] {lost.text}"
    return Chunk(nothing, [LedgerEntry(lost.ledger_id, -1, 0, b"")], corrupt=[text])
