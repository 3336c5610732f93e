"""The batch source.

Invariants
- Partitions are planned once for each `load()`: a DataFrame is a snapshot, whatever is appended meanwhile.
- No filter is ever accepted: PySpark 4.3 shares one plan between the scans of a `load()`, so an accepted filter gives
  wrong results in other queries. Neither class here defines `pushFilters`.
- Nothing but options and partitions travels to tasks: no client, no password.

`partitions` runs in a planning process, `read` in an executor's worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_bookie.common.options import parse
from pyspark_bookie.source.options import SourceOptions
from pyspark_bookie.source.planning import PlanLimits, ReadPartition, plan
from pyspark_bookie.source.schema import arrow_schema, check_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from bookie_client.client import Client


def batch_reader(raw: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """The reader of entries, or of a metadata table. Raises `PodkeeperSparkError`."""
    options = parse(raw, SourceOptions)
    if options.table is not None:
        from pyspark_bookie.source.tables.reader import TableReader

        return TableReader(options, options.table, schema)
    return BatchReader(options, schema)


class BatchReader(DataSourceReader):
    """Reads entries. `schema` is the full one, or a user's choice of columns."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = check_schema(schema, options)

    def partitions(self) -> list[InputPartition]:
        """Raises `PodkeeperSparkError`: a ledger that is not there, another password, no metadata service."""
        return list(plan_batch(self._options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raises `PodkeeperSparkError`."""
        from pyspark_bookie.source.reading import read

        if not isinstance(partition, ReadPartition):
            return iter(())  # Spark makes one of its own of an empty plan
        return read(partition, self._options, arrow_schema(self._schema))


def plan_batch(options: SourceOptions) -> list[ReadPartition]:
    """The partitions of a batch read, as things are now. Raises `PodkeeperSparkError`."""
    from pyspark_bookie.common.errors import told
    from pyspark_bookie.source.selection import choose
    from pyspark_bookie.source.snapshots import Readable, readable_ranges

    async def readable(client: Client) -> Readable:
        return await readable_ranges(client, await choose(client, options), options)

    client = options.client()
    with told():
        found = client.run(readable)
    partitions = plan(found.ranges, limits_of(options))
    if found.lost:
        partitions.append(ReadPartition((), None, found.lost))
    return partitions


def limits_of(options: SourceOptions) -> PlanLimits:
    """How these options want partitions to be."""
    return PlanLimits(
        max_bytes=options.max_bytes_per_partition,
        min_partitions=options.min_partitions,
        max_ranges=options.max_ledgers_per_partition,
        bytes_per_second=options.rate_limit,
        concurrent_tasks=options.rate_limit_tasks,
    )
