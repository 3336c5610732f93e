"""What every metadata driver has to do when sessions end, connections break and processes die."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest

from bookie_pod.node.registration import RegistrationManager, ServerStatus
from bookie_protocol.errors import (
    MetadataNotFound,
    MetadataUnavailable,
    RegistrationFailed,
    SessionEnded,
    StartupError,
)
from bookie_protocol.metadata_service.interface import BookieGroup, SessionState
from bookie_protocol.metadata_service.tree.service import MetadataService
from tests.support.hanging import hanging
from tests.support.metadata_drivers import MetadataDriverUnderTest
from tests.support.metadata_examples import INFO, R, Recorded, W, ledger
from tests.support.metadata_fixtures import WIRED, driver

__all__ = ["driver"]

wired = pytest.mark.parametrize("driver", WIRED, indirect=True)

PREVIOUS_PROCESS = """
import asyncio, os, signal, sys
from bookie_protocol.metadata_service.interface import BookieGroup
from bookie_protocol.metadata_service.service_info import BookieServiceInfo, Endpoint
from bookie_protocol.metadata_service.uri import open_metadata_service

async def main():
    service = await open_metadata_service(sys.argv[1], timeout=1)
    info = BookieServiceInfo((Endpoint("bookie", "old", 1, "bookie-rpc"),))
    await service.bookies.register("b:1", BookieGroup.WRITABLE, info)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""

PAUSED_PROCESS = """
import asyncio, sys
from bookie_protocol.errors import MetadataUnavailable
from bookie_protocol.metadata_service.interface import BookieGroup, SessionState
from bookie_protocol.metadata_service.service_info import BookieServiceInfo, Endpoint
from bookie_protocol.metadata_service.uri import open_metadata_service

INFO = BookieServiceInfo((Endpoint("bookie", "paused", 1, "bookie-rpc"),))

async def main():
    service = await open_metadata_service(sys.argv[1], timeout=2)
    await service.bookies.register("b:1", BookieGroup.WRITABLE, INFO)
    session = service.tree.session_id
    stored = await service.ledgers.read(1)
    again = asyncio.Event()
    states = []
    def listen(state):
        states.append(state.name)
        if state is SessionState.CONNECTED and "EXPIRED" in states:
            again.set()
    service.session.add_listener(listen)
    print("registered", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    try:
        await service.ledgers.write(stored.value.in_recovery(), stored.identity, session_id=session)
        print("written", flush=True)
    except MetadataUnavailable as error:
        print(type(error).__name__, flush=True)
    await again.wait()
    await service.bookies.register("b:1", BookieGroup.WRITABLE, INFO)
    print("again", service.tree.session_id != session, flush=True)
    await service.close()

asyncio.run(main())
"""


async def admitted() -> bool:
    """A bookie that its cluster knows, and that may be writable."""
    return False


async def until_registered(service: MetadataService, bookie_id: str, group: BookieGroup) -> None:
    async with asyncio.timeout(10), service.bookies.watch(group) as changes:
        async for found in changes:
            if bookie_id in found.bookies:
                return


class TestExpiry:
    async def test_expiry_takes_the_registrations_and_opens_a_new_session(
        self, driver: MetadataDriverUnderTest
    ) -> None:
        service, reader = await driver.open(), await driver.open()
        await service.cluster.initialize()
        await service.bookies.register("b:1", W, INFO)
        recorded = Recorded(service.session)
        old = service.tree.session_id
        async with reader.bookies.watch(W) as changes:
            assert (await anext(changes)).bookies == {"b:1"}
            await driver.expire(service)
            assert (await anext(changes)).bookies == frozenset()
        await recorded.renewed()
        assert service.tree.session_id != old
        await service.bookies.register("b:1", W, INFO)
        assert await reader.bookies.is_registered("b:1", W)

    async def test_watchers_see_on_after_their_own_session_expired(self, driver: MetadataDriverUnderTest) -> None:
        service, writer = await driver.open(), await driver.open()
        await writer.cluster.initialize()
        created = await writer.ledgers.create(ledger(1))
        async with service.bookies.watch(W) as bookies, service.ledgers.watch(1) as changes:
            assert (await anext(bookies)).bookies == frozenset()
            first = await anext(changes)
            assert first is not None
            assert first.version == 0
            await driver.expire(service)
            await writer.bookies.register("b:1", W, INFO)
            await writer.ledgers.write(created.value.in_recovery(), created.identity)
            async with asyncio.timeout(10):
                assert (await anext(bookies)).bookies == {"b:1"}
                second = await anext(changes)
            assert second is not None
            assert second.version == 1

    async def test_the_registration_manager_registers_again(self, driver: MetadataDriverUnderTest) -> None:
        service, reader = await driver.open(), await driver.open()
        await service.cluster.initialize()
        failures: list[StartupError] = []
        manager = RegistrationManager(service, "b:1", INFO, failures.append, admitted, retry_seconds=0.05)
        await manager.register()
        await manager.to_read_only()
        first_owner = (await reader.tree.get(f"{driver.root}/available/readonly/b:1")).stat.owner
        gone = asyncio.Event()
        await reader.tree.exists(f"{driver.root}/available/readonly/b:1", watch=gone.set)
        await driver.expire(service)
        async with asyncio.timeout(10):
            await gone.wait()
        await until_registered(reader, "b:1", R)
        node = await reader.tree.get(f"{driver.root}/available/readonly/b:1")
        assert node.stat.owner == service.tree.session_id != first_owner
        assert not await reader.bookies.is_registered("b:1", W)
        await manager.to_writable()
        assert manager.status is ServerStatus.WRITABLE
        assert failures == []
        await manager.deregister()
        assert not await reader.bookies.is_registered("b:1", W)

    async def test_another_process_took_the_id_meanwhile(self, driver: MetadataDriverUnderTest) -> None:
        service, thief = await driver.open(timeout=1.0), await driver.open()
        await service.cluster.initialize()
        failed = asyncio.get_running_loop().create_future()
        manager = RegistrationManager(service, "b:1", INFO, failed.set_result, admitted, retry_seconds=0.05)
        await manager.register()
        stealing = asyncio.create_task(thief.bookies.register("b:1", W, INFO))
        await service.bookies.unregister("b:1", W)
        await stealing
        await driver.expire(service)
        async with asyncio.timeout(15):
            failure = await failed
        assert isinstance(failure, RegistrationFailed)
        assert "another session still holds" in str(failure)
        assert manager.status is ServerStatus.UNREGISTERED
        await manager.deregister()
        assert await thief.bookies.is_registered("b:1", W)

    async def test_registration_that_was_asked_for_in_an_earlier_session_is_not_made(
        self, driver: MetadataDriverUnderTest
    ) -> None:
        """What the bookie looked at before it registered may have changed when its session had ended."""
        service, other = await driver.open(timeout=4.0), await driver.open()
        await service.cluster.initialize()
        await other.bookies.register("b:1", W, INFO)
        registering = asyncio.create_task(service.bookies.register("b:1", W, INFO))
        await asyncio.sleep(0.1)
        recorded = Recorded(service.session)
        await driver.expire(service)
        await recorded.renewed()
        await other.bookies.unregister("b:1", W)
        with pytest.raises(SessionEnded):
            await registering
        assert not await other.bookies.is_registered("b:1", W)


class TestOtherProcess:
    @wired
    async def test_its_registration_is_waited_out(self, driver: MetadataDriverUnderTest) -> None:
        service = await driver.open(timeout=4.0)
        await service.cluster.initialize()
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", PREVIOUS_PROCESS, driver.uri)
        assert await process.wait() == -signal.SIGKILL
        assert (await service.bookies.service_info("b:1")).endpoints[0].host == "old"
        await service.bookies.register("b:1", W, INFO)
        assert await service.bookies.service_info("b:1") == INFO

    @wired
    async def test_one_that_slept_past_its_session_writes_nothing_in_it_and_begins_another(
        self, driver: MetadataDriverUnderTest
    ) -> None:
        service = await driver.open()
        await service.cluster.initialize()
        await service.ledgers.create(ledger(1))
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PAUSED_PROCESS, driver.uri, stdin=pipe, stdout=pipe
        )
        assert process.stdin is not None
        assert process.stdout is not None
        async with asyncio.timeout(60):
            assert await process.stdout.readline() == b"registered\n"
            async with service.bookies.watch(W) as changes:
                with hanging([process.pid]):
                    while (await anext(changes)).bookies:
                        pass
            process.stdin.write(b"\n")
            assert await process.stdout.readline() == b"SessionEnded\n"
            assert (await service.ledgers.read(1)).version == 0
            assert await process.stdout.readline() == b"again True\n"
            assert await process.wait() == 0


class TestInterruption:
    @wired
    async def test_nobody_answers_is_not_nobody_there(self, driver: MetadataDriverUnderTest) -> None:
        service = await driver.open(timeout=4.0)
        await service.cluster.initialize()
        await driver.interrupt()
        loop = asyncio.get_running_loop()
        try:
            started = loop.time()
            for call in (
                service.ledgers.read(1, timeout=0.3),
                service.cookies.read("b:1", timeout=0.3),
                service.cookies.create("b:2", b"x", timeout=0.3),
                service.bookies.list(W, timeout=0.3),
                service.cluster.instance_id(timeout=0.3),
            ):
                with pytest.raises(MetadataUnavailable):
                    await call
            assert loop.time() - started < 15  # and not the patience of each driver, one after another
        finally:
            await driver.restore()
        with pytest.raises(MetadataNotFound):
            await service.ledgers.read(1, timeout=15)

    @wired
    async def test_a_short_interruption_is_ridden_out(self, driver: MetadataDriverUnderTest) -> None:
        service = await driver.open(timeout=8.0)
        await service.cluster.initialize()
        await driver.interrupt()
        try:
            create = asyncio.create_task(service.ledgers.create(ledger(1)))
            cookie = asyncio.create_task(service.cookies.create("b:1", b"x"))
            await asyncio.sleep(0.3)
        finally:
            await driver.restore()
        assert (await create).version == 0
        assert (await cookie).version == 0
        assert (await service.ledgers.read(1)).version == 0

    @wired
    async def test_a_long_interruption_suspends_and_the_server_expires(self, driver: MetadataDriverUnderTest) -> None:
        """The owner alone decides: the client stays suspended until it hears that its session ended."""
        service = await driver.open(timeout=1.0)
        await service.cluster.initialize()
        await service.bookies.register("b:1", W, INFO)
        recorded = Recorded(service.session)
        expired, suspended = asyncio.Event(), asyncio.Event()

        def listen(state: SessionState) -> None:
            if state is SessionState.EXPIRED:
                expired.set()
            if state is SessionState.SUSPENDED:
                suspended.set()

        service.session.add_listener(listen)
        await driver.interrupt()
        try:
            async with asyncio.timeout(10):
                await suspended.wait()
            assert not expired.is_set()
            await asyncio.sleep(1.5)  # longer than the session: its server lets it go
        finally:
            await driver.restore()
        await service.bookies.list(W, timeout=15)
        assert recorded.states[0] is SessionState.SUSPENDED
        registered = await service.bookies.is_registered("b:1", W)
        assert registered is not expired.is_set()
