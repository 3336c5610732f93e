"""The stored cookies of all bookies, for people who repair them.

Invariants
- Nothing is stored for a bookie that is not a cookie of it.
- A cookie goes only if its bookie is registered nowhere and a full listing showed that no ledger needs it, and only
  the version that was read before.

Threads: event loop.
"""

from __future__ import annotations

from bookie_pod.node.identity.cookies import parse_cookie
from bookie_protocol.errors import (
    BadRequest,
    InvalidCookie,
    MetadataExists,
    MetadataNotFound,
    NoCookie,
    Refused,
)
from bookie_protocol.metadata_service.interface import MetadataService


class CookieAdmin:
    """Errors: those of `DecommissionPort`, `MetadataError`."""

    def __init__(self, service: MetadataService) -> None:
        self._service = service
        self._cookies = service.cookies

    async def read(self, bookie_id: str) -> bytes:
        try:
            return (await self._cookies.read(bookie_id)).value
        except MetadataNotFound as error:
            raise NoCookie(f"bookie {bookie_id} has no cookie") from error

    async def create(self, bookie_id: str, data: bytes) -> None:
        _check(bookie_id, data)
        try:
            await self._cookies.create(bookie_id, data)
        except MetadataExists as error:
            raise Refused(f"bookie {bookie_id} has a cookie already; nothing was changed") from error

    async def update(self, bookie_id: str, data: bytes) -> None:
        _check(bookie_id, data)
        try:
            version = (await self._cookies.read(bookie_id)).version
            await self._cookies.update(bookie_id, data, version)
        except MetadataNotFound as error:
            raise NoCookie(f"bookie {bookie_id} has no cookie") from error

    async def delete(self, bookie_id: str, accepted_losses: frozenset[int] = frozenset()) -> None:
        from bookie_pod.autorecovery.decommission.cookies import delete_unneeded_cookie

        await delete_unneeded_cookie(self._service, bookie_id, accepted_losses)


def _check(bookie_id: str, data: bytes) -> None:
    try:
        found = parse_cookie(data, "the body")
    except InvalidCookie as error:
        raise BadRequest(str(error)) from error
    if found.bookie_id != bookie_id:
        raise BadRequest(f"the body is the cookie of bookie {found.bookie_id[:100]}, not of {bookie_id}")
