"""Publishing ledgers to a stream, each batch once.

Invariants
- A batch is in the stream entirely or not at all, and once, however often and by however many it is published.
- An application that was set back, so that its batches hold something else than before, is refused: to go on would lose
  entries, or double them, without a word.
- A ledger is one stream's: the one that its custom metadata name. Who deletes ledgers asks there. One that names none
  is given to the stream before it is listed, by a change of its metadata, so that a deletion under way fails.
- Who deletes a ledger that no stream has says so in its metadata (`going`), then changes the stream that it names, then
  looks at the lists for the last time. Who lists a ledger reads the stream before it looks at the ledger: if it read
  the stream before that change, it loses its compare-and-set; if behind it, it finds that the ledger goes.

`published` and `check_stays` are pure; the others belong to the event loop.

Source: docs/internals/spark.md, section 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from bookie_client.client import Client
from bookie_client.streams.encoding import with_ordinals
from bookie_client.streams.manifest import Manifest, with_retired
from bookie_client.streams.model import (
    AT_ONCE,
    GOING_KEY,
    STREAM_KEY,
    PublishedLedger,
    StreamPosition,
    Transaction,
    Txn,
)
from bookie_protocol.errors import (
    BadRequest,
    MetadataError,
    MetadataVersionConflict,
    NoSuchLedger,
    Refused,
    StreamInUse,
    StreamTransactionConflict,
)
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.together import bounded
from bookie_protocol.versioned import Versioned

MAX_TRANSACTIONS: Final = 750
"""Applications whose last batch a stream remembers: more than one for each hour of `FORGOTTEN_AFTER_MS`."""
FORGOTTEN_AFTER_MS: Final = 30 * 24 * 3600 * 1000
"""An application that has not published for so long is forgotten when there are too many."""
_TRIES: Final = 20
WITH_CUSTOM_METADATA: Final = 2
"""The first format of ledger metadata that has room for whose a ledger is."""


@dataclass(frozen=True, slots=True)
class PublishResult:
    """The outcome of `Streams.publish`."""

    manifest: Manifest
    """The stream afterwards."""
    is_new: bool
    """True if this call changed the stream; False: the batch was published before."""
    unlisted: tuple[int, ...]
    """Given ledgers that are not part of the stream and that no reader needs: the caller deletes them. They are
    ledgers of a repeated attempt, and ledgers without entries."""
    start: StreamPosition
    """Position at which the entries of a new batch begin; else the end of the stream's closed ledgers."""
    end: StreamPosition
    """Position behind its last entry."""


def published(
    manifest: Manifest, ledgers: Sequence[PublishedLedger], txn: Txn | None, *, replacing: bool, now_ms: int
) -> Manifest | None:
    """The stream with these ledgers at its end, or (`replacing`) with nothing else; None: it was published before, or
    there is nothing to do. `ledgers` have entries. Raises as `Streams.publish`."""
    if txn is not None and _is_repeated(manifest, txn):
        return None
    listed = [each.ledger_id for each in ledgers if each.ledger_id in manifest]
    if listed and txn is None and len(listed) == len(ledgers):
        return None
    _check_fresh(manifest, ledgers, listed)
    if not ledgers and txn is None and not replacing:
        return None
    if manifest.open_ledger is not None:
        raise StreamInUse(
            f"stream {manifest.name}: a writer has ledger {manifest.open_ledger.ledger_id} open, so nothing can be"
            " published behind it: close the writer, or `seal` the stream if it is dead"
        )
    if replacing:
        manifest = overwritten(manifest, now_ms)
    new = [(each.ledger_id, each.entries, each.nbytes, now_ms, each.crc) for each in ledgers]
    return replace(
        manifest,
        ledgers=(*manifest.ledgers, *with_ordinals(new, manifest.end_ordinal)),
        transactions=_with(manifest, txn, now_ms),
    )


def result_of(manifest: Manifest, ledgers: Sequence[PublishedLedger], *, is_new: bool) -> PublishResult:
    """Return the caller's result. `manifest`: what is stored now."""
    retired = manifest.retired_ids
    unlisted = tuple(
        each.ledger_id for each in ledgers if each.ledger_id not in manifest and each.ledger_id not in retired
    )
    listed = [each for each in ledgers if each.ledger_id in manifest]
    if not is_new or not listed:
        return PublishResult(manifest, is_new, unlisted, manifest.closed_end, manifest.closed_end)
    first, last = listed[0], listed[-1]
    return PublishResult(
        manifest,
        is_new,
        unlisted,
        StreamPosition(first.ledger_id, 0),
        StreamPosition(last.ledger_id, last.entries),
    )


def overwritten(manifest: Manifest, now_ms: int) -> Manifest:
    """Return the stream without its ledgers, as the next generation."""
    due_ms = now_ms + int(manifest.settings.deletion_lag_seconds * 1000)
    return replace(
        manifest,
        generation=manifest.generation + 1,
        ledgers=(),
        base_ordinal=manifest.end_ordinal,
        truncated_before=None,
        landmarks=(),
        retired=with_retired(manifest.retired, due_ms, manifest.ledgers),
    )


async def own_ledgers(client: Client, stream: str, ledgers: Sequence[PublishedLedger]) -> None:
    """Make sure that they are what they are said to be, and this stream's. Raises `NoSuchLedger`, `BadRequest`."""
    await bounded(ledgers, partial(_own_ledger, client, stream), AT_ONCE)


async def going(client: Client, stored: Versioned[LedgerMetadata]) -> Versioned[LedgerMetadata]:
    """Say of a ledger in this version that it is about to be deleted; returns the version to delete. One whose metadata
    have no room for that stays as it is. Raises `MetadataVersionConflict`, `MetadataNotFound`,
    `MetadataUnavailable`."""
    metadata = stored.value
    if GOING_KEY in metadata.custom_metadata or metadata.format_version < WITH_CUSTOM_METADATA:
        return stored
    marked = replace(metadata, custom_metadata={**metadata.custom_metadata, GOING_KEY: b""})
    return await client.metadata_service.ledgers.write(marked, stored.identity)


async def staying(client: Client, stored: Versioned[LedgerMetadata]) -> None:
    """Remove the mark of `going`. The ledger is referred to, so a failure does no harm."""
    custom = {key: value for key, value in stored.value.custom_metadata.items() if key != GOING_KEY}
    with suppress(MetadataError):
        await client.metadata_service.ledgers.write(replace(stored.value, custom_metadata=custom), stored.identity)


def check_stays(metadata: LedgerMetadata) -> None:
    """Raises `NoSuchLedger` for a ledger that is about to be deleted."""
    if GOING_KEY in metadata.custom_metadata:
        raise NoSuchLedger(
            f"ledger {metadata.ledger_id} is being deleted, because no stream had it: write a new one, or copy it"
        )


# --- inside ---------------------------------------------------------------------------------------------------


def _is_repeated(manifest: Manifest, txn: Txn) -> bool:
    last = manifest.transactions.get(txn.app_id)
    if last is None or txn.batch_id > last.batch_id:
        return False
    what = f"stream {manifest.name}, application {txn.app_id}: batch {txn.batch_id}"
    if txn.batch_id < last.batch_id:
        raise StreamTransactionConflict(
            f"{what} comes after batch {last.batch_id} was published: its checkpoint was set back, or two programs use"
            " it. Nothing was published; give the application a new id, and decide what to do with what is there twice"
        )
    if txn.rows != last.rows:
        raise StreamTransactionConflict(
            f"{what} has {txn.rows} rows, and had {last.rows} when it was published: its checkpoint was set back, or"
            " the batch is not the same each time it is made. Nothing was published"
        )
    if None not in (txn.checksum, last.checksum) and txn.checksum != last.checksum:
        raise StreamTransactionConflict(
            f"{what} has another content than when it was published (checksum {txn.checksum}, not {last.checksum}):"
            " its checkpoint was set back. Nothing was published"
        )
    return True


def _check_fresh(manifest: Manifest, ledgers: Sequence[PublishedLedger], listed: Sequence[int]) -> None:
    ids = [each.ledger_id for each in ledgers]
    if len(set(ids)) != len(ids):
        raise BadRequest(f"stream {manifest.name}: a ledger is published twice in one call: {_shown(ids)}")
    if taken := [*listed, *manifest.retired_ids.intersection(ids)]:
        raise BadRequest(f"stream {manifest.name}: these ledgers belong to it, or did: {_shown(taken)}")


def _with(manifest: Manifest, txn: Txn | None, now_ms: int) -> Mapping[str, Transaction]:
    if txn is None:
        return manifest.transactions
    transactions = dict(manifest.transactions)
    transactions[txn.app_id] = Transaction(txn.batch_id, txn.rows, txn.checksum, now_ms)
    if len(transactions) <= MAX_TRANSACTIONS:
        return transactions
    kept = {app: last for app, last in transactions.items() if last.published_ms > now_ms - FORGOTTEN_AFTER_MS}
    if len(kept) > MAX_TRANSACTIONS:
        raise Refused(
            f"stream {manifest.name}: more than {MAX_TRANSACTIONS} applications have published to it within 30 days,"
            " and forgetting one could double its batches: let all runs of a program publish under one id with rising"
            " batch ids, or publish to another stream"
        )
    return kept


async def _own_ledger(client: Client, stream: str, ledger: PublishedLedger) -> None:
    for _ in range(_TRIES):
        stored = await client.stored_metadata(ledger.ledger_id)
        _check(stored.value, ledger)
        check_stays(stored.value)
        custom = stored.value.custom_metadata
        owner = custom.get(STREAM_KEY)
        if owner == stream.encode():
            return
        if owner is not None:
            raise BadRequest(
                f"ledger {ledger.ledger_id} is stream {owner.decode('utf-8', 'replace')}'s, so stream {stream} cannot"
                " have it: whichever is deleted first would take it from the other; copy it"
            )
        given = replace(stored.value, custom_metadata={**custom, STREAM_KEY: stream.encode()})
        if given.format_version < WITH_CUSTOM_METADATA:
            return
        with suppress(MetadataVersionConflict):
            await client.metadata_service.ledgers.write(given, stored.identity)
            return
    raise MetadataVersionConflict(f"the metadata of ledger {ledger.ledger_id} change all the time; try again")


def _check(metadata: LedgerMetadata, ledger: PublishedLedger) -> None:
    if not metadata.is_closed:
        raise BadRequest(f"ledger {ledger.ledger_id} is not closed: a ledger is published when its writer closed it")
    if (metadata.last_entry_id + 1, metadata.length) != (ledger.entries, ledger.nbytes):
        raise BadRequest(
            f"ledger {ledger.ledger_id} has {metadata.last_entry_id + 1} entries of {metadata.length} bytes, not"
            f" {ledger.entries} of {ledger.nbytes}"
        )


def _shown(ledger_ids: Sequence[int]) -> str:
    more = "" if len(ledger_ids) <= 10 else f" and {len(ledger_ids) - 10} more"
    return ", ".join(map(str, ledger_ids[:10])) + more
