"""A cluster for tests of replication: real or model bookies in this process, and a real embedded metadata service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest

from bookie_client import Client, ClientOptions
from bookie_client.replication.check import LedgerChecker, LedgerReport
from bookie_client.replication.closing import close_checked
from bookie_client.replication.copying import CopyAdds
from bookie_client.replication.fragments import fragments
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_client.writing.window import Window
from bookie_protocol.errors import NotThere, StorageFault
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.findings import Finding, Reason
from bookie_protocol.metadata_service.interface import BookieGroup, LedgerLife
from bookie_protocol.metadata_service.service_info import BOOKIE_RPC, BookieServiceInfo, Endpoint
from tests.support.metadata_drivers import EmbeddedUnderTest
from tests.support.model_bookie import ModelBookie, ModelBookieServer
from tests.support.served_bookie import ServedBookie
from tests.support.until import until

FAST = {"add_timeout": 1.0, "read_timeout": 1.0, "reconnect_delay": 0.01, "degraded_retry_interval": 0.02}
PASSWORD = b"pw"


def noted_pauses(monkeypatch: pytest.MonkeyPatch, module: ModuleType, first: str = "BUSY_SECONDS") -> list[int]:
    """Pauses of this module's patience, which are short now, as multiples of the first, a constant of this name."""
    sleep, unit, noted = asyncio.sleep, 0.00017, list[int]()
    pauses = {unit * 2**each: 2**each for each in range(20)}

    async def noting(seconds: float, result: Any = None) -> Any:
        if seconds in pauses:
            noted.append(pauses[seconds])
        return await sleep(seconds, result)

    monkeypatch.setattr(module, first, unit)
    monkeypatch.setattr(asyncio, "sleep", noting)
    return noted


class ReplicationCluster:
    """`bookies` by id; `lose` ends one for good, `empty` brings one back without its data."""

    def __init__(self, work: Path, *, model: bool) -> None:
        self._work = work
        self._model = model
        self._stack = AsyncExitStack()
        self.bookies: dict[str, ModelBookieServer | ServedBookie] = {}
        self.locations: dict[str, str] = {}

    async def __aenter__(self) -> ReplicationCluster:
        self._driver = EmbeddedUnderTest(str(self._work / "metadata"))
        self._stack.push_async_callback(self._driver.close)
        self.service = await self._driver.open()
        await self.service.cluster.initialize()
        return self

    async def __aexit__(self, *exc: object) -> None:
        for bookie in self.bookies.values():
            await bookie.stop()
        await self._stack.aclose()

    async def add(self, *names: str, **settings: str) -> None:
        for name in names:
            server: ModelBookieServer | ServedBookie
            if self._model:
                server = ModelBookieServer(ModelBookie(name))
            else:
                server = ServedBookie(self._work / f"{name}-{len(list(self._work.iterdir()))}", settings)
            await server.start()
            self.bookies[name] = server
            await self.register(name)

    async def register(self, name: str, group: BookieGroup = BookieGroup.WRITABLE) -> None:
        endpoint = Endpoint("bookie", "127.0.0.1", self.bookies[name].port, BOOKIE_RPC)
        location = self.locations.get(name)
        properties = {"networkLocation": location} if location else {}
        await self.service.bookies.register(name, group, BookieServiceInfo((endpoint,), properties))

    async def unregister(self, name: str) -> None:
        for group in (BookieGroup.WRITABLE, BookieGroup.READ_ONLY):
            await self.service.bookies.unregister(name, group)

    async def read_only(self, name: str) -> None:
        await self.register(name, BookieGroup.READ_ONLY)
        await self.service.bookies.unregister(name, BookieGroup.WRITABLE)

    async def stop(self, name: str) -> None:
        """It does not answer any more; its registration stays."""
        await self.bookies.pop(name).stop()

    async def lose(self, client: Client, *names: str) -> None:
        for name in names:
            await self.stop(name)
            await self.unregister(name)
        await until(lambda: client.bookies.known_writable.isdisjoint(names))

    async def empty(self, client: Client, name: str) -> None:
        """The bookie comes back under its id with empty disks."""
        await self.lose(client, name)
        await self.add(name)
        await until(lambda: name in client.bookies.known_writable)

    def client(self, **options: object) -> Client:
        placement = options.pop("placement", None)
        return Client(self.service, ClientOptions(**{**FAST, **options}), placement=placement, random=Random(7))

    @asynccontextmanager
    async def of(self, *names: str, **options: object) -> AsyncIterator[Client]:
        """A client, of bookies that are added first."""
        await self.add(*names)
        async with self.client(**options) as client:
            yield client

    def model(self, name: str) -> ModelBookie:
        server = self.bookies[name]
        assert isinstance(server, ModelBookieServer)
        return server.bookie

    def requests(self) -> int:
        """What all model bookies were asked to read so far, in requests."""
        return sum(self.model(name).reads + self.model(name).batch_reads for name in self.bookies)

    def held_at(self, name: str, ledger_id: int) -> set[int]:
        """What a model bookie holds."""
        ledger = self.model(name).ledgers.get(ledger_id)
        return set(ledger.entries) if ledger else set()


async def life_of(client: Client, ledger_id: int) -> LedgerLife:
    return LedgerLife.of(await client.stored_metadata(ledger_id))


async def close_now(
    client: Client, checker: LedgerChecker, ledger_id: int, password: bytes | None = None
) -> LedgerMetadata:
    """Close the ledger that has this id now."""
    return await close_checked(client, checker, await life_of(client, ledger_id), password)


class LookThen(LedgerChecker):
    """Something happens behind the first look."""

    def __init__(self, client: Client, happens: Callable[[LedgerReport], Awaitable[None]]) -> None:
        super().__init__(client)
        self._happens = [happens]

    async def check(self, ledger_id: int, *, findings: Collection[Finding] = ()) -> LedgerReport:
        report = await super().check(ledger_id, findings=findings)
        while self._happens:
            await self._happens.pop()(report)
        return report


class CountingThrottle(ReplicationThrottle):
    """Lets everything pass, and knows the requests that were to be read by, as they were put right."""

    requests = 0

    async def read(self, nbytes: int, operations: int = 1) -> None:
        self.requests += operations
        await super().read(nbytes, operations)

    def correct_read(self, nbytes: int, operations: int = 0) -> None:
        self.requests += operations
        super().correct_read(nbytes, operations)


def payload(entry_id: int) -> bytes:
    return b"%d " % entry_id * (entry_id % 60 + 1)


async def written(client: Client, count: int, **options: object) -> int:
    """A closed ledger of so many entries, each on its whole write set: not only on the ack quorum."""
    quorums = {"ensemble": 3, "write_quorum": 3, "ack_quorum": 2, **options}
    async with client.create(password=PASSWORD, **quorums) as ledger:
        if count:
            await ledger.append_many(payload(i) for i in range(count))
    for fragment in fragments(ledger.ledger_id, await client.metadata(ledger.ledger_id), -1):
        for position, bookie in enumerate(fragment.ensemble):
            # A connection's adds are carried out in order, so the last one stands for all.
            for entry_id in list(fragment.entries_of(position))[-1:]:
                await stored(client, bookie, ledger.ledger_id, entry_id)
    return ledger.ledger_id


async def stored(client: Client, bookie: str, ledger_id: int, entry_id: int) -> None:
    """Wait until the bookie has the entry."""
    async with asyncio.timeout(10):
        while True:
            try:
                await client.operations.read_entry(bookie, ledger_id, entry_id)
            except NotThere:
                await asyncio.sleep(0.005)
            else:
                return


async def marked(models: ReplicationCluster, ledger_id: int, bookie: str, reason: Reason | None) -> None:
    """Mark a ledger with such a finding about a bookie, if any."""
    if reason:
        await models.service.under_replication.mark(ledger_id, ctime_ms=1, findings=[Finding(bookie, reason)])


async def half_acknowledged(models: ReplicationCluster, client: Client) -> tuple[int, tuple[str, ...]]:
    """An open ledger whose last entry, 10, was acknowledged by the first two bookies and did not reach the third."""
    ledger = await client.create(ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD)
    for i in range(11):
        await ledger.append(payload(i))
    ensemble = (await client.metadata(ledger.ledger_id)).last_ensemble
    for bookie in ensemble:
        await stored(client, bookie, ledger.ledger_id, 10)
    del models.model(ensemble[2]).ledgers[ledger.ledger_id].entries[10]
    return ledger.ledger_id, ensemble


async def emptied_in_two_segments(models: ReplicationCluster, client: Client) -> tuple[int, str, str]:
    """An open ledger and two of its bookies, of which the second lost its disk. Only what it denies of the first
    segment shows that: of the last one no entry is confirmed. It acknowledged the only one, 10, with the first bookie
    alone."""
    ledger = await client.create(ensemble=3, write_quorum=3, ack_quorum=2, password=PASSWORD)
    for i in range(10):
        await ledger.append(payload(i))
    first, leaving, second = before = ledger.metadata.last_ensemble
    await stored(client, leaving, ledger.ledger_id, 9)
    models.model(leaving).fail_adds = StorageFault
    await ledger.append(payload(10))
    await until(lambda: ledger.metadata.last_ensemble != before)
    models.model(leaving).fail_adds = None
    for bookie in ledger.metadata.last_ensemble:
        await stored(client, bookie, ledger.ledger_id, 10)
    (new,) = {*ledger.metadata.last_ensemble} - {*before}
    del models.model(new).ledgers[ledger.ledger_id].entries[10]
    models.model(second).ledgers.clear()
    return ledger.ledger_id, first, second


def watched_windows(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The most bytes and pieces that any window of copies holds at once, from now on."""
    seen = {"bytes": 0, "pieces": 0}

    class Watched(Window):
        def __setattr__(self, name: str, value: int) -> None:
            super().__setattr__(name, value)
            if name in ("nbytes", "entries"):
                key = "bytes" if name == "nbytes" else "pieces"
                seen[key] = max(seen[key], value)

    monkeypatch.setattr("bookie_client.replication.copying.Window", Watched)
    return seen


def watched_pieces(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[int]]:
    """The entries of each batch that model bookies are asked for, and of each piece sent to targets, from now on."""
    seen: dict[str, list[int]] = {"reads": [], "adds": []}
    read_batch, store = ModelBookie.read_batch, CopyAdds.store

    def read(
        bookie: ModelBookie, ledger_id: int, first: int, max_count: int, max_size: int, step: int = 1
    ) -> list[bytes]:
        seen["reads"].append(max_count)
        return read_batch(bookie, ledger_id, first, max_count, max_size, step)

    async def add(adds: CopyAdds, entries: list[tuple[int, bytes]], *more: object) -> int:
        seen["adds"].append(len(entries))
        return await store(adds, entries, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(ModelBookie, "read_batch", read)
    monkeypatch.setattr(CopyAdds, "store", add)
    return seen


async def equal_entries(client: Client, count: int, size: int, **quorums: int) -> int:
    """A closed ledger of so many entries, each on all three bookies unless `quorums` says otherwise."""
    sizes = {"ensemble": 3, "write_quorum": 3, "ack_quorum": 3, **quorums}
    async with client.create(password=PASSWORD, **sizes) as ledger:
        await ledger.append_many([bytes(size)] * count)
    return ledger.ledger_id
