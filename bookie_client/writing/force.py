"""FORCE_LEDGER: what bookies acknowledged before its sync becomes durable.

Invariants
- A force covers what was delivered before it began, and only when every bookie of the ensemble answered.

Event loop only.

Source: reference client protocol, section 9.
"""

from __future__ import annotations

import asyncio

from bookie_client.context import ClientContext
from bookie_client.writing.add_state import AddState
from bookie_protocol.errors import PodkeeperError


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
