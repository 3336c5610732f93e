"""Degraded positions of an ensemble: replaced when a spare bookie appears, used again when their bookie
returns.

Event loop only.

Source: reference client protocol, sections 7 and 16.
"""

from __future__ import annotations

from collections.abc import Callable

from bookie_client.context import ClientContext
from bookie_client.writing.add_state import AddState
from bookie_client.writing.spares import find_spares
from bookie_protocol.errors import BookieUnavailable, PodkeeperError


async def mend(
    context: ClientContext, state: AddState, retry: Callable[[], None], restored: Callable[[int, str], None]
) -> None:
    """Ends when no position is degraded any more, or nothing can be written any more. `retry` starts the change that
    replaces degraded positions; `restored` is told which of them can be reached again."""
    while state.degraded and not state.over:
        await context.bookies.changed(context.options.degraded_retry_interval)
        try:
            writable = await context.bookies.writable()
            spares = await find_spares(context, state.quorums, state.ensemble, dict(state.degraded))
        except PodkeeperError:
            continue  # nobody can tell; the next round asks again
        # Spares are looked for before the change begins, because nothing is acknowledged while one runs.
        if spares.writable and state.may_change:
            retry()
        else:
            await _use_returned(context, state, writable, restored)


async def _use_returned(
    context: ClientContext, state: AddState, writable: frozenset[str], restored: Callable[[int, str], None]
) -> None:
    for position, bookie in list(state.degraded.items()):
        if bookie not in writable:
            continue
        try:
            await context.pool.channel(bookie, state.ledger_id).connect()
        except BookieUnavailable:
            continue
        restored(position, bookie)
