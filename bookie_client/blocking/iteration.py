"""An asynchronous iterator as a blocking one.

Items cross the threads in batches (`bookie_client.batches`), so that iterating costs one hand-over for many
items; each still arrives as soon as it can.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import TypeVar

from bookie_client.batches import Batches
from bookie_client.blocking.loop_thread import LoopThread

T = TypeVar("T")


def iterate(thread: LoopThread, make: Callable[[], AsyncIterator[T]], size_of: Callable[[T], int]) -> Iterator[T]:
    """Call `make` on the loop, at once, and iterate over what it returns.

    Leaving the loop, closing the iterator or dropping it ends the asynchronous one too.
    """
    batches = thread.call(lambda: Batches(make(), size_of))
    return _items(thread, batches)


def _items(thread: LoopThread, batches: Batches[T]) -> Iterator[T]:
    try:
        while batch := thread.run(batches.take):
            yield from batch
    finally:
        with suppress(RuntimeError):  # the client was closed, and everything ended with it
            thread.run(batches.close)
