"""Facts by which an operator decides: the state of the cluster, and whether a bookie is needed."""

from __future__ import annotations

from typing import Final

from bookie_pod.admin.bookie_ids import BOOKIE, LOSSES, accepted_losses, checked_id
from bookie_pod.roles import Role
from bookie_pod.server.http.api.call import Call
from bookie_pod.server.http.api.context import Context
from bookie_pod.server.http.api.replies import Json, Reply
from bookie_pod.server.http.api.table import Answer, Group, Operation, Resource
from bookie_protocol.admin_api.cluster import ClusterFacts
from bookie_protocol.admin_api.decommission import DrainProof, ProofBody

_STATE_S: Final = 120.0
"""Seconds for what counts every mark."""
_LISTING_S: Final = 600.0
"""Seconds for what lists every ledger of the cluster."""
_UNKNOWN: Final = Answer("It cannot be told now, and why.", 503)


async def _cluster(context: Context, call: Call) -> Reply:
    return Json(await context.admin.facts.cluster())


async def _proof(context: Context, call: Call) -> Reply:
    bookie_id = checked_id(call.parameters["bookie_id"], "bookie_id")
    losses = accepted_losses(call.parameters["accept_loss"])
    return Json(await context.admin.facts.proof(bookie_id, losses))


async def _long_proof(context: Context, call: Call) -> Reply:
    members = call.members()
    bookie_id = checked_id(members.get("bookie_id"), "bookie_id")
    return Json(await context.admin.facts.proof(bookie_id, accepted_losses(members.get("accept_loss"))))


RESOURCES: Final = (
    Resource(
        "/api/v1/cluster/state",
        Group.ADMIN,
        (
            Operation(
                "GET",
                Role.VIEWER,
                "The cluster as the metadata service knows it, read now",
                _cluster,
                (Answer("The facts.", type=ClusterFacts), _UNKNOWN),
                timeout_s=_STATE_S,
            ),
        ),
    ),
    Resource(
        "/api/v1/autorecovery/decommission/proof",
        Group.ADMIN,
        (
            Operation(
                "GET",
                Role.VIEWER,
                "Whether any ledger, or any mark of an under-replicated one, names a bookie: a full listing made now",
                _proof,
                (Answer("What was found.", type=DrainProof), _UNKNOWN),
                parameters=(BOOKIE, LOSSES),
                timeout_s=_LISTING_S,
            ),
            Operation(
                "POST",
                Role.VIEWER,
                "The same, for more accepted losses than a request line holds",
                _long_proof,
                (Answer("What was found.", type=DrainProof), _UNKNOWN),
                body=ProofBody,
                timeout_s=_LISTING_S,
            ),
        ),
    ),
)
