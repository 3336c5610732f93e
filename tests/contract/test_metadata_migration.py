"""Pulsar's live migration of metadata from ZooKeeper to Oxia (PIP-454), under processes of ours."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from kazoo.exceptions import NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE

from bookie_protocol.errors import (
    MetadataExists,
    MetadataNotFound,
    MetadataUnavailable,
    MetadataVersionConflict,
    SessionEnded,
)
from bookie_protocol.metadata_service.interface import SessionState
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.uri import open_metadata_service
from bookie_protocol.versioned import LedgerLife
from tests.support.metadata_examples import INFO, R, Recorded, W, ledger, listed
from tests.support.migration import PARTICIPANTS, Coordinator, embedded_oxia
from tests.support.oxia import MISSING, OxiaServer, is_program
from tests.support.until import until
from tests.support.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.zookeeper

_chroots = itertools.count()

STOPS = """
import asyncio, os, signal, sys
from bookie_protocol.metadata_service.uri import open_metadata_service

async def main():
    await open_metadata_service(sys.argv[1], timeout=3)
    print("opened", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)

asyncio.run(main())
"""


class Rig:
    """A cluster in ZooKeeper that moves to Oxia. `service` is the one that made it."""

    def __init__(self, zookeeper: ZooKeeperServer, oxia: str) -> None:
        self.zookeeper = zookeeper
        self.oxia = oxia
        self.chroot = f"/migration-{next(_chroots)}"
        self.root = f"{self.chroot}/ledgers"
        self.coordinator = Coordinator(zookeeper, oxia, self.chroot)
        self._stack = AsyncExitStack()
        self.service: MetadataService

    async def begin(self, *, participants: bool = True) -> None:
        await self.coordinator.start() if participants else None
        self.service = await self.open()
        await self.service.cluster.initialize(instance_id="cluster-1")
        self.before = await self.service.ledgers.create(ledger(7))

    async def open(self, timeout: float = 10.0) -> MetadataService:
        service = await open_metadata_service(self.zookeeper.uri(self.root), timeout=timeout)
        self._stack.push_async_callback(service.close)
        return service

    async def open_target(self) -> MetadataService:
        service = await open_metadata_service(f"metadata-store:oxia://{self.oxia}/default", timeout=10)
        self._stack.push_async_callback(service.close)
        return service

    async def close(self) -> None:
        await self._stack.aclose()
        await self.coordinator.stop()


@pytest.fixture(params=["embedded", pytest.param("oxia", marks=pytest.mark.oxia)])
async def oxia(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """Host and port of an Oxia of this test alone."""
    if request.param == "oxia":
        if not is_program():
            pytest.skip(MISSING)
        server = OxiaServer(tmp_path)
        await asyncio.to_thread(server.start)
        yield server.target
        server.stop()
        return
    async with embedded_oxia(str(tmp_path)) as served:
        yield served


@pytest.fixture
async def rig(zookeeper: ZooKeeperServer, oxia: str) -> AsyncIterator[Rig]:
    made = Rig(zookeeper, oxia)
    await made.begin()
    yield made
    await made.close()


async def until_connected(service: MetadataService) -> None:
    await until(lambda: service.session.state is SessionState.CONNECTED, seconds=20)


async def until_paused(service: MetadataService) -> None:
    await until(lambda: service.session.state is SessionState.EXPIRED, seconds=20)


# --- the way to Oxia --------------------------------------------------------------------------------------------


async def test_everything_goes_on_in_oxia(rig: Rig) -> None:
    states = Recorded(rig.service.session)
    await rig.service.bookies.register("b:1", W, INFO)
    await rig.coordinator.joined(1)
    await rig.coordinator.migrate()
    await states.renewed(20)
    assert states.states == [SessionState.EXPIRED, SessionState.CONNECTED]
    await rig.service.ledgers.create(ledger(8))
    assert await listed(rig.service) == [7, 8]
    assert await rig.service.cluster.instance_id() == "cluster-1"
    other = await rig.open_target()
    assert await listed(other) == [7, 8]
    assert (await other.bookies.list(W)).bookies == {"b:1"}


async def test_a_session_that_is_opened_afterwards_is_in_oxia(rig: Rig) -> None:
    await rig.coordinator.migrate()
    later = await rig.open()
    assert later.session.state is SessionState.CONNECTED
    await later.ledgers.create(ledger(9))
    await until_connected(rig.service)
    assert await listed(rig.service) == [7, 9]


async def test_writes_wait_while_the_metadata_are_copied_and_are_never_refused(rig: Rig) -> None:
    await rig.coordinator.prepare()
    await rig.coordinator.copy()
    with pytest.raises(MetadataUnavailable):
        await rig.service.ledgers.create(ledger(8), timeout=0.3)
    with pytest.raises(MetadataUnavailable):
        await rig.service.ledgers.write(rig.before.value, rig.before.identity, timeout=0.3)
    with pytest.raises(MetadataUnavailable):
        await rig.service.ledgers.delete(7, timeout=0.3)
    with pytest.raises(MetadataUnavailable):
        await rig.service.ledgers.generate_id(timeout=0.3)
    assert await listed(rig.service) == [7]
    waiting = asyncio.create_task(rig.service.ledgers.create(ledger(8), timeout=20))
    await rig.coordinator.set_phase("COMPLETED")
    await waiting
    assert await listed(await rig.open_target()) == [7, 8]


async def test_what_is_there_already_is_refused_in_the_pause_too(rig: Rig) -> None:
    await rig.coordinator.prepare()
    with pytest.raises(MetadataExists):
        await rig.service.tree.create(f"{rig.root}/available")


async def test_a_registration_is_in_oxia_before_the_coordinator_goes_on(rig: Rig) -> None:
    await rig.service.bookies.register("b:1", W, INFO)
    await rig.service.bookies.register("b:2", R, INFO)
    await rig.coordinator.prepare()
    assert (await rig.service.bookies.list(W)).bookies == {"b:1"}
    await rig.coordinator.copy()
    target = await rig.open_target()
    assert (await target.bookies.list(W)).bookies == {"b:1"}
    assert (await target.bookies.list(R)).bookies == {"b:2"}
    await rig.coordinator.set_phase("COMPLETED")
    await until_connected(rig.service)
    await rig.service.bookies.register("b:1", W, INFO, timeout=1)  # ours: it is left as it is
    await rig.service.close()
    await until_gone(target)


async def until_gone(service: MetadataService) -> None:
    async with asyncio.timeout(20), service.bookies.watch(W) as watched:
        async for found in watched:
            if not found.bookies:
                return


async def test_failed_goes_back_to_zookeeper_and_the_next_migration_waits_again(rig: Rig) -> None:
    await rig.service.bookies.register("b:1", W, INFO)
    before = rig.service.tree.session_id
    await rig.coordinator.prepare()
    await rig.coordinator.copy()
    await rig.coordinator.set_phase("FAILED")
    await until_connected(rig.service)
    await rig.coordinator.joined(1)
    assert rig.service.tree.session_id != before
    await rig.service.bookies.register("b:1", W, INFO, timeout=1)
    await rig.service.ledgers.write(rig.before.value, rig.before.identity)
    await rig.service.ledgers.create(ledger(8))
    await rig.coordinator.empty()
    await rig.coordinator.migrate()
    await until_connected(rig.service)
    assert await listed(rig.service) == [7, 8]
    await rig.service.ledgers.create(ledger(9))
    assert await listed(await rig.open_target()) == [7, 8, 9]


@pytest.mark.parametrize("phase", ["PREPARATION", "COPYING"])
async def test_a_session_that_is_opened_in_the_pause_reads_and_waits(rig: Rig, phase: str) -> None:
    await rig.coordinator.prepare()
    if phase == "COPYING":
        await rig.coordinator.copy()
    later = await rig.open()
    await rig.coordinator.joined(0)
    assert later.session.state is not SessionState.CONNECTED
    assert await listed(later) == [7]
    with pytest.raises(MetadataUnavailable):
        await later.bookies.register("b:2", W, INFO, timeout=0.3)
    if phase == "PREPARATION":
        await rig.coordinator.copy()
    await rig.coordinator.set_phase("COMPLETED")
    await until_connected(later)
    await later.bookies.register("b:2", W, INFO)
    assert (await (await rig.open_target()).bookies.list(W)).bookies == {"b:2"}


async def test_one_of_two_participants_dies_while_they_prepare(rig: Rig) -> None:
    """The coordinator waits for it until its session has ended, and the other one keeps still meanwhile."""
    uri = rig.zookeeper.uri(rig.root)
    dying = await asyncio.create_subprocess_exec(sys.executable, "-c", STOPS, uri, stdout=asyncio.subprocess.PIPE)
    assert dying.stdout is not None
    assert await dying.stdout.readline() == b"opened\n"
    await rig.coordinator.joined(2)
    await rig.coordinator.set_phase("PREPARATION")
    await until_paused(rig.service)
    await rig.coordinator.joined(1)
    with pytest.raises(MetadataUnavailable):
        await rig.service.ledgers.delete(7, timeout=0.3)
    dying.kill()
    await dying.wait()
    await rig.coordinator.joined(0)
    await rig.coordinator.copy()
    await rig.coordinator.set_phase("COMPLETED")
    await until_connected(rig.service)
    assert await listed(rig.service) == [7]


async def test_a_cluster_without_pulsar_gets_no_nodes_of_migrations(zookeeper: ZooKeeperServer, oxia: str) -> None:
    rig = Rig(zookeeper, oxia)
    await rig.begin(participants=False)
    try:
        names = (await rig.service.tree.children(rig.chroot)).names
        assert names == ("ledgers",)
        await rig.coordinator.start()
        await rig.coordinator.joined(1)
        await rig.coordinator.migrate()
        await until_paused_and_back(rig.service)
    finally:
        await rig.close()


@pytest.fixture
def own_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    server = ZooKeeperServer(str(tmp_path_factory.mktemp("zookeeper")))
    server.start()
    yield server
    server.stop()


async def test_flag_that_anybody_may_write_says_nothing_to_those_with_access_lists(
    own_zookeeper: ZooKeeperServer, oxia: str
) -> None:
    rig = Rig(own_zookeeper, oxia)
    await rig.coordinator.start()
    uri = own_zookeeper.uri(rig.root)
    service = await open_metadata_service(uri, timeout=10, auth=[("digest", "bookie:secret")], secure=True)
    try:
        await service.cluster.initialize(instance_id="cluster-1")
        await rig.coordinator.set_phase("PREPARATION")
        await service.ledgers.create(ledger(7))
        await rig.coordinator.joined(1)
        await rig.coordinator.own("bookie", "secret")
        await rig.coordinator.set_phase("FAILED")
        await rig.coordinator.prepare()
    finally:
        await service.close()
        await rig.close()


async def test_switched_off_it_goes_on_in_zookeeper(rig: Rig) -> None:
    service = await open_metadata_service(rig.zookeeper.uri(rig.root), timeout=10, follow_migration=False)
    try:
        await rig.coordinator.joined(1)
        await rig.coordinator.set_phase("COMPLETED")
        await service.ledgers.create(ledger(9))
        assert service.session.counts == ""
    finally:
        await service.close()


async def until_paused_and_back(service: MetadataService) -> None:
    await until(lambda: service.tree._tree.has_switched, seconds=20)  # type: ignore[attr-defined]


# --- lives ------------------------------------------------------------------------------------------------------


async def test_what_was_read_before_is_neither_changed_nor_taken_for_another(rig: Rig) -> None:
    made, cookie = rig.before, await rig.service.cookies.create("b:1", b"cookie")
    await rig.coordinator.migrate()
    await until_connected(rig.service)
    with pytest.raises(MetadataVersionConflict) as caught:
        await rig.service.ledgers.write(made.value, made.identity)
    assert type(caught.value) is MetadataVersionConflict
    with pytest.raises(MetadataVersionConflict) as caught:
        await rig.service.ledgers.delete_this(made)
    assert type(caught.value) is MetadataVersionConflict
    again = await rig.service.ledgers.read(7, fresh=True)
    assert LedgerLife.of(again) == LedgerLife.of(made)
    assert (replace(again.value, ctime=None), again.version) == (made.value, made.version)
    await rig.service.ledgers.write(again.value, again.identity)
    with pytest.raises((MetadataVersionConflict, SessionEnded)):
        await rig.service.cookies.delete_this("b:1", cookie)
    stored = await rig.service.cookies.read("b:1")
    await rig.service.cookies.update("b:1", b"other", stored.identity)


async def test_a_ledger_without_a_token_that_is_watched_is_not_reported_as_gone(rig: Rig) -> None:
    made = await rig.service.ledgers.create(ledger(8, format_version=2))
    async with rig.service.ledgers.watch(8) as watched:
        assert (await anext(watched)) is not None
        await rig.coordinator.migrate()
        await until_connected(rig.service)
        again = await rig.service.ledgers.read(8)
        assert LedgerLife.of(again) == LedgerLife.of(made)
        await rig.service.ledgers.write(again.value.in_recovery(), again.identity)
        async with asyncio.timeout(20):
            while (found := await anext(watched)) is not None and found.value.state == again.value.state:
                pass
        assert found is not None


async def test_a_watch_hears_what_others_do_in_oxia(rig: Rig) -> None:
    async with rig.service.bookies.watch(W) as watched:
        assert (await anext(watched)).bookies == frozenset()
        await rig.coordinator.migrate()
        await until_connected(rig.service)
        other = await rig.open_target()
        await other.bookies.register("b:9", W, INFO)
        async with asyncio.timeout(20):
            while "b:9" not in (await anext(watched)).bookies:
                pass


async def test_no_other_client_can_hide_the_node_of_a_process(rig: Rig) -> None:
    """The coordinator has to be able to read it, and whoever may delete in the directory may delete it."""
    await rig.coordinator.joined(1)
    node = f"{rig.chroot}{PARTICIPANTS}/{rig.coordinator.participants()[0]}"
    stranger = rig.zookeeper.kazoo(timeout=10)
    await asyncio.to_thread(stranger.start, 30)
    try:
        with pytest.raises(NoAuthError):
            await asyncio.to_thread(stranger.set_acls, node, OPEN_ACL_UNSAFE)
        await asyncio.to_thread(stranger.get, node)
        await asyncio.to_thread(stranger.delete, node)
    finally:
        await asyncio.to_thread(stranger.stop)
        await asyncio.to_thread(stranger.close)
    await rig.coordinator.joined(1)
    await rig.coordinator.migrate()
    await until_connected(rig.service)


async def test_a_lock_ends_with_the_pause(rig: Rig) -> None:
    marks = rig.service.under_replication
    await marks.mark(7, ["b:1"], ctime_ms=1)
    lock = await marks.lock(7)
    await rig.coordinator.prepare()
    with pytest.raises(SessionEnded):
        await rig.service.ledgers.write(rig.before.value, rig.before.identity, session_id=lock.session_id)
    await rig.coordinator.set_phase("FAILED")
    await until_connected(rig.service)
    with pytest.raises(SessionEnded):
        await rig.service.ledgers.write(rig.before.value, rig.before.identity, session_id=lock.session_id)
    other = await rig.open()
    await other.under_replication.lock(7, timeout=2)


# --- ids --------------------------------------------------------------------------------------------------------


async def test_no_ledger_id_is_given_again(rig: Rig) -> None:
    """The copy leaves ZooKeeper's counter behind: a client that counted on would begin at 1 again."""
    before = [await rig.service.ledgers.generate_id() for _ in range(5)]
    await rig.coordinator.migrate()
    await until_connected(rig.service)
    fresh = await rig.open_target()
    after = [await service.ledgers.generate_id() for service in (rig.service, fresh, rig.service)]
    assert len({*before, *after}) == len(before) + len(after)
    assert min(after) > max(before)


async def test_ids_that_were_given_after_the_preparation_began_are_not_given_again(rig: Rig) -> None:
    """A broker that pauses a moment later than we do writes it."""
    await rig.coordinator.prepare()
    await rig.coordinator.set_phase("FAILED")
    await until_connected(rig.service)
    later = await rig.open()
    before = [await later.ledgers.generate_id() for _ in range(3)]
    await rig.coordinator.joined(2)
    await rig.coordinator.migrate()
    await until_connected(rig.service)
    assert await rig.service.ledgers.generate_id() not in before
    with pytest.raises(MetadataNotFound):
        await rig.service.ledgers.read(before[0])
