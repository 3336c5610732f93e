"""The edit log of a name service, as HDFS's NameNode keeps one, in a stream of ledgers.

Each operation has a transaction id, one above that of the operation before it. Several complete operations are packed
into one entry and never straddle two, so the last entry alone tells the last transaction. A ledger of the stream is a
segment of the log: all but the last are finished, and whoever takes the log over finishes that one, which locks its
writer out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from podkeeper import Client
from podkeeper.streams import Manifest, StreamPosition, Streams, StreamSettings, StreamWriter

Operation = tuple[int, str]
"""A transaction id, and what was done: one line of text."""


def pack(operations: Sequence[Operation]) -> bytes:
    """One entry of complete operations."""
    return "\n".join(f"{number} {text}" for number, text in operations).encode()


def unpack(entry: bytes) -> list[Operation]:
    """The operations of an entry."""
    return [(int(number), text) for number, _, text in (line.partition(" ") for line in entry.decode().split("\n"))]


class EditLog:
    """The log NAME. Any number of processes follow it, one at a time appends. All calls raise `PodkeeperError`."""

    def __init__(self, client: Client, name: str, password: bytes = b"") -> None:
        self._streams = Streams(client, password=password)
        self._name = name
        self._writer: StreamWriter | None = None
        self.last = 0
        """The last transaction id that is taken; known to whoever took the log over."""

    async def create(self, settings: StreamSettings | None = None) -> None:
        """Make the log, unless there is one."""
        await self._streams.create(self._name, settings, if_absent=True)

    async def take_over(self) -> int:
        """Become the writer: from here on the one before appends nothing. The last transaction of the log, or 0."""
        self._writer = self._streams.writer(self._name)
        await self._writer.start()
        manifest = await self._streams.manifest(self._name)
        if manifest.entries:
            self.last = await self._last_before(manifest, manifest.end_ordinal)
        return self.last

    async def submit(self, texts: Sequence[str]) -> asyncio.Future[StreamPosition]:
        """Send operations, all in one entry. The future is done when a quorum of bookies has them.

        It fails with `StreamFenced` if another process took the log over; the operations may be in it or not.
        """
        assert self._writer is not None, "take_over comes first"
        operations = list(enumerate(texts, start=self.last + 1))
        future = await self._writer.submit(pack(operations))
        self.last = operations[-1][0]
        return future

    async def append(self, texts: Sequence[str]) -> int:
        """Store operations; the last of their transaction ids."""
        await (await self.submit(texts))
        return self.last

    async def follow(self) -> AsyncIterator[Operation]:
        """All operations from the first that is kept, and for ever. Nobody is locked out by that."""
        async for entry in self._streams.reader(self._name).tail("earliest"):
            for operation in unpack(entry.payload):
                yield operation

    async def purge(self, transaction: int) -> int:
        """Delete the finished segments that a checkpoint of everything up to `transaction` covers; how many."""
        manifest = await self._streams.manifest(self._name)
        keep = manifest.earliest
        for segment in manifest.ledgers:
            if segment.entries is None:
                break
            end = segment.first_ordinal + segment.entries
            if segment.entries and await self._last_before(manifest, end) > transaction:
                break
            keep = manifest.position_at(end)
        return len(await self._streams.truncate(self._name, keep))

    async def close(self) -> None:
        """Finish the segment that is being written, if there is one."""
        if self._writer is not None:
            await self._writer.close()

    async def _last_before(self, manifest: Manifest, ordinal: int) -> int:
        first, end = manifest.position_at(ordinal - 1), manifest.position_at(ordinal)
        (entry,) = [each async for each in self._streams.reader(self._name).entries(first, end)]
        return unpack(entry.payload)[-1][0]
