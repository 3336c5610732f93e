"""What a task tells the driver about what it has written.

Source: reference Spark notes, section 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from bookie_client.streams.model import PublishedLedger

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
