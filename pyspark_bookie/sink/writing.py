"""What a task of the sink does, batch or streaming: record batches into ledgers; and what it tells the driver of them.

Invariants
- A ledger is created with its first entry, so a task without rows leaves nothing behind.
- At most `inflight_bytes` of payload, and the entries of one chunk, were sent and are not acknowledged.
- What is returned is closed: its end is in the metadata, and every entry is acknowledged.
- After a failure the ledgers of this attempt are deleted, as far as they can be: nobody else knows of them.

Only `write_task` knows Spark, which tells a task who it is. One thread writes with one call; payloads are copied once,
out of the Arrow buffer.

Source: reference Spark notes, section 3.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import google_crc32c
from pyspark.sql.datasource import WriterCommitMessage

from bookie_client.streams.model import PublishedLedger
from bookie_protocol.errors import PodkeeperError
from pyspark_bookie.common.errors import PodkeeperSparkError, told
from pyspark_bookie.sink.ledgers import Owner, TaskLedgers
from pyspark_bookie.sink.options import SinkOptions
from pyspark_bookie.sink.rows import values

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_BYTES: Final = 1024 * 1024
"""Payload bytes that are handed to the client at a time, at most."""
CHUNK_ENTRIES: Final = 4_096
_FAULTS: Final = (PodkeeperError, PodkeeperSparkError, RuntimeError)
"""Of a client, or of one that was closed."""


class Ledger(Protocol):
    """The part of `BlockingLedgerWriter` that is used."""

    @property
    def ledger_id(self) -> int: ...

    def submit_many(self, payloads: Iterable[bytes]) -> Future[list[int]]: ...

    def close(self) -> None: ...


class Ledgers(Protocol):
    """Where ledgers come from."""

    def create(self) -> Ledger: ...

    def delete(self, ledger_id: int) -> None: ...


@dataclass(frozen=True, slots=True)
class WriteLimits:
    """Bytes of payload: of one ledger, and of what is on its way."""

    ledger_bytes: int
    inflight_bytes: int


@dataclass(frozen=True, slots=True)
class WrittenLedgers:
    """`checksum`: of all payloads, whatever their order."""

    ledgers: tuple[PublishedLedger, ...]
    rows: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive payloads, and how many bytes they have."""

    payloads: list[bytes]
    nbytes: int


def write_ledgers(columns: Iterable[pa.BinaryArray], ledgers: Ledgers, limits: WriteLimits) -> WrittenLedgers:
    """Write all values of all columns, in order, one entry each. Raises what appends, creating and closing raise."""
    task = _Task(ledgers, limits)
    chunk_bytes = min(CHUNK_BYTES, limits.ledger_bytes, limits.inflight_bytes)
    try:
        for column in columns:
            for chunk in chunks(column, chunk_bytes):
                task.write(chunk)
        return task.close()
    except BaseException:
        task.drop()
        raise


def chunks(column: pa.BinaryArray, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """The values of a column in pieces of bounded size; a single value may be larger."""
    payloads: list[bytes] = []
    nbytes = 0
    for start in range(0, len(column), CHUNK_ENTRIES):
        for payload in column.slice(start, CHUNK_ENTRIES).to_pylist():
            if payloads and (nbytes + len(payload) > chunk_bytes or len(payloads) == CHUNK_ENTRIES):
                yield Chunk(payloads, nbytes)
                payloads, nbytes = [], 0
            payloads.append(payload)
            nbytes += len(payload)
    if payloads:
        yield Chunk(payloads, nbytes)


class _Open:
    """The ledger that is being written."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.entries = 0
        self.nbytes = 0
        self.crc = 0


class _Task:
    def __init__(self, ledgers: Ledgers, limits: WriteLimits) -> None:
        self._ledgers = ledgers
        self._limits = limits
        self._open: _Open | None = None
        self._created: list[int] = []
        self._closed: list[PublishedLedger] = []
        self._pending: deque[tuple[Future[list[int]], int]] = deque()
        self._pending_bytes = 0
        self._rows = 0
        self._checksum = 0

    def write(self, chunk: Chunk) -> None:
        if self._open is not None and self._open.nbytes + chunk.nbytes > self._limits.ledger_bytes:
            self._roll_over()
        if self._open is None:
            self._open = _Open(self._ledgers.create())
            self._created.append(self._open.ledger.ledger_id)
        self._make_room(chunk.nbytes)
        self._pending.append((self._open.ledger.submit_many(chunk.payloads), chunk.nbytes))
        self._pending_bytes += chunk.nbytes
        self._open.entries += len(chunk.payloads)
        self._open.nbytes += chunk.nbytes
        self._open.crc = google_crc32c.extend(self._open.crc, b"".join(chunk.payloads))
        self._rows += len(chunk.payloads)
        self._checksum += sum(map(google_crc32c.value, chunk.payloads))

    def close(self) -> WrittenLedgers:
        self._roll_over()
        return WrittenLedgers(tuple(self._closed), self._rows, self._checksum % CHECKSUM_MODULUS)

    def drop(self) -> None:
        """Best effort: what stays behind carries its owner's tags, and the job `orphans` finds it."""
        current, self._open = self._open, None
        try:
            if current is not None:
                current.ledger.close()
        except _FAULTS:
            pass  # its deletion ends it as well
        for ledger_id in self._created:
            try:
                self._ledgers.delete(ledger_id)
            except _FAULTS:
                return

    def _make_room(self, nbytes: int) -> None:
        while self._pending and self._pending_bytes + nbytes > self._limits.inflight_bytes:
            self._wait_for_oldest()

    def _wait_for_oldest(self) -> None:
        future, nbytes = self._pending.popleft()
        future.result()
        self._pending_bytes -= nbytes

    def _roll_over(self) -> None:
        current = self._open
        if current is None:
            return
        while self._pending:
            self._wait_for_oldest()
        current.ledger.close()
        self._open = None
        self._closed.append(PublishedLedger(current.ledger.ledger_id, current.entries, current.nbytes, current.crc))


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


CHECKSUM_MODULUS = 1 << 64


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """One attempt of one task. `query_id` and `batch_id` are None in a batch write: only here the driver's commit can
    learn the query's id. `checksum` does not depend on the order of rows."""

    partition_id: int
    attempt: int
    query_id: str | None
    batch_id: int | None
    ledgers: tuple[PublishedLedger, ...]
    rows: int
    checksum: int


@dataclass(frozen=True)
class Batch:
    """All tasks of a batch together; ledgers in the order of partitions. `copied`: ledgers of tasks whose entries are
    in `ledgers` now, which is why nobody needs them when the batch is published."""

    query_id: str | None
    ledgers: tuple[PublishedLedger, ...]
    rows: int
    checksum: int
    copied: tuple[PublishedLedger, ...] = ()

    @property
    def nbytes(self) -> int:
        return sum(ledger.nbytes for ledger in self.ledgers)


def collected(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    """The messages of tasks that ended well, by partition; the slots of others are None."""
    return sorted((each for each in messages if isinstance(each, Written)), key=lambda each: each.partition_id)


def batch_of(messages: Iterable[Written]) -> Batch:
    """Messages that `collected` has sorted, as one. Raises `ValueError` when they are not of one batch."""
    written = list(messages)
    identities = {(message.query_id, message.batch_id) for message in written}
    if len(identities) > 1:
        raise ValueError(f"tasks of different batches in one commit: {sorted(map(str, identities))}")
    partitions = [message.partition_id for message in written]
    if len(set(partitions)) != len(partitions):
        raise ValueError(f"several tasks of one partition in one commit: {partitions}")
    return Batch(
        query_id=written[0].query_id if written else None,
        ledgers=tuple(ledger for message in written for ledger in message.ledgers),
        rows=sum(message.rows for message in written),
        checksum=sum(message.checksum for message in written) % CHECKSUM_MODULUS,
    )
