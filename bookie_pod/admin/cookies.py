"""The cookies that the metadata service keeps, for people who repair them, and for operators."""

from __future__ import annotations

from typing import Final

from bookie_pod.admin.bookie_ids import BOOKIE, LOSSES, accepted_losses, checked_id
from bookie_pod.audit import audited
from bookie_pod.roles import Role
from bookie_pod.server.http.api.call import Call
from bookie_pod.server.http.api.context import Context
from bookie_pod.server.http.api.replies import Reply, Text
from bookie_pod.server.http.api.table import Answer, Group, Operation, Resource
from bookie_protocol.admin_api.decommission import LossesBody

_LISTING_S: Final = 600.0
"""Seconds for what lists every ledger of the cluster."""


async def _cookie(context: Context, call: Call) -> Reply:
    bookie_id = checked_id(call.parameters["bookie_id"], "bookie_id")
    return Text((await context.admin.decommission.cookie(bookie_id)).decode("utf-8", "replace"))


async def _create_cookie(context: Context, call: Call) -> Reply:
    bookie_id = checked_id(call.parameters["bookie_id"], "bookie_id")
    await context.admin.decommission.create_cookie(bookie_id, call.body)
    return Text(f"cookie of {bookie_id} created")


async def _update_cookie(context: Context, call: Call) -> Reply:
    bookie_id = checked_id(call.parameters["bookie_id"], "bookie_id")
    await context.admin.decommission.update_cookie(bookie_id, call.body)
    return Text(f"cookie of {bookie_id} updated")


async def _delete_cookie(context: Context, call: Call) -> Reply:
    bookie_id = checked_id(call.parameters["bookie_id"], "bookie_id")
    losses = accepted_losses(call.parameters["accept_loss"])
    if not call.is_blank:
        losses |= accepted_losses(call.members().get("accept_loss"))
    audited(accept_loss=sorted(losses))
    await context.admin.decommission.delete_cookie(bookie_id, accepted_losses=losses)
    return Text(f"cookie of {bookie_id} deleted")


_REFUSED: Final = Answer("Refused, and why.", 409)
_NONE: Final = Answer("There is none.", 404)

RESOURCES: Final = (
    Resource(
        "/api/v1/bookie/cookie",
        Group.ADMIN,
        (
            Operation(
                "GET",
                Role.VIEWER,
                "The cookie that the metadata service keeps for a bookie",
                _cookie,
                (Answer("As in its VERSION files."), _NONE),
                parameters=(BOOKIE,),
            ),
            Operation(
                "POST",
                Role.ADMIN,
                "Store a cookie for a bookie that has none",
                _create_cookie,
                (Answer("Done."), _REFUSED),
                parameters=(BOOKIE,),
                body=str,
            ),
            Operation(
                "PUT",
                Role.ADMIN,
                "Replace the cookie of a bookie",
                _update_cookie,
                (Answer("Done."), _NONE),
                parameters=(BOOKIE,),
                body=str,
            ),
            Operation(
                "DELETE",
                Role.ADMIN,
                "Delete the cookie of a bookie that is registered nowhere and that no ledger names. `accept_loss` may"
                " stand in a JSON body: a request line does not hold many",
                _delete_cookie,
                (Answer("Done."), _NONE, _REFUSED),
                parameters=(BOOKIE, LOSSES),
                body=LossesBody,
                timeout_s=_LISTING_S,
            ),
        ),
    ),
)
