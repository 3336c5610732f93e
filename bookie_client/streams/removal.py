"""What leaves a stream: truncation, retention, and ledgers that are retired until they are deleted.

Invariants
- A ledger leaves the list and becomes retired in one compare-and-set; it is forgotten only when it was deleted. So a
  crash leaves no ledger without an owner.
- The open ledger never leaves but when its writer drops it empty.

Pure; any thread.

Source: reference client protocol, section 25, item 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from bookie_client.streams.manifest import Landmark, Manifest
from bookie_client.streams.model import RetiredLedgers, StreamLedger, StreamPosition
from bookie_protocol.errors import BadRequest, StreamPositionGone

LANDMARKS: Final = 32
"""How many are kept of ledgers that were dropped without entries."""


def truncated(manifest: Manifest, before: StreamPosition, now_ms: int) -> Manifest | None:
    """The stream without what comes before a position; None when there is nothing of it. Raises `BadRequest`."""
    try:
        index, entry = manifest.resolve(before)
    except StreamPositionGone:
        return None
    if entry > 0 and manifest.ledgers[index].is_open:
        raise BadRequest(
            f"stream {manifest.name}: ledger {before.ledger_id} is open; it can be truncated up to its beginning,"
            f" {before.ledger_id}:0"
        )
    cut = without_first(manifest, index, now_ms)
    if entry > 0:
        cut = replace(cut, truncated_before=StreamPosition(manifest.ledgers[index].ledger_id, entry))
    return None if cut == manifest else cut


def retained(manifest: Manifest, passed: int | None, now_ms: int) -> Manifest | None:
    """The stream without the ledgers that its settings no longer keep; None when all stay. `passed`: the ordinal that
    every cursor has passed; None: there is no cursor."""
    settings = manifest.settings
    left = manifest.nbytes
    count = 0
    for ledger in manifest.closed:
        end = ledger.first_ordinal + (ledger.entries or 0)
        if passed is not None and passed < end:
            break
        left -= ledger.nbytes or 0
        too_old = (
            settings.retention_seconds is not None
            and (ledger.closed_ms or 0) + settings.retention_seconds * 1000 <= now_ms
        )
        if not too_old and (settings.retention_bytes is None or left < settings.retention_bytes):
            break
        count += 1
    return without_first(manifest, count, now_ms) if count else None


def without_first(manifest: Manifest, count: int, now_ms: int) -> Manifest:
    """The stream without its first ledgers, which may be deleted at once. Closed ones only."""
    if count == 0:
        return manifest
    gone, kept = manifest.ledgers[:count], manifest.ledgers[count:]
    before = manifest.truncated_before
    base = kept[0].first_ordinal if kept else manifest.end_ordinal
    return replace(
        manifest,
        ledgers=kept,
        base_ordinal=base,
        landmarks=with_landmark(manifest, StreamPosition(gone[-1].ledger_id, gone[-1].entries or 0), base, base),
        truncated_before=before if before and any(each.ledger_id == before.ledger_id for each in kept) else None,
        retired=with_retired(manifest.retired, now_ms, gone),
    )


def with_landmark(
    manifest: Manifest, position: StreamPosition, ordinal: int, base_ordinal: int
) -> tuple[Landmark, ...]:
    """The landmarks and this one, which is the newest; only those that are still places in the stream.

    Behind entries that were removed there is one at most, as the next removal makes it a place before the stream: it
    stays, because whoever has read everything stands there. At the beginning of a ledger that was dropped empty stands
    nobody for long, and writers that come and go make many of them: of these the newest stay.
    """
    known = [each for each in manifest.landmarks if each.ordinal >= base_ordinal]
    known.append(Landmark(position, ordinal))
    forgotten = [each for each in known if each.position.entry_id == 0][:-LANDMARKS]
    return tuple(each for each in known if each not in forgotten)


def with_retired(
    retired: tuple[RetiredLedgers, ...], due_ms: int, ledgers: Sequence[StreamLedger]
) -> tuple[RetiredLedgers, ...]:
    """The retired ledgers and these."""
    if not ledgers:
        return retired
    return (*retired, RetiredLedgers(due_ms, tuple(ledger.ledger_id for ledger in ledgers)))


def due(manifest: Manifest, now_ms: int) -> tuple[int, ...]:
    """Retired ledgers that are to be deleted now."""
    return tuple(each for group in manifest.retired if group.due_ms <= now_ms for each in group.ledger_ids)


def forgotten(manifest: Manifest, deleted: Iterable[int]) -> Manifest | None:
    """The stream when these retired ledgers were deleted; None when it knows of none of them."""
    gone = frozenset(deleted)
    left = tuple(
        RetiredLedgers(group.due_ms, ids)
        for group in manifest.retired
        if (ids := tuple(each for each in group.ledger_ids if each not in gone))
    )
    return None if left == manifest.retired else replace(manifest, retired=left)
