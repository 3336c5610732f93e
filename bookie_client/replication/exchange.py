"""The metadata side of re-replication: which segment it is, the exchange of its bookies by compare-and-set,
and whether the new copies, which the metadata name from then on, are all there.

A bookie collects what no metadata name, once it has the ledger's lock. Where a lock ended before its holder knew,
copies may go after they were acknowledged and before they are named; afterwards they stay. Bookies that list their
entries are believed; of those that do not (Java's with DbLedgerStorage never answer) the first entry is read: whoever
collects a ledger takes all of it that is there.

Invariants
- Only the named positions of one segment change, and only where they still name the bookie that is replaced.
- An ensemble never names a bookie twice.
- A segment that its writer may still change is left alone; so is one that is not what it was when the copies were made.
- Who holds the ledger's lock exchanges in the session that holds it, or not at all.

Event loop only.

Source: reference auto-recovery, sections 5 and 7.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from bookie_client.client import Client
from bookie_client.metadata_update import update_metadata
from bookie_client.replication.check import first_missing
from bookie_client.replication.copying import TargetFailed
from bookie_client.replication.fragments import Fragment, fragments
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_protocol.errors import (
    BookieTimeout,
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


def closed_fragment(metadata: LedgerMetadata, fragment: Fragment) -> Fragment:
    """The same fragment by the metadata as they are stored now.

    Raises `LedgerNotClosed` when it may still grow, `MetadataVersionConflict` when the segment is gone or has another
    ensemble.
    """
    for now in fragments(metadata.ledger_id, metadata, -1):
        if now.first_entry != fragment.first_entry:
            continue
        if not now.is_closed:
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
        # Whatever speaks against the exchange is told here: a conflict of `transform` would only be tried again.
        ensemble, before = wanted(metadata), _ensemble(metadata, fragment)
        if ensemble != before and len(set(ensemble)) < len(set(before)):
            raise _changed(fragment, f"somebody else gave it one of the new bookies {sorted(targets.values())}")
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
        f"ledger {fragment.ledger_id}: the segment from entry {fragment.first_entry} was changed by somebody else, "
        f"{what}; check the ledger again"
    )


LISTS_TO_GIVE_UP: Final = 3
"""A bookie that was silent so often in a row is not asked for lists again."""


class NewCopies:
    """Looks for one client. Bounded by the number of bookies."""

    def __init__(self, client: Client, throttle: ReplicationThrottle) -> None:
        self._operations = client.operations
        self._throttle = throttle
        self._silences: Counter[str] = Counter()

    async def check(self, fragment: Fragment, position: int, bookie: str) -> None:
        """Raises `TargetFailed`: the bookie lacks an entry that striping puts at this position."""
        missing = await self._missing(fragment, position, bookie)
        if missing is not None:
            said = f"ledger {fragment.ledger_id}: the new copy of entry {missing} on {bookie} has gone again"
            raise TargetFailed(bookie, CopyLost(said))

    async def _missing(self, fragment: Fragment, position: int, bookie: str) -> int | None:
        """The first entry that is not there; None: all are, as far as the bookie tells."""
        entries = fragment.entries_of(position)
        if self._silences[bookie] < LISTS_TO_GIVE_UP:
            await self._throttle.read(0)
            try:
                listed = await self._operations.entries_of_ledger(bookie, fragment.ledger_id)
            except NotThere:
                return entries[0]
            except BookieTimeout:
                self._silences[bookie] += 1
            except PodkeeperError:
                pass
            else:
                self._silences.pop(bookie, None)
                return await first_missing(entries, listed)
        await self._throttle.read(0)
        try:
            await self._operations.read_entry(bookie, fragment.ledger_id, entries[0])
        except NotThere:
            return entries[0]
        except PodkeeperError:
            return None  # it does not answer: the checks of lost and silent bookies see to that
        return None
