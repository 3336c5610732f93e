"""Readers of a ledger: by range, again and again, or following it to its end. None of them recovers it."""

from __future__ import annotations

from typing import Any

from bookie_client.reading.handle import LedgerReader
from bookie_protocol.errors import LedgerNotClosed, PodkeeperError
from tests.support.simulation import checks
from tests.support.simulation.actors import PASSWORD, OnLedger
from tests.support.simulation.history import LedgerHistory


class Reader(OnLedger):
    """Opens the ledger again and again without recovery, asks for its LAC and reads up to it."""

    async def _on(self, ledger: LedgerHistory) -> None:
        while not self.over:
            try:
                async with self.host.client.open(ledger.ledger_id, password=PASSWORD) as handle:
                    await self._use(ledger, handle)
            except LedgerNotClosed:
                raise
            except PodkeeperError as error:
                self.trace(f"ledger {ledger.ledger_id}: {type(error).__name__}: {error}")
            if ledger.metadata.is_closed and self._random.random() < 0.5:
                return
            await self._pause()

    async def _use(self, ledger: LedgerHistory, handle: LedgerReader) -> None:
        view = checks.ReaderView(self._history, ledger, self.name)
        view.lac(handle.last_add_confirmed)
        for _ in range(1 + int(self._random.random() * 4)):
            if self._random.random() < 0.2:
                await self._read_unconfirmed(view, handle)
            else:
                await self._refresh(ledger, view, handle)
                await self._read_some(view, handle)
            if self.over:
                return
            await self._pause(0.5)

    async def _refresh(self, ledger: LedgerHistory, view: checks.ReaderView, handle: LedgerReader) -> None:
        if self._random.random() < 0.3:
            view.lac(await handle.try_read_last_add_confirmed())
            return
        known = handle.metadata
        at_least = checks.travelled_lac(ledger)
        up_to_date = known.ensembles == ledger.metadata.ensembles
        lac = await handle.read_last_add_confirmed()
        self.trace(f"ledger {ledger.ledger_id}: LAC {lac}")
        view.lac(lac, at_least if up_to_date and not ledger.deferred_sync else -1)
        self._history.count("LAC asked for")

    async def _read_some(self, view: checks.ReaderView, handle: LedgerReader) -> None:
        lac = handle.last_add_confirmed
        view.lac(lac)
        if lac < 0:
            return
        first = int(self._random.random() * (lac + 1))
        for entry in await handle.read(first, lac):
            view.entry(entry.entry_id, entry.payload)
        view.lac(handle.last_add_confirmed)

    async def _read_unconfirmed(self, view: checks.ReaderView, handle: LedgerReader) -> None:
        first = max(0, handle.last_add_confirmed)
        for entry in await handle.read_unconfirmed(first, first):
            view.entry(entry.entry_id, entry.payload, confirmed=False)


class Tailer(OnLedger):
    """Follows the ledger to its end."""

    async def _on(self, ledger: LedgerHistory) -> None:
        position = 0
        while True:
            try:
                async with self.host.client.open(ledger.ledger_id, password=PASSWORD) as handle:
                    view = checks.ReaderView(self._history, ledger, self.name)
                    async for entry in handle.tail(position):
                        self._look(ledger, view, handle, entry, position)
                        position += 1
                    if ledger.metadata.is_closed:
                        self._finish(ledger, position)
                        return
            except PodkeeperError as error:
                self.trace(f"ledger {ledger.ledger_id}: {type(error).__name__}: {error}")
            await self._pause()

    def _look(
        self, ledger: LedgerHistory, view: checks.ReaderView, handle: LedgerReader, entry: Any, position: int
    ) -> None:
        if entry.entry_id != position:
            self._history.violated("S13 reader safety", ledger, f"{self.name} got {entry.entry_id}, not {position}")
        view.entry(entry.entry_id, entry.payload)
        view.lac(handle.last_add_confirmed)
        if entry.entry_id > handle.last_add_confirmed:
            self._history.violated(
                "S13 reader safety",
                ledger,
                f"{self.name} got entry {entry.entry_id} at LAC {handle.last_add_confirmed}",
            )
        self._history.count("entries tailed")

    def _finish(self, ledger: LedgerHistory, position: int) -> None:
        last = ledger.metadata.last_entry_id
        if position != last + 1:
            self._history.violated(
                "S13 reader safety", ledger, f"{self.name} followed it up to {position - 1}, it ends at {last}"
            )
