"""Tasks beside a bookie: which failures end it, and which do not."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest

from bookie_pod.node.processes import background
from bookie_pod.node.processes.background import BackgroundTasks, LoopBridge, collect_cycles
from bookie_protocol.errors import NoSuchEntry, StorageFault
from tests.support.until import until


async def test_what_assists_begins_anew_and_ends_no_bookie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "ASSIST_RETRY_S", 0)
    failures: list[BaseException] = []
    tasks = BackgroundTasks(asyncio.get_running_loop(), failures.append)
    done, tries = asyncio.Event(), 0

    async def trim() -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise OSError(24, "Too many open files")
        done.set()

    tasks.assist("trim", trim)
    await asyncio.wait_for(done.wait(), 10)
    assert (tries, failures) == (3, [])


async def test_any_other_failure_is_heard_of() -> None:
    heard: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    tasks = BackgroundTasks(asyncio.get_running_loop(), heard.set_result)

    async def fail() -> None:
        raise OSError(5, "Input/output error")

    tasks.run(fail())
    assert isinstance(await asyncio.wait_for(heard, 10), OSError)


async def test_cancelled_tasks_end() -> None:
    tasks = BackgroundTasks(asyncio.get_running_loop(), lambda error: None)
    ended = asyncio.Event()

    async def wait() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    tasks.assist("wait", wait)
    await asyncio.sleep(0)
    tasks.cancel()
    await asyncio.wait_for(ended.wait(), 10)


class Ring:
    def __init__(self) -> None:
        self.me = self


async def test_cycles_that_die_old_are_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "COLLECT_INTERVAL_S", 0)
    monkeypatch.setattr(background, "FULL_SHARE", 0)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        ring = Ring()
        left = weakref.ref(ring)
        gc.collect()  # it lives, and is old from now on
        del ring
        gc.collect(1)
        assert left() is not None
        collecting = asyncio.create_task(collect_cycles())
        await until(lambda: left() is None)
        collecting.cancel()
    finally:
        if was_enabled:
            gc.enable()


@pytest.mark.parametrize(("pause", "fewest", "most"), [(0.3, 11, 14), (0.03, 60, 141)])
async def test_a_collection_of_everything_takes_a_thousandth_of_the_time(
    pause: float, fewest: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lives through a long one is left out of the others, for an hour."""
    loop = asyncio.get_running_loop()
    now, full, said = 0.0, list[float](), list[str]()

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        if now > 4200:
            raise asyncio.CancelledError

    def collect(generation: int = 2) -> None:
        nonlocal now
        if generation == 2:
            full.append(now)
            now += pause

    monkeypatch.setattr(loop, "time", lambda: now)
    monkeypatch.setattr(background.asyncio, "sleep", sleep)
    monkeypatch.setattr(background.gc, "collect", collect)
    for what in ("freeze", "unfreeze"):
        monkeypatch.setattr(background.gc, what, lambda what=what: said.append(what))
    with pytest.raises(asyncio.CancelledError):
        await collect_cycles()
    monkeypatch.undo()
    assert fewest <= len(full) <= most
    assert said.count("freeze") == (len(full) if pause > background.LONG_PAUSE_S else 0)
    assert said.count("unfreeze") == 1


async def test_from_another_thread_it_waits_until_it_ran() -> None:
    bridge, ran = LoopBridge(asyncio.get_running_loop()), []

    def work() -> int:
        bridge.run(lambda: ran.append(threading.get_ident()))
        return len(ran)

    assert await asyncio.to_thread(work) == 1
    assert ran == [threading.get_ident()]


async def test_on_the_loop_it_runs_at_once() -> None:
    ran: list[int] = []
    LoopBridge(asyncio.get_running_loop()).run(lambda: ran.append(1))
    assert ran == [1]


@pytest.mark.parametrize("error", [NoSuchEntry("no"), TimeoutError("its own")], ids=["of ours", "a time-out"])
async def test_what_it_raises_comes_back(error: Exception) -> None:
    bridge = LoopBridge(asyncio.get_running_loop())

    def fails() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        await asyncio.to_thread(bridge.run, fails)
    assert str(raised.value) == str(error)  # asyncio copies a time-out on its way between threads


async def test_what_ran_while_the_time_was_up_counts_as_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "CHECK_S", 1e-9)
    bridge, ran = LoopBridge(asyncio.get_running_loop()), []
    for number in range(500):
        await asyncio.to_thread(bridge.run, lambda number=number: ran.append(number))
    assert ran == list(range(500))


def outcome_of(bridge: LoopBridge, held: threading.Event | None = None) -> list[BaseException | None]:
    outcome: list[BaseException | None] = []

    def work() -> None:
        try:
            bridge.run(lambda: None)
        except StorageFault as error:
            outcome.append(error)
        else:
            outcome.append(None)

    thread = threading.Thread(target=work)
    thread.start()
    if held is not None:
        held.set()
    thread.join(10)
    assert not thread.is_alive()
    return outcome


def test_a_closed_loop_is_a_fault() -> None:
    loop = asyncio.new_event_loop()
    bridge = LoopBridge(loop)
    loop.close()
    (error,) = outcome_of(bridge)
    assert isinstance(error, StorageFault)


def test_a_loop_that_closes_without_running_the_call_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "CHECK_S", 0.01)
    loop = asyncio.new_event_loop()
    bridge = LoopBridge(loop)
    taken = threading.Event()
    real = loop.call_soon_threadsafe

    def take(*arguments: object) -> object:
        handle = real(*arguments)  # type: ignore[arg-type]
        taken.set()
        return handle

    monkeypatch.setattr(loop, "call_soon_threadsafe", take)

    def close() -> None:
        taken.wait()
        loop.close()

    closer = threading.Thread(target=close)
    closer.start()
    (error,) = outcome_of(bridge)
    closer.join()
    assert isinstance(error, StorageFault)
