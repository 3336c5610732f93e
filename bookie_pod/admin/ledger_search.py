"""Ledgers of the cluster by id, state and bookie: a page at a time, each at a bounded cost.

A page looks at `MOST_LOOKED_AT` ledgers at most, whatever it finds, and says where the next one begins. It ends before
that with the ledger that makes all that were looked at weigh more than `MOST_WEIGHT`. Of a ledger that weighs more than
`MOST_SHOWN` the page shows a part, and names it. Passwords are never part of it.

Event loop only.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, Final, cast

from bookie_pod.admin.ledger_weights import HEAVY, Window, weight_of
from bookie_pod.admin.ledgers import ledger_view
from bookie_pod.admin.turns import Turns
from bookie_pod.roles import NOBODY, Caller, Role
from bookie_pod.server.http.api.call import Call, Json, Reply
from bookie_pod.server.http.api.context import Context
from bookie_pod.server.http.api.table import Operation, Resource
from bookie_protocol.admin_api import cluster as cluster_api
from bookie_protocol.admin_api.cluster import FoundLedgers, LedgerSearch
from bookie_protocol.errors import MetadataDamaged, MetadataNotFound
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.tree.service import MetadataService

MOST_LOOKED_AT: Final = 400
MOST_WEIGHT: Final = 10_000
MOST_SHOWN: Final = 1_000
"""Weight of the ensembles, and of the custom metadata, that are shown of one ledger."""


class LedgerFinder:
    """Finds ledgers in the metadata service."""

    def __init__(self, service: MetadataService) -> None:
        self._ledgers = service.ledgers
        self._turns = Turns()

    async def find(self, asked: LedgerSearch, caller: Caller = NOBODY) -> FoundLedgers:
        """Raises `TooManyRequests`, `MetadataUnavailable`, `MetadataDamaged`."""
        async with self._turns.turn(caller):
            ids = await self._ids(asked.first)
            found = FoundLedgers(ledgers=[], looked_at=0, next=None, damaged=[])
            weight, at, window = 0, 0, Window()
            while at < len(ids):
                group = ids[at : at + window.size]
                at += len(group)
                heaviest = 0
                for ledger_id, stored in zip(group, await self._ledgers.read_each(group), strict=True):
                    is_full = len(found.ledgers) >= asked.limit or found.looked_at >= MOST_LOOKED_AT
                    if is_full or weight > MOST_WEIGHT:
                        found.next = ledger_id
                        return found
                    found.looked_at += 1
                    if isinstance(stored, MetadataDamaged):
                        found.damaged.append(ledger_id)
                    elif isinstance(stored, MetadataNotFound):
                        continue  # deleted since it was listed
                    elif isinstance(stored, Exception):
                        raise stored
                    else:
                        of_this = weight_of(stored.value)
                        weight, heaviest = weight + of_this, max(heaviest, of_this)
                        if _matches(stored.value, asked):
                            _add(found, stored.value)
                        if of_this > HEAVY:
                            await asyncio.sleep(0)
                window.seen(heaviest)
            return found

    async def _ids(self, first: int) -> list[int]:
        """The ids of the ledgers to look at, and of one more if there is one."""
        ids: list[int] = []
        # A generator, though the interface promises less: an ended listing has to end its requests.
        async with aclosing(cast("Any", self._ledgers.ranges(first=first))) as ranges:
            async for span in ranges:
                ids += span.ids[: MOST_LOOKED_AT + 1 - len(ids)]
                if len(ids) > MOST_LOOKED_AT:
                    break
        return ids


def _add(found: FoundLedgers, ledger: LedgerMetadata) -> None:
    shown = ledger_view(ledger, MOST_SHOWN)
    shown.password = ""
    found.ledgers.append(shown)
    if len(shown.all_ensembles) < len(ledger.ensembles) or len(shown.custom_metadata) < len(ledger.custom_metadata):
        found.shortened.append(ledger.ledger_id)


def _matches(ledger: LedgerMetadata, asked: LedgerSearch) -> bool:
    if asked.state is not None and ledger.state.value != asked.state:
        return False
    return asked.bookie is None or any(asked.bookie in ensemble for ensemble in ledger.ensembles.values())


async def _search(context: Context, call: Call) -> Reply:
    return Json(await context.room(LedgerFinder).find(call.asked(LedgerSearch), call.caller))


RESOURCES: Final = (
    Resource(
        (
            Operation(
                cluster_api.SEARCH,
                Role.VIEWER,
                "Ledgers by id, state and bookie, a page at a time",
                _search,
                "One page; `next` says where the next one begins, also if none was found on this one.",
            ),
        ),
    ),
)
