"""Notifications for clients of Oxia: the rows that keep them over a restart, and the streams that wait for more.

Invariants
- A batch has the changes of one commit, of whichever client, and is written with them. Large ones are several batches.
- An offset is greater than those before it, also after the store was put back to an older state: it is a time in
  microseconds, or the next number if the clock was set back.
- The kept batches are bounded in number and bytes; the oldest are dropped. A stream that is behind them goes on with
  the oldest batch that is left, as in Oxia, which drops batches after an hour.

Threads: `NoticeLog` is the store's, `Notices` the event loop's.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from bookie_protocol.metadata_service.embedded.records import NUMBER, Change
from bookie_protocol.metadata_service.oxia import oxia_pb2 as oxia

ROWS: Final = b"w"
KEPT_BATCHES: Final = 20_000
KEPT_BYTES: Final = 16 << 20
BATCH_NOTICES: Final = 1_000
BATCH_BYTES: Final = 512 << 10
_ENTRY_BYTES: Final = 32
SHARD: Final = 0


@dataclass(slots=True)
class News:
    """The changes of one group of calls."""

    changes: set[tuple[Change, str]] = field(default_factory=set)
    batches: list[tuple[int, bytes]] = field(default_factory=list)
    sequences: dict[str, str] = field(default_factory=dict)


class NoticeLog:
    """The offsets and sizes of the batches that the store keeps."""

    def __init__(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        found = [(NUMBER.unpack(key[1:])[0], value) for key, value in rows]
        self._found: list[tuple[int, bytes]] = found
        self._kept = deque((offset, len(value)) for offset, value in found)
        self._nbytes = sum(nbytes for _, nbytes in self._kept)
        self._last = found[-1][0] if found else 0

    def take_found(self) -> list[tuple[int, bytes]]:
        """Return the batches of earlier runs, once."""
        found, self._found = self._found, []
        return found

    def append(self, notices: Mapping[str, oxia.Notification]) -> tuple[list[tuple[int, bytes]], list[bytes]]:
        """Return the new batches, and the rows that go for them."""
        made = [self._batch(part) for part in _parts(notices)]
        gone = []
        while len(self._kept) > KEPT_BATCHES or self._nbytes > KEPT_BYTES:
            offset, nbytes = self._kept.popleft()
            self._nbytes -= nbytes
            gone.append(notice_row(offset))
        return made, gone

    def begin_session(self) -> tuple[int, bytes]:
        """Return a batch without changes, whose offset is the id of a new session, as in Oxia: its client hears from
        there what happens."""
        return self._batch({})

    def _batch(self, part: Mapping[str, oxia.Notification]) -> tuple[int, bytes]:
        now = time.time_ns()
        self._last = max(self._last + 1, now // 1_000)
        batch = oxia.NotificationBatch(shard=SHARD, offset=self._last, timestamp=now // 1_000_000, notifications=part)
        value = batch.SerializeToString(deterministic=True)  # in the order of keys
        self._kept.append((self._last, len(value)))
        self._nbytes += len(value)
        return self._last, value


def notice_row(offset: int) -> bytes:
    return ROWS + NUMBER.pack(offset)


def _parts(notices: Mapping[str, oxia.Notification]) -> Iterator[dict[str, oxia.Notification]]:
    part: dict[str, oxia.Notification] = {}
    nbytes = 0
    for key in sorted(notices):
        if part and (len(part) >= BATCH_NOTICES or nbytes > BATCH_BYTES):
            yield part
            part, nbytes = {}, 0
        part[key] = notices[key]
        nbytes += len(key) + _ENTRY_BYTES
    if part:
        yield part


class Notices:
    """The kept batches, and the streams that wait for more. `found` are batches of earlier runs."""

    def __init__(self, found: Iterable[tuple[int, bytes]]) -> None:
        self._offsets: list[int] = []
        self._batches: list[bytes] = []
        self._nbytes = 0
        self._more = asyncio.Event()
        self._sequences: dict[str, set[Growing]] = {}
        self._ended = False
        self._keep(found)

    def add(self, news: News) -> None:
        if news.batches:
            self._keep(news.batches)
            self._wake()
        for prefix, key in news.sequences.items():
            for waiting in self._sequences.get(prefix, ()):
                waiting.grew(key)

    def end(self) -> None:
        """End all streams."""
        self._ended = True
        self._wake()
        for waiting in [each for group in self._sequences.values() for each in group]:
            waiting.end()

    async def after(self, offset: int | None) -> AsyncIterator[bytes]:
        """Yield the batches behind this offset, in order. None: from now on, after an empty batch with that offset."""
        if offset is None:
            offset = self._offsets[-1] if self._offsets else -1
            yield oxia.NotificationBatch(shard=SHARD, offset=offset).SerializeToString()
        while not self._ended:
            more = self._more
            at = bisect_right(self._offsets, offset)
            if at == len(self._offsets):
                await more.wait()
                continue
            offset, batch = self._offsets[at], self._batches[at]
            yield batch

    @contextmanager
    def growing(self, prefix: str) -> Iterator[Growing]:
        """Give the highest key of a sequence whenever it grows, for the length of a block."""
        waiting = Growing()
        self._sequences.setdefault(prefix, set()).add(waiting)
        try:
            yield waiting
        finally:
            group = self._sequences[prefix]
            group.discard(waiting)
            if not group:
                del self._sequences[prefix]

    def _keep(self, batches: Iterable[tuple[int, bytes]]) -> None:
        for offset, batch in batches:
            self._offsets.append(offset)
            self._batches.append(batch)
            self._nbytes += len(batch)
        gone = 0
        while self._nbytes > KEPT_BYTES or len(self._offsets) - gone > KEPT_BATCHES:
            self._nbytes -= len(self._batches[gone])
            gone += 1
        del self._offsets[:gone], self._batches[:gone]

    def _wake(self) -> None:
        self._more.set()
        self._more = asyncio.Event()


class Growing:
    """One stream of a sequence, which skips all keys but the last one."""

    def __init__(self) -> None:
        self._key: str | None = None
        self._ended = False
        self._grew = asyncio.Event()

    def grew(self, key: str) -> None:
        self._key = key
        self._grew.set()

    def end(self) -> None:
        self._ended = True
        self._grew.set()

    async def next(self) -> str | None:
        """Wait for the next key; None: there is none any more."""
        await self._grew.wait()
        self._grew.clear()
        return None if self._ended else self._key
