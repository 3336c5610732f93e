"""The quorum time-out: an add that does not reach its ack quorum in time ends the handle.

Invariants
- An add is found late by at most a quarter of the time-out, and never early.
- It costs nothing per add: only the highest id given out is noted, once a tick.

Event loop only.

Source: reference client protocol, sections 6.3 and 18 (`addEntryQuorumTimeoutSec`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from bookie_client.writing.pipeline import AddPipeline
from bookie_protocol.errors import QuorumLost

TICKS: Final = 4
"""Ticks in one time-out."""


class AddAges:
    """Which add is older than `TICKS` ticks. Pure."""

    def __init__(self) -> None:
        self._pushed: deque[int] = deque(maxlen=TICKS + 1)

    def tick(self, last_pushed: int, last_delivered: int) -> int | None:
        """The oldest add that was given out at least `TICKS` ticks ago and is not delivered; None if there is
        none."""
        self._pushed.append(last_pushed)
        if len(self._pushed) <= TICKS or last_delivered >= self._pushed[0]:
            return None
        return last_delivered + 1


async def watch_quorum(pipeline: AddPipeline, timeout: float) -> None:
    """Until the handle cannot write any more; `timeout` in seconds."""
    state = pipeline.state
    ages = AddAges()
    while not state.over:
        await asyncio.sleep(timeout / TICKS)
        entry_id = ages.tick(state.last_pushed, state.delivered.entry_id)
        if entry_id is not None and not state.over:
            pipeline.abandon(
                QuorumLost(
                    f"entry {entry_id} did not reach its ack quorum of {state.quorums.ack} in {timeout:g} s"
                    " (add_quorum_timeout)"
                )
            )
