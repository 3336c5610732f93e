"""The proof that nothing needs a bookie any more, and the deletion of its cookie on the strength of it.

Proven is: no segment of any ledger names the bookie, by a full listing with uncached reads that began after the drain
had ended; no mark of an under-replicated ledger names it, which is what an audit after the drain would find; nobody is
about to name it (`claims`); and the bookie was not registered writable since the drain began, so it cannot have got new
data. The listing begins only when every client has had time to hear that the bookie takes none, and to end what it had
begun: one that has not may still create a ledger on it, a moment after the listing. The cookie is read before all this,
and only that cookie is deleted, in the session in which it was read: a coordinator that sleeps meanwhile finds that its
session has ended, or that there is another cookie, of the next bookie of the id.

Invariants
- An error is no proof: whatever cannot be read is raised.
- A proof is used by the coordinator that made it, and by no other.

Threads: event loop.

Source: reference auto-recovery, sections 8 and 13.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from bookie_pod.autorecovery.decommission.claims import Claims, EndRecovery, Wait
from bookie_pod.autorecovery.decommission.presence import Vigil
from bookie_pod.autorecovery.decommission.state import (
    CookieChanged,
    CookieGone,
    CookieKept,
    DecommissionRecord,
    Disproved,
    Event,
    Proof,
    Proved,
    SeenWritable,
)
from bookie_pod.autorecovery.decommission.survey import survey
from bookie_protocol.errors import MetadataNotFound, MetadataVersionConflict, SessionEnded
from bookie_protocol.metadata_service.interface import Identity, MetadataService


@dataclass(frozen=True, slots=True)
class Proving:
    """What a proof works with. `end_recovery` and `wait`: see `claims`; `progress`: ledgers read so far."""

    service: MetadataService
    vigil: Vigil
    claims: Claims
    end_recovery: EndRecovery
    wait: Wait
    clock_ms: Callable[[], int]
    progress: Callable[[int], None] = lambda ledgers: None


async def prove(parts: Proving, bookie_id: str, accepted_losses: Collection[int]) -> tuple[Event, Identity | None]:
    """`Proved`, `Disproved` or `SeenWritable`, and the cookie of before. Raises `MetadataError`."""
    service, vigil = parts.service, parts.vigil
    await vigil.settled()
    await parts.claims.locks_end(parts.wait)
    begun_ms = parts.clock_ms()
    cookie = await stored_cookie(service, bookie_id)
    await vigil.check()
    found = await survey(service, bookie_id, progress=parts.progress)
    await vigil.check()  # of a session that is in step with the listing
    if vigil.seen_writable:
        return SeenWritable(), None
    if found.left(accepted_losses):
        return Disproved(), None
    recovered = found.in_recovery - set(accepted_losses)
    if await parts.claims.recoveries_end(bookie_id, recovered, parts.end_recovery, parts.wait):
        return Disproved(), None
    proof = Proof(begun_ms, parts.clock_ms(), found.ledgers_seen, found.marks_seen)
    return Proved(proof, None if cookie is None else cookie.version), cookie


async def remove_cookie(
    service: MetadataService, vigil: Vigil, record: DecommissionRecord, proven: Identity | None
) -> Event:
    """Delete the cookie of a record that is REMOVING; may be repeated. `proven`: what `prove` gave. Raises
    `MetadataError`."""
    await vigil.check()
    if vigil.seen_writable:
        return SeenWritable()
    if not record.delete_cookie:
        return CookieKept()
    if proven is None:
        return CookieGone() if await stored_cookie(service, record.bookie_id) is None else CookieChanged()
    try:
        await service.cookies.delete_this(record.bookie_id, proven)
    except (MetadataVersionConflict, SessionEnded):
        return CookieChanged()
    except MetadataNotFound:
        pass
    return CookieGone()


async def stored_cookie(service: MetadataService, bookie_id: str) -> Identity | None:
    """None: there is no cookie."""
    try:
        return (await service.cookies.read(bookie_id)).identity
    except MetadataNotFound:
        return None
