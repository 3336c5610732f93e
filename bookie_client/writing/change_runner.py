"""Ensemble changes of one pipeline, as they are carried out: one at a time, and not faster than they are of use.

Invariants
- Changes behind which not one more entry is confirmed, as when every bookie refuses, are made at ever longer intervals,
  up to `degraded_retry_interval`: they do not flood the metadata service.
- Whatever a change raises ends as a `PodkeeperError`: adds that wait for it must not be left without an end.

Event loop only.

Source: reference client protocol, section 7.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from bookie_client.logs import get_logger
from bookie_client.writing.add_state import AddState
from bookie_protocol.errors import CouldNotTell, PodkeeperError

EnsembleChange = Callable[[Mapping[int, str]], Awaitable[tuple[str, ...]]]
"""Replace these failed bookies (position -> bookie) from LAC + 1 on; returns the ensemble that holds from
there on, which is the old one when there is no spare bookie. Raises when the ledger cannot be written any
more."""

IMMEDIATE_CHANGES: Final = 8
"""Ensemble changes in front of the same entry that are made at once; the next ones are slowed down."""
FIRST_CHANGE_PAUSE: Final = 0.01
"""Seconds; doubles with each change."""

_log = get_logger(__name__)


class ChangeRunner:
    """Of one pipeline. `longest_pause`: seconds between changes at most."""

    def __init__(self, state: AddState, change: EnsembleChange, longest_pause: float) -> None:
        self._state = state
        self._change = change
        self._longest_pause = longest_pause
        self._changed_at = state.lac
        self._changes_here = 0

    async def run(self, failed: Mapping[int, str]) -> tuple[str, ...]:
        """Replace `failed`; returns the ensemble that is stored then. Does nothing when the ledger cannot be written
        any more once it is this change's turn. Raises `PodkeeperError`."""
        state = self._state
        _log.info("ensemble change", ledger=state.ledger_id, failed=sorted(failed.values()), after=state.lac)
        await self._pause()
        if state.failure is not None:
            return state.ensemble
        try:
            return await self._changed(failed)
        except PodkeeperError as error:
            _log.warning("ledger cannot be written any more", ledger=state.ledger_id, error=str(error))
            raise

    async def _changed(self, failed: Mapping[int, str]) -> tuple[str, ...]:
        try:
            return await self._change(failed)
        except PodkeeperError:
            raise
        except Exception as error:
            # A placement policy of the application's own, for instance.
            raise CouldNotTell(f"the ensemble change failed: {error!r}") from error

    async def _pause(self) -> None:
        """Wait if many changes have brought nothing."""
        if self._state.lac != self._changed_at:
            self._changed_at, self._changes_here = self._state.lac, 0
        self._changes_here += 1
        excess = self._changes_here - IMMEDIATE_CHANGES
        if excess > 0:
            await asyncio.sleep(min(FIRST_CHANGE_PAUSE * 2 ** min(excess, 30), self._longest_pause))
