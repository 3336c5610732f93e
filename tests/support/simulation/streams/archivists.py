"""Who moves ledgers between the cluster and an archive, removes what nobody owns, and uses numbers again: the code of
Spark's jobs, on a thread in step with the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from bookie_client.blocking import BlockingClient
from bookie_client.streams.model import PublishedLedger
from bookie_protocol.errors import NotThere
from pyspark_bookie.archive.reading import archived_ledgers
from pyspark_bookie.common.throttle import Throttle
from pyspark_bookie.jobs.offload.deletion import Deleter, DeletionSettings
from pyspark_bookie.jobs.offload.machine import Offloader, OffloadSettings
from pyspark_bookie.jobs.orphans import SINK_ATTEMPTS, STREAM_LEDGERS, Search, search_ledgers
from pyspark_bookie.jobs.replicas.units import Slice, Unit
from pyspark_bookie.jobs.transfer.machine import Transferrer, TransferSettings
from pyspark_bookie.jobs.transfer.record import TransferRecord
from pyspark_bookie.jobs.transfer.sources import _OpenArchives
from tests.support.simulation.actors import PASSWORD
from tests.support.simulation.streams.actors import StreamActor
from tests.support.simulation.streams.judge import payload_of
from tests.support.simulation.streams.stepping import StepClient, StepFiles, Steps

if TYPE_CHECKING:
    from tests.support.simulation.streams.world import StreamWorld

T = TypeVar("T")

REUSED: Final = 1_000_000
"""The first number that is used again."""


class Archivist(StreamActor):
    """Runs programs."""

    def __init__(self, world: StreamWorld, name: str, random: Random, stream: str) -> None:
        super().__init__(world, name, random, stream)
        self._steps = Steps()
        self._files = StepFiles(
            world.target,
            self._steps,
            random,
            world.plan_of_streams.file_seconds,
            lambda: self._history.on_event("file", self.host.host),
        )

    @property
    def _client(self) -> BlockingClient:
        return cast("BlockingClient", StepClient(self.host.client, self._steps))

    async def _run_program(self, program: Callable[[], T]) -> T | None:
        """What a job tells of a piece of work is no fault of the job."""
        try:
            return await self._steps.run(program)
        except OSError as error:
            self.trace(f"{type(error).__name__}: {error}")
            return None

    def _uuid(self) -> str:
        return f"{self._random.getrandbits(128):032x}"


class OffloadActor(Archivist):
    """Offloads closed ledgers, and takes them out of the cluster."""

    async def _once(self) -> None:
        known = [each.ledger_id for lives in self._judge.ledgers.values() for each in lives[-1:] if each.is_there]
        if known:
            ledger_id = self._random.choice(known)
            await self._run_program(lambda: self._offload(ledger_id))

    def _offload(self, ledger_id: int) -> None:
        plan, target = self._cluster.plan_of_streams, self._cluster.target
        offloader = Offloader(
            self._client,
            self._files,
            OffloadSettings(target),
            PASSWORD,
            Throttle(None),
            instance_id="simulated",
            new_uuid=self._uuid,
            clock=self._cluster.loop.time,
        )
        fate, _ = offloader.offload(ledger_id)
        self.trace(f"ledger {ledger_id}: {fate.value}")
        deleter = Deleter(
            self._client,
            self._files,
            DeletionSettings(target, plan.delete_after, plan.keep_listed),
            Throttle(None),
            ledger_ids=[ledger_id],
            clock=self._cluster.loop.time,
        )
        going = deleter.delete(ledger_id)
        self.trace(f"ledger {ledger_id}: {going.value}")
        self._history.count(f"offload: {going.value}")


class Restorer(Archivist):
    """Brings archived ledgers back: for everybody, or into a stream of its own. Sometimes it tries to give that a
    ledger which another stream has."""

    async def _once(self) -> None:
        if self._random.random() < 0.2:
            await self._steal()
            return
        found = await self._run_program(lambda: archived_ledgers(self._files))
        if not found:
            return
        ledger_id = self._random.choice(list(found))
        uuid = self._random.choice([each for each in found[ledger_id] if each] or [""])
        keeps = self._random.random() < 0.4
        record = await self._run_program(lambda: self._transfer(ledger_id, uuid, keeps=keeps))
        if record is None or record.counts is None or keeps:
            return
        counts = record.counts
        self._judge.transferred(record.target_id)
        plan = self._cluster.plan_of_streams
        if plan.lingers and self._random.random() < plan.lingers:
            await asyncio.sleep(2 * plan.older_than)  # as if this were one ledger of many
        await self.streams.publish(self._stream, [PublishedLedger(record.target_id, counts.entries, counts.nbytes)])
        self._history.count("restored into a stream")

    def _transfer(self, ledger_id: int, uuid: str, *, keeps: bool) -> TransferRecord | None:
        name = "for-everybody" if keeps else self._stream
        transferrer = Transferrer(
            self._client,
            _OpenArchives([self._files], Throttle(None)),
            TransferSettings(name, keeps, None if keeps else self._stream, password_file=self._cluster.password_file),
            new_uuid=self._uuid,
        )
        fate, record = transferrer.transfer(ledger_id, uuid, uuid)
        self.trace(f"ledger {ledger_id}: {fate.value}")
        self._history.count(f"restore: {fate.value}")
        return record

    async def _steal(self) -> None:
        others = [stream for stream in self._judge.living() if stream.name != self._stream and stream.manifest.closed]
        if others:
            ledger = self._random.choice(self._random.choice(others).manifest.closed)
            given = PublishedLedger(ledger.ledger_id, ledger.entries or 0, ledger.nbytes or 0)
            await self.streams.publish(self._stream, [given])


class Sweeper(StreamActor):
    """Removes ledgers that no stream lists."""

    async def _once(self) -> None:
        known = [each.ledger_id for lives in self._judge.ledgers.values() for each in lives[-1:] if each.is_there]
        chosen = sorted(self._random.sample(known, min(len(known), 10)))
        before_ms = int((self._cluster.loop.time() - self._cluster.plan_of_streams.older_than) * 1000)
        search = Search(frozenset({SINK_ATTEMPTS, STREAM_LEDGERS}), before_ms, True, "/managed-ledgers")
        unit = Unit(0, tuple(Slice(ledger_id, 0, None, 0) for ledger_id in chosen))
        found = await search_ledgers(self.host.client, search, unit)
        for orphan in found.orphans:
            self.trace(f"orphan {orphan}")


class Reuser(StreamActor):
    """An application that chooses numbers, and uses them again for ledgers of the same size with another content. What
    a dead process left open stays: nobody can tell whether its adds are still under way."""

    _made = 0

    async def _once(self) -> None:
        ledger_id = REUSED + self._random.randrange(4)
        client = self.host.client
        try:
            stored = await client.stored_metadata(ledger_id)
        except NotThere:
            if self._cluster.is_collected(ledger_id):
                await self._make(ledger_id)
            return
        if stored.value.is_closed and self._random.random() < 0.3:
            await client.metadata_service.ledgers.delete_this(stored)

    async def _make(self, ledger_id: int) -> None:
        self._made += 1
        options: dict[str, Any] = {"ensemble": 2, "write_quorum": 2, "ack_quorum": 2, "password": PASSWORD}
        async with self.host.client.create(ledger_id=ledger_id, **options) as writer:
            await writer.append_many([payload_of(self.name, 10_000 + self._made)] * 2)
        self._history.count("a number used again")
