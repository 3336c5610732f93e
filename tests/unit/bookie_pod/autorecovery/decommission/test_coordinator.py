"""Decommissions of bookies that are only registrations, on a real metadata service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from bookie_pod.autorecovery.decommission.drain import DrainMeter
from bookie_pod.autorecovery.decommission.moving import Passing
from bookie_pod.autorecovery.decommission.state import DecommissionRecord, Drained, Form, Phase, Quiesced
from bookie_pod.autorecovery.decommission.store import DecommissionRequest, DecommissionStore, TakenOver
from bookie_pod.autorecovery.decommission.survey import bytes_held, survey
from bookie_pod.autorecovery.decommission.undo import undo
from bookie_protocol.errors import (
    BookieUnavailable,
    MetadataUnavailable,
    NotDecommissioned,
    NotEnoughBookies,
    PodkeeperError,
    Refused,
    SparesUnreachable,
    fresh,
)
from bookie_protocol.ledger_metadata.model import LedgerState
from bookie_protocol.metadata_service.tree.under_replication.formats import mark_path
from bookie_protocol.versioned import Identity
from tests.support.decommission_rig import GOING, QUICK, R, Rig, W, ledger
from tests.support.until import until

REQUEST = DecommissionRequest(GOING, "first")


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with Rig(tmp_path) as made:
        await made.store(
            ledger(1, (0, "012")),
            ledger(2, (0, "123")),
            ledger(3, (0, "012"), (5, "134")),
            ledger(4, (0, "102"), last=None),
            ledger(2**40, (0, "340")),
            ledger(2**40 + 1, (0, "120"), last=-1),
        )
        yield made


async def test_a_live_bookie_is_drained_proven_and_forgotten(rig: Rig) -> None:
    steps: list[Phase] = []
    coordinator, mover = rig.coordinator(on_step=steps.append)
    record = await coordinator.run(REQUEST)
    assert steps == [Phase.REQUESTED, Phase.DRAINING, Phase.PROVING, Phase.REMOVING, Phase.DONE]
    assert (record.phase, record.form, record.read_only_by_us) == (Phase.DONE, Form.LIVE, True)
    assert record.proof is not None
    assert (record.proof.ledgers, record.proof.marks) == (6, 0)
    assert await rig.naming() == set()
    assert not await rig.has_cookie()
    assert mover.recovered == [4]
    assert await rig.state_of(4) is LedgerState.CLOSED
    assert rig.registered[GOING] is R
    store = DecommissionStore(rig.service)
    assert await store.active(GOING) is None
    assert await store.finished(GOING) == record
    assert await store.bookies() == frozenset()
    assert await rig.service.under_replication.locks() == {}
    assert (record.progress.ledgers_left, record.progress.blocked) == (0, 0)


async def test_a_stopped_bookie_needs_no_admin_api(rig: Rig) -> None:
    rig.admin_reachable = False
    await rig.stop(GOING)
    coordinator, _ = rig.coordinator(required=Form.STOPPED)
    record = await coordinator.run(REQUEST)
    assert (record.form, record.read_only_by_us) == (Form.STOPPED, False)
    assert await rig.naming() == set()
    assert not await rig.has_cookie()
    assert coordinator.watched.notes == [
        "there is no auditor: run auto-recovery somewhere (`bookie autorecovery`); the coordinator copies alone"
    ]


async def test_the_auditor_is_asked_for_an_audit(rig: Rig) -> None:
    await rig.stop(GOING)
    await rig.service.auditor_election.elect("b1:1")
    await rig.service.under_replication.set_lost_bookie_recovery_delay(17)
    async with rig.service.under_replication.watch_lost_bookie_recovery_delay() as delays:
        before = await anext(delays)
        await rig.decommission()
        after = await anext(delays)
    assert before is not None
    assert after is not None
    assert (after.value, after.version > before.version) == (17, True)


async def test_a_writable_bookie_that_cannot_be_reached_is_refused(rig: Rig) -> None:
    rig.admin_reachable = False
    with pytest.raises(Refused, match=r"still .*read-only: .*refused"):
        await rig.decommission()
    assert await rig.naming() == {1, 3, 4, 2**40, 2**40 + 1}
    assert await rig.has_cookie()
    assert await DecommissionStore(rig.service).active(GOING) is None  # it may get copies and ledgers as before
    await rig.set_registration(R)  # by other means
    assert (await rig.decommission()).phase is Phase.DONE


@pytest.mark.parametrize(("required", "stopped"), [(Form.STOPPED, False), (Form.LIVE, True)])
async def test_the_other_form_is_refused(rig: Rig, required: Form, stopped: bool) -> None:
    if stopped:
        await rig.stop(GOING)
    coordinator, _ = rig.coordinator(required=required)
    with pytest.raises(Refused, match="registered"):
        await coordinator.run(REQUEST)
    assert await DecommissionStore(rig.service).active(GOING) is None


async def test_a_bookie_that_comes_back_writable_is_quieted_and_drained_again(rig: Rig) -> None:
    steps: list[Phase] = []

    def step(phase: Phase) -> None:
        steps.append(phase)
        if phase is Phase.PROVING and steps.count(phase) == 1:
            restarted.append(asyncio.get_running_loop().create_task(restart()))

    async def restart() -> None:
        await rig.stop(GOING)
        await rig.start(GOING, W)
        await rig.store(ledger(77, (0, "012")))  # it got new data

    restarted: list[asyncio.Task[None]] = []
    coordinator, mover = rig.coordinator(on_step=step)
    held = asyncio.Event()
    read = rig.service.cookies.read

    async def slow_read(*arguments: object, **options: object) -> object:
        await asyncio.gather(*restarted)
        held.set()
        return await read(*arguments, **options)  # type: ignore[arg-type]

    rig.service.cookies.read = slow_read  # type: ignore[assignment, method-assign]
    record = await coordinator.run(REQUEST)
    assert held.is_set()
    assert record.phase is Phase.DONE
    assert steps.count(Phase.REQUESTED) == 2
    assert await rig.naming() == set()
    assert rig.registered[GOING] is R
    assert mover.recovered == [4]


async def test_blockers_have_reasons_and_do_not_hold_up_others(rig: Rig) -> None:
    other, _ = await rig.connect()
    lock = await other.under_replication.lock(1)
    coordinator, mover = rig.coordinator(options=replace(QUICK, open_grace=3600.0))
    mover.refuse[3] = "entries 0 to 4 cannot be read"
    running = asyncio.create_task(coordinator.run(REQUEST))
    await until(lambda: coordinator.watched.meter is not None and len(coordinator.watched.meter.blocked) == 3)
    assert await rig.naming() == {1, 3, 4}
    meter = coordinator.watched.meter
    assert meter is not None
    assert "has the ledger's lock" in meter.blocked[1]
    assert meter.blocked[3] == "entries 0 to 4 cannot be read"
    assert meter.blocked[4].startswith("OPEN: its writer has 3600 s left")
    progress = meter.progress()
    assert (progress.ledgers_total, progress.ledgers_left, progress.blocked, progress.eta_s) == (5, 3, 3, None)
    stored = await DecommissionStore(rig.service).active(GOING)
    assert stored is not None
    assert [blocker.ledger_id for blocker in stored.value.progress.blockers] == [1, 3, 4]
    await other.under_replication.release(lock)
    mover.refuse.clear()
    await rig.change(4, lambda opened: opened.closed(3, 30))
    record = await running
    assert record.phase is Phase.DONE
    assert mover.recovered == []
    assert await rig.naming() == set()


async def test_waiting_only_fences_nobody(rig: Rig) -> None:
    coordinator, mover = rig.coordinator(options=replace(QUICK, recover_open=False))
    running = asyncio.create_task(coordinator.run(REQUEST))
    await until(lambda: coordinator.watched.meter is not None and set(coordinator.watched.meter.blocked) == {4})
    await asyncio.sleep(0.1)
    assert await rig.state_of(4) is LedgerState.OPEN
    await rig.change(4, lambda opened: replace(opened, ensembles={0: ("b1:1", "b2:1", "b3:1")}))
    assert (await running).phase is Phase.DONE
    assert mover.recovered == []
    assert await rig.state_of(4) is LedgerState.OPEN


async def test_marks_that_name_the_bookie_are_part_of_it(rig: Rig) -> None:
    marks = rig.service.under_replication
    await marks.mark(1, [GOING], ctime_ms=1)
    await marks.mark(2, ["b3:1"], ctime_ms=1)  # another's trouble
    await marks.mark(99, [GOING], ctime_ms=1)  # of a ledger that is gone
    await marks.mark(3, [GOING, "b4:1"], ctime_ms=1)
    await marks.mark(2**40, [], ctime_ms=1)  # placement
    coordinator, _ = rig.coordinator()
    record = await coordinator.run(REQUEST)
    assert record.proof is not None
    found = {mark.ledger_id: mark.replicas async for mark in marks.list()}
    assert found == {2: ("b3:1",), 3: ("b4:1",), 2**40: ()}, "a mark that names others stays theirs"


async def test_ledger_that_cannot_be_read_holds_up_the_proof_alone(rig: Rig) -> None:
    """A delete that went half way, or metadata of a later release."""
    path = "/ledgers/00/0000/L0003"
    stored = await rig.service.tree.read(path)
    await rig.service.tree.set(path, b"", stored.identity)
    coordinator, _ = rig.coordinator()
    running = asyncio.create_task(coordinator.run(REQUEST))
    await until(lambda: "ledger 3" in coordinator.watched.waiting_for)
    assert "bookie ledger delete 3" in coordinator.watched.waiting_for
    assert "--accept-loss" in coordinator.watched.waiting_for
    record = coordinator.watched.record
    assert record is not None
    assert record.phase is Phase.PROVING
    assert record.progress.ledgers_left == 0, "the others are drained"
    assert await rig.has_cookie()
    await rig.service.ledgers.delete(3)
    assert (await running).phase is Phase.DONE


@pytest.mark.parametrize("ledger_id", [2, 2**40], ids=["of a ledger that names it", "of a ledger that is gone"])
async def test_mark_that_cannot_be_read_holds_it_up_until_somebody_removes_it(rig: Rig, ledger_id: int) -> None:
    marks = rig.service.under_replication
    await marks.mark(ledger_id, [GOING], ctime_ms=1)
    path = f"/ledgers/underreplication/ledgers{mark_path(ledger_id)}"
    await rig.service.tree.overwrite(path, b"{")
    coordinator, _ = rig.coordinator()
    running = asyncio.create_task(coordinator.run(REQUEST))
    await until(
        lambda: coordinator.watched.meter is not None and coordinator.watched.meter.blocked.keys() == {ledger_id}
    )
    assert coordinator.watched.meter is not None
    reason = coordinator.watched.meter.blocked[ledger_id]
    assert path in reason
    assert "force-auditor-checks" in reason, "what helps is not cut off"
    await rig.service.tree.delete(path)
    assert (await running).phase is Phase.DONE
    assert await rig.naming() == set()


async def test_ledger_that_cannot_be_read_may_be_given_up(rig: Rig) -> None:
    path = "/ledgers/00/0000/L0003"
    stored = await rig.service.tree.read(path)
    await rig.service.tree.set(path, b"BookieMetadataFormatVersion\t9\n", stored.identity)
    coordinator, _ = rig.coordinator()
    assert (await coordinator.run(replace(REQUEST, accepted_losses=frozenset({3})))).phase is Phase.DONE


async def test_losses_that_were_accepted_do_not_block(rig: Rig) -> None:
    coordinator, mover = rig.coordinator()
    mover.refuse[3] = "no copy is left"
    record = await coordinator.run(replace(REQUEST, accepted_losses=frozenset({3})))
    assert record.phase is Phase.DONE
    assert record.accepted_losses == (3,)
    assert await rig.naming() == {3}
    assert not await rig.has_cookie()


@pytest.mark.parametrize("error", [SparesUnreachable("b cannot be reached"), NotEnoughBookies("no spare")])
async def test_accepted_ledger_is_not_given_up_for_a_moment(rig: Rig, error: PodkeeperError) -> None:
    """Spares that take no connections for some seconds, or are away."""
    coordinator, mover = rig.coordinator()
    mover.fails = [fresh(error) for _ in range(20)]
    record = await coordinator.run(replace(REQUEST, accepted_losses=frozenset({2, 3})))
    assert record.phase is Phase.DONE
    assert await rig.naming() == set()


@pytest.mark.parametrize("stopped", [True, False])
async def test_ledger_that_a_live_bookie_can_give_is_not_given_up(rig: Rig, stopped: bool) -> None:
    coordinator, mover = rig.coordinator()
    if stopped:
        await rig.stop(GOING)
    mover.fails = [NotEnoughBookies("every spare said no")] * 100_000
    naming = await rig.naming()
    running = asyncio.create_task(coordinator.run(replace(REQUEST, accepted_losses=frozenset(naming))))
    if stopped:
        assert (await running).phase is Phase.DONE
        assert await rig.naming() == naming
        return
    await until(lambda: bool(coordinator.watched.notes))
    await asyncio.sleep(5 * rig.options.give_up_after)
    assert not running.done()
    assert await rig.has_cookie()
    mover.fails = []
    assert (await running).phase is Phase.DONE
    assert await rig.naming() == set()


@pytest.mark.parametrize(("tries", "apart", "given_up"), [(2, 100.0, False), (3, 1.0, False), (3, 60.0, True)], ids=str)
def test_reason_has_to_last_for_minutes_and_tries(tries: int, apart: float, given_up: bool) -> None:
    now = 0.0
    meter = DrainMeter(lambda: now)
    for number in range(tries):
        now = number * apart
        meter.begin(7)
        meter.end(7, "no place")
    assert (meter.lasting(7, 120.0) is not None) == given_up
    meter.begin(7)
    meter.end(7, Passing("its worker is at it"))
    assert meter.lasting(7, 0.0) is None


async def test_the_cookie_stays_if_that_is_asked_for(rig: Rig) -> None:
    coordinator, _ = rig.coordinator()
    record = await coordinator.run(replace(REQUEST, delete_cookie=False))
    assert record.phase is Phase.DONE
    assert await rig.has_cookie()


async def change_cookie(rig: Rig) -> Identity:
    found = await rig.service.cookies.read(GOING)
    return await rig.service.cookies.update(GOING, b"new", found.identity)


async def test_a_cookie_that_changes_is_proven_anew(rig: Rig) -> None:
    steps: list[Phase] = []
    changed: list[asyncio.Task[Identity]] = []

    def step(phase: Phase) -> None:
        steps.append(phase)
        if phase is Phase.REMOVING and not changed:
            changed.append(asyncio.get_running_loop().create_task(change_cookie(rig)))

    coordinator, _ = rig.coordinator(on_step=step)
    check = coordinator._service.bookies.is_registered

    async def after_the_change(*arguments: object, **options: object) -> bool:
        await asyncio.gather(*changed)
        return await check(*arguments, **options)  # type: ignore[arg-type]

    coordinator._service.bookies.is_registered = after_the_change  # type: ignore[method-assign]
    record = await coordinator.run(REQUEST)
    assert record.phase is Phase.DONE
    assert steps[-4:] == [Phase.REMOVING, Phase.PROVING, Phase.REMOVING, Phase.DONE]
    assert not await rig.has_cookie()


class TestTakeOverAndUndo:
    async def test_the_last_coordinator_counts(self, rig: Rig) -> None:
        first, mover = rig.coordinator(options=replace(QUICK, recover_open=False))
        running = asyncio.create_task(first.run(REQUEST))
        await until(lambda: first.watched.meter is not None and set(first.watched.meter.blocked) == {4})
        record = await rig.decommission(name="second")
        assert (record.phase, record.coordinator) == (Phase.DONE, "second")
        with pytest.raises(TakenOver):
            await running
        assert mover.recovered == []

    async def test_an_undo_stops_the_coordinator_and_gives_the_bookie_back(self, rig: Rig) -> None:
        first, _ = rig.coordinator(options=replace(QUICK, recover_open=False))
        running = asyncio.create_task(first.run(REQUEST))
        await until(lambda: first.watched.meter is not None and set(first.watched.meter.blocked) == {4})
        assert rig.registered[GOING] is R
        undone = await undo(rig.service, rig, GOING)
        assert undone.writable
        with pytest.raises(TakenOver):
            await running
        assert rig.registered[GOING] is W
        assert await rig.has_cookie()
        assert await DecommissionStore(rig.service).active(GOING) is None
        with pytest.raises(NotDecommissioned):
            await undo(rig.service, rig, GOING)
        assert (await rig.decommission(name="again")).phase is Phase.DONE
        with pytest.raises(Refused, match="finished"):
            await undo(rig.service, rig, GOING)

    async def test_an_undo_that_fails_half_way_blocks_a_resume_and_may_be_repeated(self, rig: Rig) -> None:
        first, _ = rig.coordinator(options=replace(QUICK, recover_open=False))
        running = asyncio.create_task(first.run(REQUEST))
        await until(lambda: first.watched.meter is not None and set(first.watched.meter.blocked) == {4})
        running.cancel()
        await asyncio.wait([running])
        rig.admin_reachable = False
        with pytest.raises(BookieUnavailable, match="repeat"):
            await undo(rig.service, rig, GOING)
        with pytest.raises(TakenOver, match="undone"):
            await rig.decommission()
        rig.admin_reachable = True
        assert (await undo(rig.service, rig, GOING)).writable
        assert rig.registered[GOING] is W

    async def test_a_bookie_that_was_read_only_before_stays_so(self, rig: Rig) -> None:
        await rig.set_registration(R)
        first, _ = rig.coordinator(options=replace(QUICK, recover_open=False))
        running = asyncio.create_task(first.run(REQUEST))
        await until(lambda: first.watched.meter is not None and set(first.watched.meter.blocked) == {4})
        assert not (await undo(rig.service, rig, GOING)).writable
        assert rig.registered[GOING] is R
        with pytest.raises(TakenOver):
            await running


async def test_a_write_whose_answer_is_lost_is_not_taken_for_somebody_elses(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DecommissionStore(rig.service)
    held = await store.begin(REQUEST)
    write = store.write

    async def lost(record: DecommissionRecord, version: int) -> int:
        await write(record, version)
        raise MetadataUnavailable("no answer")

    monkeypatch.setattr(store, "write", lost)
    with pytest.raises(MetadataUnavailable):
        await held.advance(Quiesced(Form.LIVE))
    monkeypatch.setattr(store, "write", write)
    await held.advance(Quiesced(Form.LIVE))
    assert held.phase is Phase.DRAINING
    await held.advance(Drained())
    stored = await store.active(GOING)
    assert stored is not None
    assert stored.value == held.record
    await store.begin(replace(REQUEST, coordinator="second"))
    with pytest.raises(TakenOver, match="second"):
        await held.note(held.record.progress)


async def test_the_survey_counts(rig: Rig) -> None:
    found = await survey(rig.service, GOING)
    assert sorted(found.ledgers) == [1, 3, 4, 2**40, 2**40 + 1]
    assert (found.ledgers_seen, found.open_ledgers, found.largest_ensemble) == (6, 1, 3)
    assert {ledger_id: each.nbytes for ledger_id, each in found.ledgers.items()} == {
        1: 1000,
        3: 500,
        4: 0,
        2**40: 1000,
        2**40 + 1: 0,
    }
    striped = replace(ledger(5, (0, "012")), write_quorum_size=2, ack_quorum_size=2)
    assert bytes_held(striped, GOING) == 667


async def test_the_proof_waits_until_clients_have_heard(rig: Rig) -> None:
    """A client that has not heard yet that the bookie takes nothing creates a ledger on it."""
    loop = asyncio.get_running_loop()

    def step(phase: Phase) -> None:
        if phase is Phase.PROVING and not late:
            late.append(loop.create_task(rig.store(ledger(77, (0, "012")))))

    late: list[asyncio.Task[None]] = []
    began = loop.time()
    coordinator, _ = rig.coordinator(on_step=step, options=replace(QUICK, settle=0.5))
    record = await coordinator.run(REQUEST)
    assert loop.time() - began >= 0.5
    await late[0]
    assert record.proof is not None
    assert record.proof.ledgers == 7
    assert await rig.naming() == set()
