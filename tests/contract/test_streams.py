"""Streams of ledgers over every metadata driver, on model bookies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from bookie_client import Client, ClientOptions
from bookie_client.streams import PublishedLedger, Streams, StreamSettings, Txn
from bookie_client.streams.managed_ledgers import managed_cursors, managed_ledger, managed_ledger_names
from bookie_protocol.errors import NoSuchStream, StreamFenced, StreamInUse
from bookie_protocol.metadata_service.interface import BookieGroup
from bookie_protocol.metadata_service.service_info import BOOKIE_RPC, BookieServiceInfo, Endpoint
from tests.support.metadata_drivers import MetadataDriverUnderTest
from tests.support.metadata_fixtures import BESIDE, driver
from tests.support.model_bookie import ModelBookie, ModelBookieServer
from tests.support.pulsar_metadata import compressed, ledger_info, message

__all__ = ["driver"]

SETTINGS = StreamSettings(max_ledger_entries=10, min_ledger_seconds=0)
PATIENT = ClientOptions(add_timeout=30.0, read_timeout=30.0)


class Sessions:
    """Clients with metadata sessions of their own."""

    def __init__(self, metadata: MetadataDriverUnderTest) -> None:
        self._metadata = metadata
        self._clients: list[Client] = []

    async def streams(self) -> Streams:
        client = Client(await self._metadata.open(timeout=20.0), PATIENT)
        await client.start()
        self._clients.append(client)
        return Streams(client)

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


@pytest.fixture
async def sessions(driver: MetadataDriverUnderTest) -> AsyncIterator[Sessions]:
    service = await driver.open(timeout=20.0)
    await service.cluster.initialize()
    servers = [ModelBookieServer(ModelBookie(f"b{number}")) for number in (1, 2, 3)]
    for server in servers:
        await server.start()
        info = BookieServiceInfo((Endpoint("bookie", "127.0.0.1", server.port, BOOKIE_RPC),))
        await service.bookies.register(server.bookie.bookie_id, BookieGroup.WRITABLE, info)
    sessions = Sessions(driver)
    yield sessions
    await sessions.close()
    for server in servers:
        await server.stop()


async def entries(streams: Streams) -> list[bytes]:
    return [entry.payload async for entry in streams.reader("s").entries()]


async def test_writers_of_several_sessions_readers_and_the_end(sessions: Sessions) -> None:
    first, second = await sessions.streams(), await sessions.streams()
    with pytest.raises(NoSuchStream):
        await first.manifest("s")
    assert await first.names() == frozenset()
    await first.create("s", SETTINGS)
    old = first.writer("s")
    await old.start()
    await old.append_many(b"%d" % i for i in range(25))
    with pytest.raises(StreamInUse):
        await second.writer("s", take_over=False).start()
    async with second.writer("s") as new:
        with pytest.raises(StreamFenced):
            await old.append(b"too late")
        await new.append_many(b"%d" % i for i in range(25, 40))
    await old.close()
    assert await entries(first) == [b"%d" % i for i in range(40)]

    manifest = await first.manifest("s")
    assert manifest == await second.manifest("s")
    assert (await second.move_cursor("s", "c", manifest.position_at(22))).ordinal == 22
    with pytest.raises(StreamInUse):
        await first.truncate("s", manifest.position_at(23))
    assert len(await first.truncate("s", manifest.position_at(22))) == 2
    assert await entries(second) == [b"%d" % i for i in range(22, 40)]
    await second.delete("s")
    assert await first.names() == frozenset()
    with pytest.raises(NoSuchStream):
        await first.cursor("s", "c")


async def test_a_watch_tells_of_changes_and_of_the_end(sessions: Sessions) -> None:
    watcher, changer = await sessions.streams(), await sessions.streams()
    await changer.create("s", SETTINGS)
    async with aclosing(watcher.watch("s")) as manifests:
        assert (await anext(manifests)).ledgers == ()
        async with changer.writer("s") as writer:
            await writer.append(b"x")
            async for manifest in manifests:
                if manifest.open_ledger is not None:
                    break
        async for manifest in manifests:
            if manifest.entries == 1:
                break
        await changer.delete("s")
        with pytest.raises(NoSuchStream):
            async for _ in manifests:
                pass


async def test_publishers_of_several_sessions(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie_client.streams.encoding.SEGMENT_LEDGERS", 4)
    every = [await sessions.streams() for _ in range(3)]
    await every[0].create("s", SETTINGS)

    async def application(number: int) -> None:
        streams = every[number]
        for batch in range(5):
            payload = b"%d.%d" % (number, batch)
            async with streams._client.create(write_quorum=3) as ledger:
                await ledger.append(payload)
            given = [PublishedLedger(ledger.ledger_id, 1, len(payload))]
            assert (await streams.publish("s", given, Txn(f"q{number}", batch, 1))).is_new
            assert not (await every[0].publish("s", given, Txn(f"q{number}", batch, 1))).is_new

    await asyncio.gather(*(application(number) for number in range(3)))
    found = await entries(every[1])
    assert sorted(found) == sorted(b"%d.%d" % (number, batch) for number in range(3) for batch in range(5))
    result = await every[2].publish("s", [], replace=True)
    assert result.manifest.generation == 1
    assert len(await every[0].retired("s")) == 15
    assert await entries(every[1]) == []


@pytest.mark.parametrize("driver", BESIDE, indirect=True)
async def test_pulsar_metadata_beside_the_cluster(sessions: Sessions, driver: MetadataDriverUnderTest) -> None:
    tree = (await driver.open()).tree
    root = "/" + driver.root.split("/")[1] + "/managed-ledgers"
    name = "public/default/persistent/orders"
    for path in (root, *(f"{root}/{'/'.join(name.split('/')[:n])}" for n in (1, 2, 3))):
        await tree.ensure(path)
    await tree.create(f"{root}/{name}", compressed(message((1, ledger_info(4, 2, 20, 1)), (1, ledger_info(6))), "ZLIB"))
    await tree.create(f"{root}/{name}/sub", message((1, -1), (2, 4), (3, 0)))
    client = (await sessions.streams())._client
    assert await managed_ledger_names(client, root=root) == (name,)
    assert await managed_ledger_names(client, "nobody", root=root) == ()
    topic = await managed_ledger(client, name, root=root)
    assert [(each.ledger_id, each.entries) for each in topic.manifest.ledgers] == [(4, 2), (6, None)]
    cursors = await managed_cursors(client, name, root=root)
    assert {cursor: str(position) for cursor, position in cursors.items()} == {"sub": "4:1"}
    with pytest.raises(NoSuchStream):
        await managed_ledger(client, name + "2", root=root)
    with pytest.raises(NoSuchStream):
        await managed_ledger(client, name)
