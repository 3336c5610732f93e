"""`bookie ledger doctor`, on a metadata store in a folder and three bookies in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from bookie_client import Client, ClientOptions
from bookie_pod.cli.connection import Cluster
from bookie_pod.cli.doctor.findings import State
from bookie_pod.cli.ledger.doctor import Examination, examine
from bookie_protocol.errors import NoSuchLedger
from bookie_protocol.metadata_service.findings import Failure, Trouble
from bookie_protocol.metadata_service.interface import BookieGroup
from bookie_protocol.metadata_service.service_info import BOOKIE_RPC, BookieServiceInfo, Endpoint
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.uri import open_metadata_service
from tests.support.model_bookie import ModelBookie, ModelBookieServer

BOOKIES = ("b1", "b2", "b3")


class World:
    """Bookies, each of which can be stopped; `service` is a metadata service of its own."""

    def __init__(self, service: MetadataService, client: Client, servers: dict[str, ModelBookieServer]) -> None:
        self.service = service
        self.client = client
        self.servers = servers

    async def ledger(self, entries: int = 3, *, close: bool = True) -> int:
        writer = await self.client.create(ensemble=3, write_quorum=2, ack_quorum=2)
        for number in range(entries):
            await writer.append(b"%d" % number)
        if close:
            await writer.close()
        return writer.ledger_id

    async def examine(self, ledger_id: int) -> Examination:
        # The command's client has just begun, too: it knows of no registration yet.
        async with Client(self.service, ClientOptions(read_timeout=2)) as client:
            return await examine(Cluster(client, self.service), ledger_id, 0)

    async def lose(self, bookie: str, *, registered: bool = False) -> None:
        await self.servers[bookie].stop()
        if not registered:
            await self.service.bookies.unregister(bookie, BookieGroup.WRITABLE)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        service = await open_metadata_service(str(tmp_path / "metadata"))
        stack.push_async_callback(service.close)
        await service.cluster.initialize()
        servers = {}
        for bookie in BOOKIES:
            servers[bookie] = server = ModelBookieServer(ModelBookie(bookie))
            await server.start()
            stack.push_async_callback(server.stop)
            endpoint = Endpoint("bookie", "127.0.0.1", server.port, BOOKIE_RPC)
            await service.bookies.register(bookie, BookieGroup.WRITABLE, BookieServiceInfo((endpoint,), {}))
        client = await stack.enter_async_context(Client(service, ClientOptions(read_timeout=2)))
        yield World(service, client, servers)


def states(found: Examination) -> dict[str, State]:
    return {each.part: each.state for each in found.findings}


async def test_sound_ledgers(world: World) -> None:
    for close in (True, False):
        found = await world.examine(await world.ledger(close=close))
        assert states(found) == dict.fromkeys(("state", "copies", "streams"), State.OK)
        assert not found.could_not_tell


async def test_bookie_that_is_gone(world: World) -> None:
    ledger_id = await world.ledger()
    await world.lose("b1")
    found = await world.examine(ledger_id)
    assert states(found) == {
        "state": State.OK,
        "copies": State.WARNING,
        "bookie b1": State.WARNING,
        "streams": State.OK,
    }
    assert not found.could_not_tell


async def test_entries_without_a_copy(world: World) -> None:
    ledger_id = await world.ledger()
    await world.lose("b1")
    await world.lose("b2")
    found = await world.examine(ledger_id)
    assert states(found)["copies"] is State.PROBLEM
    assert not found.could_not_tell


async def test_bookies_that_do_not_answer(world: World) -> None:
    ledger_id = await world.ledger()
    await world.lose("b1", registered=True)
    found = await world.examine(ledger_id)
    assert states(found)["copies"] is State.WARNING
    await world.lose("b2", registered=True)
    found = await world.examine(ledger_id)
    assert states(found)["copies"] is State.PROBLEM
    assert found.could_not_tell


async def test_mark_with_what_workers_met(world: World) -> None:
    ledger_id = await world.ledger()
    marks = world.service.under_replication
    await marks.mark(ledger_id, ["b1"], ctime_ms=None)
    lock = await marks.lock(ledger_id)
    worked_on = await world.examine(ledger_id)
    await marks.note_failure(lock, Failure("worker-1", Trouble.NO_COPY, 2, (1,), "no copy of entry 1"))
    await marks.release(lock)
    failed = await world.examine(ledger_id)
    await marks.disable()
    disabled = await world.examine(ledger_id)
    remedies = set()
    for found in (worked_on, failed, disabled):
        mark = next(each for each in found.findings if each.part == "mark")
        assert mark.state is State.WARNING
        remedies.add(mark.remedy)
    assert len(remedies) == 3


async def test_ledger_that_is_not_there(world: World) -> None:
    with pytest.raises(NoSuchLedger):
        await world.examine(99)
