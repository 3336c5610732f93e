"""When memory is given back, and that the platform's trim really does it."""

import asyncio
import gc
import itertools
from collections.abc import Iterator
from contextlib import suppress

import pytest
from structlog.testing import capture_logs

from bookie_pod.callers import Callers
from bookie_pod.client_memory import MemoryGovernor
from bookie_pod.node.processes import memory as memory_module
from bookie_pod.node.processes.memory import WORTH_BYTES, give_back_memory, guard_memory, resident_bytes, trimmer
from tests.support.until import until

MB = 1 << 20


class Process:
    """A process that grows as told; each check reads the next state."""

    def __init__(self, *states: tuple[int, int]) -> None:
        self._states: Iterator[tuple[int, int]] = iter(states)
        self.mark = self.resident = 0
        self.trims: list[int] = []
        self.over = asyncio.Event()

    def activity(self) -> int:
        state = next(self._states, None)
        if state is None:
            self.mark += 1
            self.over.set()
        else:
            self.mark, self.resident = state
        return self.mark

    def trim(self) -> None:
        self.trims.append(self.resident)
        self.resident = 0

    async def run(self) -> list[int]:
        task = asyncio.create_task(give_back_memory(self.activity, self.trim, lambda: self.resident, interval=0))
        await asyncio.wait_for(self.over.wait(), 10)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        return self.trims


async def test_nothing_is_trimmed_while_adds_arrive() -> None:
    assert await Process((0, 0), (1, WORTH_BYTES), (2, 2 * WORTH_BYTES)).run() == []


async def test_an_idle_process_that_has_grown_is_trimmed_once() -> None:
    grown = WORTH_BYTES
    assert await Process((0, 0), (1, grown), (1, grown), (1, 0), (1, 0)).run() == [grown]


async def test_little_growth_is_left_alone() -> None:
    small = WORTH_BYTES - 1
    assert await Process((0, 0), (1, small), (1, small)).run() == []


async def test_it_ends_where_the_platform_cannot_trim() -> None:
    await asyncio.wait_for(give_back_memory(lambda: 0, None), 10)


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
    callers, over, looks = Receiving(), asyncio.Event(), itertools.count()

    def resident() -> int:
        look = next(looks)
        if look == 30:
            over.set()
        grown = min(growth, fast * max(0, look - 2))
        callers.memory.held = min(held, grown) * MB
        return (at_rest + grown) * MB

    guard = guard_memory(callers, 16 * MB, lambda: None, resident, interval=0.001)  # type: ignore[arg-type]
    task = asyncio.create_task(guard)
    await asyncio.wait_for(over.wait(), 10)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert callers.receivers == left


async def test_where_nobody_receives_nobody_is_said_to_have_been_ended() -> None:
    """However far above twice its budget the process is."""
    callers, over, looks = Receiving(), asyncio.Event(), itertools.count()
    callers.receivers = 0

    def resident() -> int:
        if (look := next(looks)) == 30:
            over.set()
        return (20 + 4 * look) * MB

    with capture_logs() as logs:
        guard = guard_memory(callers, 16 * MB, lambda: None, resident, interval=0.001)  # type: ignore[arg-type]
        task = asyncio.create_task(guard)
        await asyncio.wait_for(over.wait(), 10)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
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
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert callers.receivers == 8


async def test_what_is_given_back_behind_a_trim_is_trimmed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trim at the peak brought nothing: it was all in use then."""
    monkeypatch.setattr(memory_module, "TRIM_AGAIN_S", 0.01)
    trims, collections = list[int](), list[int]()
    state = {"resident": 10 * MB, "in use": 10 * MB}
    trimmed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def trim() -> None:
        assert collections  # else what is garbage already is in use still
        trims.append(state["resident"])
        state["resident"] = state["in use"]
        loop.call_soon_threadsafe(trimmed.set)

    guard = guard_memory(
        Receiving(),  # type: ignore[arg-type]
        16 * MB,
        trim,
        lambda: state["resident"],
        interval=0.001,
        collect=lambda: collections.append(len(trims)),
    )
    task = asyncio.create_task(guard)
    await asyncio.sleep(0.005)
    state["resident"] = state["in use"] = 90 * MB
    await asyncio.wait_for(trimmed.wait(), 10)
    state["in use"] = 12 * MB
    await until(lambda: state["resident"] == 12 * MB)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    assert len(trims) >= 2


async def test_before_a_trim_only_young_garbage_is_collected() -> None:
    """All of it would hold up the event loop for as long as there are objects."""
    trimmed, loop = asyncio.Event(), asyncio.get_running_loop()
    sizes = iter([10 * MB])
    guard = guard_memory(
        Receiving(),  # type: ignore[arg-type]
        16 * MB,
        lambda: loop.call_soon_threadsafe(trimmed.set),
        lambda: next(sizes, 90 * MB),
        interval=0.001,
    )
    before = [each["collections"] for each in gc.get_stats()]
    gc.disable()
    try:
        task = asyncio.create_task(guard)
        await asyncio.wait_for(trimmed.wait(), 10)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    finally:
        gc.enable()
    _, young, old = (each["collections"] for each in gc.get_stats())
    assert (young > before[1], old) == (True, before[2])


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
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)
