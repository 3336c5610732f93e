"""The batch source.

Invariants
- Partitions are planned once for each `load()`: a DataFrame is a snapshot, whatever is appended meanwhile.
- No filter is ever accepted: PySpark 4.3 shares one plan between the scans of a `load()`, so an accepted filter gives
  wrong results in other queries. Neither class here defines `pushFilters`.
- Nothing but options and partitions travels to tasks: no client, no password.

`partitions` runs in a planning process, `read` in an executor's worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_bookie.common.errors import OPTION, PodkeeperSparkError, told
from pyspark_bookie.common.options import option_names, parse
from pyspark_bookie.source.options import EitherOptions, SourceOptions
from pyspark_bookie.source.planning import PlanLimits, ReadPartition, plan
from pyspark_bookie.source.pulsar_schema.stored import SchemaReader
from pyspark_bookie.source.schema import arrow_schema, check_schema, needs_schemas

if TYPE_CHECKING:
    import pyarrow as pa

    from bookie_client.client import Client


def batch_reader(raw: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """Return the reader of entries, or of a metadata table. Raises `PodkeeperSparkError`."""
    _check_names(raw)
    options = parse(raw, SourceOptions)
    if options.table is not None:
        from pyspark_bookie.source.tables.reader import TableReader

        return TableReader(options, options.table, schema)
    return BatchReader(options, schema)


def _check_names(raw: Mapping[str, str]) -> None:
    of_streams = {name.lower() for name in set(option_names(EitherOptions)) - set(option_names(SourceOptions))}
    for name in raw:
        if name.lower() in of_streams:
            raise PodkeeperSparkError(OPTION, f"option {name} is for streaming queries (readStream); leave it out here")


class BatchReader(DataSourceReader):
    """Reads entries. `schema` is the full one, or a user's choice of columns."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = check_schema(schema, options)

    def partitions(self) -> list[InputPartition]:
        """Raises `PodkeeperSparkError`: a ledger that is not there, another password, no metadata service."""
        partitions = plan_batch(self._options)
        if needs_schemas(self._schema):
            add_schemas(partitions, self._options, SchemaReader(str(self._options.managed_ledger)))
        return list(partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raises `PodkeeperSparkError`."""
        from pyspark_bookie.source.reading import read

        if not isinstance(partition, ReadPartition):
            return iter(())  # Spark makes one of its own of an empty plan
        return read(partition, self._options, arrow_schema(self._schema))


def plan_batch(options: SourceOptions) -> list[ReadPartition]:
    """Return the partitions of a batch read, as things are now. Raises `PodkeeperSparkError`."""
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


def add_schemas(partitions: Iterable[ReadPartition], options: SourceOptions, reader: SchemaReader) -> None:
    """Give tasks the schemas of the topic, as they are now: a message names a version that was stored before it. Raises
    `PodkeeperSparkError`."""
    with told():
        schemas = options.client().run(reader.read)
    for partition in partitions:
        partition.schemas = schemas


def limits_of(options: SourceOptions) -> PlanLimits:
    """Return the limits of partitions by these options."""
    return PlanLimits(
        max_bytes=options.max_bytes_per_partition,
        min_partitions=options.min_partitions,
        max_ranges=options.max_ledgers_per_partition,
        max_entries=options.max_entries_per_partition,
        bytes_per_second=options.rate_limit,
        concurrent_tasks=options.rate_limit_tasks,
    )
