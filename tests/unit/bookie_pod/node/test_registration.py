"""The registration manager against a registry that records, fails and loses sessions on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import cast

import pytest

from bookie_pod.node.registration import RegistrationManager, ServerStatus
from bookie_protocol.errors import (
    ExitCode,
    MetadataError,
    MetadataExists,
    MetadataUnavailable,
    RegistrationFailed,
)
from bookie_protocol.metadata_service.interface import BookieGroup, MetadataService, Session, SessionState
from bookie_protocol.metadata_service.service_info import BookieServiceInfo

INFO = BookieServiceInfo(())
W, R = BookieGroup.WRITABLE, BookieGroup.READ_ONLY


class Registry:
    """Steps of the bookie, in order; `faults` are raised one by one by `register`."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, BookieGroup]] = []
        self.faults: list[MetadataError] = []
        self.during: Callable[[], None] = lambda: None
        self.registered = asyncio.Event()

    async def register(
        self, bookie_id: str, group: BookieGroup, info: BookieServiceInfo, *, timeout: float | None = None
    ) -> None:
        await asyncio.sleep(0)
        if self.faults:
            raise self.faults.pop(0)
        self.steps.append(("register", group))
        during, self.during = self.during, lambda: None
        during()

    async def unregister(self, bookie_id: str, group: BookieGroup, *, timeout: float | None = None) -> None:
        self.steps.append(("unregister", group))
        self.registered.set()


class Cluster:
    id: str | None = "11-22"

    async def instance_id(self, *, timeout: float | None = None) -> str | None:
        return self.id


class Rig:
    def __init__(self) -> None:
        self.bookies = Registry()
        self.cluster = Cluster()
        self.session = Session(1.0)
        self.session.move(SessionState.CONNECTED)
        self.failures: list[RegistrationFailed] = []
        self.failed = asyncio.Event()
        self.manager = RegistrationManager(cast("MetadataService", self), "b:1", INFO, self._fail, retry_seconds=0.01)

    def _fail(self, failure: RegistrationFailed) -> None:
        self.failures.append(failure)
        self.failed.set()

    def lose_session(self) -> None:
        self.session.move(SessionState.EXPIRED)
        self.session.move(SessionState.CONNECTED)

    async def until_registered(self) -> None:
        async with asyncio.timeout(5):
            while self.manager.status is ServerStatus.UNREGISTERED:
                self.bookies.registered.clear()
                await self.bookies.registered.wait()
                await asyncio.sleep(0)


@pytest.fixture
async def rig() -> Rig:
    return Rig()


async def test_the_new_list_first_then_the_old_one(rig: Rig) -> None:
    manager = rig.manager
    assert manager.status is ServerStatus.UNREGISTERED == -1
    await manager.register()
    assert manager.status is ServerStatus.WRITABLE == 1
    await manager.to_writable()  # already
    await manager.to_read_only()
    assert manager.status is ServerStatus.READ_ONLY == 0
    await manager.to_writable()
    assert rig.bookies.steps == [
        ("register", W),
        ("unregister", R),
        ("register", R),
        ("unregister", W),
        ("register", W),
        ("unregister", R),
    ]
    await manager.deregister()
    assert manager.status is ServerStatus.UNREGISTERED
    assert rig.bookies.steps[-2:] == [("unregister", W), ("unregister", R)]
    with pytest.raises(RegistrationFailed, match="register it first"):
        await manager.to_read_only()


@pytest.mark.parametrize("is_away", [False, True])
async def test_a_first_registration_that_fails_keeps_nothing(rig: Rig, is_away: bool) -> None:
    if is_away:
        rig.bookies.faults = [MetadataUnavailable("nobody answers")]
        with pytest.raises(MetadataUnavailable):  # it may be tried again
            await rig.manager.register(read_only=True)
    else:
        rig.bookies.faults = [MetadataExists("held")]
        with pytest.raises(RegistrationFailed, match="bookie b:1 cannot be registered") as caught:
            await rig.manager.register(read_only=True)
        assert caught.value.exit_code is ExitCode.REGISTRATION_FAILED == 4
    assert rig.failures == []
    await rig.manager.register(read_only=True)
    assert rig.manager.status is ServerStatus.READ_ONLY
    await rig.manager.deregister()


async def test_an_expired_session_is_followed_by_a_registration(rig: Rig) -> None:
    await rig.manager.register(read_only=True)
    rig.session.move(SessionState.SUSPENDED)
    assert rig.manager.status is ServerStatus.READ_ONLY  # it still stands
    rig.lose_session()
    assert rig.manager.status is ServerStatus.UNREGISTERED
    await rig.until_registered()
    assert rig.bookies.steps[2:] == [("register", R), ("unregister", W)]
    await rig.manager.deregister()


async def test_a_session_lost_while_registering_is_noticed(rig: Rig) -> None:
    rig.bookies.during = rig.lose_session
    await rig.manager.register()
    assert rig.manager.status is ServerStatus.WRITABLE
    assert rig.bookies.steps.count(("register", W)) == 2
    await rig.manager.deregister()


async def test_a_silent_metadata_service_is_waited_for(rig: Rig) -> None:
    await rig.manager.register()
    rig.bookies.faults = [MetadataUnavailable("no answer")] * 5
    rig.lose_session()
    await rig.until_registered()
    assert rig.failures == []
    rig.bookies.faults = [MetadataUnavailable("no answer")]
    with pytest.raises(MetadataUnavailable):
        await rig.manager.to_read_only()
    async with asyncio.timeout(5):
        while rig.manager.status is not ServerStatus.READ_ONLY:
            rig.bookies.registered.clear()
            await rig.bookies.registered.wait()
            await asyncio.sleep(0)
    await rig.manager.deregister()


async def test_a_definite_no_is_reported_once_and_ends_it(rig: Rig) -> None:
    await rig.manager.register()
    rig.bookies.faults = [MetadataExists("another session holds it")]
    rig.lose_session()
    async with asyncio.timeout(5):
        await rig.failed.wait()
    assert "another session holds it" in str(rig.failures[0])
    rig.lose_session()
    await asyncio.sleep(0.05)
    assert len(rig.failures) == 1
    assert rig.manager.status is ServerStatus.UNREGISTERED
    await rig.manager.deregister()


async def test_the_last_wish_wins(rig: Rig) -> None:
    await rig.manager.register()
    await asyncio.gather(rig.manager.to_read_only(), rig.manager.to_writable(), rig.manager.to_read_only())
    assert rig.manager.status is ServerStatus.READ_ONLY
    assert rig.bookies.steps[-2:] == [("register", R), ("unregister", W)]
    await rig.manager.deregister()


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_a_cluster_that_is_formatted_while_the_bookie_starts_is_not_joined(rig: Rig, when: str) -> None:
    """Its cookies were looked at before the journals were replayed, and its ledgers are no more."""
    format_it = partial(setattr, rig.cluster, "id", "33-44")
    if when == "before":
        format_it()
    else:
        rig.bookies.during = format_it
    with pytest.raises(RegistrationFailed, match="belongs to 11-22"):
        await rig.manager.register(instance_id="11-22")
    assert rig.manager.status is ServerStatus.UNREGISTERED


@pytest.mark.parametrize("found", ["33-44", None])
async def test_another_cluster_behind_the_same_address_gets_no_registration(rig: Rig, found: str | None) -> None:
    await rig.manager.register()
    before = len(rig.bookies.steps)
    rig.cluster.id = found
    rig.lose_session()
    async with asyncio.timeout(5):
        await rig.failed.wait()
    assert "serves another cluster" in str(rig.failures[0])
    assert "belongs to 11-22" in str(rig.failures[0])
    assert len(rig.bookies.steps) == before
    await rig.manager.deregister()
