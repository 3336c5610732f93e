"""Which column of a DataFrame becomes the entries.

Each row is an entry, its column `value` the payload: binary, or a string, which is stored as UTF-8. Columns that the
source gives may stand beside it, so that what was read can be written; any other column would be lost, and is refused.

Invariants
- No value is changed, dropped or made up: a null is an error, never an empty entry.

Any process; pyarrow is imported where rows are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import BinaryType, StringType, StructType

from pyspark_bookie.common.errors import SCHEMA, PodkeeperSparkError
from pyspark_bookie.sink.options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa

VALUE: Final = "value"
OF_THE_SOURCE: Final = frozenset({"ledger_id", "entry_id", "length", "lac", "stream", "_metadata", "_corrupt"})
"""All columns that the source gives of raw entries."""


def check_input(schema: StructType, options: SinkOptions) -> None:
    """Raises `PodkeeperSparkError` (SCHEMA)."""
    names = schema.fieldNames()
    if VALUE not in names:
        has = ", ".join(names) or "none at all"
        raise PodkeeperSparkError(
            SCHEMA, f"there is no column value, the payload of the entries, among {has}: select it, as binary or string"
        )
    kind = schema[VALUE].dataType
    if not isinstance(kind, (BinaryType, StringType)):
        text = f"column value is {kind.simpleString()}, not binary or string: cast it, or use to_json"
        raise PodkeeperSparkError(SCHEMA, text)
    for name in options.order_by:
        if name not in names:
            raise PodkeeperSparkError(
                SCHEMA, f"there is no column {name} to order by (orderBy): there are {', '.join(names)}"
            )
    for name in names:
        if name != VALUE and name not in OF_THE_SOURCE and name not in options.order_by:
            text = (
                "would be lost: an entry has only its value. Drop it, or put it into value, as with to_json(struct(*))"
            )
            raise PodkeeperSparkError(SCHEMA, f"column {name} {text}")


def values(batches: Iterable[pa.RecordBatch], options: SinkOptions) -> Iterator[pa.BinaryArray]:
    """The payloads, in the order in which they are to be written. Raises `PodkeeperSparkError` (SCHEMA) for a null."""
    import pyarrow as pa

    ordered = _sorted(batches, options) if options.order_by else batches
    before = 0
    for batch in ordered:
        column = batch.column(VALUE)
        if column.null_count:
            row = before + next(n for n, value in enumerate(column) if not value.is_valid)
            raise PodkeeperSparkError(
                SCHEMA, f"the value of row {row} of this partition is null, which no entry can be: filter it out"
            )
        yield column if pa.types.is_binary(column.type) else column.cast(pa.binary())
        before += batch.num_rows


def _sorted(batches: Iterable[pa.RecordBatch], options: SinkOptions) -> Iterator[pa.RecordBatch]:
    """All rows of the task by the columns of `orderBy`; equal ones stay as they came."""
    import pyarrow as pa

    kept = []
    nbytes = 0
    for batch in batches:
        nbytes += batch.nbytes
        if nbytes > options.order_by_max_bytes:
            raise PodkeeperSparkError(
                "ORDER_BY",
                f"a task has more than orderByMaxBytes={options.order_by_max_bytes} to sort: use smaller batches or"
                " more partitions, sortWithinPartitions in a batch write, or a larger limit",
            )
        kept.append(batch)
    if kept:
        table = pa.Table.from_batches(kept)
        yield from table.sort_by([(name, "ascending") for name in options.order_by]).to_batches()
