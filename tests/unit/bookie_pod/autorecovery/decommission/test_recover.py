"""Recovery of lost bookies by the calling process: what is restored, skipped, waited for, and whose cookie goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bookie_pod.autorecovery.decommission.proof import delete_unneeded_cookie
from bookie_pod.autorecovery.decommission.recover import Recover, RecoverOptions, find_ledgers
from bookie_protocol.errors import CouldNotTell, MetadataNotFound, NotThere, Refused
from bookie_protocol.ledger_metadata.model import LedgerState
from tests.support.decommission_rig import GOING, QUICK, FakeMover, Rig, ledger
from tests.support.until import until


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with Rig(tmp_path) as made:
        await made.store(
            ledger(1, (0, "012")), ledger(2, (0, "123")), ledger(3, (0, "012"), last=None), ledger(4, (0, "230"))
        )
        await made.stop(GOING)
        yield made


def recover(rig: Rig, mover: FakeMover | None = None, **options: object) -> Recover:
    return Recover(
        rig.service,
        mover or FakeMover(rig.service, rig.ends),
        [GOING],
        RecoverOptions(drain=QUICK, **options),  # type: ignore[arg-type]
    )


async def test_what_names_them(rig: Rig) -> None:
    found = await find_ledgers(rig.service, [GOING, "b3:1"])
    assert [(each.ledger_id, each.state, sorted(each.bookies), each.nbytes) for each in found] == [
        (1, LedgerState.CLOSED, [GOING], 1000),
        (2, LedgerState.CLOSED, ["b3:1"], 1000),
        (3, LedgerState.OPEN, [GOING], 0),
        (4, LedgerState.CLOSED, [GOING, "b3:1"], 2000),
    ]
    assert await find_ledgers(rig.service, [GOING], 2) == []
    with pytest.raises(MetadataNotFound):
        await find_ledgers(rig.service, [GOING], 99)


async def test_everything_is_restored_and_the_cookie_goes(rig: Rig) -> None:
    result = await recover(rig, delete_cookies=True).run()
    assert (result.restored, result.skipped, result.failed, result.cookies_deleted) == (3, [], {}, [GOING])
    assert await rig.naming() == set()
    assert not await rig.has_cookie()
    assert await rig.state_of(3) is LedgerState.CLOSED
    again = await recover(rig, delete_cookies=True).run()
    assert (again.restored, again.cookies_deleted) == (0, [])


async def test_open_ledgers_can_be_left_alone_but_then_the_cookie_stays(rig: Rig) -> None:
    run = recover(rig, skip_open=True, delete_cookies=True)
    with pytest.raises(Refused, match=r"cookies.*restored"):
        await run.run()
    assert (run.result.restored, run.result.skipped) == (2, [3])
    assert await rig.naming() == {3}
    assert await rig.state_of(3) is LedgerState.OPEN
    assert await rig.has_cookie()


async def test_one_ledger_only(rig: Rig) -> None:
    result = await recover(rig, ledger_id=4).run()
    assert result.restored == 1
    assert await rig.naming() == {1, 3}
    with pytest.raises(Refused, match="restored"):
        await recover(rig, ledger_id=1, delete_cookies=True).run()


async def test_the_first_failure_ends_it_unless_it_may_be_skipped(rig: Rig) -> None:
    mover = FakeMover(rig.service, rig.ends)
    mover.refuse[1] = "no copy is left"
    with pytest.raises(CouldNotTell, match=r"ledger 1 .*restored"):
        await recover(rig, mover).run()
    result = await recover(rig, mover, skip_unrecoverable=True).run()
    assert result.failed == {1: "no copy is left"}
    assert await rig.naming() == {1}
    with pytest.raises(Refused):
        await recover(rig, mover, skip_unrecoverable=True, delete_cookies=True).run()
    assert await rig.has_cookie()


async def test_a_ledger_that_somebody_works_on_is_waited_for(rig: Rig) -> None:
    other, _ = await rig.connect()
    lock = await other.under_replication.lock(1)
    run = recover(rig)
    running = asyncio.create_task(run.run())
    await until(lambda: run.result.restored == 2 and 1 in run.meter.blocked)
    assert await rig.naming() == {1}
    await other.under_replication.release(lock)
    assert (await running).restored == 3
    assert await rig.naming() == set()


class TestCookies:
    async def test_one_that_is_needed_stays(self, rig: Rig) -> None:
        with pytest.raises(Refused, match=r"3 ledgers .* 1"):
            await delete_unneeded_cookie(rig.service, GOING)
        with pytest.raises(Refused, match="writable"):
            await delete_unneeded_cookie(rig.service, "b1:1")
        with pytest.raises(NotThere):
            await delete_unneeded_cookie(rig.service, "b9:1")
        assert await rig.has_cookie()

    async def test_a_mark_is_a_need_too(self, rig: Rig) -> None:
        await recover(rig).run()
        await rig.service.under_replication.mark(2, [GOING], ctime_ms=1)
        with pytest.raises(Refused, match=r"1 ledgers .* 2"):
            await delete_unneeded_cookie(rig.service, GOING)
        await rig.service.under_replication.unmark(2)
        await delete_unneeded_cookie(rig.service, GOING)
        assert not await rig.has_cookie()
