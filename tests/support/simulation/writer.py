"""The writer of a ledger: creates it, fills it in one of several ways, closes it or just stops."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

from bookie_protocol.errors import (
    BadRequest,
    MetadataExists,
    MetadataUnavailable,
    MetadataVersionConflict,
    NotEnoughBookies,
    PodkeeperError,
)
from tests.support.simulation import checks
from tests.support.simulation.actors import PASSWORD, PAUSE_SECONDS, Actor
from tests.support.simulation.history import LedgerHistory
from tests.support.simulation.scenario import LedgerPlan

if TYPE_CHECKING:
    from tests.support.simulation.world import World


class Writer(Actor):
    """Creates the ledger and fills it."""

    def __init__(self, world: World, name: str, plan: LedgerPlan, random: Random) -> None:
        super().__init__(world, name, plan, random)
        self.ledger: asyncio.Future[LedgerHistory] = asyncio.get_running_loop().create_future()
        self._handle: Any = None
        self._appended = 0

    async def _run(self) -> None:
        try:
            await super()._run()
        finally:
            # Whoever waits for a ledger that will never be made.
            self.ledger.cancel()

    async def _work(self) -> None:
        await asyncio.sleep(self._plan.start)
        handle = self._handle = await self._create()
        ledger = self._history.ledgers[handle.ledger_id]
        ledger.deferred_sync, ledger.bulk = self._plan.kind == "deferred", self._plan.kind == "bulk"
        ledger.writer_lac = lambda: int(handle.last_add_confirmed)
        self.ledger.set_result(ledger)
        try:
            await self._append_all(ledger)
        except PodkeeperError as error:
            self.trace(f"stops: {type(error).__name__}: {error}")
        if self._plan.closes:
            await self._close(ledger)

    async def _create(self) -> Any:
        ensemble, write, ack = self._world.scenario.quorums
        client = self.host.client
        create = client.create_advanced if self._plan.kind == "advanced" else client.create
        deferred = self._plan.kind == "deferred"
        while True:
            try:
                return await create(
                    ensemble=ensemble,
                    write_quorum=write,
                    ack_quorum=ack,
                    password=PASSWORD,
                    digest=self._plan.digest,
                    deferred_sync=deferred,
                )
            except (NotEnoughBookies, MetadataUnavailable, MetadataExists) as error:
                self.trace(f"cannot create a ledger: {error}")
                await asyncio.sleep(PAUSE_SECONDS)

    # --- appending ------------------------------------------------------------------------------------------

    async def _append_all(self, ledger: LedgerHistory) -> None:
        plan = self._plan
        if plan.kind == "bulk":
            await self._append_bulks(ledger)
        elif plan.kind == "advanced":
            await self._append_shuffled(ledger)
        else:
            for number in range(plan.entries):
                self._watch(ledger, await self._handle.submit(self._payload(ledger, number)), number)
                await self._breathe()
                if self._random.random() < 0.05:
                    await self._read_own(ledger)
                if plan.kind == "deferred" and number % plan.force_every == plan.force_every - 1:
                    await self._force(ledger)
        await self._handle.flush()
        self.trace(f"appended {plan.entries} entries")

    async def _append_bulks(self, ledger: LedgerHistory) -> None:
        number = 0
        while number < self._plan.entries:
            size = min(self._plan.entries - number, 1 + int(self._random.random() * 10))
            bulk = [self._payload(ledger, number + i) for i in range(size)]
            future = await self._handle.submit_many(bulk)
            self._watch_bulk(ledger, future)
            number += size
            await self._breathe()

    async def _append_shuffled(self, ledger: LedgerHistory) -> None:
        """In an order of which each entry is at most a few places away from its own."""
        window = min(4, self._world.scenario.client.write_window_entries)
        order = sorted(range(self._plan.entries), key=lambda number: number + self._random.random() * window)
        for number in order:
            self._watch(ledger, await self._handle.submit(number, self._payload(ledger, number)), number)
            await self._breathe()

    async def _breathe(self) -> None:
        if self._plan.pause:
            await asyncio.sleep(self._random.expovariate(1.0) * self._plan.pause)

    def _payload(self, ledger: LedgerHistory, number: int) -> bytes:
        filler = b"." * int(self._random.random() * self._plan.payload)
        payload = filler + b"|%d/%d" % (ledger.ledger_id, number)
        self._history.appends(ledger, number, payload)
        return payload

    def _watch(self, ledger: LedgerHistory, future: asyncio.Future[int], number: int) -> None:
        self._appended += 1

        def ended(done: asyncio.Future[int]) -> None:
            if self.host.is_dead:
                return
            error = done.exception()
            if error is not None:
                self._failed(ledger, number, error)
                return
            if done.result() != number:
                self._history.violated("A order", ledger, f"append number {number} got the id {done.result()}")
            self._acknowledged(ledger, number)

        future.add_done_callback(ended)

    def _watch_bulk(self, ledger: LedgerHistory, future: asyncio.Future[list[int]]) -> None:
        def ended(done: asyncio.Future[list[int]]) -> None:
            if self.host.is_dead:
                return
            error = done.exception()
            if error is not None:
                self._failed(ledger, -1, error)
                return
            for number in done.result():
                self._acknowledged(ledger, number)

        future.add_done_callback(ended)

    def _acknowledged(self, ledger: LedgerHistory, number: int) -> None:
        self.trace(f"ledger {ledger.ledger_id}: entry {number} is acknowledged")
        self._history.count("acknowledged")
        checks.acknowledged(self._history, ledger, number)
        self._history.on_event("acknowledged", self.host.host)

    def _failed(self, ledger: LedgerHistory, number: int, error: BaseException) -> None:
        ledger.writer_failed = True
        self.trace(f"ledger {ledger.ledger_id}: append of {number} failed: {error}")
        self._history.count(f"append {type(error).__name__}")
        if not isinstance(error, PodkeeperError) or isinstance(error, BadRequest):
            self._history.violated("A order", ledger, f"an append ended with {error!r}")

    async def _read_own(self, ledger: LedgerHistory) -> None:
        """The writer reads what is confirmed."""
        view = checks.ReaderView(self._history, ledger, self.name)
        view.lac(self._handle.last_add_confirmed)
        try:
            async for entry in self._handle.entries():
                view.entry(entry.entry_id, entry.payload)
        except PodkeeperError as error:
            self.trace(f"ledger {ledger.ledger_id}: cannot read its own: {error}")

    async def _force(self, ledger: LedgerHistory) -> None:
        delivered = len(ledger.acked) - 1
        try:
            await self._handle.force()
        except PodkeeperError as error:
            self.trace(f"ledger {ledger.ledger_id}: force failed: {error}")
            await asyncio.sleep(PAUSE_SECONDS)
            return
        if self._handle.last_add_confirmed < delivered:
            self._history.violated(
                "S7 order", ledger, f"a force up to {delivered} led to {self._handle.last_add_confirmed}"
            )
        self.trace(f"ledger {ledger.ledger_id}: forced up to {self._handle.last_add_confirmed}")
        checks.confirmed(self._history, ledger, self._handle.last_add_confirmed)

    # --- the end --------------------------------------------------------------------------------------------

    async def _close(self, ledger: LedgerHistory) -> None:
        if ledger.deferred_sync and self._handle.failure is None:
            await self._force(ledger)
        while True:
            try:
                await self._handle.close()
            except MetadataVersionConflict as error:
                self.trace(f"ledger {ledger.ledger_id}: closed by somebody else: {error}")
                return
            except MetadataUnavailable as error:
                # The handle cannot try again; whoever opens the ledger next closes it.
                self.trace(f"ledger {ledger.ledger_id}: not closed: {error}")
                return
            else:
                break
        self.trace(f"ledger {ledger.ledger_id}: closed at {self._handle.last_add_confirmed}")
        self._history.count("closed by the writer")
        checks.writer_closed(self._history, ledger, self._handle.last_add_confirmed, self._handle.length)
