"""A task of the sink, batch or streaming: it writes one column of record batches as entries of new ledgers.

It also tags the ledgers with their owner, and reports them to the driver.

Each row is an entry, its column `value` the payload: binary, or a string, which is stored as UTF-8. Columns of the
source may be present, so that rows that were read can be written; any other column would be lost, and is rejected.

Only `write_task` uses Spark, which identifies the task. One thread writes with one call; payloads are copied once, out
of the Arrow buffer.

Each ledger carries tags in its custom metadata that say who made it: for people, and for the job `orphans`, which finds
what attempts left behind that failed or were killed.

Any process but one that is forked while it uses this.

Invariants
- A ledger is created with its first entry, so a task without rows leaves nothing behind.
- At most `inflight_bytes` of payload, and the entries of one chunk, were sent and are not acknowledged.
- What is returned is closed: its end is in the metadata, and every entry is acknowledged.
- After a failure the ledgers of this attempt are deleted, as far as they can be: only this task knows of them.
- No value is changed, dropped or made up: a null is an error, never an empty entry.

Source: docs/internals/spark.md, section 3.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import google_crc32c
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import BinaryType, StringType, StructType

from bookie_client.streams.model import APPLICATION, STREAM_KEY, PublishedLedger, StreamSettings
from bookie_protocol.errors import PodkeeperError
from pyspark_bookie.common.errors import SCHEMA, PodkeeperSparkError, told
from pyspark_bookie.sink.options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa

    from bookie_client.blocking import BlockingClient
    from bookie_client.blocking.handles import BlockingLedgerWriter

VALUE: Final = "value"
OF_THE_SOURCE: Final = frozenset({"ledger_id", "entry_id", "length", "lac", "stream", "_metadata", "_corrupt"})
"""All columns that the source gives of raw entries."""
CHUNK_BYTES: Final = 1024 * 1024
"""Payload bytes that are handed to the client at a time, at most."""
CHUNK_ENTRIES: Final = 4_096
_FAULTS: Final = (PodkeeperError, PodkeeperSparkError, RuntimeError)
"""Errors of a client, or of one that was closed."""
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
_RUN_ID: Final = "spark.jobGroup.id"
"""Local properties that Spark sets in the tasks of a streaming query; the group of its jobs is the run."""
CHECKSUM_MODULUS = 1 << 64


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


SINK: Final = "pyspark_bookie"
"""Value of `application` of ledgers that belong to no stream, and of `podkeeper/sink`."""
TAG: Final = "podkeeper/"


@dataclass(frozen=True)
class Owner:
    """The writer of a ledger. `query_id` and `batch_id` are None in a batch write; `run_id` is the run of the
    query, or the write."""

    partition_id: int
    attempt: int
    task_attempt_id: int
    run_id: str
    query_id: str | None = None
    batch_id: int | None = None

    def tags(self) -> dict[str, bytes]:
        """Custom metadata."""
        found = {
            "sink": SINK,
            "query-id": self.query_id,
            "batch-id": self.batch_id,
            "partition-id": self.partition_id,
            "attempt": self.attempt,
            "task-attempt-id": self.task_attempt_id,
            "run-id": self.run_id,
        }
        return {f"{TAG}{name}": str(value).encode() for name, value in found.items() if value is not None}


def settings_of(options: SinkOptions, stream: StreamSettings | None) -> StreamSettings:
    """Return the settings of new ledgers: given sizes override those of the stream, which override the defaults."""
    settings = stream or StreamSettings()
    if stream is None or options.has_own_sizes:
        ensemble, write, ack = options.quorums
        settings = replace(settings, ensemble=ensemble, write_quorum=write, ack_quorum=ack)
    return replace(settings, digest=options.digest_type or settings.digest)


class TaskLedgers:
    """Makes and deletes the ledgers of one task. Raises `PodkeeperSparkError`."""

    def __init__(self, options: SinkOptions, owner: Owner) -> None:
        self._options = options
        self._owner = owner
        self._settings: StreamSettings | None = None

    def create(self) -> BlockingLedgerWriter:
        client = self._options.client()
        password = self._options.password.read() or b""
        if self._settings is None:
            self._settings = settings_of(self._options, self._stream_settings(client))
        made = self._settings
        with told():
            return client.create(
                ensemble=made.ensemble,
                write_quorum=made.write_quorum,
                ack_quorum=made.ack_quorum,
                digest=made.digest,
                password=password,
                metadata=self._metadata(),
            )

    def delete(self, ledger_id: int) -> None:
        self._options.client().delete(ledger_id)

    def _stream_settings(self, client: BlockingClient) -> StreamSettings | None:
        from bookie_client.streams.streams import Streams

        stream = self._options.stream
        if stream is None:
            return None
        with told(f"stream {stream}"):
            return client.run(lambda each: Streams(each).settings(stream))

    def _metadata(self) -> Mapping[str, bytes]:
        stream = self._options.stream
        own = {name: value.encode() for name, value in self._options.ledger_metadata.items()}
        of_stream = {"application": APPLICATION.encode(), STREAM_KEY: stream.encode()} if stream else {}
        return {"application": SINK.encode(), **own, **of_stream, **self._owner.tags()}


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


def write_ledgers(columns: Iterable[pa.BinaryArray], ledgers: TaskLedgers, limits: WriteLimits) -> WrittenLedgers:
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

    def __init__(self, ledger: BlockingLedgerWriter) -> None:
        self.ledger = ledger
        self.entries = 0
        self.nbytes = 0
        self.crc = 0


class _Task:
    def __init__(self, ledgers: TaskLedgers, limits: WriteLimits) -> None:
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
    """All tasks of a batch together; ledgers in the order of partitions. `copied`: ledgers of tasks whose entries
    are now in `ledgers`, so that they are not needed once the batch is published."""

    query_id: str | None
    ledgers: tuple[PublishedLedger, ...]
    rows: int
    checksum: int
    copied: tuple[PublishedLedger, ...] = ()

    @property
    def nbytes(self) -> int:
        return sum(ledger.nbytes for ledger in self.ledgers)


def collected(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    """Return the messages of tasks that ended well, by partition; the slots of others are None."""
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
