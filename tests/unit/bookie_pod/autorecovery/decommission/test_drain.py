"""The meter of a drain, and that ledgers do not wait for each other."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_pod.autorecovery.decommission.drain import DrainMeter, LedgerDrain, Locked, drain_all
from bookie_pod.autorecovery.decommission.moving import Passing
from bookie_pod.autorecovery.decommission.state import SHOWN_BLOCKERS, Blocker
from bookie_protocol.errors import MetadataUnavailable
from tests.support.clock import Clock
from tests.support.decommission_rig import GOING, QUICK, FakeMover, Rig, ledger
from tests.support.until import until


def test_numbers_of_a_drain() -> None:
    clock = Clock(100.0)
    meter = DrainMeter(clock)
    meter.expect({1: 1000, 2: 3000, 3: 0})
    assert meter.progress().eta_s is None
    copied = meter.begin(1)
    copied(600)
    progress = meter.progress()
    assert (progress.ledgers_left, progress.bytes_left, progress.bytes_copied) == (3, 3400, 600)
    copied(500)  # more than was estimated
    meter.end(1, None)
    clock.now += 10.0
    progress = meter.progress()
    assert (progress.ledgers_total, progress.ledgers_left) == (3, 2)
    assert (progress.bytes_total, progress.bytes_left, progress.bytes_copied) == (4000, 3000, 1100)
    assert progress.eta_s == 30.0  # by bytes; by ledgers it would be 20
    meter.begin(3)
    meter.end(3, "why")
    meter.begin(2)
    assert meter.in_work == {2: 0}
    meter.end(2, None)
    progress = meter.progress()
    assert (progress.blocked, progress.blockers, progress.eta_s) == (1, (Blocker(3, "why"),), None)
    meter.expect({})  # a listing found that it is gone
    assert meter.progress().blocked == 0
    assert meter.progress().eta_s == 0.0


@given(
    st.dictionaries(st.integers(0, 50), st.integers(0, 10**9)),
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 10**9), st.booleans())),
)
def test_whatever_is_told_the_numbers_fit(sizes: dict[int, int], work: list[tuple[int, int, bool]]) -> None:
    meter = DrainMeter(Clock(100.0))
    meter.expect(sizes)
    for ledger_id, nbytes, done in work:
        if ledger_id not in meter._sizes:
            continue
        meter.begin(ledger_id)(nbytes)
        meter.end(ledger_id, None if done else "why")
        progress = meter.progress()
        assert 0 <= progress.ledgers_left <= progress.ledgers_total == len(sizes)
        assert 0 <= progress.bytes_left <= progress.bytes_total == sum(sizes.values())
        assert progress.blocked <= progress.ledgers_left
        assert len(progress.blockers) == min(progress.blocked, SHOWN_BLOCKERS)


class Drain:
    """Ledgers that wait until they are let go."""

    def __init__(self) -> None:
        self.gates = {i: asyncio.Event() for i in range(6)}
        self.most = self.now = 0

    async def drain(self, ledger_id: int, progress: Any) -> str | None:
        self.now += 1
        self.most = max(self.most, self.now)
        await self.gates[ledger_id].wait()
        self.now -= 1
        return "odd" if ledger_id % 2 else None


async def test_so_many_at_once_and_no_more() -> None:
    drain, meter = Drain(), DrainMeter(asyncio.get_running_loop().time)
    meter.expect(dict.fromkeys(range(6), 10))
    running = asyncio.create_task(drain_all(range(6), drain, meter, 3))  # type: ignore[arg-type]
    await until(lambda: len(meter.in_work) == 3)
    for ledger_id in (1, 2, 3, 4, 5):  # 0 holds up nobody
        drain.gates[ledger_id].set()
    await until(lambda: set(meter.in_work) == {0})
    drain.gates[0].set()
    await running
    assert drain.most == 3
    assert dict(meter.blocked) == {1: "odd", 3: "odd", 5: "odd"}


async def test_a_cancelled_drain_leaves_nothing_in_work() -> None:
    drain, meter = Drain(), DrainMeter(asyncio.get_running_loop().time)
    meter.expect(dict.fromkeys(range(6), 10))
    running = asyncio.create_task(drain_all(range(6), drain, meter, 2))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert meter.in_work == {}
    assert set(meter.blocked) == {0, 1}


async def test_a_drain_that_is_to_stop_begins_no_further_ledger() -> None:
    drain, meter = Drain(), DrainMeter(asyncio.get_running_loop().time)
    meter.expect(dict.fromkeys(range(6), 10))
    stopping = False
    running = asyncio.create_task(drain_all(range(6), drain, meter, 2, stop=lambda: stopping))  # type: ignore[arg-type]
    await until(lambda: set(meter.in_work) == {0, 1})
    stopping = True
    for gate in drain.gates.values():
        gate.set()
    await running
    assert dict(meter.blocked) == {1: "odd"}
    assert meter.progress().ledgers_left == 5


@pytest.mark.parametrize("only_end", [False, True], ids=["drain", "end of a recovery"])
async def test_why_a_ledger_has_to_wait_and_that_its_lock_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only_end: bool
) -> None:
    async def silent(*_: object, **options: object) -> NoReturn:
        raise MetadataUnavailable("no answer")

    async with Rig(tmp_path) as rig:
        await rig.store(ledger(1, (0, "012"), last=None).in_recovery())
        marks, mover = rig.service.under_replication, FakeMover(rig.service, {1: 41})
        drain = LedgerDrain(rig.service, mover, [GOING], replace(QUICK, open_grace=0.0))

        async def attempt() -> str | None:
            return await (drain.end_recovery(1) if only_end else drain.drain(1, lambda nbytes: None))

        worker, _ = await rig.connect()
        lock = await worker.under_replication.lock(1)
        assert isinstance(await attempt(), Locked)
        with monkeypatch.context() as patch:
            patch.setattr(marks, "locked_by", silent)
            assert (await attempt() or "").startswith("a replication worker on another machine works on it")
        await worker.under_replication.release(lock)
        for silent_part, call in ((marks, "lock"), (mover, "recover")):
            with monkeypatch.context() as patch:
                patch.setattr(silent_part, call, silent)
                said = await attempt()
                assert (said, type(said)) == ("no answer", Passing)
                assert await marks.locked_by(1) is None
        assert await attempt() is None
        assert mover.recovered == [1]


async def test_writer_that_left_and_comes_back_has_time_to_leave_again(tmp_path: Path) -> None:
    """An older segment holds the ledger up meanwhile."""
    async with Rig(tmp_path) as rig:
        mover = FakeMover(rig.service, {1: 41})
        mover.move = unmoved  # type: ignore[assignment, method-assign]
        drain = LedgerDrain(rig.service, mover, [GOING], replace(QUICK, open_grace=0.1))
        await rig.store(ledger(1, (0, "012"), last=None))
        for segments in ([(0, "012")], [(0, "012"), (50, "345")], [(0, "012"), (50, "345"), (90, "045")]):
            stored = await rig.service.ledgers.read(1)
            metadata = replace(ledger(1, *segments, last=None), creation_token=stored.value.creation_token)
            await rig.service.ledgers.write(metadata, stored.identity)
            await drain.drain(1, lambda entries: None)
            await asyncio.sleep(0.1)  # until the time that it was given is over
        assert mover.recovered == []


async def unmoved(*arguments: object) -> str:
    return Passing("not now")


async def test_writer_of_the_next_ledger_of_an_id_has_time_to_leave_too(tmp_path: Path) -> None:
    async with Rig(tmp_path) as rig:
        mover = FakeMover(rig.service, {1: 41})
        drain = LedgerDrain(rig.service, mover, [GOING], replace(QUICK, open_grace=0.1))
        for _ in range(2):
            await rig.store(ledger(1, (0, "012"), last=None))
            assert isinstance(await drain.drain(1, lambda entries: None), Passing)
            await asyncio.sleep(0.1)  # until that time is over
            await rig.service.ledgers.delete_this(await rig.service.ledgers.read(1))
        assert mover.recovered == []
