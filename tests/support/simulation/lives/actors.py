"""Who works on ids that are used again. Each has a host of its own, and ends once everything is mended."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

from bookie_client.access import access_to
from bookie_client.recovery.recovery import recover_ledger
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import (
    LedgerFenced,
    MetadataExists,
    MetadataNotFound,
    NotThere,
    PodkeeperError,
    Unauthorized,
)
from tests.support.simulation import checks
from tests.support.simulation.actors import PASSWORD, Actor
from tests.support.simulation.history import LedgerHistory

if TYPE_CHECKING:
    from tests.support.simulation.lives.world import LivesWorld


class LifeActor(Actor):
    """Does its work again and again."""

    def __init__(self, world: LivesWorld, name: str, random: Random) -> None:
        super().__init__(world, name, world.scenario.ledgers[0], random)
        self._cluster = world
        self._lives = world.lives
        self._plan_of_lives = world.plan_of_lives

    async def _work(self) -> None:
        while not self.over and not self.host.is_dead:
            try:
                await self._once(self._random.choice(self._plan_of_lives.ids))
            except PodkeeperError as error:
                self.trace(f"{type(error).__name__}: {error}")
                self._history.count(f"{self.name.partition('-')[0]}: {type(error).__name__}")
            await asyncio.sleep(self._random.expovariate(1.0) * self._mean_pause)

    _mean_pause = 0.1

    @abstractmethod
    async def _once(self, ledger_id: int) -> None: ...


class Author(LifeActor):
    """Creates a ledger under one of the ids, fills it, and closes it later, or never."""

    def __init__(self, world: LivesWorld, name: str, random: Random) -> None:
        super().__init__(world, name, random)
        self._closing: list[asyncio.Task[None]] = []

    async def _work(self) -> None:
        try:
            await super()._work()
            await asyncio.gather(*self._closing)
        finally:
            for task in self._closing:
                task.cancel()

    async def _once(self, ledger_id: int) -> None:
        plan = self._plan_of_lives
        waits = not plan.own_passwords or self._random.random() < plan.patience
        if ledger_id in self._lives.ledgers or (waits and not self._cluster.is_collected(ledger_id)):
            return
        async with self._cluster.using(ledger_id):
            handle = await self._create(ledger_id)
            if handle is None:
                return
            ledger = self._lives.life(handle.metadata)
            if ledger is None:
                self._history.violated("I1 one life", None, f"{self.name} was given ledger {ledger_id}, another's")
                return
            if self._lives.past.get(ledger_id):
                self._history.count("id used again")
            with suppress(PodkeeperError):
                await self._fill(handle, ledger)
        if self._random.random() < 0.85:
            pause = self._random.expovariate(1.0) * plan.lingers
            self._closing.append(asyncio.create_task(self._close(handle, ledger, pause), name=f"{self.name} closes"))

    async def _create(self, ledger_id: int) -> Any:
        ensemble, write, ack = self._world.scenario.quorums
        own = self._plan_of_lives.own_passwords
        password = b"%d" % self._random.getrandbits(32) if own else PASSWORD
        self._cluster.passwords.setdefault(ledger_id, []).append(password)
        try:
            return await self.host.client.create(
                ledger_id=ledger_id,
                ensemble=ensemble,
                write_quorum=write,
                ack_quorum=ack,
                password=password,
                digest=DigestType.MAC if own else DigestType.CRC32C,
            )
        except MetadataExists:
            return None

    async def _fill(self, handle: Any, ledger: LedgerHistory) -> None:
        name = ledger.metadata.creation_token
        for number in range(1 + int(self._random.random() * self._plan_of_lives.entries)):
            payload = b"|%d/%d/%d" % (ledger.ledger_id, name, number)
            self._history.appends(ledger, number, payload)
            self._watch(ledger, await handle.submit(payload), number)
            await asyncio.sleep(self._random.expovariate(1.0) * 0.02)
        await handle.flush()

    def _watch(self, ledger: LedgerHistory, future: asyncio.Future[int], number: int) -> None:
        def ended(done: asyncio.Future[int]) -> None:
            if self.host.is_dead or done.cancelled() or not self._lives.is_living(ledger):
                return
            error = done.exception()
            if error is not None:
                ledger.writer_failed = True
                self._history.count(f"append: {type(error).__name__}")
                return
            self._history.count("acknowledged" if not self._lives.past.get(ledger.ledger_id) else "acknowledged again")
            checks.acknowledged(self._history, ledger, number)
            self._history.on_event("acknowledged", self.host.host)

        future.add_done_callback(ended)

    async def _close(self, handle: Any, ledger: LedgerHistory, pause: float) -> None:
        await asyncio.sleep(pause)
        was_living = self._lives.is_living(ledger)
        try:
            await handle.close()
        except PodkeeperError as error:
            self._history.count(f"close: {type(error).__name__}")
            self.trace(f"ledger {ledger.ledger_id}: not closed: {error}")
            return
        if self._lives.is_living(ledger):
            self._history.count("closed")
            checks.writer_closed(self._history, ledger, handle.last_add_confirmed, handle.length)
        elif not was_living:
            self._history.violated("I1 one life", ledger, "its writer closed it long after it was deleted")


class LifeRecoverer(LifeActor):
    """Recovers a ledger that it looked at a while ago, by its password or by that of another life."""

    _mean_pause = 0.3

    async def _once(self, ledger_id: int) -> None:
        if ledger_id not in self._lives.ledgers:
            return
        async with self._cluster.using(ledger_id):
            client = self.host.client
            stored = await client.stored_metadata(ledger_id)
            passwords = self._cluster.passwords[ledger_id]
            password = self._random.choice((None, stored.value.password, self._random.choice(passwords)))
            if self._plan_of_lives.own_passwords:
                await asyncio.sleep(self._random.expovariate(1.0) * 0.2)
            with suppress(Unauthorized):
                done = (await recover_ledger(client.context, stored, access_to(stored.value, password, None))).value  # type: ignore[arg-type]
                ledger = self._lives.ledgers.get(ledger_id)
                self._history.count("recovered")
                if ledger is not None and ledger.metadata.creation_token == done.creation_token:
                    now = ledger.metadata
                    if (now.last_entry_id, now.length) != (done.last_entry_id, done.length):
                        self._history.violated("S2 one end", ledger, f"{self.name} says {done}, stored is {now}")
                elif ledger is not None and stored.value.creation_token != done.creation_token:
                    self._history.violated("I1 one life", ledger, f"{self.name} recovered another life than it read")


class LifeReader(LifeActor):
    """Opens a ledger, waits, and reads: what it is given as this ledger's is this life's."""

    async def _once(self, ledger_id: int) -> None:
        async with self._cluster.using(ledger_id), self.host.client.open(ledger_id, password=None) as handle:
            ledger = self._lives.life(handle.metadata)
            if self._plan_of_lives.own_passwords:
                await asyncio.sleep(self._random.expovariate(1.0) * 0.3)
            with suppress(NotThere, LedgerFenced):
                entries = await handle.read(0, handle.last_add_confirmed)
                if ledger is None or not self._lives.is_living(ledger):
                    return
                for entry in entries:
                    if ledger.payloads.get(entry.entry_id) != entry.payload:
                        self._history.violated(
                            "S8 content",
                            ledger,
                            f"{self.name} was given another payload for entry {entry.entry_id}",
                        )
                self._history.count("entries read", len(entries))


class Deleter(LifeActor):
    """Deletes a ledger, whoever works on it."""

    async def _work(self) -> None:
        self._mean_pause = self._plan_of_lives.delete_every
        await super()._work()

    async def _once(self, ledger_id: int) -> None:
        if ledger_id not in self._lives.ledgers:
            return
        await self._cluster.until_unused(ledger_id)
        try:
            with suppress(MetadataNotFound):
                await self.host.client.delete(ledger_id)
        finally:
            self._cluster.release(ledger_id)
