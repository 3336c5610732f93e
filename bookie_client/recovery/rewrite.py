"""Storing recovered entries again, so that each reaches its ack quorum.

Invariants
- Entries keep id, payload and length. They carry the LAC that fencing found, not how far the recovery is: until the
  ledger is closed its writer, or another recovery, may still close it at a lower end, and a reader must never hear
  of a LAC above the end.
- A failed bookie is replaced for this recovery alone: nothing is written into the metadata before the end is
  (`segments`). Without a spare bookie the ack quorum has to do.
- An entry is confirmed here when all before it are, so `lac` is an end that may be stored.

Event loop only.

Source: reference client protocol, sections 14.5 and 14.7.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping

from bookie_client.recovery.forward_read import FoundEntry
from bookie_client.recovery.parts import RecoveryParts
from bookie_client.writing.add_state import AddState
from bookie_client.writing.ensemble_change import find_spares, replace_bookies
from bookie_client.writing.pipeline import AddPipeline
from bookie_protocol.errors import CouldNotTell, PodkeeperError, fresh
from bookie_protocol.ledger_metadata.model import Ensemble


class _Rewrites(AddState):
    """The adds of a recovery: they continue the ledger behind `start`."""

    def __init__(self, parts: RecoveryParts, start: int) -> None:
        options = parts.context.options
        super().__init__(
            parts.ledger_id,
            parts.quorums,
            parts.metadata.last_ensemble,
            lac=start,
            delay_ensemble_change=options.delay_ensemble_change,
            max_ensemble_changes=options.max_ensemble_changes,
        )
        self._start = start

    def piggy_back(self) -> int:
        self.piggy_backed = self._start
        return self._start


class Rewriter:
    """Stores the entries of one recovery again; `close` it. `start`: the LAC that fencing found."""

    def __init__(self, parts: RecoveryParts, start: int) -> None:
        self._parts = parts
        self._state = _Rewrites(parts, start)
        encoder = parts.context.pool.dialect.add_encoder(parts.ledger_id, parts.master_key, recovery=True)
        self._pipeline = AddPipeline(parts.context, self._state, parts.digest, encoder, self._change)
        self._ensemble = parts.metadata.last_ensemble
        self._under_way: deque[asyncio.Future[int]] = deque()
        self.segments: dict[int, Ensemble] = {}
        """Ensembles that this recovery went over to, by the first entry that they hold."""

    @property
    def lac(self) -> int:
        """The last entry that reached its ack quorum, as all before it did."""
        return self._state.lac

    def store(self, entry: FoundEntry) -> None:
        """Send the next entry; the caller bounds how many are under way. Raises what ended the rewriting."""
        self._raise_failure()
        state = self._state
        if entry.entry_id != state.last_pushed + 1:
            raise AssertionError(f"entry {entry.entry_id} does not follow entry {state.last_pushed}")
        state.length = entry.length - len(entry.payload)
        waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._pipeline.intake.submit_overdrawn(entry.payload, waiter)
        while self._under_way and self._under_way[0].done():
            self._under_way.popleft()
        self._under_way.append(waiter)

    async def progress(self) -> None:
        """Wait until one more entry is confirmed. Raises what ended the rewriting."""
        if self._under_way:
            await asyncio.wait([self._under_way.popleft()])
        self._raise_failure()

    async def drain(self) -> None:
        """Wait until all are confirmed. Raises what ended the rewriting."""
        await self._pipeline.idle()
        self._raise_failure()

    async def close(self) -> None:
        """Give up what is under way. Calling it behind `drain` ends the background work alone."""
        self._state.stop()
        if not self._state.idle:
            self._pipeline.abandon(CouldNotTell(f"the recovery of ledger {self._parts.ledger_id} ended"))
        await self._pipeline.close()

    def _raise_failure(self) -> None:
        failure: PodkeeperError | None = self._state.failure
        if failure is not None:
            raise fresh(failure)

    async def _change(self, failed: Mapping[int, str]) -> Ensemble:
        context, quorums = self._parts.context, self._parts.quorums
        spares = await find_spares(context, quorums, self._ensemble, failed)
        ensemble = replace_bookies(self._ensemble, failed, quorums, spares, context.placement, context.random).ensemble
        if ensemble != self._ensemble:
            # Nothing is confirmed while a change runs, also of several rounds, so the key is well defined.
            self.segments[self._state.lac + 1] = self._ensemble = ensemble
        return ensemble
