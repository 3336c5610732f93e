"""When memory is given back, and that the platform's trim really does it."""

import asyncio
import gc
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from bookie_pod.callers import Callers
from bookie_pod.client_memory import MemoryGovernor
from bookie_pod.logs import MOST as LINES
from bookie_pod.node.processes import memory as memory_module
from bookie_pod.node.processes.memory import (
    CALM_BYTES,
    CALM_S,
    WORTH_BYTES,
    guard_memory,
    resident_bytes,
    trimmer,
)
from tests.support.until import until

MB = 1 << 20


class Process:
    """One that the test moves on, a second at a time; its clients hold a part of what it has."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, budget: int = 1024 * MB) -> None:
        self.resident = self.in_use = 100 * MB
        self.written = 0
        self.trims: list[int] = []
        self.memory = MemoryGovernor(8 * MB)
        self.receivers, self.anybody = 0, asyncio.Event()
        self._seconds, self._looks = 0.0, asyncio.Semaphore(0)
        self._loop = asyncio.get_running_loop()
        clock = SimpleNamespace(monotonic=lambda: self._seconds, perf_counter=lambda: self._seconds)
        monkeypatch.setattr(memory_module, "time", clock)
        monkeypatch.setattr(memory_module, "QUIET_INTERVAL_S", 0)
        guard = guard_memory(self, budget, self._trim, self._look, 0, lambda: self.written)  # type: ignore[arg-type]
        self.task = self._loop.create_task(guard)

    def _look(self) -> int:
        self._looks.release()
        return self.resident

    def _trim(self) -> None:
        self.trims.append(self.resident)
        self.resident = self.in_use

    async def pass_by(self, seconds: int, written: int = 0) -> None:
        for _ in range(seconds):
            self._seconds += 1.01
            self.written += written
            self._looks = asyncio.Semaphore(0)
            for _ in range(4):  # a trim that was begun has ended, and that was looked at
                await asyncio.wait_for(self._looks.acquire(), 10)
                await self._loop.run_in_executor(None, int)


@pytest.fixture
async def process(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Process]:
    made = Process(monkeypatch)
    await made.pass_by(20)
    made.trims.clear()  # of what the start had left
    yield made
    made.task.cancel()
    with suppress(asyncio.CancelledError):
        await made.task


async def test_what_is_left_of_a_burst_is_given_back_when_it_is_calm_though_somebody_writes(process: Process) -> None:
    process.resident += WORTH_BYTES + MB
    await process.pass_by(CALM_S - 1, written=CALM_BYTES)
    assert process.trims == []
    await process.pass_by(CALM_S, written=CALM_BYTES)
    assert process.trims[0] == 101 * MB + WORTH_BYTES
    assert process.resident == process.in_use


async def test_nothing_is_trimmed_while_much_is_written(process: Process) -> None:
    """What is trimmed would be needed again at once."""
    process.resident += 2 * WORTH_BYTES
    await process.pass_by(4 * CALM_S, written=CALM_BYTES + 1)
    assert process.trims == []


async def test_the_time_in_which_the_process_did_not_run_is_one_second(process: Process) -> None:
    """Its clients write as much as before, so it is not calm."""
    process.resident += 2 * WORTH_BYTES
    await process.pass_by(1, written=CALM_BYTES + 1)
    process._seconds += 100
    await process.pass_by(1, written=CALM_BYTES + 1)
    for _ in range(2 * CALM_S):
        await asyncio.wait_for(process._looks.acquire(), 10)
    assert process.trims == []


@pytest.mark.parametrize(("growth", "held"), [(WORTH_BYTES, 0), (3 * WORTH_BYTES, 2 * WORTH_BYTES)], ids=["", "held"])
async def test_little_growth_beside_what_clients_hold_is_left_alone(process: Process, growth: int, held: int) -> None:
    process.resident += growth
    process.memory.held = held
    await process.pass_by(4 * CALM_S)
    assert process.trims == []


async def test_what_is_given_back_behind_a_trim_that_brought_much_is_trimmed_too(process: Process) -> None:
    process.resident, process.in_use = 300 * MB, 120 * MB
    await process.pass_by(CALM_S + 1)
    assert (len(process.trims), process.resident) == (1, 120 * MB)
    process.in_use = 100 * MB
    await process.pass_by(4 * CALM_S)
    assert process.resident == 100 * MB


async def test_a_process_that_needs_what_it_has_is_trimmed_once(process: Process) -> None:
    process.resident = process.in_use = 100 * MB + 3 * WORTH_BYTES
    await process.pass_by(10 * CALM_S)
    assert len(process.trims) == 1


def test_freed_memory_leaves_the_process() -> None:
    trim = trimmer()
    if trim is None:
        pytest.fail("this platform's C library has no malloc_trim, which Linux's has")
    entries = [bytes(4096) for _ in range(30_000)]
    keep = bytes(4096)  # lies above them, so the heap cannot shrink from its end
    grown = resident_bytes()
    del entries
    trim()
    assert resident_bytes() < grown - 60_000_000
    assert len(keep) == 4096


class Receiving:
    """As `Callers`: calls into which messages come, of at most a megabyte."""

    def __init__(self) -> None:
        self.memory = MemoryGovernor(8 * MB)
        self.receivers = 8
        self.anybody = asyncio.Event()
        self.anybody.set()

    def cut_receivers(self, keep: int) -> int:
        cut, self.receivers = self.receivers - keep, keep
        return cut


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def guarded(callers: Receiving, resident: Callable[[int], int], looks: int = 30) -> None:
    """Guard it for so many looks; `resident`: the megabytes of each."""
    over, counted = asyncio.Event(), itertools.count()

    def look() -> int:
        if (number := next(counted)) == looks:
            over.set()
        return resident(number) * MB

    task = asyncio.create_task(guard_memory(callers, 16 * MB, lambda: None, look, interval=0.001))  # type: ignore[arg-type]
    await asyncio.wait_for(over.wait(), 10)
    await ended(task)


@pytest.mark.parametrize(
    ("at_rest", "growth", "fast", "held", "left"),
    [
        pytest.param(20, 4, 1, 0, 8, id="within bounds"),
        pytest.param(6, 10, 9, 0, 8, id="within its budget, however fast it grows"),
        pytest.param(10, 10, 7, 0, 4, id="within bounds, but not when calls have ended"),
        pytest.param(20, 8, 1, 0, 1, id="as many as there is room for"),
        pytest.param(20, 16, 1, 0, 0, id="all of them"),
        pytest.param(20, 10, 1, 9, 8, id="it is known who holds it"),
        pytest.param(50, 0, 1, 0, 8, id="not of late"),
    ],
)
async def test_when_memory_is_short_calls_that_receive_end(
    at_rest: int, growth: int, fast: int, held: int, left: int
) -> None:
    callers = Receiving()

    def resident(look: int) -> int:
        grown = min(growth, fast * max(0, look - 2))
        callers.memory.held = min(held, grown) * MB
        return at_rest + grown

    await guarded(callers, resident)
    assert callers.receivers == left


async def test_the_calls_that_receive_stay_where_they_can_have_brought_little_of_the_growth() -> None:
    """A stranger's headers make it grow; the one call of an honest client would end for nothing."""
    callers = Receiving()
    callers.receivers = 1

    await guarded(callers, lambda look: 20 + min(16, look))
    assert callers.receivers == 1


async def test_calls_that_end_again_and_again_are_few_lines() -> None:
    callers = Receiving()

    def resident(look: int) -> int:
        callers.receivers = 8
        return 20 + min(16, look)

    with capture_logs() as logs:
        await guarded(callers, resident, looks=60)
    assert 0 < len(logs) <= LINES


async def test_where_nobody_receives_nobody_is_said_to_have_been_ended() -> None:
    """However far above twice its budget the process is."""
    callers = Receiving()
    callers.receivers = 0

    with capture_logs() as logs:
        await guarded(callers, lambda look: 20 + 4 * look)
    assert not logs


@pytest.mark.parametrize("known", [0, 3], ids=["never known", "known at first"])
async def test_whoever_is_in_the_way_goes_though_nobody_knows_how_large_the_process_is(known: int) -> None:
    """As without `/proc`, or without a descriptor to read it with."""
    callers, gone, looks = Receiving(), asyncio.Event(), itertools.count()

    def resident() -> int:
        if next(looks) >= known:
            raise FileNotFoundError("/proc/self/statm")
        return 10 * MB

    share = callers.memory.share(gone.set)
    guard = guard_memory(callers, 16 * MB, lambda: None, resident, interval=0.001)  # type: ignore[arg-type]
    task = asyncio.create_task(guard)
    await asyncio.sleep(0.01)
    share.hold(9 * MB)
    share.stuck_since = 0.0
    await asyncio.wait_for(gone.wait(), 10)
    await ended(task)
    assert callers.receivers == 8


async def test_what_is_given_back_behind_a_trim_is_trimmed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trim at the peak brought nothing: it was all in use then."""
    monkeypatch.setattr(memory_module, "TRIM_AGAIN_S", 0.01)
    trims = list[int]()
    state = {"resident": 10 * MB, "in use": 10 * MB}
    trimmed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def trim() -> None:
        trims.append(state["resident"])
        state["resident"] = state["in use"]
        loop.call_soon_threadsafe(trimmed.set)

    guard = guard_memory(
        Receiving(),  # type: ignore[arg-type]
        16 * MB,
        trim,
        lambda: state["resident"],
        interval=0.001,
    )
    task = asyncio.create_task(guard)
    await asyncio.sleep(0.005)
    state["resident"] = state["in use"] = 90 * MB
    await asyncio.wait_for(trimmed.wait(), 10)
    state["in use"] = 12 * MB
    await until(lambda: state["resident"] == 12 * MB)
    await ended(task)
    assert len(trims) >= 2


def test_what_was_made_lately_is_collected_in_short_turns() -> None:
    """However many live objects there are, and not at all while few were made."""
    gc.collect()
    gc.disable()
    try:
        collected = [each["collected"] for each in gc.get_stats()]
        lived = list[object]()
        for _ in range(200):
            memory_module.collect_young()
            assert gc.get_count()[0] <= 2 * memory_module.YOUNG_OBJECTS
            for _ in range(1000):
                cycle = list[object]()
                cycle.append(cycle)
                lived.append([])
        young, middle, old = (after["collected"] - was for after, was in zip(gc.get_stats(), collected, strict=True))
    finally:
        gc.enable()
    assert young + middle > 150_000
    assert old == 0
    assert middle < young


async def test_where_nobody_calls_it_looks_less_often_and_at_once_when_somebody_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_module, "QUIET_INTERVAL_S", 3600.0)
    callers, looked = Callers(MemoryGovernor(8 * MB)), asyncio.Event()

    def resident() -> int:
        looked.set()
        return 10 * MB

    task = asyncio.create_task(guard_memory(callers, 16 * MB, lambda: None, resident, interval=0.0))
    await asyncio.wait_for(looked.wait(), 10)  # as large as it is at the beginning
    for _ in range(3):
        await turns()
        looked.clear()
        await turns()
        assert not looked.is_set()
        with callers.call("ipv4:192.0.2.1:1"):
            await asyncio.wait_for(looked.wait(), 10)
            looked.clear()
            await asyncio.wait_for(looked.wait(), 10)  # as long as the call goes on
    share = callers.memory.share(lambda: None)
    share.hold(1)
    with callers.call("ipv4:192.0.2.1:1"):
        await asyncio.wait_for(looked.wait(), 10)
    looked.clear()
    await asyncio.wait_for(looked.wait(), 10)  # something is held
    await ended(task)


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("budget", "trims_at"), [(64 * MB, 132 * MB), (256 * MB, 320 * MB)])
def test_a_process_that_takes_its_budget_at_rest_is_not_beyond_its_bound(monkeypatch, budget, trims_at):
    resident, trims = [100 * MB], []
    monkeypatch.setattr(memory_module, "resident_bytes", lambda: resident[0])
    monkeypatch.setattr(memory_module, "trimmer", lambda: lambda: trims.append(resident[0]))
    bound = memory_module.resident_bound(budget, lambda: ())
    for resident[0] in (100 * MB, trims_at, trims_at + 1):
        bound.look(0.0)
    assert trims == [trims_at + 1]
