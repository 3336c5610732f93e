"""Decommissions that meet a restart of their bookie, and ones that are asked for again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from bookie_pod.autorecovery.decommission.coordinator import Coordinator, Parts
from bookie_pod.autorecovery.decommission.presence import Presence, presence_of
from bookie_pod.autorecovery.decommission.state import (
    CookieKept,
    DecommissionRecord,
    Drained,
    DrainProgress,
    Form,
    Phase,
    Proof,
    Proved,
    Quiesced,
)
from bookie_pod.autorecovery.decommission.store import (
    FINISHED,
    DecommissionRequest,
    DecommissionStore,
    HeldRecord,
    TakenOver,
)
from bookie_pod.autorecovery.decommission.undo import undo
from bookie_protocol.errors import MetadataUnavailable, NotDecommissioned, Refused
from bookie_protocol.metadata_service.interface import Identity, Versioned
from bookie_protocol.metadata_service.tree.documents import CookieStore
from tests.support.decommission_rig import GOING, QUICK, FakeMover, R, Rig, W, ledger


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with Rig(tmp_path) as made:
        await made.store(ledger(1, (0, "012")), ledger(2, (0, "123")), ledger(3, (0, "012"), (5, "134")))
        yield made


@pytest.mark.parametrize("was", [W, R])
async def test_an_undo_restores_the_mode_of_a_bookie_that_restarted_at_the_begin(rig: Rig, was) -> None:
    """It found the record at its start, and so it is read-only before the coordinator asks for that."""
    if was is R:
        await rig.set_registration(R)
    coordinator, mover = rig.coordinator()
    mover.refuse[1] = "its entries cannot be read"

    class Store(DecommissionStore):
        async def begin(self, request: DecommissionRequest) -> HeldRecord:
            held = await super().begin(request)
            await rig.stop(GOING)
            await rig.start(GOING, R)
            return held

    coordinator._store = Store(rig.service)
    job = asyncio.create_task(coordinator.run(DecommissionRequest(GOING, "first")))
    async with asyncio.timeout(20):
        await coordinator.begun.wait()
        while coordinator.watched.meter is None or not coordinator.watched.meter.blocked:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.005)
    job.cancel()
    await asyncio.wait({job})
    undone = await undo(rig.service, rig, GOING)
    assert undone.record.phase is Phase.UNDOING
    assert undone.writable is (was is W)
    assert rig.registered[GOING] is was


@pytest.mark.parametrize("delete_cookie", [True, False])
async def test_the_numbers_of_a_finished_decommission_outlive_its_repetition(rig: Rig, delete_cookie: bool) -> None:
    async def decommission(name: str) -> DrainProgress:
        coordinator, _ = rig.coordinator()
        async with asyncio.timeout(20):
            await coordinator.run(DecommissionRequest(GOING, name, delete_cookie))
        finished = await DecommissionStore(rig.service).finished(GOING)
        assert finished is not None
        assert finished.coordinator == name
        return finished.progress

    first = await decommission("first")
    assert (first.ledgers_total, first.ledgers_left) == (2, 0)
    assert first.bytes_total > 0
    await rig.stop(GOING)
    assert await decommission("second") == first


async def test_a_new_bookie_of_the_same_id_has_numbers_of_its_own(rig: Rig) -> None:
    assert (await rig.decommission()).progress.ledgers_total == 2
    await rig.stop(GOING)
    await rig.service.cookies.create(GOING, b"cookie of its successor")
    await rig.start(GOING)
    await rig.decommission(name="second")
    finished = await DecommissionStore(rig.service).finished(GOING)
    assert finished is not None
    assert (finished.coordinator, finished.progress.ledgers_total) == ("second", 0)


async def test_who_takes_over_while_the_coordinator_before_tells_how_far_it_is_has_the_record(rig: Rig) -> None:
    store = DecommissionStore(rig.service)
    first = await store.begin(DecommissionRequest(GOING, "first"))

    class Slow(DecommissionStore):
        """Between its read and its write the other one writes, once."""

        noted = False

        async def write(self, record: DecommissionRecord, replaced: Identity) -> Identity:
            if not self.noted:
                self.noted = True
                await first.note(DrainProgress(ledgers_total=3, ledgers_left=2))
            return await super().write(record, replaced)

    second = await Slow(rig.service).begin(DecommissionRequest(GOING, "second"))
    assert (second.record.coordinator, second.record.progress.ledgers_left) == ("second", 2)
    with pytest.raises(TakenOver):
        await first.note(DrainProgress())


async def test_a_note_that_is_due_while_the_end_is_stored_changes_nothing_of_it(rig: Rig) -> None:
    held = await DecommissionStore(rig.service).begin(DecommissionRequest(GOING, "first", delete_cookie=False))
    for event in (Quiesced(Form.LIVE), Drained(), Proved(Proof(1, 2, 3, 0), None)):
        await held.advance(event)

    async def end() -> None:
        await held.advance(CookieKept())
        await held.archive()

    late = DrainProgress(ledgers_total=3, ledgers_left=2)
    await asyncio.gather(end(), held.note(late))
    await held.note(late)
    store = DecommissionStore(rig.service)
    assert await store.active(GOING) is None
    assert await store.finished(GOING) == held.record
    assert (held.phase, held.record.progress) == (Phase.DONE, DrainProgress())


async def test_two_who_find_one_done_both_put_it_away(rig: Rig) -> None:
    await rig.decommission(name="earlier")
    store = DecommissionStore(rig.service)
    await store.begin(DecommissionRequest(GOING, "first"))
    found = await store.active(GOING)
    assert found is not None
    done = replace(found.value, phase=Phase.DONE)
    version = (await store.write(done, found.identity)).version
    await asyncio.gather(store.archive(done), store.archive(done))
    assert await store.active(GOING) is None
    following = await store.begin(DecommissionRequest(GOING, "next"))
    await following.note(DrainProgress(ledgers_total=1))
    await store.archive(done)  # by one that slept meanwhile
    active = await store.active(GOING)
    assert active is not None
    assert (active.value.coordinator, active.version) == ("next", version), "versions begin anew with each record"


async def test_an_earlier_record_that_is_damaged_keeps_nobody_from_putting_the_next_one_away(rig: Rig) -> None:
    await rig.service.records(FINISHED).create(GOING, b"{")
    store = DecommissionStore(rig.service)
    held = await store.begin(DecommissionRequest(GOING, "first"))
    done = replace(held.record, phase=Phase.DONE)
    await store.write(done, held._identity)
    await store.archive(done)
    assert (await store.active(GOING), await store.finished(GOING)) == (None, done)


@pytest.mark.parametrize("clock_goes_back", [False, True])
async def test_who_archives_late_takes_nothing_from_the_decommissions_since(rig: Rig, clock_goes_back: bool) -> None:
    """It sleeps between its look at what was archived before and its own write; another one archives for it, and the
    next decommission of the id ends meanwhile, by a coordinator with another clock."""
    await rig.decommission(name="earlier")
    asleep, awake = asyncio.Event(), asyncio.Event()
    sleeper = DecommissionStore(rig.service)
    held = await sleeper.begin(DecommissionRequest(GOING, "first"))
    done = replace(held.record, phase=Phase.DONE)
    await sleeper.write(done, held._identity)
    read = sleeper._finished.read

    async def read_and_sleep(name: str) -> Versioned[bytes]:
        found = await read(name)
        asleep.set()
        await awake.wait()
        return found

    sleeper._finished.read = read_and_sleep  # type: ignore[method-assign, assignment]
    late = asyncio.create_task(sleeper.archive(done))
    async with asyncio.timeout(20):
        await asleep.wait()
        now = done.started_ms + (-5_000 if clock_goes_back else 5_000)
        others = DecommissionStore(rig.service, clock_ms=lambda: now)
        await others.archive(done)
        following = await others.begin(DecommissionRequest(GOING, "next", delete_cookie=False))
        last = replace(following.record, phase=Phase.DONE)
        await others.write(last, following._identity)
        await others.archive(last)
        awake.set()
        await late
    finished = await others.finished(GOING)
    assert finished is not None
    assert (finished.coordinator, await others.active(GOING)) == ("next", None)


class Asleep:
    """Cookies of a coordinator that is suspended just before it deletes one."""

    def __init__(self, cookies: CookieStore) -> None:
        self._cookies = cookies
        self.reached, self.wakes = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> object:
        return getattr(self._cookies, name)

    async def delete_this(self, bookie_id: str, cookie: Identity) -> None:
        self.reached.set()
        await self.wakes.wait()
        await self._cookies.delete_this(bookie_id, cookie)


async def test_who_was_about_to_delete_the_cookie_cannot_once_another_took_over(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one's decommission is undone, so the bookie has to keep its cookie."""
    cookie = (await rig.service.cookies.read(GOING)).value
    service, _ = await rig.connect()
    asleep = Asleep(service.cookies)
    monkeypatch.setattr(service, "cookies", asleep)
    first = asyncio.create_task(rig.coordinator(service)[0].run(DecommissionRequest(GOING, "first")))
    async with asyncio.timeout(20):
        await asleep.reached.wait()
        second = await DecommissionStore(rig.service).begin(DecommissionRequest(GOING, "second"))
        assert second.phase is Phase.PROVING
        assert (await undo(rig.service, rig, GOING)).writable
        asleep.wakes.set()
        with pytest.raises(TakenOver):
            await first
    assert rig.registered[GOING] is W
    assert (await rig.service.cookies.read(GOING)).value == cookie


async def test_a_coordinator_that_was_away_while_it_was_undone_leaves_the_bookie_writable(rig: Rig) -> None:
    class Away(DecommissionStore):
        async def begin(self, request: DecommissionRequest) -> HeldRecord:
            held = await super().begin(request)
            assert (await undo(rig.service, rig, GOING)).writable
            return held

    coordinator, _ = rig.coordinator()
    coordinator._store = Away(rig.service)
    async with asyncio.timeout(20):
        with pytest.raises(TakenOver):
            await coordinator.run(DecommissionRequest(GOING, "first"))
    assert rig.registered[GOING] is W


async def test_who_sleeps_does_not_delete_the_cookie_of_the_next_bookie(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Versions of cookies and of records begin anew, so that theirs are the same."""
    service, _ = await rig.connect()
    asleep = Asleep(service.cookies)
    monkeypatch.setattr(service, "cookies", asleep)
    first = asyncio.create_task(rig.coordinator(service)[0].run(DecommissionRequest(GOING, "first")))
    async with asyncio.timeout(20):
        await asleep.reached.wait()
        proven = (await rig.service.cookies.read(GOING)).version
        assert (await rig.decommission(name="second")).phase is Phase.DONE
        await rig.stop(GOING)
        await rig.service.cookies.create(GOING, b"cookie of its successor")
        await rig.start(GOING)
        await rig.store(ledger(7, (0, "012")))
        assert (await rig.service.cookies.read(GOING)).version == proven
        third = await DecommissionStore(rig.service).begin(DecommissionRequest(GOING, "third"))
        asleep.wakes.set()
        with pytest.raises(TakenOver):
            await first
    assert (await rig.service.cookies.read(GOING)).value == b"cookie of its successor"
    active = await DecommissionStore(rig.service).active(GOING)
    assert active is not None
    assert active.value == third.record


async def test_a_cookie_is_deleted_only_in_the_session_of_its_proof(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    service, transport = await rig.connect()
    asleep = Asleep(service.cookies)
    monkeypatch.setattr(service, "cookies", asleep)
    steps: list[Phase] = []
    running = asyncio.create_task(
        rig.coordinator(service, on_step=steps.append)[0].run(DecommissionRequest(GOING, "first"))
    )
    async with asyncio.timeout(20):
        await asleep.reached.wait()
        await transport.end_session()
        asleep.wakes.set()
        await running
    assert steps[-4:] == [Phase.REMOVING, Phase.PROVING, Phase.REMOVING, Phase.DONE]


class TestDoneAndNotArchived:
    """Its coordinator ended, or was cut off, between the last phase and the archive."""

    @staticmethod
    async def left_behind(rig: Rig) -> None:
        coordinator, _ = rig.coordinator()
        running = asyncio.create_task(coordinator.run(DecommissionRequest(GOING, "first")))
        store = DecommissionStore(rig.service)
        archived = DecommissionStore.archive

        async def dies(self: DecommissionStore, record: DecommissionRecord) -> None:
            running.cancel()
            await asyncio.sleep(10)

        DecommissionStore.archive = dies  # type: ignore[method-assign]
        try:
            await asyncio.wait([running])
        finally:
            DecommissionStore.archive = archived  # type: ignore[method-assign]
        found = await store.active(GOING)
        assert found is not None
        assert found.value.phase is Phase.DONE

    @staticmethod
    async def successor(rig: Rig) -> None:
        await rig.stop(GOING)
        await rig.service.cookies.create(GOING, b"cookie of its successor")
        await rig.start(GOING)
        await rig.store(ledger(7, (0, "012")))

    async def test_it_proves_nothing_for_the_next_bookie(self, rig: Rig) -> None:
        await self.left_behind(rig)
        await self.successor(rig)
        record = await rig.decommission(name="second")
        assert (record.coordinator, await rig.naming(), await rig.has_cookie()) == ("second", set(), False)
        assert record.progress.ledgers_total == 1

    async def test_it_may_be_repeated(self, rig: Rig) -> None:
        await self.left_behind(rig)
        record = await rig.decommission(name="second")
        assert (record.phase, record.coordinator) == (Phase.DONE, "second")
        assert await DecommissionStore(rig.service).active(GOING) is None
        finished = await DecommissionStore(rig.service).finished(GOING)
        assert finished is not None
        assert finished.progress.ledgers_total == 2

    async def test_an_undo_puts_it_away(self, rig: Rig) -> None:
        await self.left_behind(rig)
        with pytest.raises(Refused, match="finished"):
            await undo(rig.service, rig, GOING)
        assert await DecommissionStore(rig.service).active(GOING) is None
        await self.successor(rig)
        with pytest.raises(NotDecommissioned):
            await undo(rig.service, rig, GOING)

    async def test_a_fault_is_waited_out(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        faults = [MetadataUnavailable("no answer"), MetadataUnavailable("no answer")]
        archive = DecommissionStore.archive

        async def failing(self: DecommissionStore, record: DecommissionRecord) -> None:
            if faults:
                raise faults.pop()
            await archive(self, record)

        monkeypatch.setattr(DecommissionStore, "archive", failing)
        await rig.decommission()
        assert await DecommissionStore(rig.service).active(GOING) is None


async def test_a_request_that_an_undo_overtakes_leaves_the_bookie_as_it_was(rig: Rig) -> None:
    """The bookie's admin API takes its time."""
    reached, go_on = asyncio.Event(), asyncio.Event()

    class Slow:
        async def set_read_only(self, bookie_id: str, read_only: bool, decommission: int | None = None) -> None:
            if read_only:
                reached.set()
                await go_on.wait()
            await rig.set_read_only(bookie_id, read_only, decommission)

    parts = Parts(rig.service, FakeMover(rig.service, rig.ends), Slow(), QUICK)
    running = asyncio.create_task(Coordinator(parts).run(DecommissionRequest(GOING, "first")))
    await reached.wait()
    await undo(rig.service, Slow(), GOING)
    go_on.set()
    with pytest.raises(Refused):
        await running
    assert await presence_of(rig.service, GOING) is Presence.WRITABLE
