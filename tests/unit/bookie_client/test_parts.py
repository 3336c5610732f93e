"""The cluster's switch over quarantine."""

from __future__ import annotations

import asyncio

import pytest

from bookie_client.connection.health import BookieHealth
from bookie_client.options import ClientOptions
from bookie_client.parts import follow_health_check
from bookie_protocol.errors import BookieTimeout
from tests.support.memory_metadata import MemoryCluster
from tests.support.until import until

pytestmark = pytest.mark.asyncio


class Rig:
    """Follows the switch with a look every `interval` seconds."""

    def __init__(self, interval=30.0):
        self.cluster = MemoryCluster()
        self.health = BookieHealth(ClientOptions(quarantine_errors=2), asyncio.get_running_loop().time)
        self.task = asyncio.create_task(follow_health_check(self.cluster, self.health, interval))

    def quarantine(self, bookie):
        for _ in range(2):
            self.health.record(bookie).refused(BookieTimeout, was_read=False)
        assert bookie in self.health.quarantined()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        self.task.cancel()
        await asyncio.wait([self.task])


async def test_nobody_is_asked_without_a_quarantine():
    async with Rig(interval=0.001) as rig:
        await asyncio.sleep(0.02)
        assert rig.cluster.looks == 0


async def test_what_is_quarantined_while_it_is_off_is_released_at_once():
    async with Rig() as rig:
        rig.cluster.health_check_enabled = False
        for bookie in ("a", "b", "a"):
            rig.quarantine(bookie)
            await until(lambda: rig.health.quarantined() == frozenset(), 5)
        assert rig.cluster.looks == 3


async def test_a_quarantine_ends_when_it_is_switched_off():
    async with Rig(interval=0.01) as rig:
        rig.quarantine("a")
        await until(lambda: rig.cluster.looks > 2, 5)
        assert rig.health.quarantined() == {"a"}
        rig.cluster.health_check_enabled = False
        await until(lambda: rig.health.quarantined() == frozenset(), 5)


async def test_another_quarantine_is_looked_at_at_once_and_each_is_told_once(caplog):
    async with Rig() as rig:
        rig.quarantine("a")
        await until(lambda: rig.cluster.looks == 1, 5)
        rig.quarantine("c")
        await until(lambda: rig.cluster.looks == 2, 5)
        told = [record.getMessage() for record in caplog.records if "kept out" in record.getMessage()]
        assert [text.partition("bookies=")[2] for text in told] == ["['a']", "['c']"]
        rig.cluster.health_check_enabled = False
        rig.quarantine("b")
        await until(lambda: rig.health.quarantined() == frozenset(), 5)


async def test_a_metadata_service_that_cannot_tell_changes_nothing():
    async with Rig(interval=0.01) as rig:
        rig.cluster.health_check_enabled = None
        rig.quarantine("a")
        await until(lambda: rig.cluster.looks > 3, 5)
        assert rig.health.quarantined() == {"a"}


async def test_a_client_follows_it_and_stops_when_it_closes(three):
    async with three.client(quarantine_errors=1) as client:
        three.metadata.cluster.health_check_enabled = False
        client.context.health.record("b1").refused(BookieTimeout, was_read=False)
        assert await client.quarantined_bookies() == {"b1"}
        await until(lambda: client.context.health.quarantined() == frozenset(), 5)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "health check"]
