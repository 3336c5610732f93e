"""Recovery: a ledger that nobody closed gets its end, though its writer may be dead, or alive and unaware.

Mark the metadata IN_RECOVERY, so that the writer cannot change the ensemble any more; find the end (`end`);
store it with one compare-and-set. Any number of clients may do this at once, and any of them may die anywhere: the
first compare-and-set that makes the ledger CLOSED decides, and all others adopt what it stored.

Invariants
- A ledger is never closed below an entry that its writer saw acknowledged.
- Nobody is fenced with a password that differs from the one the ledger recorded.
- An attempt that fails leaves the ledger IN_RECOVERY, and anybody may try again.

Event loop only.

Source: reference client protocol, section 14.
"""

from __future__ import annotations

from typing import NoReturn

from bookie_client.access import LedgerAccess
from bookie_client.context import ClientContext
from bookie_client.logs import get_logger
from bookie_client.metadata_update import update_metadata
from bookie_client.recovery.end import LedgerEnd, find_end
from bookie_client.recovery.forward_read import RecoveryParts
from bookie_client.writing.ensemble_change import with_new_ensemble
from bookie_protocol.errors import (
    LedgerDeleted,
    MetadataError,
    MetadataNotFound,
    MetadataVersionConflict,
    PodkeeperError,
    RecoveryFailed,
    Unauthorized,
)
from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState
from bookie_protocol.metadata_service.interface import Versioned

_log = get_logger(__name__)

Stored = Versioned[LedgerMetadata]


async def recover_ledger(
    context: ClientContext, stored: Stored, access: LedgerAccess, distrusted: frozenset[str] = frozenset()
) -> Stored:
    """Close a ledger; returns its final metadata, which may be another client's work.

    `distrusted`: bookies that are known to have lost entries of this ledger. They are fenced like the others, but an
    entry that they deny may exist all the same, so the ledger is not closed below it on their word.

    Raises `RecoveryFailed` when too few bookies answer (the ledger stays IN_RECOVERY; try again once they are
    back), `Unauthorized`, `LedgerDeleted` (deleted meanwhile), `MetadataUnavailable`,
    `MetadataVersionConflict` (the state or the last ensemble changed meanwhile: no end was stored; try again).
    """
    ledger_id = stored.value.ledger_id
    try:
        marked = await _mark(context, stored)
        if marked.value.is_closed:
            return marked
        _log.info("recovery", ledger=ledger_id, ensemble=marked.value.last_ensemble)
        end = await find_end(RecoveryParts(context, marked.value, access.digest, access.master_key, distrusted))
        closed = await _close(context, marked, end)
    except MetadataNotFound as error:
        raise LedgerDeleted(f"ledger {ledger_id} was deleted while it was recovered") from error
    except (Unauthorized, MetadataError):
        raise
    except PodkeeperError as error:
        return await _adopt_or_fail(context, ledger_id, error)
    _log.info("recovered", ledger=ledger_id, last_entry=closed.value.last_entry_id, stored_again=end.recovered)
    return closed


async def _mark(context: ClientContext, stored: Stored) -> Stored:
    return await update_metadata(
        context.ledgers, stored, lambda metadata: metadata.state is LedgerState.OPEN, LedgerMetadata.in_recovery
    )


async def _close(context: ClientContext, marked: Stored, end: LedgerEnd) -> Stored:
    def needed(metadata: LedgerMetadata) -> bool:
        if metadata.is_closed:
            return False
        _check_same_tail(marked.value, metadata)
        return True

    return await update_metadata(context.ledgers, marked, needed, lambda metadata: _with_end(metadata, end))


def _with_end(metadata: LedgerMetadata, end: LedgerEnd) -> LedgerMetadata:
    for first, ensemble in sorted(end.segments.items()):
        metadata = with_new_ensemble(metadata, first - 1, ensemble)
    return metadata.closed(end.last_entry_id, end.length)


def _check_same_tail(before: LedgerMetadata, now: LedgerMetadata) -> None:
    """What bookies said counts for the ensemble that was fenced, and for no other."""
    tail = before.first_entry_ids[-1], before.last_ensemble
    if now.state is not LedgerState.IN_RECOVERY or (now.first_entry_ids[-1], now.last_ensemble) != tail:
        raise MetadataVersionConflict(
            f"ledger {now.ledger_id}: somebody changed its state or last ensemble during the recovery; try again"
        )


async def _adopt_or_fail(context: ClientContext, ledger_id: int, error: PodkeeperError) -> Stored:
    """Somebody else may have been luckier: then that is the end."""
    try:
        stored = await context.ledgers.read(ledger_id)
    except MetadataNotFound:
        raise LedgerDeleted(f"ledger {ledger_id} was deleted while it was recovered") from error
    except MetadataError:
        _fail(ledger_id, error)
    if not stored.value.is_closed:
        _fail(ledger_id, error)
    return stored


def _fail(ledger_id: int, error: PodkeeperError) -> NoReturn:
    raise RecoveryFailed(
        f"ledger {ledger_id} could not be recovered and stays IN_RECOVERY, try again when its bookies are back: {error}"
    ) from error
