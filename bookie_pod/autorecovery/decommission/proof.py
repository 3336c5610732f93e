"""The proof that nothing needs a bookie any more, and the deletion of its cookie on the strength of it.

Proven is: no segment of any ledger names the bookie, by a full listing with uncached reads that began after the drain
had ended; no mark of an under-replicated ledger names it, which is what an audit after the drain would find; no process
is about to name it (`survey.Claims`); and the bookie was not registered writable since the drain began, so it cannot
have got new data. The listing begins only when every client has had time to hear that the bookie takes none, and to end
what it had begun: one that has not may still create a ledger on it, a moment after the listing. The cookie is read
before all this, and only that cookie is deleted, in the session in which it was read: a coordinator that sleeps
meanwhile finds that its session has ended, or that there is another cookie, of the next bookie of the id.

`delete_unneeded_cookie` proves as much of a bookie that is gone, for a deletion of its cookie without a decommission;
`fence_cookie` keeps others from deleting one on an old proof.

Invariants
- An error is no proof: whatever cannot be read is raised.
- A proof is used by the coordinator that made it, and by no other.

Threads: event loop.

Source: docs/internals/auto-recovery.md, sections 8 and 13.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from bookie_pod.autorecovery.decommission.presence import Presence, Vigil
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
from bookie_pod.autorecovery.decommission.survey import Claims, EndRecovery, Wait, remedy_of, survey, survey_unclaimed
from bookie_protocol.errors import (
    MetadataDamaged,
    MetadataNotFound,
    MetadataVersionConflict,
    NoCookie,
    Refused,
    SessionEnded,
)
from bookie_protocol.ledger_metadata.codec import parse_text
from bookie_protocol.ledger_metadata.metadata_formats_pb2 import CookieFormat
from bookie_protocol.metadata_service.interface import Identity
from bookie_protocol.metadata_service.tree.documents import CookieStore
from bookie_protocol.metadata_service.tree.service import MetadataService

LOCKS_SECONDS: Final = 30.0
"""Seconds for which the locks of others are waited for; their holders may name the bookie when they end."""


@dataclass(frozen=True, slots=True)
class Proving:
    """The parts that a proof works with. `end_recovery` and `wait`: see `Claims`; `progress`: ledgers read so far."""

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
    found = await survey(service, bookie_id, progress=parts.progress, keep_unreadable=True)
    if unreadable := found.unreadable.keys() - set(accepted_losses):
        ledger_id = min(unreadable)
        told = f"; or give its data up with --accept-loss ({len(unreadable)} such ledgers)"
        raise MetadataDamaged(remedy_of(ledger_id, found.unreadable[ledger_id]) + told)
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


async def delete_unneeded_cookie(
    service: MetadataService, bookie_id: str, accepted_losses: Collection[int] = ()
) -> None:
    """`accepted_losses`: ledgers that may go on naming it, because a person gave their data up.

    `NoCookie`: it has none. `Refused`: the bookie is registered or was meanwhile, a ledger or mark names it, a process
    is about to name it, or the cookie was changed meanwhile. `MetadataError`: unknown, nothing was deleted."""
    try:
        cookie = (await service.cookies.read(bookie_id)).identity
    except MetadataNotFound as error:
        raise NoCookie(f"bookie {bookie_id} has no cookie") from error
    async with Vigil(service, bookie_id) as vigil:
        await _check_absent(vigil, bookie_id)
        await _check_unneeded(service, bookie_id, accepted_losses)
        await _check_absent(vigil, bookie_id)
        try:
            await service.cookies.delete_this(bookie_id, cookie)
        except (MetadataVersionConflict, SessionEnded) as error:
            raise Refused(f"the cookie of {bookie_id} stays: it was changed just now, so try again") from error
        except MetadataNotFound as error:
            raise NoCookie(f"bookie {bookie_id} has no cookie any more") from error


async def refuse_renamed(service: MetadataService, bookie_id: str) -> None:
    """`Refused`: it is getting another id, or is the other id of one. Then ledgers that name the one need what is in
    the directories of the other, and a proof that none names it would say nothing of these."""
    try:
        data = (await service.cookies.read(bookie_id)).value
        said = parse_text(data.partition(b"\n")[2], CookieFormat(), f"the cookie of {bookie_id}").bookieHost
    except (MetadataNotFound, MetadataDamaged, UnicodeDecodeError):
        return  # it is not by its cookie that it would be known
    if said and said != bookie_id:
        raise Refused(
            f"bookie {bookie_id} is being renamed, its cookie says {said}: go on with `bookie cluster rename-bookie`,"
            " or take it back by the same command with the ids the other way round"
        )


async def _check_unneeded(service: MetadataService, bookie_id: str, accepted_losses: Collection[int]) -> None:
    stays = f"the cookie of {bookie_id} stays"
    found, locked = await survey_unclaimed(service, bookie_id, LOCKS_SECONDS)
    left = found.left(accepted_losses)
    if left:
        raise Refused(f"{stays}: {len(left)} ledgers need it, such as {min(left)}")
    locked -= frozenset(accepted_losses)
    if locked:
        raise Refused(
            f"{stays}: {len(locked)} ledgers are being re-replicated, such as {min(locked)}, and may come to name it:"
            " repeat it when that is done"
        )
    under_way = found.in_recovery - set(accepted_losses)
    if under_way:
        raise Refused(
            f"{stays}: {len(under_way)} ledgers are being recovered, such as {min(under_way)}, and may come to name it:"
            f" recover them (`bookie ledger recover {min(under_way)}`), and repeat"
        )


async def _check_absent(vigil: Vigil, bookie_id: str) -> None:
    presence = await vigil.check()
    if presence is not Presence.ABSENT:
        raise Refused(f"the cookie of {bookie_id} stays: the bookie is {presence.value}; stop it first")
    if vigil.seen_registered:
        raise Refused(f"the cookie of {bookie_id} stays: the bookie was registered a moment ago; stop it, and repeat")


async def fence_cookie(cookies: CookieStore, bookie_id: str, proven: int | None) -> bool:
    """Make the deletion of the version that was `proven` (None: of no cookie) fail from now on, whichever process asks
    for it.

    It gives the cookie a new version. Return False if the cookie is gone already. May be repeated. Raises
    `MetadataError`.
    """
    try:
        cookie = await cookies.read(bookie_id)
        if cookie.version == proven:
            await cookies.update(bookie_id, cookie.value, cookie.identity)
    except MetadataVersionConflict:
        return True  # another process changed it, which does as well
    except MetadataNotFound:
        return False
    return True
