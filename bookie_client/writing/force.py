"""FORCE_LEDGER: what bookies acknowledged before its sync becomes durable.

Invariants
- A force covers what was delivered before it began, and only when every bookie of the ensemble answered.
- A bookie that is restarted has lost what it had acknowledged and not synced, and knows nothing of it: it would
  answer a force all the same. So a handle that has entries of that kind ends with the connection (`UnsyncedWatch`).

Event loop only.

Source: reference client protocol, section 9.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from bookie_client.context import ClientContext
from bookie_client.writing.add_state import AddState
from bookie_protocol.errors import PodkeeperError


class UnsyncedWatch:
    """Tells `on_loss`, with the bookie's id, when a connection is lost to a bookie that holds entries which no force
    has made durable. `close` it."""

    def __init__(self, context: ClientContext, state: AddState, on_loss: Callable[[str], None]) -> None:
        self._state = state
        self._on_loss = on_loss
        # The ensemble of a handle with deferred sync stays.
        self._told = {
            context.pool.channel(bookie, state.ledger_id): partial(self._lost, bookie) for bookie in state.ensemble
        }
        for channel, told in self._told.items():
            channel.on_lost[told] = None

    def close(self) -> None:
        """Calling it again is fine."""
        told, self._told = self._told, {}
        for channel, callback in told.items():
            del channel.on_lost[callback]

    def _lost(self, bookie: str) -> None:
        if self._state.last_pushed > self._state.lac:
            self._on_loss(bookie)


async def force_ledger(context: ClientContext, state: AddState) -> None:
    """Move the LAC to the last entry delivered so far.

    Raises the error of the first bookie, in the order of the ensemble, that did not do it; the LAC stays then.
    """
    point = state.delivered
    if point.entry_id <= state.lac:
        return
    bookies = state.ensemble
    answers = await asyncio.gather(
        *(context.operations.force_ledger(bookie, state.ledger_id) for bookie in bookies), return_exceptions=True
    )
    for bookie, answer in zip(bookies, answers, strict=True):
        if isinstance(answer, PodkeeperError):
            raise type(answer)(
                f"ledger {state.ledger_id}: entries to {point.entry_id} could not be forced, bookie {bookie}: {answer}"
            ) from answer
        if isinstance(answer, BaseException):
            raise answer
    state.forced(point)
