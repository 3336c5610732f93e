"""What a task of the sink does, batch or streaming.

In a task; Spark tells who it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from pyspark_bookie.common.errors import told
from pyspark_bookie.sink.ledgers import Owner, TaskLedgers
from pyspark_bookie.sink.messages import Written
from pyspark_bookie.sink.options import SinkOptions
from pyspark_bookie.sink.rows import values
from pyspark_bookie.sink.writing import WriteLimits, write_ledgers

if TYPE_CHECKING:
    import pyarrow as pa

_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_RUN_ID: Final = "spark.jobGroup.id"
"""Local properties that Spark sets in the tasks of a streaming query; the group of its jobs is the run."""


def write_task(batches: Iterator[pa.RecordBatch], options: SinkOptions, write_id: str | None = None) -> Written:
    """Write a task's rows into ledgers of its own and close them. `write_id` names a batch write; a streaming query has
    its own ids. Raises `PodkeeperSparkError`; then nothing of this attempt is left, if that can be helped."""
    owner = _owner(write_id)
    limits = WriteLimits(options.max_ledger_bytes, options.max_inflight_bytes)
    with told(f"partition {owner.partition_id}"):
        written = write_ledgers(values(batches, options), TaskLedgers(options, owner), limits)
    return Written(
        partition_id=owner.partition_id,
        attempt=owner.attempt,
        query_id=owner.query_id,
        batch_id=owner.batch_id,
        ledgers=written.ledgers,
        rows=written.rows,
        checksum=written.checksum,
    )


def _owner(write_id: str | None) -> Owner:
    from pyspark import TaskContext

    task = TaskContext.get()
    if task is None:
        raise RuntimeError("the sink writes only in tasks of Spark")
    query_id = None if write_id else task.getLocalProperty(_QUERY_ID)
    batch_id = None if write_id else task.getLocalProperty(_BATCH_ID)
    return Owner(
        partition_id=task.partitionId(),
        attempt=task.attemptNumber(),
        task_attempt_id=task.taskAttemptId(),
        run_id=write_id or task.getLocalProperty(_RUN_ID) or "",
        query_id=query_id,
        batch_id=None if batch_id is None else int(batch_id),
    )
