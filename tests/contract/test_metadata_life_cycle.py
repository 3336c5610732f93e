"""Formatting and removing a cluster, on every metadata driver: what refuses, what goes, what stays."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bookie_protocol.errors import InvalidConfiguration, MetadataNotEmpty, MetadataNotFound
from bookie_protocol.metadata_service.interface import BookieGroup, LedgerLayout
from bookie_protocol.metadata_service.tree.service import TreeMetadataService
from bookie_protocol.metadata_service.under_replication import AuditorCheck
from tests.contract.test_metadata_service import INFO, R, W, ledger, listed
from tests.support.metadata_drivers import MetadataDriverUnderTest
from tests.support.metadata_fixtures import driver

__all__ = ["driver"]


async def filled(driver: MetadataDriverUnderTest, **options: Any) -> TreeMetadataService:
    """A cluster with a bit of everything."""
    service = await driver.open(**options)
    await service.cluster.initialize()
    await asyncio.gather(*(service.ledgers.create(ledger(i)) for i in (*range(150), 20_000, 2**40)))
    await service.ledgers.generate_id()
    await service.tree.create(f"{driver.root}/idgen-long", open_to_all=True)
    await service.tree.create(f"{driver.root}/idgen-long/HOB-0000000001", open_to_all=True)
    await service.cookies.create("b:1", b"cookie")
    await service.records("decommission").create("b:1", b"{}")
    tree = service.under_replication
    await tree.mark(1, ["b:1"], ctime_ms=1)
    await tree.lock(1)
    await tree.disable()
    await tree.set_lost_bookie_recovery_delay(7)
    await tree.set_check_time(AuditorCheck.REPLICAS, 5)
    return service


class TestFormat:
    async def test_what_goes_and_what_stays(self, driver: MetadataDriverUnderTest) -> None:
        service = await filled(driver)
        before = await service.cluster.instance_id()
        auditor = await service.auditor_election.elect("b:1")
        after = await service.cluster.format()
        assert await service.cluster.instance_id() == after != before
        assert await service.cluster.layout() is LedgerLayout.HIERARCHICAL
        assert await listed(service) == []
        assert (await service.bookies.list(BookieGroup.ALL)).bookies == frozenset()
        left = set((await service.tree.children(driver.root)).names)
        assert left == {"LAYOUT", "INSTANCEID", "available", "underreplication"}
        tree = service.under_replication
        assert [mark async for mark in tree.list()] == []
        assert await tree.locks() == {}
        assert not await tree.is_enabled()
        assert await tree.lost_bookie_recovery_delay() == 7
        assert await tree.check_time(AuditorCheck.REPLICAS) == 5
        assert await service.auditor_election.current_auditor() == auditor.bookie_id
        await service.ledgers.create(ledger(await service.ledgers.generate_id()))
        await service.bookies.register("b:1", R, INFO)

    async def test_a_flat_cluster_stays_flat(self, driver: MetadataDriverUnderTest) -> None:
        service = await driver.open(layout=LedgerLayout.FLAT)
        await service.cluster.initialize()
        for ledger_id in (0, 5, 2**40):
            await service.ledgers.create(ledger(ledger_id))
        other = await driver.open()
        await other.cluster.format()
        assert await other.cluster.layout() is LedgerLayout.FLAT
        assert await listed(other) == []

    async def test_registered_bookies_refuse_it(self, driver: MetadataDriverUnderTest) -> None:
        service = await filled(driver)
        before = await service.cluster.instance_id()
        await service.bookies.register("b:1", R, INFO)
        with pytest.raises(MetadataNotEmpty, match="bookie b:1 is registered; stop it first"):
            await service.cluster.format()
        assert await service.cluster.instance_id() == before
        assert len(await listed(service)) == 152
        await service.cluster.format(force=True)
        assert await listed(service) == []
        assert await service.bookies.is_registered("b:1", R)

    async def test_where_there_is_none_one_is_made(self, driver: MetadataDriverUnderTest) -> None:
        service = await driver.open()
        instance = await service.cluster.format()
        assert await service.cluster.instance_id() == instance


class TestNuke:
    async def test_nothing_is_left(self, driver: MetadataDriverUnderTest) -> None:
        service = await filled(driver)
        await service.tree.create(f"{driver.root}/disableHealthCheck")
        instance = await service.cluster.instance_id()
        await service.cluster.nuke(instance_id=instance, with_ledgers=True)
        assert not await service.cluster.exists()
        with pytest.raises(MetadataNotFound):
            await service.cluster.nuke(instance_id=None)
        assert await service.cluster.initialize() != instance
        assert await listed(service) == []

    async def test_everything_that_speaks_against_it(self, driver: MetadataDriverUnderTest) -> None:
        service = await filled(driver)
        instance = await service.cluster.instance_id()

        async def refused(error: type[Exception], match: str, **changes: Any) -> None:
            with pytest.raises(error, match=match):
                await service.cluster.nuke(**({"instance_id": instance, "with_ledgers": True} | changes))
            assert await service.cluster.instance_id() == instance
            assert len(await listed(service)) == 152
            assert (await service.cookies.read("b:1")).value == b"cookie"

        await refused(InvalidConfiguration, "not another; nothing was changed", instance_id="another")
        await refused(MetadataNotEmpty, "it holds ledgers, such as 0", with_ledgers=False)
        for i in range(7):
            await service.bookies.register(f"b:{i}", W if i % 2 else R, INFO)
        await refused(MetadataNotEmpty, r"bookies b:0, b:1, b:2, b:3, b:4 and 2 more are registered; stop them")
        for i in range(7):
            await service.bookies.unregister(f"b:{i}", W if i % 2 else R)
        await service.tree.create(f"{driver.root}/mine")
        await refused(MetadataNotEmpty, "node mine is none of BookKeeper's")
        await service.tree.delete(f"{driver.root}/mine")
        await service.cluster.nuke(instance_id=None, with_ledgers=True)
        assert not await service.cluster.exists()

    async def test_a_bookie_that_comes_meanwhile_stops_it(
        self, driver: MetadataDriverUnderTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        service = await filled(driver)
        check = service.cluster._check_known

        async def check_and_register(timeout: float | None) -> None:
            await check(timeout)
            await service.bookies.register("b:1", W, INFO)

        monkeypatch.setattr(service.cluster, "_check_known", check_and_register)
        with pytest.raises(MetadataNotEmpty, match="bookie b:1 is registered"):
            await service.cluster.nuke(instance_id=None, with_ledgers=True)
        assert len(await listed(service)) == 152
        assert await service.cluster.instance_id() is not None


class TestHealthCheck:
    async def test_it_is_on_until_it_is_switched_off(self, driver: MetadataDriverUnderTest) -> None:
        service = await driver.open()
        with pytest.raises(MetadataNotFound, match="there is no cluster"):
            await service.cluster.is_health_check_enabled()
        await service.cluster.initialize()
        cluster = service.cluster
        assert await cluster.is_health_check_enabled()
        for _ in range(2):
            await cluster.disable_health_check()
            assert not await cluster.is_health_check_enabled()
        assert (await service.tree.get(f"{driver.root}/disableHealthCheck")).data == b""
        await cluster.format()
        assert not await cluster.is_health_check_enabled()  # a setting of the cluster, as auto-recovery's
        for _ in range(2):
            await cluster.enable_health_check()
            assert await cluster.is_health_check_enabled()
