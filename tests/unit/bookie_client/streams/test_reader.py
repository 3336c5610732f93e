"""Reading a stream: ranges and tails over its ledgers."""

import asyncio
from contextlib import aclosing, suppress

import pytest

from bookie_client.streams import PublishedLedger, Streams, StreamSettings
from bookie_client.streams.ledgers import StreamLedgers
from bookie_client.streams.reader import position_after
from bookie_protocol.errors import BadRequest, NoSuchStream, PodkeeperError, StreamPositionGone, Unauthorized
from tests.support.until import until
from tests.unit.bookie_client.conftest import tasks_of_handles
from tests.unit.bookie_client.streams.conftest import SETTINGS, read_all


@pytest.fixture(params=[0, 1, 1 << 20], ids=["no cache", "smallest cache", "cache"])
async def streams(client, clock, request):
    """With one stream, "s"; whether readers share what they follow makes no difference."""
    streams = Streams(client, password=b"secret", clock=clock, tail_cache_bytes=request.param)
    await streams.create("s", StreamSettings(**SETTINGS))
    return streams


TEN = StreamSettings(**SETTINGS, max_ledger_entries=10)


def numbers(first, last):
    return [b"%d" % i for i in range(first, last)]


@pytest.fixture
async def fifty(streams):
    await streams.configure("s", TEN)
    async with streams.writer("s") as writer:
        await writer.append_many(numbers(0, 50))
    return await streams.manifest("s")


async def test_ranges_over_ledgers(streams, fifty):
    for first, last in [(0, 50), (0, 0), (3, 4), (9, 11), (10, 20), (25, 50), (50, 50)]:
        found = await read_all(streams, start=fifty.position_at(first), to=fifty.position_at(last))
        assert found == numbers(first, last)
    assert await read_all(streams, start="latest") == []
    assert await read_all(streams, start="earliest", to=fifty.position_at(12)) == numbers(0, 12)


async def test_a_batch_is_of_one_ledger_and_tells_where_to_go_on(streams, fifty):
    position, entries = fifty.position_at(7), []
    while True:
        async with aclosing(streams.reader("s").batches(position)) as batches:
            batch = await anext(batches, None)
        if batch is None:
            break
        assert len({entry.ledger_id for entry in batch}) == 1
        entries += [entry.payload for entry in batch]
        position = position_after(batch[-1])
    assert entries == numbers(7, 50)


async def test_what_cannot_be_read_is_told(streams, client, fifty):
    with pytest.raises(NoSuchStream):
        await read_all(streams, "other")
    with pytest.raises(BadRequest, match="before"):
        await read_all(streams, start=fifty.position_at(5), to=fifty.position_at(4))
    with pytest.raises(BadRequest, match="'earliest' or 'latest'"):
        await read_all(streams, start="first")
    with pytest.raises(Unauthorized):
        await read_all(Streams(client, password=b"wrong"))
    assert await read_all(Streams(client, password=None)) == numbers(0, 50)


async def test_an_open_ledger_is_read_as_far_as_it_is_confirmed_and_its_writer_goes_on(streams):
    async with streams.writer("s") as writer:
        assert await streams.end("s") == (await streams.manifest("s")).earliest
        for payload in numbers(0, 5):
            await writer.append(payload)
        end = await streams.end("s")
        found = await read_all(streams)
        assert found == numbers(0, (await streams.manifest("s")).ordinal(end))
        assert len(found) >= 4  # the last one is confirmed by the one behind it
        await writer.append(b"5")
        beyond = (await streams.manifest("s")).position_at(100)
        with pytest.raises(BadRequest, match="confirmed"):
            await read_all(streams, to=beyond)
    assert await read_all(streams) == numbers(0, 6)


@pytest.mark.parametrize("opened", [False, True])
async def test_a_ledger_that_is_deleted_under_the_reader_is_never_passed_over(streams, client, three, fifty, opened):
    gone, entries = fifty.ledgers[2].ledger_id, []

    def collected(read, bookie):
        def asked(ledger_id, *args, **more):
            if ledger_id == gone:
                three.metadata.ledgers.stored.pop(gone, None)
                bookie.ledgers.pop(gone, None)
            return read(ledger_id, *args, **more)

        return asked

    if opened:
        for server in three.servers.values():
            bookie = server.bookie
            bookie.read, bookie.read_batch = collected(bookie.read, bookie), collected(bookie.read_batch, bookie)
    else:
        await client.delete(gone)
    with pytest.raises(StreamPositionGone, match="deleted"):
        async for entry in streams.reader("s").entries():
            entries.append(entry.payload)  # noqa: PERF401 - what came before the error counts
    assert entries == numbers(0, 20)


async def test_what_was_planned_before_an_overwrite_can_still_be_read(streams, fifty):
    async with aclosing(streams.reader("s").entries()) as entries:
        first = await anext(entries)
        await streams.publish("s", [], replace=True)
        await streams.apply_retention("s")
        assert [first.payload, *[entry.payload async for entry in entries]] == numbers(0, 50)


# --- tails ----------------------------------------------------------------------------------------------------


class Follower:
    """Collects what a tail gives."""

    def __init__(self, streams, start="latest"):
        self.seen = []
        self.error = None
        self._task = asyncio.create_task(self._follow(streams, start))

    async def _follow(self, streams, start):
        try:
            async with aclosing(streams.reader("s").tail(start)) as entries:
                async for entry in entries:
                    self.seen.append(entry.payload)
        except (NoSuchStream, StreamPositionGone) as error:
            self.error = error

    async def sees(self, expected):
        await until(lambda: self.seen[-1:] == expected[-1:] or self.error)
        assert self.seen == expected

    async def ends(self):
        await self._task
        return self.error

    async def stop(self):
        self._task.cancel()
        await asyncio.wait([self._task])


async def test_a_tail_goes_on_over_roll_overs_take_overs_and_empty_ledgers(streams):
    follower = Follower(streams, "earliest")
    first = streams.writer("s")
    await first.start()
    await first.append_many(numbers(0, 5))
    await first.roll_over()
    await follower.sees(numbers(0, 5))
    second = streams.writer("s")  # the first one's ledger is dropped, empty
    await second.start()
    third = streams.writer("s")
    await third.start()
    await third.append_many(numbers(5, 8))
    await third.close()
    await follower.sees(numbers(0, 8))
    async with streams.writer("s") as fourth:
        await fourth.append(b"8")
    await follower.sees(numbers(0, 9))
    for writer in (first, second):
        await writer.close()
    await follower.stop()
    assert follower.error is None


async def test_a_tail_begins_at_the_end_or_at_a_position(streams, fifty):
    latest, middle = Follower(streams), Follower(streams, fifty.position_at(47))
    await middle.sees(numbers(47, 50))
    async with streams.writer("s") as writer:
        await writer.append_many(numbers(50, 53))
    await middle.sees(numbers(47, 53))
    await until(lambda: latest.seen[-1:] == [b"52"])
    assert latest.seen == numbers(53 - len(latest.seen), 53)
    await latest.stop()
    await middle.stop()


async def test_published_ledgers_come_too(streams, client):
    follower = Follower(streams, "earliest")
    async with client.create(write_quorum=3, password=b"secret") as ledger:
        await ledger.append_many(numbers(0, 3))
    await streams.publish("s", [PublishedLedger(ledger.ledger_id, 3, 3)])
    await follower.sees(numbers(0, 3))
    await follower.stop()


async def test_a_tail_ends_with_its_stream_or_with_its_place(streams, fifty):
    follower = Follower(streams, "earliest")
    await follower.sees(numbers(0, 50))
    await streams.publish("s", [], replace=True)
    assert isinstance(await follower.ends(), StreamPositionGone)
    follower = Follower(streams, "earliest")
    await streams.delete("s")
    assert isinstance(await follower.ends(), NoSuchStream)


@pytest.fixture
def dropped_meanwhile(streams, monkeypatch):
    """An open ledger is dropped, empty, and deleted between the reading of the manifest and that of the ledger."""
    original, dropped = StreamLedgers.open, []

    async def open_(ledgers, ledger_id, settings):
        if not dropped:
            await streams.seal("s")
            assert await streams.retired("s") == frozenset()
            dropped.append(ledger_id)
        return await original(ledgers, ledger_id, settings)

    monkeypatch.setattr(StreamLedgers, "open", open_)
    return dropped


async def test_an_empty_ledger_that_goes_meanwhile_ends_no_tail(streams, dropped_meanwhile):
    first = streams.writer("s")
    await first.start()
    follower = Follower(streams, "earliest")
    await until(lambda: dropped_meanwhile)
    async with streams.writer("s") as writer:
        await writer.append_many(numbers(0, 3))
    await follower.sees(numbers(0, 3))
    await follower.stop()
    await first.close()


@pytest.mark.parametrize("follows", [False, True])
async def test_a_tail_ends_when_somebody_deletes_the_open_ledger_alone(streams, client, follows):
    """The stream lists it for ever: there is nothing to wait for."""
    writer = streams.writer("s")
    await writer.start()
    opened = (await streams.manifest("s")).open_ledger.ledger_id
    follower = Follower(streams, "earliest") if follows else None
    await asyncio.sleep(0.05 if follows else 0)
    await client.delete(opened)
    follower = follower or Follower(streams, "earliest")
    async with asyncio.timeout(20):
        assert isinstance(await follower.ends(), StreamPositionGone)
    with suppress(PodkeeperError):
        await writer.close()


async def test_an_empty_ledger_that_goes_meanwhile_is_no_end(streams, dropped_meanwhile):
    first = streams.writer("s")
    await first.start()
    assert await streams.end("s") == (await streams.manifest("s")).earliest
    assert dropped_meanwhile
    await first.close()


async def test_nothing_is_left_of_a_tail_that_was_closed(streams):
    async with streams.writer("s") as writer:
        before = tasks_of_handles()
        for payload in numbers(0, 3):
            await writer.append(payload)
        async with aclosing(streams.reader("s").tail("earliest")) as entries:
            assert (await anext(entries)).payload == b"0"
        assert tasks_of_handles() <= before
