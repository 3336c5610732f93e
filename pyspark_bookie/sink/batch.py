"""Batch writes: `df.write.format("bookkeeper")`.

Spark gives a batch write no identity, so running it again writes again, unless the caller says which of its batches
this is (`txnAppId`, `txnVersion`).

Spark makes the writer when it plans, pickles it for tasks and for the commit; nothing but what the constructor sets
survives that.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_bookie.common.errors import OPTION, PodkeeperSparkError
from pyspark_bookie.common.options import parse
from pyspark_bookie.sink.commit import IdsFile, clean_up, coalesced, ensure_stream, publish, told_if_away
from pyspark_bookie.sink.messages import batch_of, collected
from pyspark_bookie.sink.options import SinkMode, SinkOptions
from pyspark_bookie.sink.rows import check_input
from pyspark_bookie.sink.writing import write_task

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)
_UNKNOWN: Final = "Nobody knows whether the batch was published: when it is back, "
_COUNTS_ONCE: Final = _UNKNOWN + "write it again with the same txnAppId and txnVersion, and it counts once"
_MAY_COUNT_TWICE: Final = _UNKNOWN + "look at the stream (table=streams) first; a batch with txnAppId counts once"


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
        """In a task. One attempt; Spark may make several of the same rows."""
        return write_task(iterator, self._options, self._write_id)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver, when every task has written."""
        options = self._options
        with told_if_away(options, _MAY_COUNT_TWICE if options.txn_app_id is None else _COUNTS_ONCE):
            batch = coalesced(options, batch_of(collected(messages)))
            if options.write_mode is SinkMode.STREAM:
                publish(options, batch, options.txn_app_id, options.txn_version, replace=self._overwrite)
        if options.write_mode is SinkMode.LEDGER_PER_PARTITION:
            IdsFile.prepared(options.ids_file, batch).settle(is_published=True)
            _log.warning("wrote ledgers %s", [ledger.ledger_id for ledger in batch.ledgers])

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver, when a task or the commit failed; other tasks may still be writing."""
        clean_up(self._options, [ledger for message in collected(messages) for ledger in message.ledgers])
