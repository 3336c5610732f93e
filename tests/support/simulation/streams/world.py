"""One run with streams: the cluster, those who work on streams, and the verdict."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable
from random import Random
from typing import Final
from unittest import mock

from bookie_client.streams import Streams, owner, store
from bookie_client.streams.model import PublishedLedger
from bookie_protocol.errors import NoSuchLedger, NoSuchStream, PodkeeperError
from pyspark_bookie.archive.files import Files
from pyspark_bookie.archive.reading import archived_ledgers, read_manifest, read_payloads
from pyspark_bookie.common.throttle import Throttle
from tests.support.simulation.actors import PASSWORD, Actor
from tests.support.simulation.bookie import ROOT
from tests.support.simulation.client import VirtualClient
from tests.support.simulation.clock import VirtualLoop
from tests.support.simulation.nodes import NodeRecord
from tests.support.simulation.scenario import LedgerPlan, Scenario
from tests.support.simulation.streams.actors import (
    Appender,
    Consumer,
    Keeper,
    Publisher,
    Recreator,
    StreamActor,
)
from tests.support.simulation.streams.archivists import OffloadActor, Restorer, Reuser, Sweeper
from tests.support.simulation.streams.faults import StreamFaults
from tests.support.simulation.streams.judge import Stream, StreamJudge, payload_of
from tests.support.simulation.streams.plan import StreamPlan
from tests.support.simulation.trace import Trace
from tests.support.simulation.world import PATIENCE_SECONDS, World

ROLES: Final[dict[str, type[StreamActor]]] = {
    "appender": Appender,
    "publisher": Publisher,
    "consumer": Consumer,
    "keeper": Keeper,
    "recreator": Recreator,
    "offloader": OffloadActor,
    "restorer": Restorer,
    "sweeper": Sweeper,
    "reuser": Reuser,
}
COLLECTED_SECONDS: Final = 0.5


class StreamWorld(World):
    """As `World`, with streams instead of single ledgers."""

    judge: StreamJudge

    def __init__(self, scenario: Scenario, loop: VirtualLoop, trace: Trace) -> None:
        assert scenario.streams is not None
        self.plan_of_streams: StreamPlan = scenario.streams
        self.is_closing = False
        self.batches: dict[str, int] = {}
        """What each application publishes next: its checkpoint."""
        self._folder = tempfile.mkdtemp(prefix="simulated-archive-")
        self.target = f"file://{self._folder}/archive"
        self.password_file = f"{self._folder}/password"
        with open(self.password_file, "wb") as file:
            file.write(PASSWORD)
        super().__init__(scenario, loop, trace)
        self.judge.history = self.history
        self.judge.archived = self._archived
        self.metadata.on_write = self._written
        self.metadata.on_delete = self._deleted
        self.metadata.on_list = self.judge.listed
        self._uncollected: dict[int, int] = {}
        self._patches = self._seeded(self._random())

    def make_judge(self) -> StreamJudge:
        self.judge = StreamJudge(ROOT, self.loop.time)
        return self.judge

    def make_faults(self, random: Random) -> StreamFaults:
        return StreamFaults(self, random)

    def _seeded(self, random: Random) -> list[mock._patch[object]]:
        """Names and pauses that are drawn by chance are the same in each run of a seed."""
        tokens = mock.Mock(token_hex=lambda nbytes: f"{random.getrandbits(8 * nbytes):0{2 * nbytes}x}")
        patches: list[mock._patch[object]] = [
            mock.patch.object(owner, "secrets", tokens),
            mock.patch.object(store, "secrets", tokens),
            mock.patch.object(store, "random", random),
        ]
        for patch in patches:
            patch.start()
        return patches

    def _written(self, host: str, path: str, data: bytes, version: int) -> None:
        record = self.metadata.nodes.require(path)
        self.judge.written(host, path, data, version, record.stat.identity())
        self.history.metadata_written(host, path, data, version)

    # --- bookies collect what was deleted -----------------------------------------------------------------------

    def _deleted(self, host: str, path: str, record: NodeRecord) -> None:
        self.judge.deleted(host, path, record)
        ledger_id = self.judge.ledger_at(path)
        if ledger_id is None:
            return
        self._uncollected[ledger_id] = len(self.bookies)
        for bookie in self.bookies:
            seconds = self._randoms.expovariate(1.0) * COLLECTED_SECONDS
            self.loop.call_later(seconds, self._collect, bookie, ledger_id)

    def _collect(self, bookie: object, ledger_id: int) -> None:
        ledger = self.judge.ledger(ledger_id)
        if ledger is None or ledger.is_there or self.is_closing:
            return
        for each in self.bookies:
            if each is bookie:
                each.collect(ledger_id)
                self._uncollected[ledger_id] -= 1

    def is_collected(self, ledger_id: int) -> bool:
        """Whether no bookie has anything of a ledger that was deleted."""
        return not self._uncollected.get(ledger_id)

    # --- actors -------------------------------------------------------------------------------------------------

    def _begin(self, plan: LedgerPlan) -> None:
        streams = self.plan_of_streams
        appended = [f"appended-{number}" for number in range(streams.appended)]
        published = [f"published-{number}" for number in range(streams.published)]
        for role, number in streams.actors.items():
            among = {"appender": appended, "publisher": published, "restorer": ["restored-0"]}.get(
                role, appended + published
            )
            for each in range(number):
                self._add_actor(role, among[each % len(among)])

    def _add_actor(self, role: str, stream: str) -> None:
        self._add(ROLES[role](self, self._name(role), self._random(), stream))

    def follow(self, actor: Actor) -> None:
        """Another process does what a dead one did."""
        assert isinstance(actor, StreamActor)
        self._add_actor(actor.name.partition("-")[0], actor.stream)

    async def _set_up(self) -> None:
        await super()._set_up()
        maker = await self._new_client("maker")
        streams, settings = self._streams(maker), self.plan_of_streams.settings
        for name in self._names():
            await self._until_done(lambda name=name: streams.create(name, settings, if_absent=True))  # type: ignore[misc]

    def _names(self) -> list[str]:
        plan = self.plan_of_streams
        appended = [f"appended-{number}" for number in range(plan.appended)]
        return [*appended, *(f"published-{number}" for number in range(plan.published)), "restored-0"]

    def _streams(self, client: VirtualClient) -> Streams:
        return Streams(client.client, password=PASSWORD, clock=self.loop.time)

    # --- the end ------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        self.is_closing = True
        try:
            await super().close()
        finally:
            for patch in self._patches:
                patch.stop()
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _all_ended(self) -> bool:
        return await self._ended(self._ending())

    async def _judge(self) -> None:
        last = await self._new_client("last")
        streams = self._streams(last)
        for name in self._names():
            stream = self.judge.stream(name)
            if stream is None or stream.manifest.is_deleting:
                continue
            try:
                await self._until_done(lambda name=name: streams.seal(name))  # type: ignore[misc]
                if name.startswith("published"):
                    await self._publish_once_more(last, streams, name)
                read = await self._read_stream(last, stream)
            except NoSuchStream as error:
                self.history.violated("T2 loss", None, f"{name}: {error}")
                continue
            self.judge.ended(stream, read)
        self.judge.archive_ended()

    async def _publish_once_more(self, client: VirtualClient, streams: Streams, name: str) -> None:
        await asyncio.sleep(self.plan_of_streams.settings.deletion_lag_seconds + 2.0)
        payload = payload_of("last", 0, f"{name}:last")
        async with client.client.create(ensemble=2, write_quorum=2, ack_quorum=2, password=PASSWORD) as writer:
            await writer.append(payload)
        given = [PublishedLedger(writer.ledger_id, 1, len(payload))]
        await self._until_done(lambda: streams.publish(name, given))
        stream = self.judge.stream(name)
        if stream is not None:
            self.judge.swept(stream)

    async def _read_stream(self, client: VirtualClient, stream: Stream) -> dict[int, list[bytes]]:
        """Each ledger of the list, from the cluster or, where it is not there, from the archive."""
        read: dict[int, list[bytes]] = {}
        for each in stream.manifest.ledgers:
            entries = each.entries or 0
            try:
                handle = await self._until_done(lambda each=each: client.client.open(each.ledger_id, password=PASSWORD))  # type: ignore[misc]
                if handle.is_closed:
                    read[each.ledger_id] = [entry.payload for entry in await handle.read(0, entries - 1)]
                await handle.close()
            except NoSuchLedger:
                pass
            if each.ledger_id not in read:
                expected = stream.listed[each.ledger_id].payloads(entries)
                found = [one for one in self._archived(each.ledger_id) if one == expected]
                read[each.ledger_id] = found[0] if found else []
        return read

    async def _until_done(self, request: Callable[[], object]) -> object:
        deadline = self.loop.time() + PATIENCE_SECONDS
        while True:
            try:
                return await request()  # type: ignore[misc]
            except (NoSuchStream, NoSuchLedger):
                raise
            except PodkeeperError as error:
                if self.loop.time() > deadline:
                    raise
                self.trace("last", f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.5)

    def _archived(self, ledger_id: int) -> list[list[bytes]]:
        """The payloads of all attempts that have a manifest."""
        if not os.path.isdir(f"{self._folder}/archive"):
            return []
        files = Files(self.target, "the archive")
        found: list[list[bytes]] = []
        for uuid in archived_ledgers(files).get(ledger_id, []):
            manifest = None if uuid is None else read_manifest(files, ledger_id, uuid)
            if manifest is not None:
                try:
                    batches = list(read_payloads(files, ledger_id, manifest.files, Throttle(None)))
                except (PodkeeperError, OSError) as error:
                    self.trace("CHECK", f"ledger {ledger_id} in the archive: {error}")
                    continue
                found.append([payload for batch in batches for payload in batch])
        return found
