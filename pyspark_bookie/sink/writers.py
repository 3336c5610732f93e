"""The writers that Spark calls (`df.write.format("bookkeeper")`, and the same with `writeStream`), each row once.

Spark gives a batch write no identity, so running it again writes again, unless the caller says which of its batches
this is (`txnAppId`, `txnVersion`).

In a streaming write each attempt of each task writes and closes ledgers of its own. The commit of a batch makes them
part of the stream, with the query's id and the batch's number beside them, in one step. After a crash Spark runs the
batch again under the same number: then it is a new batch, or one that is recognised.

Spark makes the writer of a batch write when it plans, and pickles it for tasks and for the commit; a streaming write
has a new writer for the tasks of each batch and another one for each commit, in processes that are used again. Nothing
but what the constructor sets, and the messages, goes from the one to the other.

Source: docs/internals/spark.md, sections 1 (items 11 to 13, 18) and 3.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_bookie.common.errors import OPTION, PodkeeperSparkError
from pyspark_bookie.common.options import parse
from pyspark_bookie.sink.commit import (
    METADATA_UNAVAILABLE,
    IdsFile,
    clean_up,
    coalesced,
    ensure_stream,
    publish,
    told_if_away,
)
from pyspark_bookie.sink.options import SinkMode, SinkOptions
from pyspark_bookie.sink.writing import batch_of, check_input, collected, write_task

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)
_UNKNOWN: Final = "Nobody knows whether the batch was published: when it is back, "
_COUNTS_ONCE: Final = _UNKNOWN + "write it again with the same txnAppId and txnVersion, and it counts once"
_MAY_COUNT_TWICE: Final = _UNKNOWN + "look at the stream (table=streams) first; a batch with txnAppId counts once"
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})
"""Options of the query that Spark hands to its sink, too."""
_RESTART: Final = (
    "When it is back, start the query again from its checkpoint: the batch that was under way is published once then"
)


class BatchWriter(DataSourceArrowWriter):
    """Made on the driver; raises `PodkeeperSparkError` for options, input or a stream that will not do."""

    def __init__(self, raw: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        self._options = parse(raw, SinkOptions)
        self._overwrite = overwrite
        self._write_id = str(uuid.uuid4())
        check_input(schema, self._options)
        if overwrite and self._options.write_mode is SinkMode.LEDGER_PER_PARTITION:
            raise PodkeeperSparkError(OPTION, "mode(overwrite) and writeMode=ledgerPerPartition exclude each other")
        ensure_stream(self._options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one partition, in a task. Spark may make several attempts with the same rows."""
        return write_task(iterator, self._options, self._write_id)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish the batch, on the driver, when every task has written."""
        options = self._options
        with told_if_away(options, _MAY_COUNT_TWICE if options.txn_app_id is None else _COUNTS_ONCE):
            batch = coalesced(options, batch_of(collected(messages)))
            if options.write_mode is SinkMode.STREAM:
                publish(options, batch, options.txn_app_id, options.txn_version, replace=self._overwrite)
        if options.write_mode is SinkMode.LEDGER_PER_PARTITION:
            IdsFile.prepared(options.ids_file, batch).settle(is_published=True)
            _log.warning("wrote ledgers %s", [ledger.ledger_id for ledger in batch.ledgers])

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Clean up, on the driver, when a task or the commit failed; other tasks may still be writing."""
        clean_up(self._options, [ledger for message in collected(messages) for ledger in message.ledgers])


class StreamingWriter(DataSourceStreamArrowWriter):
    """Made on the driver, for each batch twice; raises `PodkeeperSparkError` for options, input or a stream that will
    not do. A metadata service that is away is for `write` and `commit` to tell.
    `overwrite` (output mode `complete`): each batch replaces the stream's content."""

    def __init__(self, raw: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        own = {name: value for name, value in raw.items() if name.lower() not in _OF_SPARK}
        self._options = parse(own, SinkOptions)
        self._overwrite = overwrite
        check_input(schema, self._options)
        if self._options.write_mode is SinkMode.LEDGER_PER_PARTITION:
            text = "a streaming query needs stream: only there a batch that is written again is recognised"
            raise PodkeeperSparkError(OPTION, f"writeMode=ledgerPerPartition is for batch writes; {text}")
        if self._options.txn_app_id is not None:
            raise PodkeeperSparkError(
                OPTION, "txnAppId is for batch writes; a streaming query has an id in its checkpoint"
            )
        self._away: PodkeeperSparkError | None = None
        try:
            with told_if_away(self._options, _RESTART):
                ensure_stream(self._options)
        except PodkeeperSparkError as error:
            if error.code != METADATA_UNAVAILABLE:
                raise
            self._away = error  # for `write` and `commit`: if `abort` failed, too, Spark would hide why the batch did

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one partition, in a task. Spark may make several attempts with the same rows."""
        self._check()
        return write_task(iterator, self._options)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - PySpark's name
        """Publish the batch, on the driver, when every task has written; again after a crash, with other ledgers
        of the same rows."""
        self._check()
        options = self._options
        batch = batch_of(collected(messages))
        if batch.query_id is None:
            if batch.rows:
                text = "tasks do not know the id of their query, without which a repeated batch would not be recognised"
                raise PodkeeperSparkError("NO_QUERY_ID", f"stream {options.stream}: {text}; nothing was published")
            return
        with told_if_away(options, _RESTART):
            batch = coalesced(options, batch, batchId)
            publish(options, batch, batch.query_id, batchId, replace=self._overwrite)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - PySpark's name
        """Clean up, on the driver, when a task or the commit failed, also after a commit whose answer was lost.
        Other tasks may still be writing. It is not called if the driver dies."""
        clean_up(self._options, [ledger for message in collected(messages) for ledger in message.ledgers])

    def _check(self) -> None:
        if self._away is not None:
            raise self._away
