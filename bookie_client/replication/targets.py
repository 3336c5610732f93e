"""Choosing the bookies that get new copies.

Invariants
- A target is writable, reachable, neither in the ensemble nor excluded: it is connected before anything is copied.
- A bookie that is being decommissioned is not a target for any copy; this is known after `LEAVING_SECONDS` at the
  latest, and asked again right before the metadata name it. (A decommission waits for the locks that were held when its
  bookie stopped being a target, and looks for ledgers that name it afterwards.)
- The placement policy decides, with the client's `random`.

Event loop only.

Source: docs/internals/auto-recovery.md, sections 6.4 and 7; docs/internals/client-protocol.md, section 16.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from math import inf
from typing import Final, NamedTuple

from bookie_client.bookies import Registration, Registrations
from bookie_client.client import Client
from bookie_client.placement.policy import Adherence, ClusterView, Placement, ReplacementRequest
from bookie_client.replication.copying import TargetFailed
from bookie_client.replication.fragments import Fragment
from bookie_protocol.errors import BookieReadOnly, BookieUnavailable, NotEnoughBookies, SparesUnreachable
from bookie_protocol.metadata_service.records import DECOMMISSION

LEAVING_SECONDS: Final = 1.0
"""Seconds for which the list of decommissioned bookies is reused: reading it costs as much as copying a small
ledger.
"""


class Leaving:
    """The bookies that are being decommissioned, as one replicator knows them."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._names: frozenset[str] = frozenset()
        self._known_until = -inf

    async def names(self, *, now: bool = False) -> frozenset[str]:
        """Return the ids of these bookies. With `now`, read them again. Raises `MetadataUnavailable`."""
        time = asyncio.get_running_loop().time()
        if now or time >= self._known_until:
            self._names = await self._client.metadata_service.records(DECOMMISSION).names()
            self._known_until = time + LEAVING_SECONDS
        return self._names


async def check_still_targets(client: Client, leaving: Leaving, bookies: Collection[str]) -> None:
    """Copying may take hours: raises `TargetFailed` for a bookie that is being decommissioned, or registered nowhere,
    by now."""
    names = await leaving.names(now=True)
    gone = await unregistered(client, bookies)
    for bookie in sorted(bookies):
        if bookie in names or bookie in gone:
            why = "is registered nowhere" if bookie in gone else "is being decommissioned"
            raise TargetFailed(bookie, BookieUnavailable(f"bookie {bookie} {why} by now, so it gets no copies"))


async def unregistered(client: Client, bookies: Collection[str]) -> frozenset[str]:
    """Return the bookies that are registered nowhere, asked now. Raises `MetadataUnavailable`."""
    registrations = Registrations(client.bookies, client.metadata_service.bookies)
    found = {bookie: await registrations.of(bookie, asked_now=True) for bookie in sorted(bookies)}
    return frozenset(bookie for bookie, where in found.items() if where is Registration.NOWHERE)


class Targets(NamedTuple):
    """`chosen`: position -> new bookie; `unfilled`: positions without a spare, and why."""

    chosen: dict[int, str]
    unfilled: dict[int, str]


async def choose_targets(
    client: Client, leaving: Leaving, fragment: Fragment, bad: Mapping[int, str], excluded: Mapping[str, str]
) -> Targets:
    """Spares for the bad positions, as many as there are. Raises `NotEnoughBookies` when there is none at all,
    `SparesUnreachable` if some did not answer."""
    view = await _view(client, leaving, excluded)
    placement, all_answered = await _reachable(client, fragment, bad, view, mend=False)
    unfilled = {position: placement.unfilled.get(position, "no spare bookie") for position in bad}
    chosen = {
        position: placement.ensemble[position]
        for position in bad
        if placement.ensemble[position] != fragment.ensemble[position]
    }
    for position in chosen:
        del unfilled[position]
    if bad and not chosen:
        raise _no_spare(fragment, unfilled, NotEnoughBookies if all_answered else SparesUnreachable)
    return Targets(chosen, unfilled)


async def choose_mending(
    client: Client, leaving: Leaving, fragment: Fragment, bad: Mapping[int, str], excluded: Mapping[str, str]
) -> Targets:
    """The exchanges with which the ensemble obeys the placement policy, and the bad positions are filled; none if it
    obeys already. Raises `NotEnoughBookies` when none help."""
    view = await _view(client, leaving, excluded)
    report = client.placement.check(fragment.ensemble, fragment.quorums, view)
    if not bad and report.adherence is not Adherence.FAIL:
        return Targets({}, {})
    placement, _ = await _reachable(client, fragment, bad, view, mend=True)
    chosen = {
        position: bookie for position, bookie in enumerate(placement.ensemble) if bookie != fragment.ensemble[position]
    }
    if not chosen or (not bad and placement.report.adherence is Adherence.FAIL):
        why = "; ".join(placement.report.problems) or client.placement.rule
        raise NotEnoughBookies(
            f"ledger {fragment.ledger_id}, entries from {fragment.first_entry}: no exchange of bookies makes the "
            f"ensemble obey the placement policy ({why})"
        )
    unfilled = {position: placement.unfilled.get(position, "no spare bookie") for position in bad}
    for position in chosen:
        unfilled.pop(position, None)
    return Targets(chosen, unfilled)


async def check_in_place(client: Client, bookies: Mapping[int, str]) -> None:
    """Bookies that are to be filled again: raises `BookieReadOnly` (it is not writable), `BookieUnavailable`."""
    writable = await client.bookies.writable()
    for bookie in sorted(set(bookies.values())):
        if bookie not in writable:
            raise BookieReadOnly(f"bookie {bookie} is not writable, so its copies cannot be restored in place")
        if not await client.context.pool.reachable(bookie):
            raise BookieUnavailable(f"bookie {bookie} cannot be reached, so its copies cannot be restored in place")


# --- inside -------------------------------------------------------------------------------------------------------


async def _view(client: Client, leaving: Leaving, excluded: Mapping[str, str]) -> ClusterView:
    refused = dict.fromkeys(sorted(await leaving.names()), "it is being decommissioned") | dict(excluded)
    view = await client.cluster_view()
    return replace(view, excluded={**view.excluded, **refused})


async def _reachable(
    client: Client, fragment: Fragment, bad: Mapping[int, str], view: ClusterView, *, mend: bool
) -> tuple[Placement, bool]:
    """Return the policy's choice, with bookies that cannot be reached left out; and whether there was none of these."""
    context, policy, all_answered = client.context, client.placement, True
    while True:
        request = ReplacementRequest(
            ensemble=fragment.ensemble, failed=bad, quorums=fragment.quorums, cluster=view, random=context.random
        )
        placement = policy.mend(request) if mend else policy.replacement(request)
        chosen = sorted(set(placement.ensemble).difference(fragment.ensemble))
        reached = await asyncio.gather(*map(context.pool.reachable, chosen))
        unreachable = [bookie for bookie, reachable in zip(chosen, reached, strict=True) if not reachable]
        if not unreachable:
            context.placement_inputs.tell_relaxed(placement)
            return placement, all_answered
        all_answered = False
        # Each round leaves out at least one more bookie, so this ends.
        left_out = dict.fromkeys(unreachable, "could not be reached just now")
        view = replace(view, excluded={**view.excluded, **left_out}, unreachable=context.health.failed_lately())


def _no_spare(fragment: Fragment, unfilled: Mapping[int, str], kind: type[NotEnoughBookies]) -> NotEnoughBookies:
    why = "; ".join(f"{fragment.ensemble[position]}: {reason}" for position, reason in sorted(unfilled.items()))
    return kind(f"ledger {fragment.ledger_id}, entries from {fragment.first_entry}: no bookie for new copies ({why})")
