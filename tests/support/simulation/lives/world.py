"""One run with ids that are used again: the cluster, those who use them, and the verdict."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from unittest import mock

from bookie_protocol.errors import PodkeeperError
from bookie_protocol.metadata_service.tree import ledgers
from tests.support.simulation import checks
from tests.support.simulation.bookie import ROOT, VirtualBookie
from tests.support.simulation.client import VirtualClient
from tests.support.simulation.clock import VirtualLoop
from tests.support.simulation.history import LedgerHistory
from tests.support.simulation.lives.actors import Author, Deleter, LifeReader, LifeRecoverer
from tests.support.simulation.lives.judge import LifeHistory, LifeJudge
from tests.support.simulation.lives.plan import LivesPlan
from tests.support.simulation.nodes import NodeRecord
from tests.support.simulation.scenario import LedgerPlan, Scenario
from tests.support.simulation.trace import Trace
from tests.support.simulation.world import PATIENCE_SECONDS, World

COLLECTED_SECONDS: Final = 0.1
"""Mean, after which a bookie has collected a deleted ledger."""


class LivesWorld(World):
    """As `World`, with ids that are used again instead of ledgers that are used once."""

    def __init__(self, scenario: Scenario, loop: VirtualLoop, trace: Trace) -> None:
        assert scenario.lives is not None
        self.plan_of_lives: LivesPlan = scenario.lives
        self.passwords: dict[int, list[bytes]] = {}
        """Of all lives, by id."""
        super().__init__(scenario, loop, trace)
        self.metadata.on_delete = self._deleted
        self._uncollected = Counter[int]()
        self._users = Counter[int]()
        self._is_reserved: dict[int, None] = {}
        self._is_closing = False
        # Creation tokens are drawn by chance, and are the same in each run of a seed.
        tokens = self._random()
        self._patch = mock.patch.object(ledgers, "random", mock.Mock(SystemRandom=lambda: tokens))
        self._patch.start()

    def make_judge(self) -> LifeJudge:
        return LifeJudge(self.plan_of_lives.own_passwords)

    def make_history(self, trace: Trace) -> LifeHistory:
        self.lives = LifeHistory(ROOT, trace, self.make_judge())
        self.lives.past = {}
        return self.lives

    # --- who is at work on an id --------------------------------------------------------------------------------

    @asynccontextmanager
    async def using(self, ledger_id: int) -> AsyncIterator[None]:
        """Add to, recover or read a ledger. Without own passwords it is not deleted meanwhile."""
        while ledger_id in self._is_reserved and not self._broken.is_set():
            await self._until_broken(0.01)
        self._users[ledger_id] += 1
        try:
            yield
        finally:
            self._users[ledger_id] -= 1

    async def until_unused(self, ledger_id: int) -> None:
        """Wait until nobody uses the ledger, unless lives have passwords of their own; nobody begins to until
        `release`."""
        if self.plan_of_lives.own_passwords:
            return
        self._is_reserved[ledger_id] = None
        while self._users[ledger_id] and not self.is_mended and not self._broken.is_set():
            await self._until_broken(0.01)

    def release(self, ledger_id: int) -> None:
        self._is_reserved.pop(ledger_id, None)

    # --- bookies collect what was deleted -----------------------------------------------------------------------

    def _deleted(self, host: str, path: str, record: NodeRecord) -> None:
        ledger_id = self.lives.deleted(path, record)
        if ledger_id is None:
            return
        for bookie in self.bookies:
            self._uncollected[ledger_id] += 1
            seconds = self._randoms.expovariate(1.0) * COLLECTED_SECONDS
            self.loop.call_later(seconds, self._collect, bookie, ledger_id)

    def _collect(self, bookie: VirtualBookie, ledger_id: int) -> None:
        """As garbage collection: what is not in the metadata service goes. A ledger that was made again stays, with
        what the bookie has of the life before."""
        self._uncollected[ledger_id] -= 1
        if not self._is_closing and ledger_id not in self.lives.ledgers:
            bookie.collect(ledger_id)

    def is_collected(self, ledger_id: int) -> bool:
        return not self._uncollected[ledger_id]

    # --- actors -------------------------------------------------------------------------------------------------

    def _begin(self, plan: LedgerPlan) -> None:
        lives = self.plan_of_lives
        for number, kind, role in (
            (lives.authors, Author, "writer"),
            (lives.recoverers, LifeRecoverer, "recoverer"),
            (lives.readers, LifeReader, "reader"),
            (lives.deleters, Deleter, "deleter"),
        ):
            for _ in range(number):
                self._add(kind(self, self._name(role), self._random()))

    # --- the end ------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        self._is_closing = True
        try:
            await super().close()
        finally:
            self._patch.stop()

    async def _close(self, closer: VirtualClient, ledger: LedgerHistory) -> bool:
        """A ledger on bookies that have not collected the life before cannot be recovered until they have."""
        await self._until_done(lambda: closer.client.recover(ledger.ledger_id, password=None))
        return not self.history.violations

    async def _judge(self) -> None:
        reader = await self._new_client("last-reader")
        for ledger in self.lives.ledgers.values():
            if ledger.confirmed < 0 or not ledger.metadata.is_closed:
                continue
            checks.ledger_ended(self.history, ledger)
            found = await self._until_done(lambda ledger=ledger: self._payloads(reader, ledger.ledger_id))
            last = ledger.metadata.last_entry_id
            if found != [ledger.payloads.get(entry_id) for entry_id in range(last + 1)]:
                self.history.violated("S6 survival", ledger, f"{found} was read of {ledger.metadata}")

    async def _payloads(self, reader: VirtualClient, ledger_id: int) -> list[bytes]:
        async with reader.client.open(ledger_id, password=None) as handle:
            return [entry.payload async for entry in handle.entries()]

    async def _until_done(self, request: object) -> object:
        """None, if it cannot be done: the judge tells what follows from that."""
        deadline = self.loop.time() + PATIENCE_SECONDS / 4
        while self.loop.time() < deadline:
            try:
                return await request()  # type: ignore[operator]
            except PodkeeperError as error:
                self.trace("last", f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.5)
        return None
