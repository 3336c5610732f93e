"""Copy, backup and restore of a cluster's metadata, between all drivers: what is carried, what refuses, what is
repeated."""

from __future__ import annotations

import asyncio
import errno
import gzip
import itertools
import json
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bookie_protocol.errors import (
    InvalidConfiguration,
    MetadataDamaged,
    MetadataExists,
    MetadataNotEmpty,
    MetadataNotFound,
    MetadataVersionConflict,
    SessionEnded,
    StorageFault,
)
from bookie_protocol.ledger_metadata.codec import encode_ledger_metadata
from bookie_protocol.metadata_service.interface import LedgerLayout
from bookie_protocol.metadata_service.moving import backup_file, moves, nodes, numbers
from bookie_protocol.metadata_service.moving.backup_file import BackupFile
from bookie_protocol.metadata_service.moving.moves import back_up, copy_cluster, reopen, restore
from bookie_protocol.metadata_service.moving.nodes import ClusterNodes
from bookie_protocol.metadata_service.records import HISTORY, HISTORY_NAME
from bookie_protocol.metadata_service.tree import life_cycle, paths
from bookie_protocol.metadata_service.tree.cluster import COPYING, MOVED
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.under_replication import AuditorCheck
from bookie_protocol.versioned import LedgerLife
from tests.support.metadata_drivers import MetadataDriverUnderTest
from tests.support.metadata_examples import INFO, W, filled, ledger, listed
from tests.support.metadata_fixtures import WIRED, driver, driver_of

__all__ = ["driver"]


PATIENT = 20.0
"""Seconds: a copy is hundreds of requests."""


def heard(_: int) -> None:
    """Of progress."""


@pytest.fixture(params=[each for each in WIRED if each != "embedded-oxia"])
async def other(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[MetadataDriverUnderTest]:
    """Where the cluster moves to."""
    made = driver_of(request.param, request, tmp_path_factory.mktemp("other"))
    yield made
    await made.close()


@pytest.fixture
async def embedded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[MetadataDriverUnderTest]:
    made = driver_of("embedded", request, tmp_path_factory.mktemp("embedded"))
    yield made
    await made.close()


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a backup goes."""
    return tmp_path_factory.mktemp("backups") / "backup"


async def everything(service: MetadataService) -> dict[str, bytes]:
    """The times of ledgers among it, and not the name of the place."""
    found = {path: data async for path, data in ClusterNodes(service.tree, service.root).read()}
    return {path: data for path, data in found.items() if not path.startswith("/podkeeper/history")}


async def made(driver: MetadataDriverUnderTest, **options: object) -> MetadataService:
    """A cluster with a bit of everything, and nobody connected."""
    other = await filled(driver, timeout=PATIENT, **options)
    await other.close()
    return await driver.open(timeout=PATIENT)


class TestCopy:
    async def test_everything_is_there_and_the_source_is_closed(
        self, driver: MetadataDriverUnderTest, other: MetadataDriverUnderTest
    ) -> None:
        source, target = await made(driver), await other.open(timeout=PATIENT)
        instance_id = await source.cluster.instance_id()
        lives = [LedgerLife.of(await source.ledgers.read(each)) for each in (0, 149, 2**40)]
        times = [(await source.ledgers.read(each)).value.ctime for each in (0, 149, 2**40)]
        newest = await source.ledgers.generate_id()
        tally = await copy_cluster(source, target, heard)
        assert tally is not None
        assert tally.ledgers == 152
        assert await target.cluster.instance_id() == instance_id
        with pytest.raises(MetadataDamaged, match="moved"):
            await source.cluster.instance_id()
        assert await listed(target) == await listed(source)
        assert [LedgerLife.of(await target.ledgers.read(each)) for each in (0, 149, 2**40)] == lives
        assert [(await target.ledgers.read(each)).value.ctime for each in (0, 149, 2**40)] == times
        assert (await target.cookies.read("b:1")).value == b"cookie"
        assert (await target.records("decommission").read("b:1")).value == b"{}"
        assert await target.cluster.records_instance_id() == instance_id
        tree = target.under_replication
        assert [mark.ledger_id async for mark in tree.list()] == [1]
        assert not await tree.is_enabled()
        assert await tree.lost_bookie_recovery_delay() == 7
        assert await tree.check_time(AuditorCheck.REPLICAS) == 5
        assert await tree.locks() == {}
        assert await target.ledgers.generate_id() > newest
        assert json.loads((await target.records(HISTORY).read(HISTORY_NAME)).value)["history"]
        await target.bookies.register("b:1", W, INFO)
        assert await copy_cluster(source, target, heard) is None, "it was complete before"

    async def test_a_layout_without_long_ids_goes_on_behind_all_that_were_given(
        self, driver: MetadataDriverUnderTest, embedded: MetadataDriverUnderTest
    ) -> None:
        first = await driver.open(timeout=PATIENT, layout=LedgerLayout.FLAT)
        await first.cluster.initialize()
        given = [await first.ledgers.generate_id() for _ in range(20)]
        await first.ledgers.create(ledger(3))
        source, target = await driver.open(timeout=PATIENT), await embedded.open(timeout=PATIENT)
        await copy_cluster(source, target, heard)
        assert await target.cluster.layout() is LedgerLayout.FLAT
        assert await listed(target) == [3]
        assert await target.ledgers.generate_id() > max(given)

    async def test_few_ids_go_on_with_31_bits(
        self, driver: MetadataDriverUnderTest, embedded: MetadataDriverUnderTest
    ) -> None:
        source, target = await driver.open(timeout=PATIENT), await embedded.open(timeout=PATIENT)
        await source.cluster.initialize()
        given = [await source.ledgers.generate_id() for _ in range(20)]
        await copy_cluster(source, target, heard)
        assert max(given) < await target.ledgers.generate_id() < 2**31

    async def test_many_ids_go_on_with_63_bits(
        self, driver: MetadataDriverUnderTest, embedded: MetadataDriverUnderTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(numbers, "FEW", 3)
        source, target = await driver.open(timeout=PATIENT), await embedded.open(timeout=PATIENT)
        await source.cluster.initialize()
        for _ in range(5):
            await source.ledgers.generate_id()
        await copy_cluster(source, target, heard)
        assert await target.ledgers.generate_id() == 1 << 32

    async def test_connected_processes_refuse_it_and_nothing_is_changed(
        self, driver: MetadataDriverUnderTest, embedded: MetadataDriverUnderTest
    ) -> None:
        source, target = await driver.open(timeout=PATIENT), await embedded.open(timeout=PATIENT)
        instance_id = await source.cluster.initialize()
        bookie = await driver.open(timeout=PATIENT)
        await bookie.bookies.register("b:1", W, INFO)
        with pytest.raises(MetadataNotEmpty, match="bookie b:1 is registered"):
            await copy_cluster(source, target, heard)
        assert await source.cluster.instance_id() == instance_id
        assert not await target.cluster.exists()
        await bookie.close()
        await source.under_replication.mark(1, ["b:1"], ctime_ms=1)
        await source.under_replication.lock(1)
        with pytest.raises(MetadataNotEmpty, match="process"):
            await copy_cluster(source, target, heard)
        with pytest.raises(MetadataDamaged, match="complete"):
            await target.cluster.instance_id()
        with pytest.raises(MetadataDamaged, match="moved"):
            await source.cluster.instance_id()
        assert await reopen(source) == instance_id == await source.cluster.instance_id()

    async def test_a_bookie_that_comes_meanwhile_stops_it(
        self, embedded: MetadataDriverUnderTest, driver: MetadataDriverUnderTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source, target = await driver.open(timeout=PATIENT), await embedded.open(timeout=PATIENT)
        instance_id = await source.cluster.initialize()
        bookie = await driver.open(timeout=PATIENT)
        set_ = source.tree.set

        async def and_register(*args: object, **options: object) -> object:
            identity = await set_(*args, **options)  # type: ignore[arg-type]
            await bookie.bookies.register("b:1", W, INFO)
            return identity

        monkeypatch.setattr(source.tree, "set", and_register)
        with pytest.raises(MetadataNotEmpty, match="bookie b:1 is registered"):
            await copy_cluster(source, target, heard)
        assert await source.cluster.instance_id() == instance_id

    async def test_another_cluster_is_not_overwritten(
        self, driver: MetadataDriverUnderTest, embedded: MetadataDriverUnderTest
    ) -> None:
        source, target = await driver.open(timeout=PATIENT), await embedded.open(timeout=PATIENT)
        instance_id = await source.cluster.initialize()
        await target.cluster.initialize()
        with pytest.raises(MetadataExists):
            await copy_cluster(source, target, heard)
        assert await source.cluster.instance_id() == instance_id
        with pytest.raises(MetadataExists):
            await copy_cluster(source, await driver.open(timeout=PATIENT), heard)

    async def test_a_source_that_was_moved_is_copied_nowhere_else(
        self, driver: MetadataDriverUnderTest, embedded: MetadataDriverUnderTest
    ) -> None:
        source, target = await driver.open(timeout=PATIENT), await embedded.open(timeout=PATIENT)
        await source.cluster.initialize()
        await copy_cluster(source, target, heard)
        third = await beside(embedded)
        with pytest.raises(MetadataExists):
            await copy_cluster(source, third, heard)
        assert not await third.cluster.exists()

    async def test_marks_without_the_name_of_a_copy_have_a_way_out(
        self, driver: MetadataDriverUnderTest, embedded: MetadataDriverUnderTest
    ) -> None:
        """As earlier releases wrote them."""
        source, target = await driver.open(timeout=PATIENT), await embedded.open(timeout=PATIENT)
        place = f"{source.root}/{paths.INSTANCE_ID}"
        instance_id = await source.cluster.initialize()
        await source.tree.overwrite(place, f"{MOVED}{instance_id}".encode())
        with pytest.raises(MetadataExists, match="reopen"):
            await copy_cluster(source, target, heard)
        assert await reopen(source) == instance_id == await source.cluster.instance_id()
        await source.tree.overwrite(place, f"{COPYING}{instance_id}".encode())
        with pytest.raises(MetadataDamaged, match="complete"):
            await source.cluster.instance_id()
        await source.cluster.nuke(instance_id=instance_id)
        assert not await source.cluster.exists()

    async def test_of_two_copies_that_began_one_comes_to_the_end(
        self, driver: MetadataDriverUnderTest, embedded: MetadataDriverUnderTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source, first, second = (
            await driver.open(timeout=PATIENT),
            await embedded.open(timeout=PATIENT),
            await beside(embedded),
        )
        instance_id = await source.cluster.initialize()
        check = moves._check_apart

        async def while_the_other_is_copied(*args: MetadataService) -> None:
            monkeypatch.setattr(moves, "_check_apart", check)
            await copy_cluster(source, second, heard)

        monkeypatch.setattr(moves, "_check_apart", while_the_other_is_copied)
        with pytest.raises(MetadataVersionConflict):
            await copy_cluster(source, first, heard)
        with pytest.raises(MetadataExists):
            await copy_cluster(source, first, heard)
        with pytest.raises(MetadataDamaged, match="complete"):
            await first.cluster.instance_id()
        assert await second.cluster.instance_id() == instance_id

    async def test_ids_of_the_other_place_are_not_given_again_after_the_way_back(
        self, driver: MetadataDriverUnderTest, embedded: MetadataDriverUnderTest
    ) -> None:
        source, target = await driver.open(timeout=PATIENT), await embedded.open(timeout=PATIENT)
        instance_id = await source.cluster.initialize()
        await copy_cluster(source, target, heard)
        there = [await target.ledgers.generate_id() for _ in range(3)]
        assert await reopen(source) == instance_id == await source.cluster.instance_id()
        again = await driver.open(timeout=PATIENT)
        assert min([await again.ledgers.generate_id() for _ in range(3)]) > max(there)
        with pytest.raises(InvalidConfiguration):
            await reopen(source)

    async def test_an_older_state_at_the_target_is_not_the_copy(
        self,
        driver: MetadataDriverUnderTest,
        embedded: MetadataDriverUnderTest,
        place: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        source, target = await driver.open(timeout=PATIENT), await embedded.open(timeout=PATIENT)
        instance_id = await source.cluster.initialize()
        file = BackupFile(str(place))
        await back_up(source, "here", file, heard)
        await source.ledgers.create(ledger(1))
        with monkeypatch.context() as patched, pytest.raises(Killed):
            patched.setattr(moves, "differences", _dying(nodes.differences, itertools.count(0)))
            await copy_cluster(source, target, heard)
        with pytest.raises(MetadataExists):
            await restore(file, target, heard)
        await target.tree.delete(f"{target.root}/podkeeper-copier")
        await target.cluster.nuke(instance_id=instance_id, with_ledgers=True)
        await restore(file, target, heard)
        with pytest.raises(MetadataExists):
            await copy_cluster(source, target, heard)
        assert await listed(target) == []

    async def test_a_source_that_was_opened_meanwhile_is_noticed(
        self, driver: MetadataDriverUnderTest, embedded: MetadataDriverUnderTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source, target = await driver.open(timeout=PATIENT), await embedded.open(timeout=PATIENT)
        await source.cluster.initialize()

        async def and_open(*args: nodes.Entries) -> object:
            found = await nodes.differences(*args)
            await reopen(source)
            return found

        monkeypatch.setattr(moves, "differences", and_open)
        with pytest.raises(MetadataVersionConflict):
            await copy_cluster(source, target, heard)
        with pytest.raises(MetadataDamaged, match="complete"):
            await target.cluster.instance_id()

    async def test_an_id_that_is_given_while_the_source_is_read_is_not_given_again(
        self, driver: MetadataDriverUnderTest, embedded: MetadataDriverUnderTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source, target = await driver.open(timeout=PATIENT), await embedded.open(timeout=PATIENT)
        await source.cluster.initialize()
        await source.ledgers.generate_id()
        begin_move, given = source.cluster.begin_move, []
        read = ClusterNodes.read

        async def and_take(self: ClusterNodes, **options: bool) -> nodes.Entries:
            if self._root == source.root and not given:
                given.append(await source.ledgers.generate_id())
                await source.ledgers.create(ledger(given[0]))
            async for entry in read(self, **options):
                yield entry

        async def then_read(*args: str) -> None:
            await begin_move(*args)
            monkeypatch.setattr(ClusterNodes, "read", and_take)

        monkeypatch.setattr(source.cluster, "begin_move", then_read)
        await copy_cluster(source, target, heard)
        assert await listed(target) == given
        assert await target.ledgers.generate_id() > given[0]

    async def test_neither_place_is_removed_meanwhile(
        self, driver: MetadataDriverUnderTest, embedded: MetadataDriverUnderTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source, target = await embedded.open(timeout=PATIENT), await driver.open(timeout=PATIENT)
        instance_id = await source.cluster.initialize()
        others = await embedded.open(timeout=PATIENT), await driver.open(timeout=PATIENT)

        async def and_remove(*args: nodes.Entries) -> object:
            for other in others:
                with pytest.raises(MetadataExists):
                    await other.cluster.nuke(instance_id=instance_id, with_ledgers=True)
                with pytest.raises(MetadataExists):
                    await other.cluster.format(force=True)
            return await nodes.differences(*args)

        monkeypatch.setattr(life_cycle, "_PATIENCE", 0.0)
        monkeypatch.setattr(moves, "differences", and_remove)
        await copy_cluster(source, target, heard)
        assert await target.cluster.instance_id() == instance_id
        for other in others:
            await other.cluster.nuke(instance_id=instance_id, with_ledgers=True)

    async def test_a_target_within_the_source_is_refused(self, driver: MetadataDriverUnderTest) -> None:
        source = await driver.open(timeout=PATIENT)
        await source.cluster.initialize()
        root, driver.root = driver.root, f"{driver.root}/inside"
        try:
            if (await source.tree.exists(root)) is None:
                pytest.skip("nodes of different roots are apart")
            target = await driver.open(timeout=PATIENT)
        finally:
            driver.root = root
        await _refused_within(source, target)

    async def test_another_layout_in_the_uri_is_refused(
        self, driver: MetadataDriverUnderTest, embedded: MetadataDriverUnderTest
    ) -> None:
        source = await driver.open(timeout=PATIENT)
        await source.cluster.initialize()
        target = await embedded.open(timeout=PATIENT, layout=LedgerLayout.FLAT)
        with pytest.raises(InvalidConfiguration, match="layout"):
            await copy_cluster(source, target, heard)
        assert not await target.cluster.exists()

    async def test_whoever_dies_at_any_request_can_repeat_it(
        self, driver: MetadataDriverUnderTest, embedded: MetadataDriverUnderTest
    ) -> None:
        """As a process that is killed: nothing is tidied up."""
        source = await made(embedded)
        instance_id = await source.cluster.instance_id()
        place = await driver.open(timeout=PATIENT)
        for number in itertools.count(1):
            left = itertools.count(number, -1)
            target = await driver.open(timeout=PATIENT)
            for name in ("create", "create_all", "overwrite", "ensure", "take_number", "delete"):
                setattr(target.tree, name, _dying(getattr(target.tree, name), left))
            try:
                tally = await copy_cluster(source, target, heard)
            except Killed:
                with pytest.raises((MetadataDamaged, MetadataNotFound)):
                    await place.cluster.instance_id()
                continue
            finally:
                await target.tree.close()
            break
        assert tally is not None
        assert number > 3
        assert await place.cluster.instance_id() == instance_id
        assert await listed(place) == await listed(source)
        assert await everything(place) == await everything(source)

    async def test_whoever_slept_while_another_came_to_the_end_changes_nothing(
        self, driver: MetadataDriverUnderTest, embedded: MetadataDriverUnderTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source, first, second = (
            await made(embedded),
            await driver.open(timeout=PATIENT),
            await driver.open(timeout=PATIENT),
        )
        create_all, asleep, awake = first.tree.create_all, asyncio.Event(), asyncio.Event()
        calls = itertools.count()

        async def slow(*args: object, **options: object) -> None:
            if next(calls) == 1:
                asleep.set()
                await awake.wait()
            await create_all(*args, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(first.tree, "create_all", slow)
        sleeping = asyncio.create_task(copy_cluster(source, first, heard))
        await asleep.wait()
        with monkeypatch.context() as patched, pytest.raises(MetadataExists, match="process"):
            patched.setattr(life_cycle, "_PATIENCE", 0.01)
            await copy_cluster(source, second, heard)
        await driver.expire(first)
        assert await copy_cluster(source, second, heard) is not None
        await second.ledgers.create(ledger(2**50))
        before = await everything(second)
        awake.set()
        with pytest.raises(SessionEnded):
            await sleeping
        assert await everything(second) == before
        assert await second.cluster.instance_id()

    async def test_what_changed_between_two_tries_is_made_equal(
        self, driver: MetadataDriverUnderTest, embedded: MetadataDriverUnderTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source, target = await made(driver), await embedded.open(timeout=PATIENT)
        with monkeypatch.context() as patched, pytest.raises(Killed):
            patched.setattr(moves, "differences", _dying(nodes.differences, itertools.count(0)))
            await copy_cluster(source, target, heard)
        await reopen(source)
        await source.ledgers.delete(7)
        await source.ledgers.delete(2**40)
        stored = await source.ledgers.read(8)
        await source.ledgers.write(stored.value.in_recovery(), stored.identity)
        await source.ledgers.create(ledger(2**50))
        assert await copy_cluster(source, target, heard) is not None
        assert await everything(target) == await everything(source)
        assert await listed(target) == await listed(source)

    async def test_a_writer_at_the_source_is_noticed(
        self, driver: MetadataDriverUnderTest, embedded: MetadataDriverUnderTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source, target = await made(driver), await embedded.open(timeout=PATIENT)
        go_on = numbers.go_on_behind

        async def and_write(*args: object, **options: object) -> None:
            await go_on(*args, **options)  # type: ignore[arg-type]
            await source.ledgers.create(ledger(151))

        monkeypatch.setattr(moves, "go_on_behind", and_write)
        with pytest.raises(MetadataVersionConflict, match="/00/0000/L0151"):
            await copy_cluster(source, target, heard)
        with pytest.raises(MetadataDamaged, match="complete"):
            await target.cluster.instance_id()

    async def test_a_time_that_stood_in_the_service_alone_is_carried(
        self, driver: MetadataDriverUnderTest, embedded: MetadataDriverUnderTest
    ) -> None:
        source, target = await driver.open(timeout=PATIENT), await embedded.open(timeout=PATIENT)
        await source.cluster.initialize()
        await source.ledgers.create(ledger(1))
        stored = (await source.ledgers.read(1)).value
        if not source.tree.keeps_times:
            pytest.skip("this service has no times")
        assert not stored.store_ctime
        await source.tree.create(f"{source.root}/00/0000/L0002", b"nobody can read this")
        await copy_cluster(source, target, heard)
        carried = (await target.ledgers.read(1)).value
        assert carried == replace(stored, store_ctime=True)
        assert (await target.tree.get(f"{target.root}/00/0000/L0001")).data == encode_ledger_metadata(carried)
        assert (await target.tree.get(f"{target.root}/00/0000/L0002")).data == b"nobody can read this"


class TestBackup:
    async def test_a_cluster_in_use_comes_back_anywhere(
        self, driver: MetadataDriverUnderTest, embedded: MetadataDriverUnderTest, place: Path
    ) -> None:
        source, target = await filled(driver, timeout=PATIENT), await embedded.open(timeout=PATIENT)
        await source.bookies.register("b:1", W, INFO)
        file = BackupFile(str(place))
        trailer = await back_up(source, "here", file, heard)
        assert (trailer.ledgers, trailer.left_out) == (152, 2)
        assert (await asyncio.to_thread(place.stat)).st_mode & 0o77 == 0
        assert await asyncio.to_thread(os.listdir, place.parent) == ["backup"]
        later = [await source.ledgers.generate_id() for _ in range(3)]
        header, tally = await restore(file, target, heard)
        assert tally.ledgers == 152
        assert header.instance_id == await target.cluster.instance_id() == await source.cluster.instance_id()
        assert await listed(target) == await listed(source)
        assert await target.ledgers.generate_id() > max(later), "those that nobody knows of are not given again"
        with pytest.raises(MetadataExists):
            await restore(file, target, heard)
        with pytest.raises(InvalidConfiguration, match="exists"):
            await back_up(source, "here", file, heard)

    async def test_a_file_of_an_earlier_release_can_be_restored(
        self, embedded: MetadataDriverUnderTest, driver: MetadataDriverUnderTest, place: Path
    ) -> None:
        """It says nothing of the history of its source."""
        file = BackupFile(str(place))
        await back_up(await filled(embedded, timeout=PATIENT), "here", file, heard)
        first, *rest = gzip.decompress(await asyncio.to_thread(place.read_bytes)).splitlines(keepends=True)
        header = {name: value for name, value in json.loads(first).items() if name not in ("history", "position")}
        older = gzip.compress(b"".join([json.dumps(header).encode(), b"\n", *rest]))
        await asyncio.to_thread(place.write_bytes, older)
        found, tally = await restore(file, await driver.open(timeout=PATIENT), heard)
        assert (tally.ledgers, found.history, found.position) == (152, "", 0)

    async def test_no_bookie_starts_on_half_of_a_backup(
        self, driver: MetadataDriverUnderTest, place: Path, embedded: MetadataDriverUnderTest
    ) -> None:
        file = BackupFile(str(place))
        await back_up(await filled(embedded, timeout=PATIENT), "here", file, heard)
        found = await driver.open(timeout=PATIENT)
        left = itertools.count(3, -1)
        target = await driver.open(timeout=PATIENT)
        target.tree.create_all = _dying(target.tree.create_all, left)  # type: ignore[method-assign, assignment]
        with pytest.raises(Killed):
            await restore(file, target, heard)
        await target.tree.close()
        with pytest.raises(MetadataDamaged, match="complete"):
            await found.cluster.instance_id()
        await restore(file, found, heard)
        assert len(await listed(found)) == 152

    async def test_a_cluster_that_is_replaced_meanwhile_is_no_backup(
        self, driver: MetadataDriverUnderTest, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = await filled(driver, timeout=PATIENT)
        read = ClusterNodes.read

        async def and_format(self: ClusterNodes, **options: bool) -> nodes.Entries:
            async for entry in read(self, **options):
                yield entry
                if entry[0] == "/00":
                    await source.cluster.format(force=True)

        monkeypatch.setattr(ClusterNodes, "read", and_format)
        with pytest.raises(MetadataVersionConflict):
            await back_up(source, "here", BackupFile(str(place)), heard)
        assert await asyncio.to_thread(os.listdir, place.parent) == []

    async def test_the_file_is_its_owners_and_a_new_one_whatever_lay_there(
        self, embedded: MetadataDriverUnderTest, place: Path
    ) -> None:
        source = await embedded.open(timeout=PATIENT)
        await source.cluster.initialize()
        part, secret = place.with_name("backup.part"), place.with_name("secret")
        await asyncio.to_thread(secret.write_bytes, b"mine")
        await asyncio.to_thread(part.symlink_to, secret)
        await back_up(source, "here", BackupFile(str(place)), heard)
        assert (await asyncio.to_thread(place.lstat)).st_mode == 0o100600
        assert await asyncio.to_thread(secret.read_bytes) == b"mine"

    async def test_of_two_backups_to_one_name_one_gets_it(
        self, embedded: MetadataDriverUnderTest, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = await embedded.open(timeout=PATIENT)
        await source.cluster.initialize()
        checked = BackupFile.checked

        async def while_the_other_ends(self: BackupFile) -> object:
            monkeypatch.setattr(BackupFile, "checked", checked)
            await back_up(source, "there", BackupFile(str(place)), heard)
            return await self.checked()

        monkeypatch.setattr(BackupFile, "checked", while_the_other_ends)
        with pytest.raises(InvalidConfiguration):
            await back_up(source, "here", BackupFile(str(place)), heard)
        assert (await BackupFile(str(place)).checked())[0].source == "there"
        assert await asyncio.to_thread(os.listdir, place.parent) == ["backup"]

    async def test_a_file_that_was_put_in_the_place_of_the_new_one_gets_no_name(
        self, embedded: MetadataDriverUnderTest, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = await embedded.open(timeout=PATIENT)
        await source.cluster.initialize()
        checked = BackupFile.checked

        async def and_replace(self: BackupFile) -> object:
            found = await checked(self)
            other = place.with_name("other")
            await asyncio.to_thread(other.write_bytes, b"not what was checked")
            await asyncio.to_thread(os.replace, other, self.path)
            return found

        monkeypatch.setattr(BackupFile, "checked", and_replace)
        with pytest.raises(StorageFault):
            await back_up(source, "here", BackupFile(str(place)), heard)
        assert await asyncio.to_thread(os.listdir, place.parent) == []

    async def test_what_is_checked_is_what_was_written(
        self, embedded: MetadataDriverUnderTest, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Not what has its name by then."""
        source = await embedded.open(timeout=PATIENT)
        await source.cluster.initialize()
        await back_up(source, "here", BackupFile(str(place)), heard)
        checked = BackupFile.checked

        async def of_another(self: BackupFile) -> object:
            await asyncio.to_thread(os.replace, place, self.path)
            return await checked(self)

        monkeypatch.setattr(BackupFile, "checked", of_another)
        with pytest.raises(StorageFault):
            await back_up(source, "there", BackupFile(str(place.with_name("second"))), heard)
        assert await asyncio.to_thread(os.listdir, place.parent) == []

    async def test_a_file_system_without_hard_links_is_told_before_anything_is_read(
        self, embedded: MetadataDriverUnderTest, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = await embedded.open(timeout=PATIENT)
        await source.cluster.initialize()

        def refused(*_: object) -> None:
            raise PermissionError(errno.EPERM, "Operation not permitted")

        def never(*_: object, **__: object) -> None:
            raise AssertionError("it was read")

        monkeypatch.setattr(os, "link", refused)
        monkeypatch.setattr(ClusterNodes, "read", never)
        with pytest.raises(InvalidConfiguration):
            await back_up(source, "here", BackupFile(str(place)), heard)
        assert await asyncio.to_thread(os.listdir, place.parent) == []

    def test_no_more_than_some_bytes_are_held(self, place: Path) -> None:
        line = b"x" * 100_000 + b"\n"
        place.write_bytes(gzip.compress(line * 100))
        with gzip.open(place, "rb") as file:
            assert backup_file._lines(file) == [line] * 3


async def beside(driver: MetadataDriverUnderTest) -> MetadataService:
    """Another place of the same store."""
    root, driver.root = driver.root, f"{driver.root}-beside"
    try:
        return await driver.open(timeout=PATIENT)
    finally:
        driver.root = root


class Killed(BaseException):
    """The process ends here."""


def _dying(call: Callable[..., object], left: itertools.count[int]) -> Callable[..., object]:
    async def until_none_is_left(*args: object, **options: object) -> object:
        if next(left) <= 0:
            raise Killed
        return await call(*args, **options)  # type: ignore[misc]

    return until_none_is_left


async def _refused_within(source: MetadataService, target: MetadataService) -> None:
    with pytest.raises(InvalidConfiguration, match="within"):
        await copy_cluster(source, target, heard)
    assert not await target.cluster.exists()
    assert await source.cluster.instance_id()


@pytest.fixture
async def backup(embedded: MetadataDriverUnderTest, place: Path) -> bytes:
    """The bytes of a file at `place`."""
    await back_up(await filled(embedded, timeout=PATIENT), "here", BackupFile(str(place)), heard)
    return await asyncio.to_thread(place.read_bytes)


async def refused(place: Path, damaged: bytes) -> None:
    await asyncio.to_thread(place.write_bytes, damaged)
    with pytest.raises(MetadataDamaged):
        await BackupFile(str(place)).checked()


class TestDamage:
    async def test_no_damage_of_the_file_passes(self, backup: bytes, place: Path) -> None:
        for at in range(0, len(backup), max(1, len(backup) // 150)):
            flipped = backup[:at] + bytes([backup[at] ^ 0x10]) + backup[at + 1 :]
            await refused(place, backup[:at])
            if not _has_content(flipped, gzip.decompress(backup)):  # some bytes of gzip's header mean nothing
                await refused(place, flipped)

    @pytest.mark.parametrize(
        "kind", ["left out", "twice", "other order", "changed", "no end", "behind the end", "path"]
    )
    async def test_no_line_is_missing_or_another(self, backup: bytes, place: Path, kind: str) -> None:
        lines = gzip.decompress(backup).splitlines(keepends=True)
        at = len(lines) // 2
        changed = json.dumps([json.loads(lines[at])[0], "AAAA"]).encode() + b"\n"
        lines = {
            "left out": [*lines[:at], *lines[at + 1 :]],
            "twice": [*lines[:at], lines[at], *lines[at:]],
            "other order": [*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]],
            "changed": [*lines[:at], changed, *lines[at + 1 :]],
            "no end": lines[:-1],
            "behind the end": [*lines, lines[at]],
            "path": [*lines[:at], b'["/../x", ""]\n', *lines[at + 1 :]],
        }[kind]
        await refused(place, gzip.compress(b"".join(lines)))


def _has_content(file: bytes, content: bytes) -> bool:
    try:
        return gzip.decompress(file) == content
    except Exception:  # whatever it is, it has not
        return False
