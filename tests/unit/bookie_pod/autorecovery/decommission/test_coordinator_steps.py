"""What befalls a decommission between two steps: somebody else's word, a mode that changes, ledgers that stay."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from bookie_pod.autorecovery.decommission import coordinator as module
from bookie_pod.autorecovery.decommission.presence import Presence, Vigil
from bookie_pod.autorecovery.decommission.state import Form, Phase
from bookie_pod.autorecovery.decommission.store import DecommissionRequest, DecommissionStore
from bookie_protocol.errors import Refused
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.under_replication import LedgerLock
from tests.support.decommission_rig import GOING, QUICK, R, Rig, W, ledger
from tests.support.until import until

REQUEST = DecommissionRequest(GOING, "first")


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with Rig(tmp_path) as made:
        made.options = replace(QUICK, settle=0.0)
        await made.store(ledger(1, (0, "012")), ledger(2, (0, "012")))
        yield made


@pytest.mark.parametrize("later", [False, True], ids=["before anything happened", "after the drain had begun"])
async def test_a_bookie_that_gets_another_id_meanwhile_is_left_alone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, later: bool
) -> None:
    looks = 0

    async def renamed(service: MetadataService, bookie_id: str) -> None:
        nonlocal looks
        looks += 1
        if looks == 2 + later:
            raise Refused("it is being renamed")

    monkeypatch.setattr(module, "refuse_renamed", renamed)

    async def comes_back(ledger_id: int) -> None:
        if later and rig.registered[GOING] is R:
            await rig.set_registration(W)

    coordinator, mover = rig.coordinator()
    mover.before_exchange = comes_back
    with pytest.raises(Refused, match="renamed"):
        await coordinator.run(REQUEST)
    assert rig.registered[GOING] is W
    found = await DecommissionStore(rig.service).active(GOING)
    assert (found is not None) == later, "of one that has done something the record stays"
    assert await rig.has_cookie()


async def test_who_makes_a_bookie_read_only_notes_so_first(rig: Rig) -> None:
    """One that was read-only when its decommission began, and is writable when another coordinator goes on."""
    await DecommissionStore(rig.service).begin(DecommissionRequest(GOING, "before"))
    record = await rig.coordinator()[0].run(REQUEST)
    assert (record.phase, record.read_only_by_us, record.form) == (Phase.DONE, True, Form.LIVE)


async def test_a_refusal_of_one_that_is_read_only_by_then_stops_nobody(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuses(bookie_id: str, read_only: bool, decommission: int | None = None) -> None:
        await rig.set_registration(R)
        raise Refused("it will not say")

    monkeypatch.setattr(rig, "set_read_only", refuses)
    assert (await rig.coordinator()[0].run(REQUEST)).phase is Phase.DONE


async def test_a_refusal_after_the_drain_had_begun_leaves_the_record(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    coordinator, mover = rig.coordinator()

    async def comes_back(ledger_id: int) -> None:
        rig.admin_reachable = False
        if rig.registered[GOING] is R:
            await rig.set_registration(W)

    mover.before_exchange = comes_back
    with pytest.raises(Refused, match=r"still .*read-only"):
        await coordinator.run(REQUEST)
    found = await DecommissionStore(rig.service).active(GOING)
    assert found is not None
    assert (found.value.phase, found.value.form) == (Phase.REQUESTED, Form.LIVE)


async def test_a_bookie_that_is_seen_writable_in_the_drain_is_made_read_only_again(rig: Rig) -> None:
    steps: list[Phase] = []
    coordinator, mover = rig.coordinator(on_step=steps.append)
    begun: list[int] = []

    async def comes_back(ledger_id: int) -> None:
        begun.append(ledger_id)
        if len(begun) == 1:
            await rig.set_registration(W)

    mover.before_exchange = comes_back
    record = await coordinator.run(REQUEST)
    assert steps[:4] == [Phase.REQUESTED, Phase.DRAINING, Phase.REQUESTED, Phase.DRAINING]
    assert (record.phase, rig.registered[GOING]) == (Phase.DONE, R)


async def test_a_bookie_that_turns_writable_at_once_is_not_drained_before_it_is_read_only(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[Phase] = []
    check, checks = Vigil.check, 0

    async def turned(self: Vigil) -> Presence:
        nonlocal checks
        checks += 1
        if checks == 3:  # after it was made read-only
            await rig.set_registration(W)
        return await check(self)

    monkeypatch.setattr(Vigil, "check", turned)
    record = await rig.coordinator(on_step=steps.append)[0].run(REQUEST)
    assert steps[:3] == [Phase.REQUESTED, Phase.REQUESTED, Phase.DRAINING]
    assert record.phase is Phase.DONE


async def test_whoever_chose_a_bookie_while_it_was_writable_again_is_waited_for(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, _ = await rig.connect()
    steps: list[Phase] = []
    locks: list[LedgerLock] = []
    read = rig.service.cookies.read

    async def comes_back(bookie_id: str) -> object:
        if steps[-1:] == [Phase.PROVING] and not locks:  # no lock was held a moment ago
            locks.append(await worker.under_replication.lock(50))
            await rig.set_registration(W)
        return await read(bookie_id)

    monkeypatch.setattr(rig.service.cookies, "read", comes_back)
    coordinator, _ = rig.coordinator(on_step=steps.append)
    running = asyncio.create_task(coordinator.run(REQUEST))
    await until(lambda: "ledgers 50 are being re-replicated" in coordinator.watched.waiting_for)
    assert steps.count(Phase.REQUESTED) == 2
    await worker.under_replication.release(locks[0])
    assert (await running).phase is Phase.DONE


async def test_a_bookie_that_is_stopped_in_the_drain_is_one_that_is_stopped(rig: Rig) -> None:
    coordinator, mover = rig.coordinator()
    forms: list[Form | None] = []

    async def stops(ledger_id: int) -> None:
        found = await DecommissionStore(rig.service).active(GOING)
        assert found is not None
        forms.append(found.value.form)
        if GOING in rig.registered:
            await rig.stop(GOING)

    mover.before_exchange = stops
    record = await coordinator.run(REQUEST)
    assert forms[0] is Form.LIVE
    assert (record.phase, record.form) == (Phase.DONE, Form.STOPPED)


@pytest.mark.parametrize("survey_s", [-1.0, 3600.0])
async def test_ledgers_are_listed_anew_now_and_then_though_some_are_blocked(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, survey_s: float
) -> None:
    monkeypatch.setattr(module, "SURVEY_S", survey_s)
    coordinator, mover = rig.coordinator()
    mover.refuse = {1: "no copy can be read"}
    running = asyncio.create_task(coordinator.run(REQUEST))
    meter = coordinator.watched
    await until(lambda: meter.meter is not None and set(meter.meter.blocked) == {1})
    await rig.store(ledger(7, (0, "012")))
    tries = mover.copied.count(7)
    if survey_s < 0:
        await until(lambda: mover.copied.count(7) == tries + 1)
    else:
        blocked = meter.meter
        assert blocked is not None
        await asyncio.sleep(5 * QUICK.retry_interval)
        assert 7 not in mover.copied
    mover.refuse = {}
    assert (await running).phase is Phase.DONE
    assert 7 in mover.copied


async def test_how_far_it_is_is_stored_while_ledgers_are_in_work(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NOTE_S", 0.01)
    coordinator, mover = rig.coordinator()
    held, go_on = asyncio.Event(), asyncio.Event()

    async def waits(ledger_id: int) -> None:
        held.set()
        await go_on.wait()

    mover.before_exchange = waits
    running = asyncio.create_task(coordinator.run(REQUEST))
    await held.wait()
    store = DecommissionStore(rig.service)
    noted = 0
    async with asyncio.timeout(5):
        while not noted:
            found = await store.active(GOING)
            noted = found.value.progress.bytes_copied if found is not None else 0
            await asyncio.sleep(0.002)
    shown = coordinator.watched.record
    await until(lambda: coordinator.watched.record is not shown or (shown is not None and shown.progress.bytes_copied))
    go_on.set()
    assert (await running).progress.ledgers_left == 0


async def test_an_audit_that_nobody_can_make_is_noted_and_no_hindrance(rig: Rig) -> None:
    await rig.stop(GOING)
    coordinator, _ = rig.coordinator()
    assert (await coordinator.run(REQUEST)).phase is Phase.DONE
    assert len(coordinator.watched.notes) == 1
    assert coordinator.watched.notes[0].startswith("there is no auditor")
    assert coordinator.watched.notes[0].endswith("; the coordinator copies alone")
    assert coordinator.watched.waiting_for == ""
