"""What every metadata driver has to do: cluster, bookies, cookies, ledgers."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

import pytest

from bookie_protocol.errors import (
    BadRequest,
    InvalidConfiguration,
    MetadataDamaged,
    MetadataError,
    MetadataExists,
    MetadataNotFound,
    MetadataReplaced,
    MetadataUnavailable,
    MetadataVersionConflict,
)
from bookie_protocol.ledger_metadata.model import LedgerState
from bookie_protocol.metadata_service.interface import (
    BookieGroup,
    LedgerLayout,
    SessionState,
    Versioned,
)
from tests.support.metadata_drivers import MetadataDriverUnderTest
from tests.support.metadata_examples import INFO, R, W, ledger, listed
from tests.support.metadata_fixtures import BESIDE, driver

__all__ = ["driver"]


class TestCluster:
    async def test_what_is_not_there_is_said_to_be_not_there(self, driver: MetadataDriverUnderTest) -> None:
        service = await driver.open()
        assert service.session.state is SessionState.CONNECTED
        assert not await service.cluster.exists()
        assert await service.cluster.layout() is None
        with pytest.raises(MetadataNotFound, match="init"):
            await service.cluster.instance_id()
        for call in (
            service.bookies.list(W),
            service.bookies.list(BookieGroup.ALL),
            service.bookies.register("b:1", W, INFO),
            service.cookies.create("b:1", b"x"),
            service.ledgers.read(1),
            service.ledgers.create(ledger(1)),
            service.ledgers.delete(1),
            service.ledgers.generate_id(),
            listed(service),
        ):
            with pytest.raises(MetadataNotFound):
                await call
        assert not await service.cluster.exists()

    async def test_initialize_once(self, driver: MetadataDriverUnderTest) -> None:
        service, other = await driver.open(), await driver.open()
        instance = await service.cluster.initialize()
        assert len(instance) == 36
        assert await other.cluster.instance_id() == instance
        assert await other.cluster.layout() is LedgerLayout.HIERARCHICAL
        with pytest.raises(MetadataExists):
            await other.cluster.initialize(instance_id="another")
        assert await service.cluster.instance_id() == instance
        layout = await service.tree.get(f"{driver.root}/LAYOUT")
        assert layout.data == b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
        assert (await service.bookies.list(R)).bookies == frozenset()

    async def test_no_instance_id_is_no_error(self, driver: MetadataDriverUnderTest) -> None:
        service = await driver.open()
        await service.cluster.initialize()
        await service.tree.delete(f"{driver.root}/INSTANCEID")
        assert await service.cluster.instance_id() is None

    async def test_another_layout_is_refused(self, driver: MetadataDriverUnderTest) -> None:
        service = await driver.open(layout=LedgerLayout.LONG_HIERARCHICAL)
        await service.cluster.initialize()
        assert await service.cluster.layout() is LedgerLayout.LONG_HIERARCHICAL
        with pytest.raises(InvalidConfiguration, match=r"hierarchical.*long_hierarchical"):
            await driver.open(layout=LedgerLayout.HIERARCHICAL)


class TestBookies:
    @pytest.mark.parametrize("driver", BESIDE, indirect=True)
    async def test_racks_are_read_beside_the_root(self, driver: MetadataDriverUnderTest) -> None:
        service = await driver.open()
        await service.cluster.initialize()
        assert await service.bookies.rack_assignments() == b""
        beside = driver.root.rpartition("/")[0] + "/bookies"
        await service.tree.create(beside, b"{}")
        assert await service.bookies.rack_assignments() == b"{}"
        await service.tree.delete(beside)

    async def test_a_registration_is_seen_by_all_and_ends_with_its_session(
        self, driver: MetadataDriverUnderTest
    ) -> None:
        bookie, reader = await driver.open(), await driver.open()
        await bookie.cluster.initialize()
        await bookie.bookies.register("10.0.0.1:3181", W, INFO)
        await bookie.bookies.register("10.0.0.1:3181", W, INFO)  # ours already
        assert (await reader.bookies.list(W)).bookies == {"10.0.0.1:3181"}
        assert await reader.bookies.service_info("10.0.0.1:3181") == INFO
        node = await reader.tree.get(f"{driver.root}/available/10.0.0.1:3181")
        assert node.data.hex() == "32210a06626f6f6b696510ed181a0831302e302e302e31220a626f6f6b69652d727063"
        assert node.stat.owner == bookie.tree.session_id != 0
        await bookie.close()
        assert (await reader.bookies.list(W)).bookies == frozenset()
        with pytest.raises(MetadataNotFound):
            await reader.bookies.service_info("10.0.0.1:3181")

    async def test_read_only_and_back(self, driver: MetadataDriverUnderTest) -> None:
        service = await driver.open()
        await service.cluster.initialize()
        await service.bookies.register("b:1", W, INFO)
        await service.bookies.register("b:1", R, INFO)
        assert (await service.bookies.list(W)).bookies == (await service.bookies.list(R)).bookies == {"b:1"}
        await service.bookies.unregister("b:1", W)
        await service.bookies.unregister("b:1", W)  # none is fine
        assert (await service.bookies.list(W)).bookies == frozenset()
        assert await service.bookies.service_info("b:1") == INFO
        assert await service.bookies.is_registered("b:1", R)

    async def test_missing_parents_are_made(self, driver: MetadataDriverUnderTest) -> None:
        service = await driver.open()
        await service.cluster.initialize()
        for path in ("available/readonly", "available"):
            await service.tree.delete(f"{driver.root}/{path}")
        assert (await service.bookies.list(W)).bookies == frozenset()
        await service.bookies.register("b:1", R, INFO)
        assert (await service.bookies.list(R)).bookies == {"b:1"}
        assert (await service.tree.get(f"{driver.root}/available/readonly")).data == b""

    async def test_a_foreign_registration_is_waited_for(self, driver: MetadataDriverUnderTest) -> None:
        first, second = await driver.open(), await driver.open()
        await first.cluster.initialize()
        await first.bookies.register("b:1", W, INFO)
        with pytest.raises(MetadataExists, match="writable"):
            await second.bookies.register("b:1", W, INFO, timeout=0.2)
        second.tree.session.expires_after = 0.01  # as long as a session like that one may last
        with pytest.raises(MetadataExists, match=r"after 0\.015 s"):
            await second.bookies.register("b:1", W, INFO)
        second.tree.session.expires_after = second.session.default_timeout
        await second.bookies.unregister("b:1", W)
        assert await second.bookies.is_registered("b:1", W)
        waiting = asyncio.create_task(second.bookies.register("b:1", W, INFO))
        await asyncio.sleep(0)
        await first.close()
        await waiting
        node = await second.tree.get(f"{driver.root}/available/b:1")
        assert node.stat.owner == second.tree.session_id

    async def test_watching_a_group(self, driver: MetadataDriverUnderTest) -> None:
        bookie, reader = await driver.open(), await driver.open()
        await bookie.cluster.initialize()
        async with reader.bookies.watch(W) as changes, reader.bookies.watch(BookieGroup.ALL) as everybody:
            first = await anext(changes)
            assert first.bookies == frozenset()
            await bookie.bookies.register("b:1", W, INFO)
            second = await anext(changes)
            assert second.bookies == {"b:1"}
            assert second.version > first.version
            await bookie.bookies.unregister("b:1", W)
            assert (await anext(changes)).bookies == frozenset()
            assert (await anext(everybody)).bookies == frozenset()
            await bookie.cookies.create("b:1", b"cookie")
            async with asyncio.timeout(5):
                while (await anext(everybody)).bookies != {"b:1"}:
                    pass

    async def test_whoever_follows_sees_a_cluster_that_was_made_anew(self, driver: MetadataDriverUnderTest) -> None:
        """Its counts begin at 0 again."""
        admin, reader = await driver.open(), await driver.open()
        instance_id = await admin.cluster.initialize()
        async with reader.bookies.watch(W) as changes:
            for _ in range(3):
                await admin.bookies.register("old:1", W, INFO)
                await admin.bookies.unregister("old:1", W)
            before = await reader.bookies.list(W)
            await admin.cluster.nuke(instance_id=instance_id, with_ledgers=True)
            await admin.cluster.initialize()
            await admin.bookies.register("new:1", W, INFO)
            assert (await reader.bookies.list(W)).version > before.version
            async with asyncio.timeout(10):
                with suppress(MetadataNotFound):  # it may have seen the moment without a cluster: then it is told
                    while (await anext(changes)).bookies != {"new:1"}:
                        pass


class TestCookies:
    async def test_versions(self, driver: MetadataDriverUnderTest) -> None:
        service = await driver.open()
        await service.cluster.initialize()
        with pytest.raises(MetadataNotFound):
            await service.cookies.read("b:1")
        first = await service.cookies.create("b:1", b"one")
        assert first.version == 0
        with pytest.raises(MetadataExists):
            await service.cookies.create("b:1", b"two")
        second = await service.cookies.update("b:1", b"two", first)
        assert (second.version, second.creation) == (1, first.creation)
        with pytest.raises(MetadataVersionConflict):
            await service.cookies.update("b:1", b"three", first)
        found = await service.cookies.read("b:1")
        assert (found.value, found.identity) == (b"two", second)
        with pytest.raises(MetadataVersionConflict):
            await service.cookies.delete_this("b:1", first)
        await service.cookies.delete("b:1")
        for call in (service.cookies.delete("b:1"), service.cookies.update("b:1", b"x", second)):
            with pytest.raises(MetadataNotFound):
                await call


class TestLedgers:
    async def test_ids_are_given_out_once(self, driver: MetadataDriverUnderTest) -> None:
        one, two = await driver.open(), await driver.open()
        await one.cluster.initialize()
        ids = await asyncio.gather(*(service.ledgers.generate_id() for service in (one, two) for _ in range(50)))
        assert len(set(ids)) == 100
        assert all(0 <= i < 2**31 - 1 for i in ids)

    async def test_an_existing_idgen_long_switches_to_63_bits(self, driver: MetadataDriverUnderTest) -> None:
        service = await driver.open()
        await service.cluster.initialize()
        await service.tree.create(f"{driver.root}/idgen-long")
        assert await service.ledgers.generate_id() == (1 << 32) + driver.first_number
        for high in (2, 3, 4, 5):
            await service.tree.create(f"{driver.root}/idgen-long/HOB-{high:010d}")
        assert await service.ledgers.generate_id() == (5 << 32) + driver.first_number
        left = await service.tree.children(f"{driver.root}/idgen-long")
        assert {"HOB-0000000003", "HOB-0000000004", "HOB-0000000005"} <= set(left.names)
        assert "HOB-0000000002" not in left.names

    async def test_a_directory_beyond_63_bits_is_named(self, driver: MetadataDriverUnderTest) -> None:
        service = await driver.open()
        await service.cluster.initialize()
        root, names = f"{driver.root}/idgen-long", {f"HOB-{number:010d}" for number in (1, 2, 3, 4, 2**31)}
        await service.tree.create(root)
        for name in names:
            await service.tree.create(f"{root}/{name}")
        with pytest.raises(MetadataDamaged, match=f"{root}/HOB-{2**31}"):
            await service.ledgers.generate_id()
        assert set((await service.tree.children(root)).names) == names

    async def test_a_directory_whose_number_python_does_not_read_is_beyond_63_bits(
        self, driver: MetadataDriverUnderTest
    ) -> None:
        service = await driver.open()
        await service.cluster.initialize()
        await service.tree.create(f"{driver.root}/idgen-long")
        await service.tree.create(f"{driver.root}/idgen-long/HOB-{'9' * 5000}")
        with pytest.raises(MetadataDamaged):
            await service.ledgers.generate_id()

    async def test_create_read_write_delete(self, driver: MetadataDriverUnderTest) -> None:
        service, other = await driver.open(), await driver.open()
        await service.cluster.initialize()
        created = await service.ledgers.create(ledger(7, custom_metadata={"application": b"pulsar"}))
        assert created.version == 0
        found = await other.ledgers.read(7)
        assert found.value.ctime is not None
        assert replace(found.value, ctime=None) == replace(created.value, ctime=None)
        with pytest.raises(MetadataExists):
            await other.ledgers.create(ledger(7))
        closed = found.value.closed(41, 4200)
        written = await other.ledgers.write(closed, created.identity)
        assert (written.version, written.identity.creation) == (1, created.identity.creation)
        again = await service.ledgers.read(7)
        assert (again.value.state, again.value.last_entry_id, again.version) == (LedgerState.CLOSED, 41, 1)
        with pytest.raises(MetadataVersionConflict, match="ledger 7"):
            await service.ledgers.delete_this(found)
        with pytest.raises(MetadataVersionConflict, match="ledger 7"):
            await service.ledgers.write(closed, found.identity)
        await service.ledgers.delete(7)
        await service.ledgers.delete(7)
        with pytest.raises(MetadataNotFound, match="ledger 7"):
            await service.ledgers.read(7)
        with pytest.raises(MetadataNotFound, match="ledger 7"):
            await service.ledgers.write(closed, written.identity)
        left = await service.tree.exists(f"{driver.root}/00")
        assert (left is None) is driver.removes_directories

    async def test_many_are_read_together_and_each_has_its_own_answer(self, driver: MetadataDriverUnderTest) -> None:
        service = await driver.open()
        await service.cluster.initialize()
        await asyncio.gather(*(service.ledgers.create(ledger(each)) for each in range(0, 150, 2)))
        await service.tree.overwrite(f"{driver.root}/00/0000/L0008", b"not metadata")
        found = await service.ledgers.read_each(range(150))
        assert [type(each) for each in found[:8]] == [Versioned, MetadataNotFound] * 4
        assert isinstance(found[8], MetadataDamaged)
        assert str(found[9]) == "ledger 9 does not exist"
        alone = [await service.ledgers.read(each) for each in range(10, 150, 2)]
        assert found[10::2] == alone
        assert await service.ledgers.read_each([]) == []

    async def test_no_ledger_is_missing_of_a_cluster_that_is(self, driver: MetadataDriverUnderTest) -> None:
        service = await driver.open()
        with pytest.raises(MetadataError, match=driver.root):
            await service.ledgers.read_each([1, 2])

    async def test_what_was_read_is_deleted_and_no_ledger_that_was_made_since(
        self, driver: MetadataDriverUnderTest
    ) -> None:
        """Versions begin anew with each ledger of an id."""
        service, other = await driver.open(), await driver.open()
        await service.cluster.initialize()
        await service.ledgers.create(ledger(7))
        read = await service.ledgers.read(7)
        written = await other.ledgers.write(read.value.closed(3, 30), read.identity)
        with pytest.raises(MetadataVersionConflict, match="ledger 7"):
            await service.ledgers.delete_this(read)
        await other.ledgers.delete(7)
        made = await other.ledgers.create(ledger(7))
        await other.ledgers.write(made.value.closed(3, 30), made.identity)
        for earlier in (read, written):
            with pytest.raises(MetadataReplaced, match="ledger 7"):
                await service.ledgers.delete_this(earlier)
        now = await service.ledgers.read(7)
        await service.ledgers.delete_this(now)
        await service.ledgers.delete_this(now)
        assert await listed(other) == []

    async def test_of_two_writers_one_wins(self, driver: MetadataDriverUnderTest) -> None:
        one, two = await driver.open(), await driver.open()
        await one.cluster.initialize()
        made = await one.ledgers.create(ledger(1))
        metadata = made.value
        outcomes = await asyncio.gather(
            one.ledgers.write(metadata.in_recovery(), made.identity),
            two.ledgers.write(metadata.closed(9, 100), made.identity),
            return_exceptions=True,
        )
        lost = [outcome for outcome in outcomes if isinstance(outcome, MetadataVersionConflict)]
        won = [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
        assert (len(lost), len(won)) == (1, 1)
        stored = await two.ledgers.read(1)
        assert stored.version == 1
        assert stored.value.state is won[0].value.state

    async def test_concurrent_creates_in_one_new_directory(self, driver: MetadataDriverUnderTest) -> None:
        one, two = await driver.open(), await driver.open()
        await one.cluster.initialize()
        await asyncio.gather(*((one, two)[i % 2].ledgers.create(ledger(i)) for i in range(20)))
        assert await listed(two) == list(range(20))

    @pytest.mark.parametrize("version", [1, 2, 3])
    async def test_every_format_keeps_its_format(self, driver: MetadataDriverUnderTest, version: int) -> None:
        service = await driver.open()
        await service.cluster.initialize()
        made = ledger(5, format_version=version)
        if version == 1:
            made = replace(made, digest_type=None, password=None)
        created = await service.ledgers.create(replace(made, creation_token=77))
        found = await service.ledgers.read(5)
        assert replace(found.value, ctime=None) == replace(created.value, ctime=None)
        await service.ledgers.write(found.value.closed(1, 10), found.identity)
        data = (await service.tree.get(f"{driver.root}/00/0000/L0005")).data
        assert data.startswith(b"BookieMetadataFormatVersion\t%d\n" % version)

    async def test_watching_a_ledger(self, driver: MetadataDriverUnderTest) -> None:
        writer, reader = await driver.open(), await driver.open()
        await writer.cluster.initialize()
        created = await writer.ledgers.create(ledger(3))
        seen = []
        async with reader.ledgers.watch(3) as changes:
            async for change in changes:
                seen.append(None if change is None else (change.version, change.value.state))
                if len(seen) == 1:
                    await writer.ledgers.write(created.value.in_recovery(), created.identity)
                elif len(seen) == 2:
                    await writer.ledgers.delete(3)
        assert seen == [(0, LedgerState.OPEN), (1, LedgerState.IN_RECOVERY), None]


class TestListing:
    IDS = (
        *(0, 1, 9_999, 10_000, 99_999_999, 123_456_789, 2**31 - 2, 2**31 - 1, 2**32, 2**32 + 5),
        *(2**40 + 17, 2**62, 2**63 - 1),
    )

    @pytest.mark.parametrize("layout", [LedgerLayout.HIERARCHICAL, LedgerLayout.LONG_HIERARCHICAL, LedgerLayout.FLAT])
    async def test_ranges_ascend_without_gaps(self, driver: MetadataDriverUnderTest, layout: LedgerLayout) -> None:
        service = await driver.open(layout=layout)
        await service.cluster.initialize()
        assert await listed(service) == []
        assert await service.ledgers.generate_id() >= 0  # leaves special nodes in the root
        await asyncio.gather(*(service.ledgers.create(ledger(i)) for i in reversed(self.IDS)))
        await service.cookies.create("b:1", b"x")
        assert await listed(service) == sorted(self.IDS)
        for first in (1, 2**31, 2**32, 2**63 - 1):
            assert await listed(service, first) == sorted(each for each in self.IDS if each >= first)
        for gone in (0, 2**32, 2**63 - 1):
            await service.ledgers.delete(gone)
        assert await listed(service) == sorted(set(self.IDS) - {0, 2**32, 2**63 - 1})

    async def test_an_id_that_the_layout_cannot_hold_is_refused(self, driver: MetadataDriverUnderTest) -> None:
        service = await driver.open(layout=LedgerLayout.LEGACY_HIERARCHICAL)
        await service.cluster.initialize()
        with pytest.raises(BadRequest, match="4294967296"):
            await service.ledgers.create(ledger(2**32))
        assert await listed(service) == []
        made = await service.ledgers.create(ledger(3))
        found = await service.ledgers.read_each([2, 2**32, 3])
        assert [type(each) for each in found] == [MetadataNotFound, BadRequest, Versioned]
        assert found[2].version == made.version

    async def test_an_emptied_directory_is_no_end(self, driver: MetadataDriverUnderTest) -> None:
        service = await driver.open()
        await service.cluster.initialize()
        await service.ledgers.create(ledger(20_000))
        for path in ("00/0000", "000", "000/0000"):
            try:
                await service.tree.create(f"{driver.root}/{path}")
            except MetadataExists:
                continue
        assert await listed(service) == [20_000]


class TestTimeouts:
    async def test_a_closed_service_cannot_tell(self, driver: MetadataDriverUnderTest) -> None:
        service = await driver.open()
        await service.cluster.initialize()
        await service.close()
        await service.close()
        assert service.session.state is SessionState.CLOSED
        with pytest.raises(MetadataUnavailable):
            await service.ledgers.read(1, timeout=0.5)
