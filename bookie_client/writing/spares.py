"""Spare bookies for failed ones: chosen by the placement policy, and reachable.

Invariants
- A spare is connected before it is written into the metadata: one that is registered and dead (its session
  lives on for a while) costs a refused connection, not an ensemble change.
- Bookies that could not be reached lately are asked only when the others do not suffice.
- The search is bounded in rounds, and each round in time (`PROBE_SECONDS`).

Event loop only.

Source: reference client protocol, sections 7.3 and 17.1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from bookie_client.context import ClientContext
from bookie_client.distribution import Quorums
from bookie_client.placement.policy import ClusterView
from bookie_client.writing.ensemble_change import replace_bookies

MAX_ROUNDS: Final = 4


async def find_spares(
    context: ClientContext,
    quorums: Quorums,
    ensemble: tuple[str, ...],
    failed: Mapping[int, str],
) -> ClusterView:
    """The cluster with nobody writable but up to as many reachable spare bookies as failed; none when there are
    none.

    Raises the registry's `MetadataError`.
    """
    cluster = await context.cluster_view()
    found: frozenset[str] = frozenset()
    for _ in range(MAX_ROUNDS):
        placement = replace_bookies(ensemble, failed, quorums, cluster, context.placement, context.random)
        chosen = sorted(set(placement.ensemble).difference(ensemble))
        if not chosen:
            break
        reached = await asyncio.gather(*map(context.pool.reachable, chosen))
        unreachable = {bookie for bookie, reachable in zip(chosen, reached, strict=True) if not reachable}
        found = frozenset(chosen) - unreachable
        if not unreachable:
            context.placement_inputs.tell_relaxed(placement)
            break
        excluded = dict(cluster.excluded) | dict.fromkeys(unreachable, "could not be reached just now")
        cluster = replace(cluster, excluded=excluded, quarantined=context.avoided_bookies())
    return replace(cluster, writable=found, quarantined=frozenset())
