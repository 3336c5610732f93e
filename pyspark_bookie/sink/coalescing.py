"""One ledger out of many tiny ones (`coalescePartitions`).

The driver copies the entries of a batch, in order, into one ledger before it publishes it. It does so only for batches
that are small anyway, so the copy costs little; larger ones stay as the tasks wrote them.

Invariants
- The copy has the same entries in the same order; the batch's number of rows and checksum stay.
- The tasks' ledgers are deleted only when the copy is closed. A driver that dies in between leaves ledgers that no
  stream lists; the batch is written again.

Any process.

Source: reference Spark notes, section 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from bookie_protocol.errors import NoSuchLedger
from pyspark_bookie.common.errors import PodkeeperSparkError, code_of, told
from pyspark_bookie.sink.ledgers import Owner, TaskLedgers
from pyspark_bookie.sink.messages import Batch
from pyspark_bookie.sink.options import SinkOptions
from pyspark_bookie.sink.writing import WriteLimits, write_ledgers

if TYPE_CHECKING:
    import pyarrow as pa

MAX_COPIED_FACTOR: Final = 4
"""A batch is copied if it has at most so many times `tinyLedgerBytes` in all."""


def coalesced(options: SinkOptions, batch: Batch, batch_id: int | None = None) -> Batch:
    """The batch with one ledger, if it has several tiny ones and `coalescePartitions` is set; else as it is. Raises
    `PodkeeperSparkError`."""
    tiny = batch.nbytes < options.tiny_ledger_bytes * len(batch.ledgers)
    bounded = batch.nbytes <= options.tiny_ledger_bytes * MAX_COPIED_FACTOR
    if not (options.coalesce_partitions and len(batch.ledgers) > 1 and tiny and bounded):
        return batch
    ledgers = TaskLedgers(options, Owner(-1, 0, -1, "", batch.query_id, batch_id))
    limits = WriteLimits(max(1, batch.nbytes), options.max_inflight_bytes)
    try:
        with told():
            copy = write_ledgers(_columns(options, batch), ledgers, limits)
    except PodkeeperSparkError as error:
        if error.code != code_of(NoSuchLedger()):
            raise
        return batch  # they were copied and deleted by the same commit before: publishing recognises it
    return replace(batch, ledgers=copy.ledgers, copied=batch.ledgers)


def _columns(options: SinkOptions, batch: Batch) -> Iterator[pa.BinaryArray]:
    import pyarrow as pa

    client = options.client()
    password = options.password.read()
    for ledger in batch.ledgers:
        with client.open(ledger.ledger_id, password=password) as reader:
            for entries in reader.batches(0, ledger.entries - 1):
                yield pa.array([entry.payload for entry in entries], type=pa.binary())
