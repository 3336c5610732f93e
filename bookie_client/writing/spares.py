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
from typing import Final

from bookie_client.context import ClientContext
from bookie_client.writing.ensemble_change import replace_bookies

MAX_ROUNDS: Final = 4


async def find_spares(
    context: ClientContext,
    ensemble: tuple[str, ...],
    failed: Mapping[int, str],
    writable: frozenset[str] | None = None,
) -> frozenset[str]:
    """Up to as many reachable spare bookies as failed; none when there are none.

    `writable` None: as the registry tells. Raises its `MetadataError`.
    """
    if writable is None:
        writable = await context.bookies.writable()
    candidates = writable.difference(ensemble, failed.values())
    found: frozenset[str] = frozenset()
    for _ in range(MAX_ROUNDS):
        likely = candidates - context.pool.down()
        pool = likely if len(likely) >= len(failed) else candidates
        chosen = set(replace_bookies(ensemble, failed, pool, context.placement, context.random)).difference(ensemble)
        if not chosen:
            break
        reached = await asyncio.gather(*map(context.pool.reachable, sorted(chosen)))
        unreachable = {bookie for bookie, reachable in zip(sorted(chosen), reached, strict=True) if not reachable}
        found = frozenset(chosen - unreachable)
        if not unreachable:
            break
        candidates = candidates - unreachable
    return found
