"""Scenario A27: the edit log of an active and a standby node, over real bookies.

The active one writes segments, the standby reads along and never fences; the active is killed, or hangs and comes back.
The session by which it was elected ends, and the next node becomes active by itself: it locks the old one out, goes on
at the last transaction + 1, and no operation is lost or doubled.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from bookie_client import Client
from bookie_client.streams import Streams, StreamSettings
from tests.support.cluster_fixtures import bookies, cluster, metadata_service
from tests.support.edit_log_program import OPTIONS, PASSWORD, EditLogProgram, operations
from tests.support.until import until
from tests.support.zookeeper import ZooKeeperServer

__all__ = ["bookies", "cluster", "metadata_service"]

BOOKIES = 3


class Standby:
    """Follows the log; every transaction must be the one behind the last."""

    def __init__(self, streams, name):
        self.last = 0
        self._task = asyncio.create_task(self._follow(streams, name))

    async def _follow(self, streams, name):
        async with aclosing(streams.reader(name).tail("earliest")) as entries:
            async for entry in entries:
                found = operations(entry.payload)
                assert found == list(range(self.last + 1, self.last + 1 + len(found)))
                self.last = found[-1]

    async def reaches(self, transaction, seconds=60.0):
        await until(lambda: self._task.done() or self.last >= transaction, seconds)
        if self._task.done():
            self._task.result()

    async def stop(self):
        self._task.cancel()
        await asyncio.wait([self._task])
        assert self._task.cancelled()


@pytest.fixture
async def streams(cluster):
    async with Client(cluster.uri, OPTIONS) as client:
        streams = Streams(client, password=PASSWORD)
        await streams.create("edits", StreamSettings(max_ledger_entries=100, min_ledger_seconds=0))
        yield streams
        await streams.delete("edits", force=True)


@pytest.fixture(params=["embedded", "zookeeper"])
def election(request, metadata_service, tmp_path_factory):
    """Where nodes agree on who is active."""
    if request.param == "embedded":
        yield metadata_service.uri("/election")
        return
    zookeeper = ZooKeeperServer(str(tmp_path_factory.mktemp("zookeeper")))
    zookeeper.start()
    yield zookeeper.uri("/election")
    zookeeper.stop()


async def stands_by(node, beside):
    """It does not become active while the other one lives."""
    await asyncio.to_thread(node.wait_for, "candidate")
    await acknowledged(beside, len(beside.acknowledged()) + 100)
    assert not node.noted("active")


async def acknowledged(node, count):
    await asyncio.to_thread(node.wait_for, "acknowledged", count)


async def active(node):
    """The last transaction that it found."""
    return int((await asyncio.to_thread(node.wait_for, "active"))[0][0])


async def test_fail_over_of_an_edit_log(cluster, streams, election, tmp_path):
    standby = Standby(streams, "edits")

    def node(name):
        return EditLogProgram(cluster.uri, tmp_path / name, "edits", election=election)

    async def fails_over():
        with node("first") as first:
            await acknowledged(first, 450)  # several segments
            await standby.reaches(first.acknowledged()[50])
            with node("second") as second:
                await stands_by(second, beside=first)
                first.kill()
                begun_at = await active(second)
                assert begun_at >= first.acknowledged()[-1]
                await acknowledged(second, 250)
                with node("third") as third:
                    await stands_by(third, beside=second)
                    await comes_back_too_late(second, third, begun_at)
                    third.kill()
                    return third.acknowledged()[-1]

    async def comes_back_too_late(hanging, third, begun_at):
        hanging.pause()  # its window is full of operations in flight
        seen = hanging.acknowledged()[-1]
        taken_over_at = await active(third)
        assert taken_over_at >= seen > begun_at
        await acknowledged(third, 50)
        hanging.resume()
        refused = await asyncio.to_thread(hanging.wait_for, "refused")
        assert refused[0][1] == "StreamFenced"
        # what it was told to be stored while it did not know is what the third one found
        assert hanging.acknowledged()[-1] <= taken_over_at
        assert {words[1] for words in hanging.noted("failed")} <= {"StreamFenced"}
        await acknowledged(third, 150)

    last = await fails_over()
    await streams.seal("edits")
    manifest = await streams.manifest("edits")
    assert manifest.open_ledger is None
    found = [each async for entry in streams.reader("edits").entries() for each in operations(entry.payload)]
    assert found == list(range(1, len(found) + 1))
    assert len(found) >= last
    await standby.reaches(found[-1])
    await standby.stop()
    assert len(manifest.ledgers) >= 9
    # the checkpoint covers what came before: purge it
    assert await streams.truncate("edits", manifest.position_at(manifest.ledgers[4].first_ordinal))
    assert (await streams.manifest("edits")).ledgers == manifest.ledgers[4:]
