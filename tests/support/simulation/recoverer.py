"""A client that recovers a ledger, while its writer may be alive and others recover it, too."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING

from bookie_client.reading.handle import LedgerReader
from bookie_protocol.errors import MetadataNotFound, PodkeeperError
from tests.support.simulation import checks
from tests.support.simulation.actors import PASSWORD, OnLedger
from tests.support.simulation.history import LedgerHistory
from tests.support.simulation.scenario import LedgerPlan

if TYPE_CHECKING:
    from tests.support.simulation.world import World


class Recoverer(OnLedger):
    """Recovers the ledger while its writer may be alive, together with others."""

    def __init__(
        self,
        world: World,
        name: str,
        plan: LedgerPlan,
        random: Random,
        ledger: asyncio.Future[LedgerHistory],
        delay: float,
    ) -> None:
        super().__init__(world, name, plan, random, ledger)
        self._delay = delay

    async def _on(self, ledger: LedgerHistory) -> None:
        await asyncio.sleep(self._delay)
        for factor in _growing():
            try:
                await self._recover(ledger)
            except MetadataNotFound:
                raise
            except PodkeeperError as error:
                self.trace(f"ledger {ledger.ledger_id}: recovery failed: {type(error).__name__}: {error}")
                self._history.count("recovery failed")
            else:
                return
            await self._pause(factor)

    async def _recover(self, ledger: LedgerHistory) -> None:
        client = self.host.client
        self.trace(f"ledger {ledger.ledger_id}: recovers")
        if self._random.random() < 0.5:
            metadata = await client.recover(ledger.ledger_id, password=PASSWORD)
            end = metadata.last_entry_id, metadata.length
        else:
            async with client.open(ledger.ledger_id, password=PASSWORD, recover=True) as handle:
                end = handle.last_add_confirmed, handle.length
                await self._read_all(ledger, handle)
        self.trace(f"ledger {ledger.ledger_id}: recovered, ends at {end[0]}")
        self._history.count("recovered")
        stored = ledger.metadata
        if not stored.is_closed or (stored.last_entry_id, stored.length) != end:
            self._history.violated("S2 one end", ledger, f"{self.name} says it ends at {end}, stored is {stored}")

    async def _read_all(self, ledger: LedgerHistory, handle: LedgerReader) -> None:
        view = checks.ReaderView(self._history, ledger, self.name)
        try:
            async for entry in handle.entries():
                view.entry(entry.entry_id, entry.payload)
        except PodkeeperError as error:
            self.trace(f"ledger {ledger.ledger_id}: cannot be read now: {error}")


def _growing() -> Iterator[float]:
    factor = 0.3
    while True:
        yield factor
        factor = min(factor * 1.5, 5.0)
