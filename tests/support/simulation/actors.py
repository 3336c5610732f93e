"""Who works on a ledger: its writer, readers, tailing readers, recoverers. Each has a client host of its own.

Every actor ends by itself once the cluster is whole again; one that does not is a breach. What they are told is
judged at once.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator
from random import Random
from typing import TYPE_CHECKING, Any

from bookie_client.reading.handle import LedgerReader
from bookie_protocol.errors import (
    BadRequest,
    LedgerNotClosed,
    MetadataExists,
    MetadataNotFound,
    MetadataUnavailable,
    MetadataVersionConflict,
    NotEnoughBookies,
    PodkeeperError,
)
from tests.support.simulation import checks
from tests.support.simulation.client import VirtualClient
from tests.support.simulation.history import History, LedgerHistory
from tests.support.simulation.scenario import LedgerPlan

if TYPE_CHECKING:
    from tests.support.simulation.world import World

PASSWORD = b"simulated"
PAUSE_SECONDS = 0.1


class Actor(ABC):
    """`finished` once it ended by itself or was killed."""

    def __init__(self, world: World, name: str, plan: LedgerPlan, random: Random) -> None:
        self.name = name
        self._world = world
        self._history: History = world.history
        self._plan = plan
        self._random = random
        self.host: VirtualClient = world.add_client(name)
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.task = asyncio.get_running_loop().create_task(self._run(), name=self.name)
        self.host.on_kill.append(self.task.cancel)

    @property
    def finished(self) -> bool:
        return self.task is not None and self.task.done()

    async def _run(self) -> None:
        await self.host.start()
        await self._work()
        self.trace("is done")

    @abstractmethod
    async def _work(self) -> None: ...

    def trace(self, what: str) -> None:
        self._world.trace(self.name, what)

    @property
    def over(self) -> bool:
        """Everything is mended: come to an end."""
        return self._world.is_mended


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
        ledger.payloads[number] = payload
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


class _OnLedger(Actor):
    """Begins when the ledger exists."""

    def __init__(
        self, world: World, name: str, plan: LedgerPlan, random: Random, ledger: asyncio.Future[LedgerHistory]
    ) -> None:
        super().__init__(world, name, plan, random)
        self._awaited = ledger

    async def _work(self) -> None:
        await self._on(await asyncio.shield(self._awaited))

    @abstractmethod
    async def _on(self, ledger: LedgerHistory) -> None: ...

    async def _pause(self, factor: float = 1.0) -> None:
        await asyncio.sleep(PAUSE_SECONDS * factor * (0.5 + self._random.random()))


class Reader(_OnLedger):
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


class Tailer(_OnLedger):
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


class Recoverer(_OnLedger):
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
