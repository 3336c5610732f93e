"""Deleting a cookie that nothing needs any more, and no other; and keeping others from doing so on an old proof.

Threads: event loop.
"""

from __future__ import annotations

from collections.abc import Collection

from bookie_pod.autorecovery.decommission.presence import Presence, presence_of
from bookie_pod.autorecovery.decommission.survey import survey
from bookie_protocol.errors import MetadataNotFound, MetadataVersionConflict, NotThere, Refused
from bookie_protocol.metadata_service.interface import CookieStore, MetadataService


async def delete_unneeded_cookie(
    service: MetadataService, bookie_id: str, accepted_losses: Collection[int] = ()
) -> None:
    """`accepted_losses`: ledgers that may go on naming it, because somebody gave their data up.

    `NotThere`: it has none. `Refused`: the bookie is registered, a ledger or mark names it, or somebody changed the
    cookie meanwhile. `MetadataError`: nobody can tell, and nothing was deleted."""
    try:
        version = (await service.cookies.read(bookie_id)).version
    except MetadataNotFound as error:
        raise NotThere(f"bookie {bookie_id} has no cookie") from error
    await _check_absent(service, bookie_id)
    left = (await survey(service, bookie_id)).left(accepted_losses)
    if left:
        raise Refused(f"the cookie of {bookie_id} stays: {len(left)} ledgers need it, such as {min(left)}")
    await _check_absent(service, bookie_id)
    try:
        await service.cookies.delete(bookie_id, version)
    except MetadataVersionConflict as error:
        raise Refused(f"the cookie of {bookie_id} stays: somebody changed it just now") from error
    except MetadataNotFound as error:
        raise NotThere(f"bookie {bookie_id} has no cookie any more") from error


async def _check_absent(service: MetadataService, bookie_id: str) -> None:
    presence = await presence_of(service, bookie_id)
    if presence is not Presence.ABSENT:
        raise Refused(f"the cookie of {bookie_id} stays: the bookie is {presence.value}; stop it first")


async def fence_cookie(cookies: CookieStore, bookie_id: str, proven: int | None) -> bool:
    """Make the deletion of the version that was `proven` (None: of no cookie) fail from now on, whoever is about to ask
    for it, by giving the cookie a new version; False: it is gone already. May be repeated. Raises `MetadataError`."""
    try:
        cookie = await cookies.read(bookie_id)
        if cookie.version == proven:
            await cookies.update(bookie_id, cookie.value, cookie.version)
    except MetadataVersionConflict:
        return True  # somebody else changed it, which does as well
    except MetadataNotFound:
        return False
    return True
