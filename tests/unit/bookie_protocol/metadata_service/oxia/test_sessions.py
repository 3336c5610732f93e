"""Sessions in the shards of a namespace that splits, and the history that is heard of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

import pytest

from bookie_protocol.errors import MetadataUnavailable
from bookie_protocol.metadata_service.interface import Session
from bookie_protocol.metadata_service.oxia import oxia_pb2 as messages
from bookie_protocol.metadata_service.oxia.history import History
from bookie_protocol.metadata_service.oxia.sessions import ShardSessions
from bookie_protocol.metadata_service.oxia.shards import Shard, ShardMap
from bookie_protocol.metadata_service.tree.nodes import ConnectionLost
from tests.support.until import until

LAST = 2**32 - 1
WHOLE = ShardMap([Shard(0, "a:1", 0, LAST)])
HALVES = ShardMap([Shard(1, "a:1", 0, 2**31 - 1), Shard(2, "a:1", 2**31, LAST)])
QUARTERS = ShardMap([Shard(3, "a:1", 0, 2**30 - 1), Shard(4, "a:1", 2**30, 2**31 - 1), Shard(2, "a:1", 2**31, LAST)])


class Shards:
    """What a driver asks of a connection: keys with their sessions, in one map for all shards."""

    def __init__(self) -> None:
        self.namespace = "default"
        self.keys: dict[str, int] = {}
        self.places = dict.fromkeys(range(5), 10)
        self.fail: Callable[[int], None] = lambda shard: None
        self.streams: dict[int, asyncio.Queue[messages.NotificationBatch | None]] = {}
        self.closed: set[int] = set()
        self.asked: list[messages.WriteRequest] = []

    async def create_session(self, shard: int, timeout_ms: int, identity: str, within: float) -> int:
        return self.places[shard]

    async def keep_alive(self, shard: int, session: int, within: float) -> None: ...

    async def close_session(self, shard: int, session: int, within: float) -> None:
        self.closed.add(shard)

    async def write(self, shard: int, request: messages.WriteRequest, within: float) -> messages.WriteResponse:
        self.asked.append(request)
        self.fail(shard)
        answer = messages.WriteResponse()
        for put in request.puts:
            self.keys[put.key] = put.session_id
            answer.puts.add(status=messages.OK)
        for delete in request.deletes:
            is_there = delete.key in self.keys
            answer.deletes.add(status=messages.UNEXPECTED_VERSION_ID if is_there else messages.KEY_NOT_FOUND)
        return answer

    async def read(self, shard: int, gets: Sequence[messages.GetRequest], within: float) -> list[messages.GetResponse]:
        return [
            messages.GetResponse(version=messages.Version(session_id=self.keys[each.key]))
            if each.key in self.keys
            else messages.GetResponse(status=messages.KEY_NOT_FOUND)
            for each in gets
        ]

    async def list(self, shard: int, first: str, end: str, within: float) -> list[str]:
        return list(self.keys)

    async def position(self, shard: int, within: float) -> int:
        self.fail(shard)
        return self.places[shard]

    async def notifications(self, shard: int, behind: int) -> AsyncGenerator[messages.NotificationBatch, None]:
        stream = self.streams[shard] = asyncio.Queue()
        while (batch := await stream.get()) is not None:
            yield batch
        raise ConnectionLost("the stream broke")


async def opened(shards: Any, known: ShardMap) -> ShardSessions:
    sessions = ShardSessions(shards, known, 10.0)
    await sessions.open(1.0)
    return sessions


def failing(*numbers: int) -> Callable[[int], None]:
    def fail(shard: int) -> None:
        if shard in numbers:
            raise ConnectionLost("no leader at present")

    return fail


async def test_a_write_that_fails_while_a_shard_splits_ends_no_session() -> None:
    shards = Shards()
    sessions = await opened(shards, WHOLE)
    shards.fail = failing(1, 2)
    for _ in range(2):
        with pytest.raises(MetadataUnavailable):
            await sessions.renew(HALVES, 1.0)
    shards.fail = failing()
    assert await sessions.renew(HALVES, 1.0)
    assert not shards.closed
    assert set(sessions.ids) == {1, 2}
    assert len(shards.keys) == 2, "one canary for each shard, of which one came along"
    shards.keys.clear()
    assert not await sessions.renew(HALVES, 1.0), "both had their canary"


async def test_what_a_touch_of_a_shard_that_is_gone_says_is_worth_another_try() -> None:
    sessions = await opened(Shards(), WHOLE)
    assert await sessions.renew(HALVES, 1.0)
    with pytest.raises(ConnectionLost):
        await sessions.touch_in(0, 1.0)


async def test_a_dropped_canary_is_seen_by_each_renewal_whatever_asked_before() -> None:
    shards = Shards()
    sessions = await opened(shards, HALVES)
    shards.keys.clear()
    with pytest.raises(MetadataUnavailable):
        await sessions.touch(1.0)
    assert not shards.keys
    assert not await sessions.renew(HALVES, 1.0)


async def test_a_late_put_of_a_canary_brings_none_back() -> None:
    shards = Shards()
    sessions = await opened(shards, WHOLE)
    shards.fail = failing(1, 2)
    shards.asked.clear()
    with pytest.raises(MetadataUnavailable):
        await sessions.renew(HALVES, 1.0)  # its put may still be on the way
    late = [put for request in shards.asked for put in request.puts]
    assert late
    shards.fail = failing()
    assert await sessions.renew(HALVES, 1.0)
    (shard,) = {HALVES.shard_of(put.key) for put in late}
    dropped = [key for key in shards.keys if HALVES.shard_of(key) == shard]
    for key in dropped:
        del shards.keys[key]
    for put in late:
        shards.keys[put.key] = put.session_id
    assert not await sessions.renew(HALVES, 1.0), "what the session held was dropped all the same"


async def test_only_shards_with_a_canary_hold_records() -> None:
    shards = Shards()
    sessions = await opened(shards, WHOLE)
    assert sessions.holds(0)
    shards.fail = failing(1, 2)
    with pytest.raises(MetadataUnavailable):
        await sessions.renew(HALVES, 1.0)
    assert [sessions.holds(shard) for shard in (1, 2)].count(True) == 1, "the canary is in one of the halves"
    shards.fail = failing()
    assert await sessions.renew(HALVES, 1.0)
    assert sessions.holds(1)
    assert sessions.holds(2)


async def test_a_history_hears_on_while_shards_come_and_go() -> None:
    """Also when what is heard of a shard that is gone comes late, and a new one cannot be asked at first."""
    shards: Any = Shards()
    sessions = await opened(shards, WHOLE)
    doubts: list[None] = []
    history = History(shards, Session(10.0), lambda: doubts.append(None))
    history.begin(sessions)
    listening = asyncio.create_task(history.listen(sessions, 0.001))
    await until(lambda: 0 in shards.streams)
    assert await sessions.renew(HALVES, 1.0)
    shards.fail = failing(2)
    with pytest.raises(MetadataUnavailable):
        await history.adopt(sessions, 1.0)
    assert not history.hears(sessions)
    shards.fail = failing()
    gone = shards.streams[0]
    gone.put_nowait(messages.NotificationBatch(shard=0, offset=11))  # is heard when the place is gone
    await history.adopt(sessions, 1.0)
    assert history.hears(sessions)
    await until(lambda: {1, 2} <= shards.streams.keys())
    assert await sessions.renew(QUARTERS, 1.0)
    history._changed.set()  # the listener looks before the places of the new ones are known
    await until(lambda: not history._changed.is_set())
    await history.adopt(sessions, 1.0)
    await until(lambda: {3, 4} <= shards.streams.keys())
    shards.streams[4].put_nowait(messages.NotificationBatch(shard=4, offset=30))
    await until(lambda: history._places[4] == 30)
    assert not listening.done()
    listening.cancel()
    await asyncio.wait([listening])


async def test_a_shard_that_was_put_back_behind_our_session_is_noticed_before_it_has_overtaken_what_was_heard() -> None:
    """A new session would begin beyond that, and see nothing of it."""
    shards: Any = Shards()
    sessions = await opened(shards, WHOLE)
    session = Session(10.0)
    doubts: list[None] = []
    history = History(shards, session, lambda: doubts.append(None))
    history.begin(sessions)
    listening = asyncio.create_task(history.listen(sessions, 0.001))
    await until(lambda: 0 in shards.streams)
    stream = shards.streams[0]
    stream.put_nowait(messages.NotificationBatch(shard=0, offset=20))
    shards.keys.clear()  # so the canary went as well
    shards.places[0] = 5
    stream.put_nowait(None)
    await until(lambda: shards.streams[0] is not stream)
    assert session.went_back_to == 5
    assert doubts
    assert not listening.done()
    listening.cancel()
    await asyncio.wait([listening])
