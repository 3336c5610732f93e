"""The stored cookies of all bookies, for people who repair them.

Invariants
- Nothing is stored for a bookie that is not a cookie of it.
- A cookie goes only if its bookie is registered nowhere and a full listing showed that no ledger needs it, and only
  the version that was read before.

Threads: event loop.
"""

from __future__ import annotations

from typing import Final

from bookie_pod.admin.bookie_ids import LISTING_S, NONE, REFUSED, accepted_losses, named_bookie
from bookie_pod.audit import audited
from bookie_pod.node.identity.cookies import parse_cookie
from bookie_pod.roles import Role
from bookie_pod.server.http.api.call import Call, Reply, Text
from bookie_pod.server.http.api.context import Context
from bookie_pod.server.http.api.table import Operation, Resource
from bookie_protocol.admin_api import decommission as decommission_api
from bookie_protocol.admin_api.decommission import LossesBody, ProofQuery
from bookie_protocol.errors import (
    BadRequest,
    InvalidCookie,
    MetadataExists,
    MetadataNotFound,
    NoCookie,
    Refused,
)
from bookie_protocol.metadata_service.tree.service import MetadataService


class StoredCookies:
    """Raises `NoCookie`; `Refused`, `BadRequest`: nothing was changed; `MetadataError`."""

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
            known = await self._cookies.read(bookie_id)
            await self._cookies.update(bookie_id, data, known.identity)
        except MetadataNotFound as error:
            raise NoCookie(f"bookie {bookie_id} has no cookie") from error

    async def delete(self, bookie_id: str, accepted_losses: frozenset[int] = frozenset()) -> None:
        from bookie_pod.autorecovery.decommission.proof import delete_unneeded_cookie

        await delete_unneeded_cookie(self._service, bookie_id, accepted_losses)


def _check(bookie_id: str, data: bytes) -> None:
    try:
        found = parse_cookie(data, "the body")
    except InvalidCookie as error:
        raise BadRequest(str(error)) from error
    if found.bookie_id != bookie_id:
        raise BadRequest(f"the body is the cookie of bookie {found.bookie_id[:100]}, not of {bookie_id}")


async def _cookie(context: Context, call: Call) -> Reply:
    bookie_id = named_bookie(call)
    return Text((await context.room(StoredCookies).read(bookie_id)).decode("utf-8", "replace"))


async def _create_cookie(context: Context, call: Call) -> Reply:
    bookie_id = named_bookie(call)
    await context.room(StoredCookies).create(bookie_id, call.body)
    return Text(f"cookie of {bookie_id} created")


async def _update_cookie(context: Context, call: Call) -> Reply:
    bookie_id = named_bookie(call)
    await context.room(StoredCookies).update(bookie_id, call.body)
    return Text(f"cookie of {bookie_id} updated")


async def _delete_cookie(context: Context, call: Call) -> Reply:
    bookie_id = named_bookie(call)
    losses = await accepted_losses(call.asked(ProofQuery).accept_loss)
    losses |= await accepted_losses(call.read(LossesBody).accept_loss)
    audited(accept_loss=sorted(losses))
    await context.room(StoredCookies).delete(bookie_id, losses)
    return Text(f"cookie of {bookie_id} deleted")


RESOURCES: Final = (
    Resource(
        (
            Operation(
                decommission_api.COOKIE,
                Role.VIEWER,
                "The cookie that the metadata service keeps for a bookie",
                _cookie,
                "As in its VERSION files.",
                (NONE,),
            ),
            Operation(
                decommission_api.CREATE_COOKIE,
                Role.ADMIN,
                "Store a cookie for a bookie that has none",
                _create_cookie,
                "Done.",
                (REFUSED,),
            ),
            Operation(
                decommission_api.SET_COOKIE,
                Role.ADMIN,
                "Replace the cookie of a bookie",
                _update_cookie,
                "Done.",
                (NONE,),
            ),
            Operation(
                decommission_api.DELETE_COOKIE,
                Role.ADMIN,
                "Delete the cookie of a bookie that is registered nowhere and that no ledger names. `accept_loss` may"
                " be in a JSON body: a request line does not hold many",
                _delete_cookie,
                "Done.",
                (
                    NONE,
                    REFUSED,
                ),
                timeout_s=LISTING_S,
            ),
        ),
    ),
)
