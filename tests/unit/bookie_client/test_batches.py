"""Batches: what has arrived, in order, bounded."""

import asyncio

import pytest

from bookie_client.batches import Batches


class Source:
    """An iterator that a test feeds."""

    def __init__(self, *ready):
        self.queue = asyncio.Queue()
        self.taken = 0
        self.closed = False
        for item in ready:
            self.queue.put_nowait(item)

    async def __aiter__(self):
        try:
            while (item := await self.queue.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                self.taken += 1
                yield item
        finally:
            self.closed = True


def batches(source, **limits):
    return Batches(aiter(source), len, **limits)


async def test_what_is_there_comes_in_one_batch_and_what_comes_later_at_once():
    source = Source(b"a", b"b", b"c")
    read = batches(source)
    assert await read.take() == [b"a", b"b", b"c"]
    later = asyncio.create_task(read.take())
    await asyncio.sleep(0)
    source.queue.put_nowait(b"d")
    assert await later == [b"d"]
    source.queue.put_nowait(None)
    assert [await read.take(), await read.take()] == [[], []]
    await read.close()


@pytest.mark.parametrize("limits", [{"max_items": 2}, {"max_bytes": 4}])
async def test_reading_ahead_is_bounded(limits):
    source = Source(*[b"xx"] * 7, None)
    read = batches(source, **limits)
    sizes = []
    while batch := await read.take():
        sizes.append(len(batch))
        assert source.taken <= sum(sizes) + 2
    assert sizes == [2, 2, 2, 1]
    await read.close()


async def test_an_item_larger_than_the_limit_passes_alone():
    read = batches(Source(b"x" * 100, b"y", None), max_bytes=10)
    assert [len(batch) for batch in [await read.take(), await read.take(), await read.take()]] == [1, 1, 0]
    await read.close()


async def test_the_error_comes_after_the_items_before_it():
    read = batches(Source(b"a", ValueError("damaged")))
    assert await read.take() == [b"a"]
    for _ in range(2):
        with pytest.raises(ValueError, match="damaged"):
            await read.take()
    await read.close()


async def test_a_cancelled_take_loses_nothing():
    source = Source()
    read = batches(source)
    waiting = asyncio.create_task(read.take())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    source.queue.put_nowait(b"a")
    assert await read.take() == [b"a"]
    await read.close()


async def test_closing_ends_the_iterator_and_a_take_that_waits():
    source = Source(b"a")
    read = batches(source)
    await read.take()
    waiting = asyncio.create_task(read.take())
    await asyncio.sleep(0)
    await read.close()
    assert (source.closed, await waiting) == (True, [])
    await read.close()
    assert await read.take() == []


async def test_closing_before_the_first_take_reads_nothing():
    source = Source(b"a")
    read = batches(source)
    await read.close()
    assert (await read.take(), source.taken) == ([], 0)
