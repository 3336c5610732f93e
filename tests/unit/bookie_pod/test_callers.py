"""Who calls over gRPC, what each holds, and whose calls end when memory is short."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from bookie_pod.callers import Call, Callers, current_call, to_its_end
from bookie_pod.client_memory import SMALL, STUCK_S, MemoryGovernor
from bookie_pod.server.grpc import receiving
from bookie_pod.server.grpc.receiving import _Messages
from tests.support.until import until

MB = 1 << 20


@pytest.fixture
def callers() -> Callers:
    return Callers(MemoryGovernor(8 * MB))


class Served:
    """A call that does nothing until it is ended."""

    def __init__(self, callers: Callers, peer: str) -> None:
        self._callers = callers
        self._peer = peer
        self.call: Call
        self.began = asyncio.Event()
        self.task = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        with self._callers.call(self._peer) as self.call:
            assert current_call() is self.call
            self.began.set()
            await asyncio.Event().wait()


async def served(callers: Callers, *peers: str) -> list[Served]:
    made = [Served(callers, peer) for peer in peers]
    for each in made:
        await each.began.wait()
    return made


async def ended(calls: list[Served]) -> None:
    for each in calls:
        each.task.cancel()
    await asyncio.gather(*(each.task for each in calls), return_exceptions=True)


async def test_calls_of_a_connection_share_what_it_may_have(callers: Callers) -> None:
    first, second, other = calls = await served(callers, "a", "a", "b")
    assert await first.call.room(3 * MB) == 3 * MB
    waiting = asyncio.create_task(second.call.room(3 * MB))
    await asyncio.sleep(0.05)
    assert not waiting.done()  # one connection has half
    assert await other.call.room(2 * MB) == 2 * MB
    first.call.make(-3 * MB)
    assert await waiting == 3 * MB
    await ended(calls)
    assert callers.memory.total == 0


async def test_more_than_half_is_never_waited_for(callers: Callers) -> None:
    calls = await served(callers, "a")
    assert await calls[0].call.room(100 * MB) == 4 * MB
    await ended(calls)


async def test_who_waits_for_room_gets_that_of_those_who_do_not_move(
    callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, moving, waiting = calls = await served(callers, "a", "b", "c")
    monkeypatch.setattr("bookie_pod.client_memory.STUCK_S", 0.01)
    monkeypatch.setattr("bookie_pod.client_memory.URGE_S", 0.001)
    clock = iter_clock(monkeypatch)
    with stuck.call.giving():
        stuck.call.hold(4 * MB)
        next(clock)
        with moving.call.giving():
            moving.call.hold(3 * MB)
            assert await waiting.call.room(2 * MB) == 2 * MB
    assert (stuck.call.was_cut, moving.call.was_cut, callers.memory.cut_off) == (True, False, 1)
    await ended(calls)
    assert callers.memory.total == 0


def iter_clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[float]:
    """The clock stands; each `next` moves it on."""
    now = [1000.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])

    def steps() -> Iterator[float]:
        while True:
            now[0] += 2 * STUCK_S
            yield now[0]

    return steps()


async def test_more_held_than_there_is_ends_who_is_stuck(callers: Callers, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck, taking = calls = await served(callers, "a", "b")
    clock = iter_clock(monkeypatch)
    with stuck.call.giving():
        stuck.call.hold(5 * MB)
        next(clock)
        taking.call.hold(4 * MB)
        assert callers.memory.total == 4 * MB
    assert stuck.call.was_cut
    stuck.call.hold(-5 * MB)  # it gives back what it had, and that does not count twice
    assert callers.memory.total == 4 * MB
    await ended(calls)
    assert callers.memory.total == 0


async def test_callers_with_most_receivers_are_ended_until_no_more_are_left_than_may_be(callers: Callers) -> None:
    calls = await served(callers, *["greedy"] * 5, "modest")
    for each in calls:
        each.call.receives = True
    assert callers.receivers == 6
    assert callers.cut_receivers(3) == 5
    assert [each.call.was_cut for each in calls] == [True] * 5 + [False]
    await ended(calls)
    assert callers.cut_receivers(0) == 0


@pytest.mark.parametrize("here", ["127.0.0.1", "::1"])
async def test_connections_of_those_who_are_ended_are_shut_at_once(callers: Callers, here: str) -> None:
    """Whether anybody looks at what they send or not."""
    listener = socket.create_server((here, 0), family=socket.AF_INET6 if ":" in here else socket.AF_INET)
    clients = [socket.create_connection(listener.getsockname()[:2], 10) for _ in range(2)]
    taken = [listener.accept()[0] for _ in clients]
    try:
        hosts = [client.getsockname()[:2] for client in clients]
        peers = [f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}" for host, port in hosts]
        calls = await served(callers, *peers)
        calls[0].call.receives = True
        assert callers.cut_receivers(0) == 1
        assert clients[0].recv(1) == b""
        taken[1].sendall(b"x")
        assert clients[1].recv(1) == b"x"
        await ended(calls)
    finally:
        for each in (*clients, *taken, listener):
            each.close()


async def test_a_small_holder_is_left_alone_by_one_who_waits(callers: Callers) -> None:
    small, large = calls = await served(callers, "a", "b")
    with small.call.giving():
        small.call.hold(SMALL)
        callers.memory.relieve(1e12 if small.call.waits_since is None else small.call.waits_since + STUCK_S, 8 * MB)
    assert not small.call.was_cut
    assert not large.call.was_cut
    await ended(calls)


async def test_who_gives_up_while_it_waits_keeps_nothing(callers: Callers) -> None:
    holder, waiting, other = calls = await served(callers, "a", "b", "c")
    assert await holder.call.room(4 * MB) == 4 * MB
    holder.call.hold(3 * MB)
    gone = asyncio.create_task(waiting.call.room(3 * MB))
    last = asyncio.create_task(other.call.room(2 * MB))
    await asyncio.sleep(0)
    holder.call.hold(-3 * MB)
    await asyncio.sleep(0)
    gone.cancel()  # in the turn in which it is given room
    holder.call.make(-4 * MB)
    assert await last == 2 * MB
    await asyncio.gather(gone, return_exceptions=True)
    assert callers.memory.total == 2 * MB
    await ended(calls)
    assert callers.memory.total == 0


async def test_room_for_a_request_that_does_not_come_counts_once(
    callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a client that sends a frame over another port would lose its connection, though there is room for all."""
    monkeypatch.setattr("bookie_pod.server.grpc.receiving.SILENT_S", 0.001)
    sends: list[str] = []
    share = callers.memory.share(lambda: sends.append("cut off"))
    share.hold(6 * MB)
    share.stuck_since = 0.0
    with callers.call("silent") as call:
        message = asyncio.create_task(anext(_Messages(_Silent(), call, None, 3 * MB // 2, MB, 10_000, keeps_room=True)))
        await until(lambda: call.waits_since is not None)
        assert (callers.memory.total, sends) == (15 * MB // 2, [])
        message.cancel()
        await asyncio.gather(message, return_exceptions=True)


async def test_what_comes_after_a_silence_ends_its_call_if_there_is_no_room(
    callers: Callers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "SILENT_S", 0)
    other = callers.memory.share(lambda: None)
    answers = asyncio.Queue[bytes]()

    class Late:
        read = answers.get

    async def receive(held: int, own: int = 0) -> tuple[bool, object]:
        """Whether the call was ended, and what it was given."""
        other.hold(held)
        with callers.call("late") as call, callers.call("late") as another:
            message = asyncio.create_task(take(call))
            await until(lambda: call.receives and not callers.memory.making)
            another.hold(own)
            answers.put_nowait(bytes(2 * MB))
            (given,) = await asyncio.gather(message, return_exceptions=True)
        other.hold(-held)
        return call.was_cut, given

    async def take(call: Call) -> bytes:
        call._task = asyncio.current_task()
        data: bytes = await anext(_Messages(Late(), call, None, MB, None, 0, keeps_room=False))
        return data

    assert await receive(0) == (False, bytes(2 * MB))
    assert await receive(0, 4 * MB) == (False, bytes(2 * MB))  # there is room, though it has its half
    was_cut, given = await receive(5 * MB)
    assert was_cut
    assert isinstance(given, asyncio.CancelledError)
    assert callers.memory.total == 0


class _Silent:
    async def read(self) -> bytes:
        await asyncio.Event().wait()
        raise AssertionError


async def test_who_gives_up_leaves_an_operation_of_grpc_to_go_on() -> None:
    """Else what it sent, or what came, is never freed."""
    goes_on, ended = asyncio.Event(), list[str]()

    async def operation() -> None:
        await goes_on.wait()
        ended.append("here")
        raise ConnectionError("the call has ended")

    waiting = asyncio.create_task(to_its_end(operation()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended == []
    goes_on.set()
    await until(lambda: ended == ["here"])
