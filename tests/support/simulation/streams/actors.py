"""Who works on streams with the client: writers, publishers, consumers, whoever keeps them short, and whoever deletes
them and makes them anew. Each has a host of its own, and ends once everything is mended."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from contextlib import aclosing, suppress
from random import Random
from typing import TYPE_CHECKING

from bookie_client.streams import StreamPosition, Streams
from bookie_client.streams.model import APPLICATION, STREAM_KEY, PublishedLedger, Txn
from bookie_client.streams.reader import position_after
from bookie_protocol.errors import (
    NoSuchStream,
    PodkeeperError,
    StreamPositionGone,
    StreamTransactionConflict,
)
from tests.support.simulation.actors import PASSWORD, PAUSE_SECONDS, Actor
from tests.support.simulation.streams.judge import StreamJudge, payload_of

if TYPE_CHECKING:
    from tests.support.simulation.streams.world import StreamWorld

PATIENCE = 3.0
"""Seconds for which a writer tries."""


class StreamActor(Actor):
    """Does its work again and again."""

    def __init__(self, world: StreamWorld, name: str, random: Random, stream: str) -> None:
        super().__init__(world, name, world.scenario.ledgers[0], random)
        self._cluster = world
        self._stream = stream
        self._judge: StreamJudge = world.judge

    @property
    def stream(self) -> str:
        return self._stream

    @property
    def streams(self) -> Streams:
        return Streams(self.host.client, password=PASSWORD, clock=self._cluster.loop.time)

    async def _work(self) -> None:
        while not self.over and not self.host.is_dead:
            try:
                await self._once()
            except PodkeeperError as error:
                self.trace(f"{self._stream}: {type(error).__name__}: {error}")
                self._history.count(f"{self.name.partition('-')[0]}: {type(error).__name__}")
            await self._pause()

    @abstractmethod
    async def _once(self) -> None: ...

    async def _pause(self, factor: float = 1.0) -> None:
        await asyncio.sleep(self._random.expovariate(1.0) * PAUSE_SECONDS * factor)


class Appender(StreamActor):
    """Takes the stream over, appends for a while, gives it up."""

    _number = 0

    async def _once(self) -> None:
        async with self.streams.writer(self._stream, patience=PATIENCE) as writer:
            for _ in range(self._random.choice((1, 5, 15))):
                payloads = [self._payload() for _ in range(self._random.choice((1, 1, 3)))]
                futures = [(each, await writer.submit(each)) for each in payloads]
                for payload, future in futures:
                    self._told(payload, await future)
                if self._random.random() < 0.1:
                    await writer.roll_over()
                if self.over:
                    return
                await asyncio.sleep(self._random.expovariate(1.0) * self._cluster.plan_of_streams.append_pause)

    def _payload(self) -> bytes:
        self._number += 1
        return payload_of(self.name, self._number)

    def _told(self, payload: bytes, position: StreamPosition) -> None:
        if not self.host.is_dead:
            self.trace(f"{self._stream}: {position} is acknowledged")
            self._judge.appended(self._stream, position.ledger_id, position.entry_id, payload)


class Publisher(StreamActor):
    """An application that publishes one batch after the other, with a memory that outlives its process. As a Spark
    query does: tasks write ledgers, then the driver publishes them."""

    async def _once(self) -> None:
        application = f"app-{self._stream}"
        number = self._cluster.batches.get(application, 0)
        batch = f"{application}:{number}"
        payloads = [payload_of(application, each, batch) for each in range(1 + number % 4)]
        cut = self._random.randrange(len(payloads) + 1)
        ledgers = [await self._made(part) for part in (payloads[:cut], payloads[cut:]) if part]
        replaces = self._random.random() < self._cluster.plan_of_streams.replaces
        try:
            result = await self.streams.publish(
                self._stream, ledgers, Txn(application, number, len(payloads)), replace=replaces
            )
        except StreamTransactionConflict:
            self._advance(application, number + 1)  # somebody goes on with its work
            return
        if self.host.is_dead:
            return
        self._judge.published(result.manifest, batch, payloads)
        self._advance(application, number + 1)
        for ledger_id in result.unlisted:
            await self.host.client.delete(ledger_id)

    def _advance(self, application: str, number: int) -> None:
        if not self.host.is_dead:
            self._cluster.batches[application] = max(number, self._cluster.batches.get(application, 0))

    async def _made(self, payloads: list[bytes]) -> PublishedLedger:
        of_stream = {"application": APPLICATION.encode(), STREAM_KEY: self._stream.encode()}
        async with self.host.client.create(
            ensemble=2,
            write_quorum=2,
            ack_quorum=2,
            password=PASSWORD,
            metadata=of_stream if self._random.random() < 0.6 else {},
        ) as writer:
            await writer.append_many(payloads)
        return PublishedLedger(writer.ledger_id, len(payloads), sum(map(len, payloads)))


class Consumer(StreamActor):
    """Reads on from where its cursor is, and moves it. Every consumer of a stream has the same cursor, or one of its
    own."""

    _position: StreamPosition | None = None

    async def _once(self) -> None:
        cursor = "shared" if self._random.random() < self._cluster.plan_of_streams.shared else self.name
        start = self._position
        if start is None or self._random.random() < 0.2:
            start = (await self.streams.manifest(self._stream)).earliest
            self._position = start
        try:
            lingers = self._random.random() < self._cluster.plan_of_streams.lingers
            if lingers or self._random.random() < 0.5:
                await self._move(cursor, start)
            if not lingers:
                self._position = await self._read_from(start)
                await self._move(cursor, self._position)
        except StreamPositionGone:
            self._position = None
        if self._random.random() < self._cluster.plan_of_streams.forgets:
            await self._forget(cursor)

    async def _read_from(self, start: StreamPosition) -> StreamPosition:
        position, last = start, None
        async with aclosing(self.streams.reader(self._stream).batches(start)) as batches:
            async for batch in batches:
                for entry in batch:
                    self._judge.read(self.name, entry.ledger_id, entry.entry_id, entry.payload)
                    first = 0 if last is None or last.ledger_id != entry.ledger_id else last.entry_id + 1
                    if last is not None and entry.entry_id != first:
                        what = f"{self.name}: {entry.entry_id} follows {last.entry_id} of ledger {last.ledger_id}"
                        self._history.violated("T7 readers", None, what)
                    last = entry
                    position = position_after(entry)
                if self._random.random() < 0.1:
                    break
        return position

    async def _move(self, cursor: str, position: StreamPosition) -> None:
        stream = self._judge.of(position.ledger_id)
        stored = await self.streams.move_cursor(self._stream, cursor, position)
        if self.host.is_dead or stored.position != position:
            return  # another one is farther, or of another stream of this name
        if stream is not None and stream.name == self._stream:
            self.trace(f"{self._stream}: cursor {cursor} counts at {stored.ordinal}")
            self._judge.moved(self.host.host, stream, cursor, stored.ordinal)

    async def _forget(self, cursor: str) -> None:
        with self._judge.forgetting(self._stream, cursor):
            await self.streams.delete_cursor(self._stream, cursor)


class Keeper(StreamActor):
    """Applies retention, or truncates what every cursor has passed."""

    async def _once(self) -> None:
        if self._random.random() < 0.7:
            await self.streams.apply_retention(self._stream)
            return
        manifest = await self.streams.manifest(self._stream)
        if manifest.closed:
            ledger = self._random.choice(manifest.closed)
            entry = self._random.choice((0, ledger.entries or 0))
            await self._pause()
            await self.streams.truncate(self._stream, StreamPosition(ledger.ledger_id, entry))


class Recreator(StreamActor):
    """Deletes the stream now and then, and makes another one of the name."""

    async def _work(self) -> None:
        while not self.over and not self.host.is_dead:
            await asyncio.sleep(self._random.expovariate(1.0) * self._cluster.plan_of_streams.recreate_every)
            if self.over:
                return
            try:
                await self._once()
            except PodkeeperError as error:
                self.trace(f"{self._stream}: {type(error).__name__}: {error}")

    async def _once(self) -> None:
        with suppress(NoSuchStream):
            await self.streams.delete(self._stream, force=True)
        await self.streams.create(self._stream, self._cluster.plan_of_streams.settings, if_absent=True)
