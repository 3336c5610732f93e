"""Running on the loop from elsewhere, and never hanging when there is no loop any more."""

from __future__ import annotations

import asyncio
import threading

import pytest

from bookie_pod.node import loop_bridge
from bookie_pod.node.loop_bridge import LoopBridge
from bookie_protocol.errors import NoSuchEntry, StorageFault


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
    monkeypatch.setattr(loop_bridge, "CHECK_S", 1e-9)
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
    monkeypatch.setattr(loop_bridge, "CHECK_S", 0.01)
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
