"""The reader of metadata tables.

Invariants
- Tables of ledgers are cut by ledger ids, so that a cluster of millions of ledgers is read by many tasks; no task keeps
  more than some thousand rows.

`partitions` runs in a planning process, `read` in an executor's worker.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_bookie.common.errors import told
from pyspark_bookie.source.options import SourceOptions, Table
from pyspark_bookie.source.schema import arrow_schema
from pyspark_bookie.source.tables.schemas import SCHEMAS, check_table_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from bookie_client.client import Client
    from pyspark_bookie.source.tables.rows import Row

LEDGERS_PER_PARTITION: Final = 20_000
BOOKIES_PER_PARTITION: Final = 4
_BY_LEDGER: Final = frozenset({Table.LEDGERS, Table.FRAGMENTS, Table.REPLICAS})


class TablePartition(InputPartition):
    """`names`: bookies, of the table `entrylogs`."""

    def __init__(self, ledger_ids: Sequence[int] = (), names: Sequence[str] = ()) -> None:
        super().__init__(None)
        self.ledger_ids = tuple(ledger_ids)
        self.names = tuple(names)


class TableReader(DataSourceReader):
    """Reads one table."""

    def __init__(self, options: SourceOptions, table: Table, schema: StructType) -> None:
        self._options = options
        self._table = table
        self._schema = check_table_schema(schema, table)

    def partitions(self) -> list[InputPartition]:
        """Raises `PodkeeperSparkError`."""
        options = self._options
        if self._table in _BY_LEDGER:
            from pyspark_bookie.source.selection import ids_of

            with told():
                ids = options.client().run(lambda client: ids_of(client, options.ledgers))
            size = max(1, min(LEDGERS_PER_PARTITION, -(-len(ids) // options.min_partitions)))
            return [TablePartition(ids[start : start + size]) for start in range(0, len(ids), size)]
        if self._table is Table.ENTRYLOGS:
            from pyspark_bookie.source.tables.rows import bookie_states

            with told():
                names = sorted(options.client().run(bookie_states))
            size = BOOKIES_PER_PARTITION
            return [TablePartition(names=names[start : start + size]) for start in range(0, len(names), size)]
        return [TablePartition()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raises `PodkeeperSparkError`."""
        if not isinstance(partition, TablePartition):
            return iter(())  # Spark makes one of its own of an empty plan
        return self._read(partition)

    def _read(self, partition: TablePartition) -> Iterator[pa.RecordBatch]:
        with told():
            for rows in self._options.client().iterate(lambda client: self._rows(client, partition)):
                if rows:
                    yield self._batch(rows)

    def _rows(self, client: Client, partition: TablePartition) -> AsyncIterator[list[Row]]:
        options, table = self._options, self._table
        if table in _BY_LEDGER:
            from pyspark_bookie.source.tables.rows import ledger_rows

            return ledger_rows(client, table, partition.ledger_ids, options)
        if table is Table.UNDERREPLICATED:
            from pyspark_bookie.source.tables.rows import underreplicated_rows

            return underreplicated_rows(client, options)
        if table is Table.ENTRYLOGS:
            from pyspark_bookie.source.tables.entry_logs import entry_log_rows

            return entry_log_rows(client, partition.names, options)
        from pyspark_bookie.source.tables.rows import bookie_rows, cookie_rows, stream_rows

        return {Table.BOOKIES: bookie_rows, Table.COOKIES: cookie_rows, Table.STREAMS: stream_rows}[table](client)

    def _batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        import pyarrow as pa

        columns = dict(zip(SCHEMAS[self._table].names, zip(*rows, strict=True), strict=True))
        schema = arrow_schema(self._schema)
        arrays = [pa.array(_pairs(columns[field.name], field.type), field.type) for field in schema]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _pairs(values: Sequence[object], kind: pa.DataType) -> Sequence[object]:
    """Arrow takes mappings as lists of pairs."""
    import pyarrow as pa

    if not pa.types.is_map(kind):
        return values
    return [list(value.items()) if isinstance(value, dict) else value for value in values]
