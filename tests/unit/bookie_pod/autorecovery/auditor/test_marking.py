"""Marks that have to wait for a lock: until they are made, or nobody needs them."""

from __future__ import annotations

import asyncio

import pytest

from bookie_pod.autorecovery.auditor.marking import Marked, Marker
from bookie_protocol.errors import MetadataUnavailable
from tests.support.auditor_rig import AuditorRig, FastClock, ledger


class Said:
    """What a test says of bookies."""

    def __init__(self) -> None:
        self.lost = {"b0:1", "b1:1"}
        self.available: set[str] = set()

    def is_lost(self, bookie: str) -> bool:
        return bookie in self.lost

    def is_available(self, bookie: str) -> bool:
        return bookie in self.available


@pytest.fixture
async def said(rig: AuditorRig) -> Said:
    await rig.store(ledger(1, (0, "012")))
    return Said()


async def test_what_is_added_during_a_look_is_not_dropped_with_it(rig: AuditorRig, said: Said) -> None:
    marker = Marker(rig.service, FastClock(), store_time=False, known=said)
    lock = await rig.marks.lock(1)
    assert await marker.mark_lost(1, ["b0:1"]) is Marked.LOCKED
    read = rig.service.ledgers.read

    async def slow(ledger_id: int) -> object:
        found = await read(ledger_id)
        rig.service.ledgers.read = read  # type: ignore[method-assign]
        assert await marker.mark_lost(1, ["b1:1"]) is Marked.LOCKED
        await rig.marks.release(lock)
        return found

    rig.service.ledgers.read = slow  # type: ignore[assignment, method-assign]
    await marker.retry()
    assert await rig.marked() == {1: ("b0:1",)}
    assert marker.deferred == 1
    await marker.retry()
    assert await rig.marked() == {1: ("b0:1", "b1:1")}
    assert marker.deferred == 0


async def test_who_does_not_count_as_lost_for_a_moment_waits_on(rig: AuditorRig, said: Said) -> None:
    marker = Marker(rig.service, FastClock(), store_time=False, known=said)
    lock = await rig.marks.lock(1)
    await marker.mark_lost(1, ["b0:1", "b1:1"])
    await rig.marks.release(lock)
    said.lost.clear()  # the delay was raised, or nobody at all is registered
    await marker.retry()
    assert (await rig.marked(), marker.deferred) == ({}, 1)
    said.available.add("b1:1")
    said.lost.add("b0:1")
    await marker.retry()
    assert (await rig.marked(), marker.deferred) == ({1: ("b0:1",)}, 0)


@pytest.mark.parametrize("question", ["locked_by", "read", "renew"])
async def test_a_mark_that_goes_with_an_earlier_look_is_made_again(
    rig: AuditorRig, said: Said, question: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bookie was back when a worker looked, and left again before the worker took the mark away: right before the
    auditor asks this."""
    marker = Marker(rig.service, FastClock(), store_time=False, known=said)
    await rig.marks.mark(1, ["b0:1"], ctime_ms=None)
    lock = await rig.marks.lock(1)
    ask = getattr(rig.marks, question)

    async def later(ledger_id: int) -> object:
        monkeypatch.undo()
        await rig.marks.mark_replicated(lock)
        return await ask(ledger_id)

    monkeypatch.setattr(rig.marks, question, later)
    await marker.mark_lost(1, ["b0:1"])
    await marker.retry()
    assert (await rig.marked(), marker.deferred) == ({1: ("b0:1",)}, 0)


async def test_who_is_back_is_not_marked(rig: AuditorRig, said: Said) -> None:
    marker = Marker(rig.service, FastClock(), store_time=False, known=said)
    lock = await rig.marks.lock(1)
    await marker.mark_lost(1, ["b0:1"])
    await rig.marks.release(lock)
    said.available.add("b0:1")
    await marker.retry()
    assert (await rig.marked(), marker.deferred) == ({}, 0)


@pytest.mark.parametrize("gone", [True, False], ids=["deleted", "damaged"])
async def test_a_ledger_that_is_of_no_use_to_any_worker_holds_up_no_other(
    rig: AuditorRig, said: Said, gone: bool
) -> None:
    await rig.store(ledger(2, (0, "012")))
    marker = Marker(rig.service, FastClock(), store_time=False, known=said)
    for ledger_id in (1, 2):
        lock = await rig.marks.lock(ledger_id)
        await marker.mark_lost(ledger_id, ["b0:1"])
        await rig.marks.release(lock)
    await (rig.service.ledgers.delete(1) if gone else rig.damage(1))
    await marker.retry()
    assert (await rig.marked(), marker.deferred) == ({2: ("b0:1",)}, 0)


async def test_when_too_many_wait_a_ledger_is_marked_under_its_lock(
    rig: AuditorRig, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookie_pod.autorecovery.auditor.marking.MAX_DEFERRED", 1)
    await rig.store(ledger(2, (0, "012")))
    marker = Marker(rig.service, FastClock(), store_time=False, known=said)
    for ledger_id in (1, 2):
        await rig.marks.lock(ledger_id)
    assert await marker.mark_lost(1, ["b0:1"]) is Marked.LOCKED
    assert await marker.mark_lost(1, ["b1:1"]) is Marked.LOCKED  # it waits already
    assert await marker.mark_lost(2, ["b0:1"]) is Marked.NEW
    assert (await rig.marked(), marker.deferred) == ({2: ("b0:1",)}, 1)


async def test_a_service_that_does_not_answer_ends_no_waiting(
    rig: AuditorRig, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookie_pod.autorecovery.auditor.marking.RETRY_SECONDS", 0.0)
    marker, tries, again = Marker(rig.service, FastClock(), store_time=False, known=said), 0, asyncio.Event()

    async def retry() -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise MetadataUnavailable("no answer")
        again.set()

    monkeypatch.setattr(marker, "retry", retry)
    running = asyncio.create_task(marker.run())
    async with asyncio.timeout(10):
        await asyncio.wait([running, asyncio.create_task(again.wait())], return_when=asyncio.FIRST_COMPLETED)
    assert again.is_set()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_ledger_that_is_still_locked_waits_on(rig: AuditorRig, said: Said) -> None:
    marker = Marker(rig.service, FastClock(), store_time=False, known=said)
    lock = await rig.marks.lock(1)
    await marker.mark_lost(1, ["b0:1", "b4:1"])
    said.lost.add("b4:1")  # which no metadata name
    await marker.retry()
    assert (await rig.marked(), marker.deferred, marker._deferred) == ({}, 1, {1: {"b0:1"}})
    await rig.marks.release(lock)
    await marker.retry()
    assert (await rig.marked(), marker.deferred) == ({1: ("b0:1",)}, 0)


async def test_whoever_comes_back_while_its_ledger_is_looked_at_waits_no_more(
    rig: AuditorRig, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = Marker(rig.service, FastClock(), store_time=False, known=said)
    lock = await rig.marks.lock(1)
    await marker.mark_lost(1, ["b0:1"])
    read = rig.service.ledgers.read

    async def back(ledger_id: int) -> object:
        said.available.add("b0:1")
        return await read(ledger_id)

    monkeypatch.setattr(rig.service.ledgers, "read", back)
    await marker.retry()
    assert (await rig.marked(), marker.deferred) == ({}, 0)
    await rig.marks.release(lock)
