"""A coordinator dies at every request that it makes to the metadata service, before it is carried out and after;
another one goes on. The cookie goes only when nothing names the bookie, and the end is always the same."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from bookie_pod.autorecovery.decommission.state import Phase
from bookie_pod.autorecovery.decommission.store import DecommissionRequest, DecommissionStore, TakenOver
from bookie_pod.autorecovery.decommission.undo import undo
from bookie_protocol.errors import NotThere, PodkeeperError, Refused
from bookie_protocol.metadata_service.tree.under_replication import locks
from tests.support.decommission_rig import GOING, QUICK, R, Rig, W, ledger

REQUEST = DecommissionRequest(GOING, "first")
LEDGERS = (ledger(1, (0, "012")), ledger(2, (0, "123")), ledger(3, (0, "203"), last=None))


async def opened(folder: Path) -> Rig:
    rig = Rig(folder)
    rig.options = replace(QUICK, settle=0.0, open_grace=0.0)  # there are some hundred deaths
    await rig.open()
    await rig.store(*LEDGERS)
    await rig.service.under_replication.mark(1, [GOING], ctime_ms=1)
    return rig


async def die_in_it(rig: Rig, at: int | None, *, after: bool) -> int:
    """Run a coordinator until it dies at its n-th request or ends; returns how many it made."""
    service, transport = await rig.connect()
    before = transport.requests
    transport.die_at = None if at is None else before + at
    transport.die_after = after
    running = asyncio.create_task(rig.coordinator(service)[0].run(REQUEST))
    died = asyncio.create_task(transport.died.wait())
    async with asyncio.timeout(30):
        await asyncio.wait((running, died), return_when=asyncio.FIRST_COMPLETED)
    died.cancel()
    running.cancel()
    await asyncio.wait((running, died))
    if transport.died.is_set():
        await rig.owner.expire(service.tree.session_id)  # nobody holds its locks any more
    elif not running.cancelled():
        running.result()
    return transport.requests - before


async def check_cookie(rig: Rig) -> None:
    if not await rig.has_cookie():
        assert await rig.naming() == set()
        assert rig.registered[GOING] is R
        assert [mark async for mark in rig.service.under_replication.list()] == []


@pytest.fixture(autouse=True)
def no_disk_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coordinators die here, and not the metadata service: of its syncs there are some ten thousand."""
    monkeypatch.setattr(os, "fdatasync", lambda _: None)


@pytest.fixture(autouse=True)
def nobody_waits_for_the_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies gives no locks back, and none of its tasks goes on."""
    monkeypatch.setattr(locks, "RELEASE_SECONDS", 0.001)


async def requests_of_a_whole_run(folder: Path) -> int:
    rig = await opened(folder)
    try:
        return await die_in_it(rig, None, after=False)
    finally:
        await rig.close()


@pytest.mark.parametrize("first", [1, 2, 3])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_another_goes_on(tmp_path: Path, after: bool, first: int) -> None:
    total = await requests_of_a_whole_run(tmp_path / "whole")
    assert total > 40
    for at in range(first, total + 1, 3):
        rig = await opened(tmp_path / str(at))
        try:
            await die_in_it(rig, at, after=after)
            await check_cookie(rig)
            found = await DecommissionStore(rig.service).active(GOING)
            if found is None and await DecommissionStore(rig.service).finished(GOING) is not None:
                continue  # it died with the last answer
            record = await rig.decommission(name="second")
            assert record.phase is Phase.DONE, at
            assert await rig.naming() == set(), at
            assert not await rig.has_cookie(), at
            assert rig.registered[GOING] is R, at
            assert [mark async for mark in rig.service.under_replication.list()] == [], at
            assert await rig.service.under_replication.locks() == {}, at
            assert await DecommissionStore(rig.service).active(GOING) is None, at
        finally:
            await rig.close()


async def test_an_undo_instead(tmp_path: Path) -> None:
    """It gives back a bookie that has its cookie and is writable, or says that it is too late."""
    total = await requests_of_a_whole_run(tmp_path / "whole")
    refused = undone = 0
    for at in (*range(1, total - 20, 3), *range(total - 20, total + 1)):
        rig = await opened(tmp_path / str(at))
        try:
            await die_in_it(rig, at, after=True)
            try:
                await undo(rig.service, rig, GOING)
            except Refused:
                assert not await rig.has_cookie(), at
                refused += 1
            except NotThere:
                assert rig.registered[GOING] is W, at
            else:
                assert await rig.has_cookie(), at
                assert rig.registered[GOING] is W, at
                undone += 1
            await check_cookie(rig)
        finally:
            await rig.close()
    assert refused >= 1
    assert undone > 20


async def test_an_undo_that_dies_is_repeated(tmp_path: Path) -> None:
    async def stuck(folder: Path) -> Rig:
        rig = await opened(folder)
        await die_in_it(rig, 45, after=True)
        return rig

    at = 0
    while True:
        at += 1
        rig = await stuck(tmp_path / str(at))
        try:
            if not await rig.has_cookie():
                pytest.fail("the coordinator got too far for this test")
            service, transport = await rig.connect()
            transport.die_at, transport.die_after = transport.requests + at, True
            try:
                await undo(service, rig, GOING)
            except PodkeeperError:
                assert transport.died.is_set()
            try:
                await undo(rig.service, rig, GOING)
            except NotThere:
                assert at > 3
            assert await rig.has_cookie()
            assert rig.registered[GOING] is W
            assert await DecommissionStore(rig.service).active(GOING) is None
            if not transport.died.is_set():
                break
        finally:
            await rig.close()
    assert at > 4


async def test_the_coordinator_and_the_undo_race_for_the_cookie(tmp_path: Path) -> None:
    """Whoever is first wins: a cookie that is gone is a bookie that left, a writable bookie has its cookie."""
    total = await requests_of_a_whole_run(tmp_path / "whole")
    outcomes = set()
    for pause in range(total - 24, total + 1):
        rig = await opened(tmp_path / str(pause))
        try:
            service, transport = await rig.connect()
            begun = transport.requests
            running = asyncio.create_task(rig.coordinator(service)[0].run(REQUEST))
            async with asyncio.timeout(30):
                while transport.requests - begun < pause and not running.done():  # noqa: ASYNC110
                    await asyncio.sleep(0)
            try:
                await undo(rig.service, rig, GOING)
                outcomes.add("undone")
                assert await rig.has_cookie()
                assert rig.registered[GOING] is W
                with pytest.raises(TakenOver):
                    await running
            except (Refused, NotThere):
                outcomes.add("too late")
                assert (await running).phase is Phase.DONE
                assert not await rig.has_cookie()
                assert await rig.naming() == set()
        finally:
            await rig.close()
    assert outcomes == {"undone", "too late"}
