"""Decommissions while somebody else is about to name their bookie, or while their own locks end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from bookie_pod.autorecovery.decommission.proof import delete_unneeded_cookie
from bookie_pod.autorecovery.decommission.state import Phase
from bookie_pod.autorecovery.decommission.store import DecommissionRequest
from bookie_protocol.errors import NoCookie, Refused
from bookie_protocol.ledger_metadata.model import LedgerState
from tests.support.decommission_rig import GOING, R, Rig, ledger
from tests.support.until import until

REQUEST = DecommissionRequest(GOING, "first")


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with Rig(tmp_path) as made:
        await made.store(ledger(1, (0, "123")), ledger(2, (0, "012")))
        yield made


async def test_a_round_ends_with_the_session_that_holds_its_lock(rig: Rig) -> None:
    """From then on others may collect what it copied, so it must not be named."""
    service, transport = await rig.connect()
    coordinator, mover = rig.coordinator(service)
    held = asyncio.Event()

    async def cut_off(ledger_id: int) -> None:
        if not held.is_set():
            held.set()
            await transport.end_session()
            await asyncio.sleep(60)

    mover.before_exchange = cut_off
    async with asyncio.timeout(20):
        record = await coordinator.run(REQUEST)
    assert record.phase is Phase.DONE
    assert mover.copied == [2, 2], "what was copied under the lock that ended does not count"


async def test_a_re_replication_that_chose_the_bookie_before_is_waited_for(rig: Rig) -> None:
    worker, _ = await rig.connect()
    lock = await worker.under_replication.lock(1)
    coordinator, _ = rig.coordinator()
    running = asyncio.create_task(coordinator.run(REQUEST))
    async with asyncio.timeout(20):
        await until(lambda: "ledgers 1 are being re-replicated" in coordinator.watched.waiting_for)
        later = await worker.under_replication.lock(3)  # it cannot choose the bookie any more
        assert await rig.has_cookie()
        await rig.change(1, lambda metadata: replace(metadata, ensembles={0: (GOING, "b2:1", "b3:1")}))
        await worker.under_replication.release(lock)
        record = await running
        await worker.under_replication.release(later)
    assert record.phase is Phase.DONE
    assert await rig.naming() == set()


async def test_a_lock_that_ends_with_its_session_is_waited_for_no_longer(rig: Rig) -> None:
    worker, transport = await rig.connect()
    await worker.under_replication.lock(1)
    coordinator, _ = rig.coordinator()
    running = asyncio.create_task(coordinator.run(REQUEST))
    async with asyncio.timeout(20):
        await until(lambda: "ledgers 1 are being re-replicated" in coordinator.watched.waiting_for)
        await transport.end_session()
        assert (await running).phase is Phase.DONE


async def test_a_recovery_under_way_comes_to_its_end_before_the_proof(rig: Rig) -> None:
    """It may have stored entries on the bookie, and names it with its last write only."""
    await rig.store(ledger(5, (0, "123"), last=None).in_recovery())
    coordinator, mover = rig.coordinator()
    mover.cannot_close.add(5)
    running = asyncio.create_task(coordinator.run(REQUEST))
    async with asyncio.timeout(20):
        await until(lambda: "ledgers 5 are IN_RECOVERY" in coordinator.watched.waiting_for)
        await until(lambda: "too few bookies answer" in coordinator.watched.waiting_for)
        await rig.store(ledger(6, (0, "123"), last=None).in_recovery())  # it begins too late to choose the bookie
        assert await rig.has_cookie()
        ended = {0: (GOING, "b2:1", "b3:1")}
        await rig.change(5, lambda metadata: replace(metadata, ensembles=ended).closed(9, 1000))
        record = await running
    assert record.phase is Phase.DONE
    assert await rig.naming() == set()
    assert await rig.state_of(6) is LedgerState.IN_RECOVERY


async def test_a_recovery_that_nobody_ends_is_ended(rig: Rig) -> None:
    rig.ends[5] = 41
    await rig.store(ledger(5, (0, "123"), last=None).in_recovery())
    coordinator, mover = rig.coordinator()
    async with asyncio.timeout(20):
        await coordinator.run(REQUEST)
    assert mover.recovered == [5]
    assert (await rig.service.ledgers.read(5)).value.last_entry_id == 41


async def test_a_loss_that_was_accepted_is_no_reason_to_give_up_what_can_be_moved(rig: Rig) -> None:
    worker, _ = await rig.connect()
    lock = await worker.under_replication.lock(2)
    coordinator, _ = rig.coordinator()
    running = asyncio.create_task(coordinator.run(replace(REQUEST, accepted_losses=frozenset({2}))))
    async with asyncio.timeout(20):
        await until(lambda: coordinator.watched.meter is not None and 2 in coordinator.watched.meter.blocked)
        await worker.under_replication.release(lock)
        await running
    assert await rig.naming() == set()


async def test_how_many_ledgers_were_read_is_shown(rig: Rig) -> None:
    coordinator, _ = rig.coordinator()
    await coordinator.run(REQUEST)
    assert coordinator.watched.ledgers_read == 2


class TestCookiesWithoutADecommission:
    async def test_a_bookie_that_was_up_while_the_ledgers_were_listed_keeps_its_cookie(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await rig.stop(GOING)
        await rig.change(2, lambda metadata: replace(metadata, ensembles={0: ("b1:1", "b2:1", "b3:1")}))
        holders = rig.service.under_replication.holders
        was_up = asyncio.Event()

        async def up_for_a_moment(**options: object) -> object:
            if not was_up.is_set():
                was_up.set()
                await rig.start(GOING, R)
                await asyncio.sleep(0.05)
                await rig.stop(GOING)
            return await holders()

        monkeypatch.setattr(rig.service.under_replication, "holders", up_for_a_moment)
        with pytest.raises(Refused, match="registered"):
            await delete_unneeded_cookie(rig.service, GOING)
        assert await rig.has_cookie()
        await delete_unneeded_cookie(rig.service, GOING)
        assert not await rig.has_cookie()

    @pytest.mark.parametrize("gone", [False, True])
    async def test_only_the_cookie_that_was_there_before_the_ledgers_were_listed_is_deleted(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch, gone: bool
    ) -> None:
        """A bookie that comes back meanwhile as a new one has another."""
        await rig.stop(GOING)
        await rig.change(2, lambda metadata: replace(metadata, ensembles={0: ("b1:1", "b2:1", "b3:1")}))
        holders, cookies = rig.service.under_replication.holders, rig.service.cookies

        async def exchange_first(**options: object) -> object:
            await cookies.delete(GOING)
            if not gone:
                await cookies.create(GOING, b"another")
            return await holders()

        monkeypatch.setattr(rig.service.under_replication, "holders", exchange_first)
        with pytest.raises(NoCookie if gone else Refused, match="more" if gone else r"\bnow\b"):
            await delete_unneeded_cookie(rig.service, GOING)
        assert await rig.has_cookie() != gone

    async def test_who_is_about_to_name_it_is_waited_for_or_told(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("bookie_pod.autorecovery.decommission.proof.LOCKS_SECONDS", 0.0)
        await rig.stop(GOING)
        await rig.change(2, lambda metadata: replace(metadata, ensembles={0: ("b1:1", "b2:1", "b3:1")}))
        worker, _ = await rig.connect()
        lock = await worker.under_replication.lock(1)
        with pytest.raises(Refused, match=r"1 ledgers .*re-replicated, .* 1"):
            await delete_unneeded_cookie(rig.service, GOING)
        await rig.store(ledger(5, (0, "123"), last=None).in_recovery())
        with pytest.raises(Refused, match=r"1 ledgers .*recovered, .* 5"):
            await delete_unneeded_cookie(rig.service, GOING, {1})  # given up, so nobody cares where it is copied to
        await worker.under_replication.release(lock)
        with pytest.raises(Refused, match=r"1 ledgers .*recovered, .* 5"):
            await delete_unneeded_cookie(rig.service, GOING)
        await delete_unneeded_cookie(rig.service, GOING, {5})
        assert not await rig.has_cookie()
