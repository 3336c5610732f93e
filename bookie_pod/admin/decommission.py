"""Bookies that leave: decommission, recovery of lost ones, and what ledgers would suffer.

Two paths are the reference's: both begin something in the background and answer at once.

Source: docs/internals/auto-recovery.md, sections 8, 9 and 14.
"""

from __future__ import annotations

from typing import Final

from bookie_pod.admin.bookie_ids import LISTING_S, NONE, REFUSED, accepted_losses, checked_id, named_bookie
from bookie_pod.admin.decommission_jobs import Decommissions
from bookie_pod.audit import audited
from bookie_pod.roles import Role
from bookie_pod.server.http.api.call import Call, Json, Reply, Text
from bookie_pod.server.http.api.context import Context
from bookie_pod.server.http.api.table import Answer, Operation, Resource, should_be
from bookie_protocol.admin_api import decommission as decommission_api
from bookie_protocol.admin_api.cluster import LedgerQuery
from bookie_protocol.admin_api.decommission import SafetyQuery, UndoAnswer, UndoBody
from bookie_protocol.errors import BadRequest

_ONLY_PUT: Final = should_be("PUT")
_ENDS_WITH_US: Final = (
    "This bookie carries it out, and stops doing so when it is stopped itself: then send the same to any other bookie,"
    f" which goes on where this one was. How far it is: GET {decommission_api.PROGRESS.path}?bookie_id="
)
_RECOVERY_ENDS_WITH_US: Final = (
    "This bookie carries it out, and stops doing so when it is stopped itself: then send the same to any other bookie,"
    f" which restores what is left. How far it is: GET {decommission_api.RECOVER_PROGRESS.path}, from this bookie"
)
"""A second line; the first ones are Apache's."""


def _flag(value: object, name: str) -> bool:
    """The reference writes it as a text in one body and as a boolean in the other; both are taken."""
    if value is None or isinstance(value, bool):
        return bool(value)
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise BadRequest(f"{name} must be true or false, not {str(value)[:100]!r}")


# --- decommission -----------------------------------------------------------------------------------------------


async def _decommission(context: Context, call: Call) -> Reply:
    if call.is_blank:
        return Text("Null request body for DecommissionService.", 404)
    members = call.members()
    if "bookie_src" not in members:
        return Text("Request body not contains bookie_src.", 404)
    bookie_id = checked_id(members["bookie_src"], "bookie_src")
    delete_cookie = _flag(members.get("delete_cookie"), "delete_cookie")
    losses = await accepted_losses(members.get("accept_loss"))
    audited(bookie=bookie_id, delete_cookie=delete_cookie, accept_loss=sorted(losses))
    if delete_cookie or losses:
        call.caller.demand(Role.ADMIN, "a decommission with delete_cookie or accept_loss")
    await context.room(Decommissions).decommission(bookie_id, delete_cookie=delete_cookie, accepted_losses=losses)
    return Text(f"Success send decommission Bookie command {bookie_id}\n{_ENDS_WITH_US}{bookie_id}")


async def _plan(context: Context, call: Call) -> Reply:
    bookie_id = named_bookie(call)
    return Json(await context.room(Decommissions).decommission_outlook(bookie_id, call.caller))


async def _progress(context: Context, call: Call) -> Reply:
    bookie_id = named_bookie(call)
    return Json(await context.room(Decommissions).decommission_state(bookie_id))


async def _undo(context: Context, call: Call) -> Reply:
    bookie_id = checked_id(call.read(UndoBody).bookie_src, "bookie_src")
    audited(bookie=bookie_id)
    return Json(UndoAnswer(await context.room(Decommissions).undo_decommission(bookie_id)))


# --- recovery of lost bookies -------------------------------------------------------------------------------------


async def _recover(context: Context, call: Call) -> Reply:
    if call.is_blank:
        return Text("No request body provide.", 404)
    members = call.members()
    bookies = members.get("bookie_src")
    if not isinstance(bookies, list) or not bookies:
        return _ONLY_PUT  # the reference's words for it
    ids = [checked_id(bookie, "bookie_src") for bookie in bookies]
    delete_cookies = _flag(members.get("delete_cookie"), "delete_cookie")
    audited(bookies=ids, delete_cookie=delete_cookies)
    if delete_cookies:
        call.caller.demand(Role.ADMIN, "a recovery with delete_cookie")
    await context.room(Decommissions).recover(ids, delete_cookies=delete_cookies)
    return Text(f"Success send recovery request command.\n{_RECOVERY_ENDS_WITH_US}")


async def _recover_progress(context: Context, call: Call) -> Reply:
    state = context.room(Decommissions).recover_state()
    return Json(state) if state is not None else Text("This bookie was asked for no recovery.", 404)


# --- what there is, and what would suffer -------------------------------------------------------------------------


async def _safety(context: Context, call: Call) -> Reply:
    ids = [checked_id(bookie.strip(), "bookies") for bookie in call.asked(SafetyQuery).bookies.split(",")]
    return Json(await context.room(Decommissions).safety(ids, call.caller))


async def _replicas(context: Context, call: Call) -> Reply:
    return Json(await context.room(Decommissions).holdings(call.asked(LedgerQuery).ledger_id, call.caller))


RESOURCES: Final = (
    Resource(
        (
            Operation(
                decommission_api.DECOMMISSION,
                Role.OPERATOR,
                "Take a bookie out of the cluster, in the background; begins, or goes on where it was."
                " `accept_loss`: ids of ledgers, with commas, whose data is given up",
                _decommission,
                "Begun; a second line tells how to go on if this bookie stops meanwhile.",
                (
                    Answer("There is no body, or no bookie_src in it.", 404),
                    REFUSED,
                ),
                timeout_s=LISTING_S,
            ),
        ),
        _ONLY_PUT,
        own=False,
    ),
    Resource(
        (
            Operation(
                decommission_api.OUTLOOK,
                Role.VIEWER,
                "What a decommission would have to do, and what speaks against it",
                _plan,
                "The plan.",
                timeout_s=LISTING_S,
            ),
        ),
    ),
    Resource(
        (
            Operation(
                decommission_api.PROGRESS,
                Role.VIEWER,
                "Progress of a decommission, whichever process works on it",
                _progress,
                "The state.",
                (NONE,),
            ),
        ),
    ),
    Resource(
        (
            Operation(
                decommission_api.UNDO,
                Role.OPERATOR,
                "Take a decommission back: the bookie becomes writable again",
                _undo,
                "Done.",
                (
                    NONE,
                    REFUSED,
                ),
                timeout_s=60.0,
            ),
        ),
        _ONLY_PUT,
    ),
    Resource(
        (
            Operation(
                decommission_api.RECOVER,
                Role.OPERATOR,
                "Copy what lost bookies held to others, in the background",
                _recover,
                "Begun; a second line tells how to go on if this bookie stops meanwhile.",
                (
                    Answer("There is no body, or no bookie in it.", 404),
                    REFUSED,
                ),
            ),
        ),
        _ONLY_PUT,
        own=False,
    ),
    Resource(
        (
            Operation(
                decommission_api.RECOVER_PROGRESS,
                Role.VIEWER,
                "How far the last recovery is that this bookie was asked for",
                _recover_progress,
                "The state.",
                (NONE,),
            ),
        ),
    ),
    Resource(
        (
            Operation(
                decommission_api.SAFETY,
                Role.VIEWER,
                "Which ledgers would lose their last copy, or their ack quorum, if these bookies went now",
                _safety,
                "The report.",
                timeout_s=LISTING_S,
            ),
        ),
    ),
    Resource(
        (
            Operation(
                decommission_api.REPLICAS,
                Role.VIEWER,
                "What each bookie really holds of a ledger",
                _replicas,
                "Bookie by bookie.",
                (NONE,),
                timeout_s=60.0,
            ),
        ),
    ),
)
