"""Who appends to a stream: claiming it, beginning and ending its ledgers.

Invariants
- The owner is the token in the manifest. Whoever finds another one there has been fenced, and changes nothing.
- A claim is stored before the last ledger is recovered: from then on the former owner can begin no ledger.
- A ledger is created before the manifest lists it, and listed before anything is appended to it.

The functions are pure.

Source: reference client protocol, section 25, items 2 and 3.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bookie_client.streams.manifest import Manifest
from bookie_client.streams.model import StreamLedger, StreamPosition
from bookie_client.streams.removal import with_landmark, with_retired
from bookie_protocol.errors import MetadataVersionConflict, StreamFenced, StreamInUse


@dataclass(frozen=True, slots=True)
class LedgerEnd:
    """How the open ledger of a stream ended."""

    ledger_id: int
    entries: int
    nbytes: int


def claimed(manifest: Manifest, token: str, *, take_over: bool) -> Manifest | None:
    """The stream with this owner; None: it has it. Raises `StreamInUse`."""
    if manifest.writer == token:
        return None
    if manifest.open_ledger is not None and not take_over:
        raise StreamInUse(
            f"stream {manifest.name}: a writer has ledger {manifest.open_ledger.ledger_id} open; a writer that may take"
            " over fences it"
        )
    return replace(manifest, writer=token)


def moved_on(
    manifest: Manifest, token: str, end: LedgerEnd | None, next_id: int | None, now_ms: int
) -> Manifest | None:
    """The stream with the open ledger ended, and the next one open; None: this was stored before.

    An ended ledger without entries leaves the list. `next_id` None: the stream has no open ledger then. Raises
    `StreamFenced`, and `MetadataVersionConflict` when a ledger would follow an open one.
    """
    check_owner(manifest, token)
    if next_id is not None and next_id in manifest:
        return None
    changed = manifest
    current = manifest.open_ledger
    if current is not None and end is not None and end.ledger_id == current.ledger_id:
        changed = _ended(manifest, current, end, now_ms)
    if next_id is not None:
        if changed.open_ledger is not None:
            raise MetadataVersionConflict(
                f"stream {manifest.name}: its ledger {changed.open_ledger.ledger_id} is open, and another was to follow"
            )
        opened = StreamLedger(next_id, changed.end_ordinal, None, None, None)
        changed = replace(changed, ledgers=(*changed.ledgers, opened))
    return None if changed == manifest else changed


def released(manifest: Manifest, token: str) -> Manifest | None:
    """The stream without an owner; None: another one has it, or nobody."""
    return replace(manifest, writer=None) if manifest.writer == token else None


def check_owner(manifest: Manifest, token: str) -> None:
    """Raises `StreamFenced`."""
    if manifest.writer != token:
        raise StreamFenced(f"stream {manifest.name}: another writer took it over; this one appends no more")


def _ended(manifest: Manifest, current: StreamLedger, end: LedgerEnd, now_ms: int) -> Manifest:
    before = manifest.ledgers[:-1]
    if end.entries == 0:
        return replace(
            manifest,
            ledgers=before,
            landmarks=with_landmark(
                manifest, StreamPosition(current.ledger_id, 0), current.first_ordinal, manifest.base_ordinal
            ),
            retired=with_retired(manifest.retired, now_ms, [current]),
        )
    closed = replace(current, entries=end.entries, nbytes=end.nbytes, closed_ms=now_ms)
    return replace(manifest, ledgers=(*before, closed))
