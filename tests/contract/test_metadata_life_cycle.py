"""Formatting and removing a cluster, on every metadata driver: what refuses, what goes, what stays."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from bookie_protocol.errors import (
    InvalidConfiguration,
    MetadataDamaged,
    MetadataExists,
    MetadataNotEmpty,
    MetadataNotFound,
    MetadataVersionConflict,
    SessionEnded,
)
from bookie_protocol.metadata_service.interface import BookieGroup, LedgerLayout
from bookie_protocol.metadata_service.tree import life_cycle
from bookie_protocol.metadata_service.tree.life_cycle import erase
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.under_replication import AuditorCheck
from tests.support.metadata_drivers import MetadataDriverUnderTest
from tests.support.metadata_examples import INFO, R, W, filled, ledger, listed
from tests.support.metadata_fixtures import driver

__all__ = ["driver"]

REFUSALS = (InvalidConfiguration, MetadataExists, MetadataVersionConflict)


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
        with pytest.raises(MetadataNotEmpty, match="bookie b:1"):
            await service.cluster.format()
        assert await service.cluster.instance_id() == before
        assert len(await listed(service)) == 152
        await service.cluster.format(force=True)
        assert await listed(service) == []
        assert await service.bookies.is_registered("b:1", R)

    @pytest.mark.parametrize("after", ["check_no_bookies", "_layout_to_keep"])
    async def test_a_bookie_that_comes_meanwhile_stops_it(
        self, driver: MetadataDriverUnderTest, monkeypatch: pytest.MonkeyPatch, after: str
    ) -> None:
        """Before the registrations' parents are deleted, or behind that: it makes them anew."""
        service = await driver.open()
        before = await service.cluster.initialize()
        await service.ledgers.create(ledger(1))
        await service.cookies.create("b:1", b"cookie")
        step = getattr(service.cluster, after)

        async def step_and_register(*args: Any) -> Any:
            result = await step(*args)
            await service.bookies.register("b:1", R, INFO)
            return result

        with monkeypatch.context() as patched, pytest.raises(MetadataNotEmpty, match="bookie b:1 is registered"):
            patched.setattr(service.cluster, after, step_and_register)
            await service.cluster.format()
        assert await service.cluster.instance_id() == before
        assert await listed(service) == [1]
        assert (await service.cookies.read("b:1")).value == b"cookie"
        assert await service.tree.exists(f"{driver.root}/available/readonly")

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
        await refused(MetadataNotEmpty, "bookie b:1", bookie_suffix=".a:1")
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

    @pytest.mark.parametrize("after", ["_check_known", "_delete_registration_parents"])
    async def test_a_bookie_that_comes_meanwhile_stops_it(
        self, driver: MetadataDriverUnderTest, monkeypatch: pytest.MonkeyPatch, after: str
    ) -> None:
        service = await filled(driver)
        before = await service.cluster.instance_id()
        check = getattr(service.cluster, after)

        async def check_and_register(*args: Any) -> None:
            await check(*args)
            await service.bookies.register("b:1", W, INFO)

        monkeypatch.setattr(service.cluster, after, check_and_register)
        with pytest.raises(MetadataNotEmpty, match="bookie b:1 is registered"):
            await service.cluster.nuke(instance_id=None, with_ledgers=True)
        assert len(await listed(service)) == 152
        assert await service.cluster.instance_id() == before


@pytest.mark.parametrize("step", ["format", "nuke"])
class TestHeldUp:
    """Behind its checks, while others go on."""

    async def run(self, service: MetadataService, step: str, instance: str) -> None:
        if step == "format":
            await service.cluster.format(instance_id=instance)
        else:
            await service.cluster.nuke(instance_id=instance, with_ledgers=True)

    def hold(
        self, service: MetadataService, monkeypatch: pytest.MonkeyPatch, times: int, others: Callable[[], Any]
    ) -> None:
        """`others` act when it has looked for bookies so often: once before the mark, and once behind it."""
        check, left = service.cluster.check_no_bookies, times

        async def check_and_wait(*args: Any) -> None:
            nonlocal left
            left -= 1
            try:
                await check(*args)
            finally:
                if left == 0:
                    await others()

        monkeypatch.setattr(service.cluster, "check_no_bookies", check_and_wait)

    @pytest.mark.parametrize("times", [1, 2])
    async def test_a_cluster_that_was_made_there_since_stays(
        self, driver: MetadataDriverUnderTest, monkeypatch: pytest.MonkeyPatch, step: str, times: int
    ) -> None:
        service, other = await driver.open(), await driver.open()
        before = await service.cluster.initialize()
        await service.ledgers.create(ledger(7))

        async def another_is_made() -> None:  # by a tool that asks for no holder
            await erase(other.tree, driver.root)
            await other.cluster.initialize(instance_id="another")
            await other.cookies.create("b:1", b"cookie")
            await other.ledgers.create(ledger(8))
            if times == 2:
                await other.bookies.register("b:1", W, INFO)

        self.hold(service, monkeypatch, times, another_is_made)
        with pytest.raises(MetadataVersionConflict):
            await self.run(service, step, before)
        assert await other.cluster.instance_id() == "another"
        assert await listed(other) == [8]
        assert (await other.cookies.read("b:1")).value == b"cookie"
        await other.bookies.register("b:2", R, INFO)

    async def test_once_its_session_has_ended_it_erases_nothing(
        self, driver: MetadataDriverUnderTest, monkeypatch: pytest.MonkeyPatch, step: str
    ) -> None:
        service, other = await driver.open(), await driver.open()
        before = await service.cluster.initialize()
        await service.ledgers.create(ledger(7))
        await service.cookies.create("b:1", b"cookie")
        self.hold(service, monkeypatch, 2, lambda: driver.expire(service))
        with pytest.raises(SessionEnded):
            await self.run(service, step, before)
        assert await listed(other) == [7]
        assert (await other.cookies.read("b:1")).value == b"cookie"
        await self.run(other, step, before)

    async def test_a_session_that_ends_among_deletes_is_told_as_that(
        self, driver: MetadataDriverUnderTest, monkeypatch: pytest.MonkeyPatch, step: str
    ) -> None:
        service, other = await driver.open(), await driver.open()
        before = await service.cluster.initialize()
        for ledger_id in range(5):
            await service.ledgers.create(ledger(ledger_id))
        delete, has_ended = service.tree.delete, False

        async def end_before(path: str, **options: Any) -> None:
            nonlocal has_ended
            if "/L" in path and not has_ended:
                has_ended = True
                await driver.expire(service)
            await delete(path, **options)

        monkeypatch.setattr(service.tree, "delete", end_before)
        with pytest.raises(SessionEnded):
            await self.run(service, step, before)
        await self.run(other, step, before)

    async def test_no_other_changes_the_cluster_meanwhile(
        self, driver: MetadataDriverUnderTest, monkeypatch: pytest.MonkeyPatch, step: str
    ) -> None:
        """Another one tries before each write. Where it succeeds, as before the empty root goes, its cluster stays."""
        monkeypatch.setattr(life_cycle, "_PATIENCE", 0.0)
        service, other = await driver.open(), await driver.open()
        was_reached, number = True, 0
        while was_reached:
            was_reached = False
            before = await service.cluster.initialize()
            await service.ledgers.create(ledger(7))
            made = ""

            async def another_tries() -> None:
                nonlocal was_reached, made
                was_reached = True
                with suppress(MetadataExists, MetadataNotFound):
                    await other.cluster.nuke(instance_id=None, with_ledgers=True)
                with suppress(MetadataExists):
                    await other.cluster.begin_copy("a copy", "origin", LedgerLayout.HIERARCHICAL)
                with suppress(MetadataExists):
                    made = await other.cluster.format()
                    await other.ledgers.create(ledger(8))

            with monkeypatch.context() as patched, suppress(*REFUSALS):
                _before_write(service, patched, number, another_tries)
                await self.run(service, step, before)
            service.cluster._settled = other.cluster._settled = None
            if made:
                assert await other.cluster.instance_id() in (made, before)
                assert 8 in await listed(other)
            if await other.cluster.exists():
                await other.cluster.nuke(instance_id=None, with_ledgers=True)
            service.cluster._settled = other.cluster._settled = None
            number += 1
        assert number > 5


class _Ended(BaseException):
    """The process was killed here."""


def _before_write(
    service: MetadataService, monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], Awaitable[None]]
) -> None:
    left = number

    def limited(write: Any) -> Any:
        async def call(*args: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left == -1:
                await act()
            return await write(*args, **options)

        return call

    for name in ("create", "create_all", "set", "delete", "delete_this"):
        monkeypatch.setattr(service.tree, name, limited(getattr(service.tree, name)))


async def _end() -> None:
    raise _Ended


@pytest.mark.parametrize("step", ["init", "format", "nuke"])
async def test_wherever_it_was_ended_it_can_be_repeated(
    driver: MetadataDriverUnderTest, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    layout = LedgerLayout.LONG_HIERARCHICAL
    admin = await driver.open(layout=layout)
    other = await driver.open()  # it takes what the cluster has
    number, ended = 0, True
    while ended:
        instance = "0" * 8
        if step != "init":
            instance = await admin.cluster.initialize()
            await admin.ledgers.create(ledger(7))
            await admin.cookies.create("b:1", b"cookie")

        async def run(service: MetadataService, instance: str = instance) -> None:
            match step:
                case "init":
                    await service.cluster.initialize(instance_id=instance)
                case "format":
                    await service.cluster.format(instance_id=instance)
                case _:
                    await service.cluster.nuke(instance_id=instance, with_ledgers=True)

        ended = False
        with monkeypatch.context() as patched:
            _before_write(admin, patched, number, _end)
            try:
                await run(admin)
            except* _Ended:
                ended = True
        admin.cluster._settled = other.cluster._settled = None
        if step == "format":
            with suppress(MetadataDamaged):  # no bookie starts
                is_old = await other.cluster.instance_id() == instance
                assert (await listed(other) == [7]) is is_old, "half done, and nobody is told"
                assert is_old is ended
        if step == "nuke" and await other.cluster.exists():
            with suppress(MetadataDamaged):  # nor is it backed up
                is_whole = await other.cluster.instance_id() is not None
                assert not is_whole or (await listed(other) == [7] and await other.cookies.read("b:1")), "half gone"
        if await other.cluster.exists():
            assert await other.cluster.layout() in ((layout, None) if step == "nuke" else (layout,))
        if ended:
            await run(admin)
        if step == "nuke":
            assert not await other.cluster.exists()
        else:
            assert await other.cluster.instance_id()
            assert await other.cluster.layout() is layout
            assert await listed(other) == []
            await admin.cluster.nuke(instance_id=None, with_ledgers=True)
        admin.cluster._settled = other.cluster._settled = None
        number += 1
    assert number > 1


class TestHealthCheck:
    async def test_it_is_on_until_it_is_switched_off(self, driver: MetadataDriverUnderTest) -> None:
        service = await driver.open()
        with pytest.raises(MetadataNotFound, match="cluster"):
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


async def test_a_copy_ends_in_no_cluster_that_is_being_removed(driver: MetadataDriverUnderTest) -> None:
    service, other = await driver.open(), await driver.open()
    copy, session_id = await service.cluster.begin_copy("x", "origin", LedgerLayout.HIERARCHICAL)
    path = f"{driver.root}/INSTANCEID"
    await other.tree.overwrite(path, b"removing x")
    with pytest.raises(MetadataVersionConflict):
        await service.cluster.finish_copy("x", copy, session_id)
    assert (await other.tree.read(path)).value == b"removing x"


async def test_what_is_left_when_a_removal_broke_off_last_can_be_removed_by_the_id(
    driver: MetadataDriverUnderTest,
) -> None:
    service = await driver.open()
    before = await service.cluster.initialize()
    for name in set((await service.tree.children(driver.root)).names) - {"LAYOUT", "available"}:
        await erase(service.tree, f"{driver.root}/{name}")
    await service.cluster.nuke(instance_id=before)
    assert await service.tree.exists(driver.root) is None
