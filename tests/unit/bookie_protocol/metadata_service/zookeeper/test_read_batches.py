"""Which requests reads become, and which answer each of them gets, with kazoo's queue replaced by a list."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss, NoNodeError, UnimplementedError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import ZnodeStat

from bookie_protocol.metadata_service.tree.nodes import NODES_AT_ONCE
from bookie_protocol.metadata_service.zookeeper.client import MultiRead, ReadBatches

STAT = ZnodeStat(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)


class Queue:
    """A kazoo client that only notes its requests; whoever tests answers them."""

    def __init__(self) -> None:
        self.chroot = ""
        self.handler = SequentialThreadingHandler()
        self.asked: list[tuple[list[str], Any]] = []

    def get_async(self, path: str) -> Any:
        self.asked.append(([path], self.handler.async_result()))
        return self.asked[-1][1]

    def _call(self, request: MultiRead, result: Any) -> None:
        self.asked.append((list(request.paths), result))


@pytest.fixture
async def queue() -> Queue:
    return Queue()


def read(reads: ReadBatches, *paths: str) -> list[asyncio.Task[Any]]:
    return [asyncio.create_task(reads.get(path)) for path in paths]


async def settled() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def answered(result: Any, value: Any) -> None:
    """As kazoo's connection thread does it; what was linked runs at once, without a thread for callbacks."""
    if isinstance(value, Exception):
        result.set_exception(value)
    else:
        result.set(value)


async def test_reads_of_one_turn_are_one_request_and_each_has_its_own_outcome(queue: Queue) -> None:
    tasks = read(ReadBatches(queue), "/a", "/b", "/c")
    await settled()
    [(paths, result)] = queue.asked
    assert paths == ["/a", "/b", "/c"]
    answered(result, [(b"1", STAT), NoNodeError(), (b"3", STAT)])
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert done[0] == (b"1", STAT)
    assert isinstance(done[1], NoNodeError)
    assert done[2] == (b"3", STAT)


async def test_a_read_alone_is_an_ordinary_one_and_those_of_the_next_turn_do_not_wait_for_it(queue: Queue) -> None:
    reads = ReadBatches(queue)
    first = read(reads, "/a")
    await settled()
    second = read(reads, "/b", "/c")
    await settled()
    assert [paths for paths, _ in queue.asked] == [["/a"], ["/b", "/c"]]
    answered(queue.asked[1][1], [(b"2", STAT), (b"3", STAT)])
    assert [data for data, _ in await asyncio.gather(*second)] == [b"2", b"3"]
    answered(queue.asked[0][1], (b"1", STAT))
    assert await first[0] == (b"1", STAT)


async def test_a_request_asks_for_no_more_than_so_many_nodes(queue: Queue) -> None:
    tasks = read(ReadBatches(queue), *(f"/{i}" for i in range(2 * NODES_AT_ONCE + 1)))
    await settled()
    assert [len(paths) for paths, _ in queue.asked] == [NODES_AT_ONCE, NODES_AT_ONCE, 1]
    for paths, result in queue.asked:
        found = [(path.encode(), STAT) for path in paths]
        answered(result, found if len(found) > 1 else found[0])
    assert [data for data, _ in await asyncio.gather(*tasks)] == [b"/%d" % i for i in range(2 * NODES_AT_ONCE + 1)]


async def test_reads_that_were_given_up_are_not_sent(queue: Queue) -> None:
    tasks = read(ReadBatches(queue), "/a", "/b", "/c")
    await asyncio.sleep(0)  # they wait for their turn to end
    tasks[1].cancel()
    await settled()
    [(paths, result)] = queue.asked
    assert paths == ["/a", "/c"]
    answered(result, [(path.encode(), STAT) for path in paths])
    assert (await tasks[0])[0] == b"/a"
    assert (await tasks[2])[0] == b"/c"
    with pytest.raises(asyncio.CancelledError):
        await tasks[1]


async def test_a_lost_connection_fails_all_of_them(queue: Queue) -> None:
    tasks = read(ReadBatches(queue), "/a", "/b")
    await settled()
    answered(queue.asked[0][1], ConnectionLoss())
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(error) for error in done] == [ConnectionLoss, ConnectionLoss]


async def test_a_server_that_does_not_know_the_request_is_asked_one_by_one_from_then_on(queue: Queue) -> None:
    reads = ReadBatches(queue)
    tasks = read(reads, "/a", "/b")
    await settled()
    answered(queue.asked[0][1], UnimplementedError())
    await settled()
    tasks += read(reads, "/c", "/d")
    await settled()
    assert [paths for paths, _ in queue.asked[1:]] == [["/a"], ["/b"], ["/c"], ["/d"]]
    for paths, result in queue.asked[1:]:
        answered(result, (paths[0].encode(), STAT))
    assert [data for data, _ in await asyncio.gather(*tasks)] == [b"/a", b"/b", b"/c", b"/d"]


async def test_those_that_are_asked_for_together_have_their_own_outcomes(queue: Queue) -> None:
    paths = ["/a", "/b", "/c"]
    asked = asyncio.create_task(ReadBatches(queue).get_each(paths))
    await settled()
    [(sent, result)] = queue.asked
    assert sent == paths
    answered(result, [(b"1", STAT), NoNodeError(), (b"3", STAT)])
    first, missing, third = await asked
    assert (first, third) == ((b"1", STAT), (b"3", STAT))
    assert isinstance(missing, NoNodeError)


@pytest.mark.parametrize("failure", [ConnectionLoss, UnimplementedError])
async def test_those_that_are_asked_for_together_fail_together_or_are_asked_for_one_by_one(
    queue: Queue, failure: type[Exception]
) -> None:
    reads = ReadBatches(queue)
    asked = asyncio.create_task(reads.get_each(["/a", "/b"]))
    await settled()
    answered(queue.asked[0][1], failure())
    await settled()
    if failure is ConnectionLoss:
        with pytest.raises(ConnectionLoss):
            await asked
        return
    await settled()
    await settled()
    assert [sent for sent, _ in queue.asked[1:]] == [["/a"], ["/b"]]
    answered(queue.asked[1][1], (b"1", STAT))
    answered(queue.asked[2][1], NoNodeError())
    found, missing = await asked
    assert found == (b"1", STAT)
    assert isinstance(missing, NoNodeError)


def test_bytes_of_the_request() -> None:
    header = struct.pack("!iBi", 4, 0, -1)
    path = struct.pack("!i", 2) + b"/a" + b"\0"
    assert MultiRead(["/a"]).serialize() == header + path + struct.pack("!iBi", -1, 1, -1)
    assert MultiRead.type == 22


def test_bytes_of_the_answer() -> None:
    found = struct.pack("!iBi", 4, 0, 0) + struct.pack("!i", 3) + b"abc" + struct.pack("!qqqqiiiqiiq", *STAT)
    empty = struct.pack("!iBi", 4, 0, 0) + struct.pack("!i", 0) + struct.pack("!qqqqiiiqiiq", *STAT)
    missing = struct.pack("!iBi", -1, 0, -101) + struct.pack("!i", -101)
    answer = b"head" + found + missing + empty + struct.pack("!iBi", -1, 1, -1)
    first, second, third = MultiRead.deserialize(answer, 4)
    assert first == (b"abc", STAT)
    assert isinstance(second, NoNodeError)
    assert third == (b"", STAT)
