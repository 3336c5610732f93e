"""The metadata side of re-replication: the segment, the exchange of its bookies by compare-and-set, and a check.

The check lists the new copies, which the metadata name from then on, to see that all are there.

A bookie collects what no metadata name, once it has the ledger's lock. Where a lock ended before its holder knew,
copies may go after they were acknowledged and before they are named; afterwards they stay. Bookies that list their
entries are believed; of those that do not (Java's with DbLedgerStorage never answer) the first entry is read: a bookie
that collects a ledger removes all of its entries.

Invariants
- Only the named positions of one segment change, and only where they still name the bookie that is replaced.
- An ensemble never names a bookie twice.
- A segment that its writer may still change is left alone; so is one that is not what it was when the copies were made.
- The holder of the ledger's lock exchanges in the session that holds it, or not at all.

Event loop only.

Source: docs/internals/auto-recovery.md, sections 5 and 7.
"""

from __future__ import annotations

from collections.abc import Mapping

from bookie_client.client import Client
from bookie_client.metadata_update import update_metadata
from bookie_client.replication.copying import TargetFailed
from bookie_client.replication.fragments import Fragment, fragments
from bookie_client.replication.lists import Lists, first_missing
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_protocol.errors import (
    CopyLost,
    LedgerDeleted,
    LedgerNotClosed,
    MetadataNotFound,
    MetadataVersionConflict,
    NotThere,
    PodkeeperError,
)
from bookie_protocol.ledger_metadata.model import Ensemble, LedgerMetadata
from bookie_protocol.metadata_service.interface import Versioned


def stored_fragment(metadata: LedgerMetadata, fragment: Fragment, *, may_grow: bool) -> Fragment:
    """Return the same fragment by the metadata as they are stored now.

    `may_grow`: the last segment of an open ledger counts too, up to the entry where the fragment ends, which is
    confirmed; but not where the metadata record no digest. The key of the writer is unknown then, and an empty bookie
    would take another one for it. Raises `LedgerNotClosed` when it may still grow, `MetadataVersionConflict` when the
    segment is gone or has another ensemble.
    """
    for now in fragments(metadata.ledger_id, metadata, fragment.last_entry):
        if now.first_entry != fragment.first_entry:
            continue
        if not now.is_closed and not (may_grow and metadata.digest_type):
            raise LedgerNotClosed(
                f"ledger {metadata.ledger_id} is {metadata.state.value}, and its last segment, from entry "
                f"{now.first_entry}, may still grow: close it, or recover it first"
            )
        if now.ensemble != fragment.ensemble:
            raise _changed(fragment, f"its ensemble is {list(now.ensemble)} by now, not {list(fragment.ensemble)}")
        return now
    raise _changed(fragment, "it exists no more")


async def exchange_bookies(
    client: Client,
    stored: Versioned[LedgerMetadata],
    fragment: Fragment,
    targets: Mapping[int, str],
    session_id: int | None = None,
) -> Ensemble:
    """Name the targets in the place of the bookies that stood at their positions; returns the ensemble as stored then.

    `session_id`: that holds the ledger's lock. Raises `MetadataVersionConflict` (the segment is not what it was),
    `LedgerDeleted`, `SessionEnded`, `MetadataUnavailable`.
    """
    first = fragment.first_entry
    exchanged = {position: (fragment.ensemble[position], bookie) for position, bookie in targets.items()}

    def wanted(metadata: LedgerMetadata) -> Ensemble:
        ensemble = list(_ensemble(metadata, fragment))
        for position, (old, new) in exchanged.items():
            if ensemble[position] == old:
                ensemble[position] = new
        return tuple(ensemble)

    def needed(metadata: LedgerMetadata) -> bool:
        # All objections to the exchange are raised here: a conflict of `transform` would only be tried again.
        ensemble, before = wanted(metadata), _ensemble(metadata, fragment)
        if ensemble != before and len(set(ensemble)) < len(set(before)):
            raise _changed(fragment, f"another client gave it one of the new bookies {sorted(targets.values())}")
        return ensemble != before

    def transform(metadata: LedgerMetadata) -> LedgerMetadata:
        return metadata.with_ensemble(first, wanted(metadata))

    try:
        written = await update_metadata(client.metadata_service.ledgers, stored, needed, transform, session_id)
    except MetadataNotFound as error:
        raise LedgerDeleted(f"ledger {fragment.ledger_id} was deleted while it was copied") from error
    return written.value.ensembles[first]


def _ensemble(metadata: LedgerMetadata, fragment: Fragment) -> Ensemble:
    for now in fragments(metadata.ledger_id, metadata, -1):
        if now.first_entry == fragment.first_entry:
            if not now.is_closed or now.last_entry != fragment.last_entry:
                raise _changed(fragment, "its end is not what it was")
            return now.ensemble
    raise _changed(fragment, "it exists no more")


def _changed(fragment: Fragment, what: str) -> MetadataVersionConflict:
    return MetadataVersionConflict(
        f"ledger {fragment.ledger_id}: the segment from entry {fragment.first_entry} was changed by another client, "
        f"{what}; check the ledger again"
    )


class NewCopies:
    """Looks for one client."""

    def __init__(self, client: Client, lists: Lists, throttle: ReplicationThrottle) -> None:
        self._operations = client.operations
        self._throttle = throttle
        self._lists = lists

    async def check(self, fragment: Fragment, position: int, bookie: str) -> None:
        """Raises `TargetFailed`: the bookie lacks an entry that striping puts at this position."""
        missing = await self._missing(fragment, position, bookie)
        if missing is not None:
            said = f"ledger {fragment.ledger_id}: the new copy of entry {missing} on {bookie} has gone again"
            raise TargetFailed(bookie, CopyLost(said))

    async def _missing(self, fragment: Fragment, position: int, bookie: str) -> int | None:
        """Return the first entry that is not there; None: all are, as far as the bookie tells."""
        entries = fragment.entries_of(position)
        try:
            listed = await self._lists.of(bookie, fragment.ledger_id)
        except NotThere:
            return entries[0]
        except PodkeeperError:
            listed = None
        if listed is not None:
            return await first_missing(entries, listed)
        await self._throttle.read(0)
        try:
            await self._operations.read_entry(bookie, fragment.ledger_id, entries[0])
        except NotThere:
            return entries[0]
        except PodkeeperError:
            return None  # it does not answer: the checks of lost and silent bookies see to that
        return None
