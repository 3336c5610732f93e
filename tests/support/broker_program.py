"""A broker that produces to a topic: a process of its own, to be killed and to be followed by another one.

A topic is a stream. The broker takes it over and appends numbered messages behind what it finds; of ten messages one
goes to the neighbour, another topic, so that both share the bookies' entry logs. Up to the number that stands in a
file it is fast; there it goes on by single messages, so that it is never idle and the number of ledgers is known.

It notes `active N` (messages that it found), then, under the name of the topic, how many messages there are up to the
last one that was acknowledged.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bookie_client import Client, ClientOptions
from bookie_client.streams import StreamPosition, Streams, StreamWriter
from tests.support.noting_program import NotingProgram, note_to

OPTIONS = ClientOptions(add_timeout=30.0, read_timeout=30.0, explicit_lac_interval=0.05)
BATCH = 100
"""Messages that are appended, and noted, together."""
SHARE = 10
"""A batch of the neighbour has so much less."""
SIZE = 100
"""Bytes of a message."""
_UNDER_WAY = 20
_SLOW_S = 0.02


def message(number: int) -> bytes:
    return b"%09d" % number * 11 + b"."


def number_of(payload: bytes) -> int:
    """Of a message; AssertionError if it is none."""
    number = int(payload[:9])
    assert payload == message(number)
    return number


class BrokerProgram(NotingProgram):
    """The running broker."""

    def __init__(self, uri: str, file: Path, topic: str, neighbour: str, limit: int) -> None:
        self._limit = file.with_suffix(".limit")
        self._topic = topic
        self.produce_up_to(limit)
        super().__init__(__name__, file, (uri, file, topic, neighbour, self._limit))

    def produce_up_to(self, limit: int) -> None:
        """Be fast until the topic has so many messages."""
        written = self._limit.with_suffix(".new")
        written.write_text(str(limit))
        written.rename(self._limit)

    def acknowledged_messages(self) -> int:
        """How many messages the topic has up to the last one that was acknowledged."""
        return max((int(behind) for (behind,) in self.noted(self._topic)), default=0)


class _Producer:
    """Numbered messages for one topic, some batches under way at a time."""

    def __init__(self, writer: StreamWriter, found: int, batch: int, note: partial[None]) -> None:
        self.behind = found
        self._writer = writer
        self._batch = batch
        self._note = note
        self._under_way = asyncio.Semaphore(_UNDER_WAY)

    async def produce(self, limit: int) -> bool:
        """The next messages; False if there was only one, because the limit is reached."""
        await self._under_way.acquire()
        count = max(1, min(self._batch, limit - self.behind))
        self.behind += count
        future = await self._writer.submit_many(map(message, range(self.behind - count, self.behind)))
        future.add_done_callback(partial(self._ended, self.behind))
        return self.behind <= limit

    def _ended(self, behind: int, future: asyncio.Future[list[StreamPosition]]) -> None:
        self._under_way.release()
        if future.exception() is None:
            self._note(behind)


async def _run(uri: str, file: str, topic: str, neighbour: str, limit: Callable[[], int]) -> None:
    note = note_to(file)
    async with Client(uri, OPTIONS) as client:
        streams = Streams(client)
        producers = []
        for name, batch in ((topic, BATCH), (neighbour, BATCH // SHARE)):
            writer = streams.writer(name)
            await writer.start()
            found = (await streams.manifest(name)).end_ordinal
            producers.append(_Producer(writer, found, batch, partial(note, name)))
        first, second = producers
        note("active", first.behind)
        while True:
            if await first.produce(limit()):
                await second.produce(sys.maxsize)
            else:
                await asyncio.sleep(_SLOW_S)


def main(arguments: Sequence[str]) -> None:
    uri, file, topic, neighbour, limit = arguments
    asyncio.run(_run(uri, file, topic, neighbour, lambda: int(Path(limit).read_text())))
