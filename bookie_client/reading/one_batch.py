"""A range that one batch read brings, as most ranges do that are read as a whole: asked for without a plan and its
pieces, which would cost as much as verifying what comes.

Invariants
- Nothing of it is under way any more when it ends, however it ends.
- What comes of it is told as it is. An answer that is not the whole range, and whatever else is not as usual, is for
  `RangeRead.go_on` to make the best of.

Event loop only.

Source: reference client protocol, section 11.5.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf

from bookie_client.reading.batch_read import BatchAnswer, BatchRead
from bookie_client.reading.sources import EntrySources
from bookie_client.reading.speculation import Speculator


async def read_one_batch(
    sources: EntrySources, first: int, count: int, max_bytes: int, order: Sequence[str]
) -> tuple[BatchRead, BatchAnswer | Exception]:
    """The read, which has ended, and what it was told: see `BatchRead`."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[BatchAnswer | Exception] = loop.create_future()

    def done(_: BatchRead, outcome: BatchAnswer | Exception) -> None:
        if not ended.done():  # else cancelled in this very turn of the loop
            ended.set_result(outcome)

    read = sources.read_batch(first, count, max_bytes, order, done)
    speculator = None
    if read.due < inf:
        speculator = Speculator(loop, sources.served_by)
        speculator.watch(read)
    try:
        return read, await ended
    finally:
        read.abandon()
        if speculator is not None:
            speculator.stop()
