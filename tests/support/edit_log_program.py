"""An active node that keeps its edit log in a stream: a process of its own, to be killed and stopped.

    python -m tests.support.edit_log_program URI FILE STREAM WINDOW

It takes the stream over, finds the last transaction in the last entry, and goes on behind it until somebody ends it.
Several operations are packed into one entry and never straddle two.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from bookie_client import Client, ClientOptions
from bookie_client.streams import StreamPosition, Streams
from bookie_protocol.errors import PodkeeperError
from tests.support.noting_program import NotingProgram, note_to

PASSWORD = b"edit log"
OPTIONS = ClientOptions(add_timeout=30.0, read_timeout=30.0, explicit_lac_interval=0.05)
"""Long time-outs, so that a node that was stopped for a while does not count its own sleep against bookies."""


def operations(entry: bytes) -> list[int]:
    """The transaction ids in an entry."""
    return [int(each) for each in entry.split()]


async def last_transaction(streams: Streams, name: str) -> int:
    """The last transaction that is in the closed part of the log; 0 if there is none."""
    manifest = await streams.manifest(name)
    if manifest.end_ordinal == manifest.first_ordinal:
        return 0
    last = manifest.position_at(manifest.end_ordinal - 1)
    (entry,) = [each async for each in streams.reader(name).entries(last, manifest.closed_end)]
    return operations(entry.payload)[-1]


class EditLogProgram(NotingProgram):
    """The running program. `window`: entries that are under way at a time."""

    def __init__(self, uri: str, file: Path, stream: str, window: int = 20) -> None:
        super().__init__(__name__, file, (uri, file, stream, window))


async def _run(uri: str, file: str, name: str, window: int) -> None:
    note = note_to(file)

    def ended(last: int, future: asyncio.Future[StreamPosition]) -> None:
        error = future.exception()
        note("acknowledged", last) if error is None else note("failed", last, type(error).__name__)

    async with Client(uri, OPTIONS) as client:
        streams = Streams(client, password=PASSWORD)
        writer = streams.writer(name)
        await writer.start()
        last = await last_transaction(streams, name)
        note("active", last)
        under_way = asyncio.Semaphore(window)
        try:
            while True:
                await under_way.acquire()
                batch = range(last + 1, last + 2 + last % 4)
                future = await writer.submit(b" ".join(b"%d" % each for each in batch))
                last = batch[-1]
                future.add_done_callback(lambda done, last=last: (ended(last, done), under_way.release()))
        except PodkeeperError as error:
            note("refused", last + 1, type(error).__name__)
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    asyncio.run(_run(*sys.argv[1:4], int(sys.argv[4])))
