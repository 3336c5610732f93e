"""`spark.readStream.format("bookkeeper")`: what Spark calls.

Spark makes one reader for the offsets of a query run, in a worker process of the driver, and another one that it
pickles and copies to tasks for `read`. So tasks know the options and their partition, nothing else.

`stop` is not called when a query ends as it should, so nothing depends on it.

Source: docs/internals/spark.md, sections 1 (items 6 to 9) and 3.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pyspark_bookie.common.options import parse
from pyspark_bookie.source.batch import add_schemas, limits_of
from pyspark_bookie.source.options import StreamingOptions
from pyspark_bookie.source.planning import ReadPartition, plan, plan_in_order
from pyspark_bookie.source.pulsar_schema.stored import SchemaReader
from pyspark_bookie.source.schema import arrow_schema, check_schema, needs_schemas
from pyspark_bookie.source.streaming.admission import Limit
from pyspark_bookie.source.streaming.lag import behind
from pyspark_bookie.source.streaming.offsets import Document, Offset, Start, parse_offset
from pyspark_bookie.source.streaming.progress import Progress, TriggerLimit

if TYPE_CHECKING:
    import pyarrow as pa


class StreamingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Made on the driver; raises `PodkeeperSparkError` for options or a schema that will not do."""

    def __init__(self, raw: Mapping[str, str], schema: StructType) -> None:
        self._options = parse(raw, StreamingOptions)
        self._schema = check_schema(schema, self._options)
        self._progress: Progress | None = None
        self._start: Offset | None = None
        self._end: Offset | None = None
        self._schemas: SchemaReader | None = None
        self._batch_at = -inf
        """Time at which the last batch was made."""
        self._ends = False
        """The run ends by itself: it must not wait for what may never come."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_progress": None, "_start": None, "_end": None}

    # --- offsets, on the driver -----------------------------------------------------------------------------------

    def initialOffset(self) -> Document:  # noqa: N802 - PySpark's name
        """A constant: Spark asks again after a crash, and does not keep the answer."""
        return Start(self._options.start_text).document()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - PySpark's name
        """One limit stands for all that are set; `latestOffset` knows the others."""
        options = self._options
        if options.max_entries_per_trigger is not None:
            return ReadMaxRows(options.max_entries_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_entries_per_trigger is not None:
            return ReadMinRows(options.min_entries_per_trigger)
        return ReadAllAvailable() if options.reads_streams else ReadMaxFiles(options.max_ledgers_per_trigger)

    def latestOffset(self, start: Document, limit: ReadLimit) -> Document:  # noqa: N802 - PySpark's name
        """The end of the next batch; `start` itself when there is nothing new. What lies before `start` has been
        committed: Spark asks only then."""
        begin = self._start = parse_offset(start)
        self._followed.passed(begin)
        end = self._followed.latest(begin, self._limit(limit))
        self._end = begin if end is None else parse_offset(end)
        if end is not None:
            self._batch_at = time.monotonic()
        return end or start

    def reportLatestOffset(self) -> Document | None:  # noqa: N802 - PySpark's name
        """Return the offset of the query if it had no limits, for its progress reports, with what it is behind."""
        tail = self._followed.tail(self._start)
        if tail is None or self._end is None:
            return tail
        return {**tail, "behind": behind(self._end, parse_offset(tail))}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - PySpark's name
        """Do not read in this run what comes later."""
        self._ends = True
        self._followed.stop_here()

    def partitions(self, start: Document, end: Document) -> Sequence[InputPartition]:
        """The same entries for the same offsets, after any crash; how they are cut may differ."""
        options = self._options
        limits = limits_of(options)
        ranges = self._followed.ranges(parse_offset(start), parse_offset(end))
        partitions = plan_in_order(ranges, limits) if options.reads_streams else plan(ranges, limits)
        if partitions and needs_schemas(self._schema):
            if self._schemas is None:
                self._schemas = SchemaReader(str(options.managed_ledger))
            add_schemas(partitions, options, self._schemas)
        return partitions

    def commit(self, end: Document) -> None:
        """Spark tells so late, and of the last batch of a run never; see `latestOffset`."""
        self._followed.passed(parse_offset(end))

    # --- entries, in a task -----------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The entries of one partition."""
        from pyspark_bookie.source.reading import read

        if not isinstance(partition, ReadPartition):
            return iter(())  # Spark makes one of its own of an empty plan
        return read(partition, self._options, arrow_schema(self._schema))

    # --- inside -------------------------------------------------------------------------------------------------

    @property
    def _followed(self) -> Progress:
        if self._progress is None:
            self._progress = _progress(self._options)
        return self._progress

    def _limit(self, limit: ReadLimit) -> TriggerLimit:
        options = self._options
        if not isinstance(limit, (ReadMaxRows, ReadMaxBytes, ReadMaxFiles, ReadMinRows)):
            return TriggerLimit()  # the trigger wants everything, whatever the options say
        amount = Limit(options.max_entries_per_trigger, options.max_bytes_per_trigger)
        waits = not self._ends and time.monotonic() - self._batch_at < options.max_trigger_delay
        least = (options.min_entries_per_trigger or 0) if waits else 0
        return TriggerLimit(amount, options.max_ledgers_per_trigger, least)


def _progress(options: StreamingOptions) -> Progress:
    from pyspark_bookie.source.streaming.ledgers import SelectedLedgers, snapshots

    if options.reads_streams:
        from pyspark_bookie.source.streaming.streams import StreamsProgress, StreamTails

        return StreamsProgress(options, StreamTails(options), lambda streams: snapshots(options, streams))
    from pyspark_bookie.source.streaming.ledgers import LedgersProgress

    return LedgersProgress(options, SelectedLedgers(options))
