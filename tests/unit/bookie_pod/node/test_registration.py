"""The registration manager against a registry that records, fails and loses sessions on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from bookie_pod.node.identity.membership import NotAMember
from bookie_pod.node.registration import RegistrationManager, ServerStatus
from bookie_protocol.errors import (
    ExitCode,
    MetadataError,
    MetadataExists,
    MetadataUnavailable,
    RegistrationFailed,
    StartupError,
)
from bookie_protocol.metadata_service.interface import BookieGroup, Session, SessionState
from bookie_protocol.metadata_service.service_info import BookieServiceInfo
from bookie_protocol.metadata_service.tree.service import MetadataService
from tests.support.until import until

INFO = BookieServiceInfo(())
W, R = BookieGroup.WRITABLE, BookieGroup.READ_ONLY


class Registry:
    """Steps of the bookie, in order; `faults` are raised one by one by `register`."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, BookieGroup]] = []
        self.faults: list[MetadataError] = []
        self.during: dict[int, Callable[[], None]] = {}
        """What happens at this registration, from 0 on."""
        self.registered = asyncio.Event()

    async def register(
        self, bookie_id: str, group: BookieGroup, info: BookieServiceInfo, *, timeout: float | None = None
    ) -> None:
        await asyncio.sleep(0)
        if self.faults:
            raise self.faults.pop(0)
        number = self.steps.count(("register", W)) + self.steps.count(("register", R))
        self.steps.append(("register", group))
        self.during.pop(number, lambda: None)()

    async def unregister(self, bookie_id: str, group: BookieGroup, *, timeout: float | None = None) -> None:
        self.steps.append(("unregister", group))
        self.registered.set()


class Membership:
    """What `admit` finds, each time; the registrations of then are in `steps`."""

    def __init__(self, steps: list[tuple[str, BookieGroup]]) -> None:
        self.read_only = False
        self.ended: StartupError | None = None
        self.looks: list[int] = []
        self._steps = steps
        self.at_look: dict[int, Callable[[], None]] = {}

    async def check(self) -> bool:
        await asyncio.sleep(0)
        self.at_look.pop(len(self.looks), lambda: None)()
        self.looks.append(len(self._steps))
        if self.ended is not None:
            raise self.ended
        return self.read_only


class Rig:
    def __init__(self) -> None:
        self.bookies = Registry()
        self.membership = Membership(self.bookies.steps)
        self.session = Session(1.0)
        self.session.move(SessionState.CONNECTED)
        self.failures: list[StartupError] = []
        self.failed = asyncio.Event()
        self.manager = RegistrationManager(
            cast("MetadataService", self), "b:1", INFO, self._fail, self.membership.check, retry_seconds=0.01
        )

    def _fail(self, failure: StartupError) -> None:
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
        ("register", R),
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
    with pytest.raises(RegistrationFailed, match="register"):
        await manager.to_read_only()


@pytest.mark.parametrize("is_away", [False, True])
async def test_a_first_registration_that_fails_keeps_nothing(rig: Rig, is_away: bool) -> None:
    if is_away:
        rig.bookies.faults = [MetadataUnavailable("nobody answers")]
        with pytest.raises(MetadataUnavailable):  # it may be tried again
            await rig.manager.register(read_only=True)
    else:
        rig.bookies.faults = [MetadataExists("held")]
        with pytest.raises(RegistrationFailed, match="bookie b:1") as caught:
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
    assert rig.bookies.steps[-2:] == [("register", R), ("unregister", W)]
    await rig.manager.deregister()


@pytest.mark.parametrize("step", [0, 1])
async def test_a_session_lost_while_registering_is_noticed(rig: Rig, step: int) -> None:
    rig.bookies.during[step] = rig.lose_session
    await rig.manager.register()
    assert rig.manager.status is ServerStatus.WRITABLE
    assert rig.bookies.steps[-3:] == [("register", R), ("register", W), ("unregister", R)]
    assert len(rig.membership.looks) == 4
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


@pytest.mark.parametrize("look", [0, 1], ids=["before", "meanwhile"])
async def test_bookie_that_is_no_member_does_not_join(rig: Rig, look: int) -> None:
    """Its cookies were looked at before the journals were replayed, which may take minutes."""
    rig.membership.at_look[look] = lambda: setattr(rig.membership, "ended", NotAMember("no cookie"))
    with pytest.raises(NotAMember):
        await rig.manager.register()
    assert rig.manager.status is ServerStatus.UNREGISTERED
    assert ("register", W) not in rig.bookies.steps


@pytest.mark.parametrize("look", [2, 3], ids=["before", "meanwhile"])
async def test_bookie_that_is_no_member_any_more_ends_with_its_next_session(rig: Rig, look: int) -> None:
    await rig.manager.register()
    before = len(rig.bookies.steps)
    rig.membership.at_look[look] = lambda: setattr(rig.membership, "ended", NotAMember("no cookie"))
    rig.lose_session()
    async with asyncio.timeout(5):
        await rig.failed.wait()
    [failure] = rig.failures
    assert isinstance(failure, NotAMember)
    assert failure.exit_code is ExitCode.SERVER_EXCEPTION == 2
    assert ("register", W) not in rig.bookies.steps[before:]
    await rig.manager.deregister()


@pytest.mark.parametrize("look", [2, 3], ids=["before", "meanwhile"])
async def test_bookie_that_has_to_leave_is_never_writable_in_its_next_session(rig: Rig, look: int) -> None:
    await rig.manager.register()
    before = len(rig.bookies.steps)
    rig.membership.at_look[look] = lambda: setattr(rig.membership, "read_only", True)
    rig.lose_session()
    await rig.until_registered()
    assert rig.manager.status is ServerStatus.READ_ONLY
    assert ("register", W) not in rig.bookies.steps[before:]
    await rig.manager.deregister()


async def test_what_is_stored_is_looked_at_in_each_session(rig: Rig) -> None:
    await rig.manager.register()
    assert len(rig.membership.looks) == 2
    await rig.manager.to_read_only()
    assert len(rig.membership.looks) == 2, "within a session the coordinator of a decommission tells the bookie"
    rig.lose_session()
    await rig.until_registered()
    assert len(rig.membership.looks) == 4
    await rig.manager.deregister()


async def test_session_that_ended_between_two_tries_of_a_start_is_over(rig: Rig) -> None:
    """Admitted in one session, a bookie that was cut off then may have been decommissioned by the next."""
    rig.bookies.during[0] = lambda: rig.bookies.faults.append(MetadataUnavailable("no answer"))
    with pytest.raises(MetadataUnavailable):
        await rig.manager.register()
    assert len(rig.membership.looks) == 2
    rig.lose_session()
    rig.membership.ended = NotAMember("no cookie")
    with pytest.raises(NotAMember):
        await rig.manager.register()
    assert ("register", W) not in rig.bookies.steps


async def test_answer_between_two_tries_of_a_start_is_an_answer(rig: Rig) -> None:
    rig.bookies.during[0] = lambda: rig.bookies.faults.append(MetadataUnavailable("no answer"))
    rig.membership.at_look[1] = lambda: rig.session.move(SessionState.SUSPENDED)
    with pytest.raises(MetadataUnavailable):
        await rig.manager.register()
    assert rig.manager.away_s > 0
    rig.session.move(SessionState.CONNECTED)
    await rig.manager.register()
    assert rig.manager.away_s == 0
    await rig.manager.deregister()


async def test_bookie_whose_decommission_is_undone_while_it_joins_is_writable(rig: Rig) -> None:
    await rig.manager.register()
    rig.membership.read_only = True
    told: list[asyncio.Task[None]] = []

    def undo() -> None:
        """As the mode does, which follows the decommission."""
        rig.membership.read_only = False
        told.append(asyncio.ensure_future(rig.manager.to_writable()))

    rig.bookies.during[2] = undo
    rig.lose_session()
    await rig.until_registered()
    await told[0]
    assert rig.manager.status is ServerStatus.WRITABLE
    await rig.manager.deregister()


async def test_registration_counts_as_gone_when_the_session_is_away_for_long(rig: Rig) -> None:
    """A service that lost its data takes the session back never, and tells of no end."""
    await rig.manager.register()
    rig.session.move(SessionState.SUSPENDED)
    assert rig.manager.status is ServerStatus.WRITABLE
    rig.session.expires_after = 0.0
    await until(lambda: rig.manager.status is ServerStatus.UNREGISTERED)
    assert rig.manager.away_s > 0
    rig.session.move(SessionState.CONNECTED)
    assert rig.manager.status is ServerStatus.WRITABLE, "the same session goes on, and its registration with it"
    assert rig.manager.away_s == 0
    await rig.manager.deregister()
