"""The proof that nothing needs a bookie any more, and the deletion of its cookie on the strength of it.

Proven is: no segment of any ledger names the bookie, by a full listing with uncached reads that began after the drain
had ended; no mark of an under-replicated ledger names it, which is what an audit after the drain would find; and the
bookie was not registered writable since the drain began, so it cannot have got new data. The listing begins only when
every client has had time to hear that the bookie takes none: one that has not may still create a ledger on it, a moment
after the listing. The version of the cookie is read before all this, and only that version is deleted.

Invariants
- An error is no proof: whatever cannot be read is raised.

Threads: event loop.

Source: reference auto-recovery, sections 8 and 13.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

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
from bookie_protocol.errors import MetadataNotFound, MetadataVersionConflict
from bookie_protocol.metadata_service.interface import MetadataService


async def prove(
    service: MetadataService,
    vigil: Vigil,
    bookie_id: str,
    accepted_losses: Collection[int],
    clock_ms: Callable[[], int],
    progress: Callable[[int], None] | None = None,
) -> Event:
    """`Proved`, `Disproved` or `SeenWritable`. Raises `MetadataError`."""
    await vigil.settled()
    begun_ms = clock_ms()
    cookie = await cookie_version(service, bookie_id)
    await vigil.check()
    found = await survey(service, bookie_id, progress=progress)
    await vigil.check()  # of a session that is in step with the listing
    if vigil.seen_writable:
        return SeenWritable()
    if found.left(accepted_losses):
        return Disproved()
    return Proved(Proof(begun_ms, clock_ms(), found.ledgers_seen, found.marks_seen), cookie)


async def remove_cookie(service: MetadataService, vigil: Vigil, record: DecommissionRecord) -> Event:
    """Delete the cookie of a record that is REMOVING; may be repeated. Raises `MetadataError`."""
    await vigil.check()
    if vigil.seen_writable:
        return SeenWritable()
    if not record.delete_cookie:
        return CookieKept()
    if record.cookie_version is None:
        return CookieGone() if await cookie_version(service, record.bookie_id) is None else CookieChanged()
    try:
        await service.cookies.delete(record.bookie_id, record.cookie_version)
    except MetadataVersionConflict:
        return CookieChanged()
    except MetadataNotFound:
        pass
    return CookieGone()


async def cookie_version(service: MetadataService, bookie_id: str) -> int | None:
    """None: there is no cookie."""
    try:
        return (await service.cookies.read(bookie_id)).version
    except MetadataNotFound:
        return None
