"""The driver's part of a write, when all tasks have written or some have failed: coalesce, publish, clean up.

It puts tiny ledgers together if asked to (`coalescePartitions`), and writes the list of ledgers (`idsFile`).

Tiny ledgers are copied into one only for batches that are small anyway, so the copy costs little; larger ones stay as
the tasks wrote them.

Invariants
- A batch becomes part of the stream by one compare-and-set, with its number beside it: all of it, once. Doing it again
  changes nothing; another batch of the same number, or an older one, is an error, because returning would lose its
  rows.
- Nothing is deleted that the stream lists, nor on the word of a manifest that was read before.
- `abort` deletes only ledgers that tasks have reported, and only when the stream does not list them and never will.
  Spark also calls it after a commit whose answer was lost, and that commit may still be under way. So the stream is
  changed before its list counts: a compare-and-set that began earlier fails from then on. Other tasks may still be
  writing then; what they leave behind is for the job `orphans`. The copies that the driver made of them go the same way
  when the stream refuses a batch.
- A copy of tiny ledgers has the same entries in the same order; the batch's number of rows and checksum stay. The
  tasks' ledgers are deleted only when the copy is closed; a driver that dies in between leaves ledgers that no stream
  lists, and the batch is written again.
- The file of `idsFile` is there wholly or not at all, and is known to be writable before a batch is published. It lists
  published ledgers alone: a repetition of a batch that was published before makes ledgers that no reader sees, and the
  file stays as it is.

No Spark in here. Any process.

Source: docs/internals/spark.md, section 3.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from bookie_client.streams.manifest import Manifest
from bookie_client.streams.model import PublishedLedger, Txn
from bookie_client.streams.publishing import PublishResult
from bookie_client.streams.store import ManifestStore
from bookie_client.streams.streams import Streams
from bookie_protocol.errors import (
    MetadataError,
    MetadataUnavailable,
    NoSuchLedger,
    NoSuchStream,
    NotThere,
    PodkeeperError,
    Refused,
    StreamTransactionConflict,
)
from pyspark_bookie.common.errors import OPTION, PodkeeperSparkError, code_of, named, told
from pyspark_bookie.common.options import MIB
from pyspark_bookie.sink.options import ReplayCheck, SinkOptions
from pyspark_bookie.sink.writing import Batch, Owner, TaskLedgers, WriteLimits, settings_of, write_ledgers

if TYPE_CHECKING:
    import pyarrow as pa

    from bookie_client.blocking import BlockingClient
    from bookie_client.client import Client

_log = logging.getLogger(__name__)
WARNING_SECONDS: Final = 600.0
"""Between warnings of tiny ledgers of one stream."""
MAX_WARNED: Final = 1_000
_warned: dict[str | None, float] = {}
"""Time of the next warning of a stream, by this process's clock."""
METADATA_UNAVAILABLE: Final = code_of(MetadataUnavailable())
MAX_COPIED_FACTOR: Final = 4
"""A batch is copied if it has at most so many times `tinyLedgerBytes` in all."""


@dataclass(frozen=True)
class IdsFile:
    """The content of `idsFile`, in a file beside it until the batch is published. `path` None: it is not wanted."""

    path: str | None

    @classmethod
    def prepared(cls, path: str | None, batch: Batch) -> IdsFile:
        """Raises `PodkeeperSparkError` (OPTION) when it cannot be written."""
        if path is not None:
            with _told(path), open(f"{path}.tmp", "w") as file:
                json.dump(_document(batch), file)
        return cls(path)

    def settle(self, *, is_published: bool) -> None:
        """Let it count, or forget it. Raises as `prepared`."""
        if self.path is None:
            return
        with _told(self.path):
            if is_published:
                os.replace(f"{self.path}.tmp", self.path)
            else:
                os.unlink(f"{self.path}.tmp")


def _document(batch: Batch) -> dict[str, object]:
    return {
        "rows": batch.rows,
        "ledgers": [
            {
                "ledger_id": ledger.ledger_id,
                "entries": ledger.entries,
                "bytes": ledger.nbytes,
                "crc32c": ledger.crc,
            }
            for ledger in batch.ledgers
        ],
    }


@contextmanager
def _told(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PodkeeperSparkError(OPTION, f"option idsFile={path}: {error.strerror}") from None


@contextmanager
def told_if_away(options: SinkOptions, then: str) -> Iterator[None]:
    """Add the stream and a remedy, the sentence `then`, to an error of the block that the metadata service is
    away.

    Tasks may have written already, and it is unknown whether the batch was published.
    """
    try:
        yield
    except PodkeeperSparkError as error:
        if error.code != METADATA_UNAVAILABLE or options.stream is None:
            raise
        text = named(error.message, f"stream {options.stream}")
        raise PodkeeperSparkError(error.code, f"{text} {then}") from None


def ensure_stream(options: SinkOptions) -> None:
    """The stream exists afterwards. Raises `PodkeeperSparkError`, also when it does not and may not be created."""
    name = options.stream
    if name is None:
        return
    client = options.client()
    with told(f"stream {name}"):
        try:
            client.run(lambda each: Streams(each).settings(name))
        except NoSuchStream:
            if not options.create_stream:
                raise
            settings = settings_of(options, None)
            if options.deletion_lag is not None:
                settings = replace(settings, deletion_lag_seconds=options.deletion_lag)
            client.run(lambda each: Streams(each).create(name, settings, if_absent=True))


def publish(options: SinkOptions, batch: Batch, app_id: str | None, version: int | None, *, replace: bool) -> None:
    """Make a batch part of its stream, and tell `idsFile` its ledgers. Raises `PodkeeperSparkError`."""
    name = options.stream
    assert name is not None
    checksum = batch.checksum if options.replay_check is ReplayCheck.CONTENT else None
    txn = None if app_id is None or version is None else Txn(app_id, version, batch.rows, checksum)
    client = options.client()
    with told(f"stream {name}"):
        try:
            ids = IdsFile.prepared(options.ids_file, batch)
            result: PublishResult = client.run(
                lambda each: Streams(each).publish(name, batch.ledgers, txn, replace=replace)
            )
        except (NotThere, Refused, PodkeeperSparkError) as error:  # answers: nothing is under way that may publish them
            if batch.copied:  # of the tasks' own ledgers Spark tells `abort`
                clean_up(options, batch.ledgers)
            if isinstance(error, StreamTransactionConflict):
                raise _set_back(name, txn, error) from None
            raise
    spare = (ledger.ledger_id for ledger in batch.copied if ledger.ledger_id not in result.manifest)
    delete_ledgers(client, (*result.unlisted, *spare))
    ids.settle(is_published=not result.unlisted)
    if result.is_new:
        warn_of_tiny_ledgers(options, batch)


def clean_up(options: SinkOptions, ledgers: Iterable[PublishedLedger]) -> None:
    """Delete the ledgers of an attempt that failed, but those that the stream lists. Nothing is raised: Spark has an
    error to tell already."""
    ids = [ledger.ledger_id for ledger in ledgers]
    if not ids:
        return
    try:
        client = options.client()
        if options.stream is not None:
            name = options.stream
            manifest = client.run(lambda each: _changed(each, name))
            ids = [each for each in ids if each not in manifest and each not in manifest.retired_ids]
    except NoSuchStream:
        pass  # which lists nothing
    except (PodkeeperError, PodkeeperSparkError) as error:
        _log.warning("ledgers %s stay until the job orphans finds them: %s", ids, error)
        return
    delete_ledgers(client, ids)


def delete_ledgers(client: BlockingClient, ledger_ids: Iterable[int]) -> None:
    """Best effort: what stays behind is found by the job `orphans`."""
    for ledger_id in ledger_ids:
        try:
            client.delete(ledger_id)
        except MetadataError as error:
            _log.warning("ledger %d stays until the job orphans finds it: %s", ledger_id, error)


def warn_of_tiny_ledgers(options: SinkOptions, batch: Batch) -> None:
    """Warn, once in a while, of many tiny ledgers: they burden the metadata service and the memory of bookies."""
    count = len(batch.ledgers)
    now = time.monotonic()
    if count and batch.nbytes // count < options.tiny_ledger_bytes and now >= _warned.get(options.stream, now):
        if len(_warned) >= MAX_WARNED:
            _warned.clear()
        _warned[options.stream] = now + WARNING_SECONDS
        _log.warning(
            "stream %s: this batch made ledgers (%d) of %.2f MiB on average, which is little: fewer partitions"
            " (coalesce), longer trigger intervals or coalescePartitions=true give larger ones",
            options.stream,
            count,
            batch.nbytes / count / MIB,
        )


async def _changed(client: Client, name: str) -> Manifest:
    """The stream after a change of nothing but its epoch."""
    store = ManifestStore(client.metadata_service)
    manifest, _ = await store.update(name, lambda each: replace(each, epoch=each.epoch + 1))
    return manifest


def _set_back(name: str, txn: Txn | None, error: StreamTransactionConflict) -> PodkeeperSparkError:
    what = "" if txn is None else f"batch {txn.batch_id} of {txn.app_id}, "
    return PodkeeperSparkError(
        "STREAM_TRANSACTION_CONFLICT",
        f"stream {name}: {what}{error}. Was the checkpoint set back, or is it another query's? Going on would lose"
        " or double rows: restore the checkpoint, or begin a new one. If the query does not make the same content again"
        " (random values), set replayCheck=rows",
    )


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
