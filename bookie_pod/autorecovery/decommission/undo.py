"""Takes a decommission back: the bookie becomes writable again, and the record goes.

Possible until the cookie is gone. What was moved stays where it is.

Invariants
- While the cookie may be about to be deleted (REMOVING), its version is changed before the undo is stored: a deletion
  under way then fails, or it was first and the undo is refused.
- May be repeated after a crash at any point.

Threads: event loop.
"""

from __future__ import annotations

from dataclasses import dataclass

from bookie_pod.autorecovery.decommission.presence import BookieAdmin, make_writable
from bookie_pod.autorecovery.decommission.proof import fence_cookie, stored_cookie
from bookie_pod.autorecovery.decommission.state import DecommissionRecord, Phase, UndoRequested
from bookie_pod.autorecovery.decommission.store import DecommissionStore, HeldRecord, TakenOver
from bookie_protocol.errors import BookieUnavailable, NotDecommissioned, Refused
from bookie_protocol.metadata_service.tree.service import MetadataService

_ROUNDS = 100


@dataclass(frozen=True, slots=True)
class Undone:
    """`writable`: the bookie was made writable; it was not if it is stopped, or was read-only before."""

    record: DecommissionRecord
    writable: bool


async def undo(service: MetadataService, admin: BookieAdmin, bookie_id: str) -> Undone:
    """Raises `NotDecommissioned` (nothing to undo), `Refused` (its cookie is gone; the bookie cannot be made writable),
    `BookieUnavailable` (its admin API does not answer: repeat), `MetadataError`."""
    held = await _stop(service, bookie_id)
    writable = False
    if held.record.read_only_by_us:
        try:
            writable = await make_writable(service, admin, bookie_id)
        except BookieUnavailable as error:
            raise BookieUnavailable(f"{error}; the decommission has stopped, repeat the undo to end it") from error
    await held.remove()
    return Undone(held.record, writable)


async def _stop(service: MetadataService, bookie_id: str) -> HeldRecord:
    store = DecommissionStore(service)
    for _ in range(_ROUNDS):
        found = await store.active(bookie_id)
        if found is None:
            raise await _nothing(service, store, bookie_id)
        if found.value.phase is Phase.DONE:
            await store.archive(found.value)  # its coordinator did not live to do so
            continue
        held = HeldRecord(store, found.value, found.identity)
        if found.value.phase is Phase.UNDOING:
            return held
        if found.value.phase is Phase.REMOVING:
            await _protect_cookie(service, found.value)
        try:
            await held.advance(UndoRequested())
        except TakenOver:
            continue  # its coordinator was faster; look again
        return held
    raise TakenOver(f"the decommission of {bookie_id} changes faster than it can be undone: stop its coordinator")


async def _protect_cookie(service: MetadataService, record: DecommissionRecord) -> None:
    """See to it that it cannot be deleted on the strength of a proof any more."""
    if not record.delete_cookie or record.cookie_version is None:
        return
    if not await fence_cookie(service.cookies, record.bookie_id, record.cookie_version):
        raise Refused(
            f"the cookie of {record.bookie_id} is gone already: the decommission can only be finished, repeat it"
        )


async def _nothing(service: MetadataService, store: DecommissionStore, bookie_id: str) -> NotDecommissioned | Refused:
    finished = await store.finished(bookie_id)
    # One that deleted a cookie says nothing of the bookie that has a cookie now.
    if finished is not None and not (finished.delete_cookie and await stored_cookie(service, bookie_id)):
        return Refused(f"the decommission of {bookie_id} is finished: there is nothing to undo")
    return NotDecommissioned(f"bookie {bookie_id} is not being decommissioned")
