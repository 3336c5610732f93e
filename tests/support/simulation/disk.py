"""What one bookie has on its disk, and the journal in front of it.

Invariants
- A crash keeps every record that was synced, and of the others the first few that were written, in order.
- A batch is acknowledged when it is synced (deferred sync: written); a dead journal acknowledges nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from bookie_pod.node.recovery import ReplayIntoStorage
from bookie_pod.storage.journal.batch_queue import JournalBatch
from bookie_pod.storage.journal.format import IDS, RecordKind, kind_of, life_behind_key, tail_of_special_record


class Disk:
    """Durable records, oldest first, and an index of the entries among them."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.entries: dict[tuple[int, int], bytes] = {}
        self.lost = False
        """The disk is gone for good. What it held stays here for the checkers."""

    def append(self, bodies: list[bytes]) -> None:
        for body in bodies:
            ledger_id, entry_id = IDS.unpack_from(body)
            if kind_of(entry_id) is RecordKind.DELETION:
                self.forget(ledger_id)
                continue
            self.records.append(body)
            if entry_id >= 0:
                self.entries[ledger_id, entry_id] = body

    def rot(self, ledger_id: int, entry_id: int) -> bytes:
        """Flip a bit of an entry's payload; returns what is read from now on."""
        sound = self.entries[ledger_id, entry_id]
        rotten = sound[:-1] + bytes((sound[-1] ^ 1,))
        self.entries[ledger_id, entry_id] = rotten
        self.records = [rotten if body == sound else body for body in self.records]
        return rotten

    def drop(self, ledger_id: int) -> None:
        """Forget the entries of a ledger."""
        for entry_id in [entry_id for ledger, entry_id in self.entries if ledger == ledger_id]:
            del self.entries[ledger_id, entry_id]
        self.records = [body for body in self.records if not _is_entry_of(ledger_id, body)]

    def forget(self, ledger_id: int) -> None:
        """Everything of a ledger."""
        self.drop(ledger_id)
        self.records = [body for body in self.records if IDS.unpack_from(body)[0] != ledger_id]

    def without_fences(self) -> Disk:
        """What healing brings to a bookie that is new under this one's id: everything but what it had promised."""
        other = Disk()
        other.append([body for body in self.records if kind_of(IDS.unpack_from(body)[1]) is not RecordKind.FENCE])
        return other

    def replay(self, sink: ReplayIntoStorage) -> None:
        """As the journal's replay does."""
        for body in self.records:
            ledger_id, entry_id = IDS.unpack_from(body)
            kind = kind_of(entry_id)
            if kind is RecordKind.ENTRY:
                sink.on_entry(ledger_id, entry_id, body)
            elif kind is RecordKind.KEY:
                sink.on_key(ledger_id, tail_of_special_record(body), life_behind_key(body))
            elif kind is RecordKind.FENCE:
                sink.on_fence(ledger_id)
            else:
                assert kind is RecordKind.EXPLICIT_LAC
                sink.on_explicit_lac(ledger_id, tail_of_special_record(body))


def _is_entry_of(ledger_id: int, body: bytes) -> bool:
    found, entry_id = IDS.unpack_from(body)
    return found == ledger_id and entry_id >= 0


@dataclass(slots=True)
class DiskOptions:
    write_seconds: float = 0.00005
    sync_seconds: float = 0.001
    read_seconds: float = 0.0005
    stall_chance: float = 0.0
    stall_seconds: float = 1.0
    spread: float = 1.0
    """How many times slower the slowest bookie's syncs are than the fastest one's, at most."""


class VirtualJournal:
    """Group commit on a virtual disk: one group is written and synced at a time."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, disk: Disk, random: Random, options: DiskOptions, slowness: float = 1.0
    ) -> None:
        self._loop = loop
        self.slowness = slowness
        self._disk = disk
        self._random = random
        self._options = options
        self._queue: list[JournalBatch] = []
        self._written: list[bytes] = []
        """Bodies written since the last sync."""
        self._group: list[JournalBatch] = []
        self._busy = False
        self._dead = False
        self.stalled_until = 0.0
        self.on_sync: Callable[[], None] = lambda: None

    def append(self, batch: JournalBatch) -> None:
        self._queue.append(batch)
        if not self._busy:
            self._busy = True
            self._loop.call_soon(self._write)

    def has_room(self) -> bool:
        return True

    def crash(self) -> None:
        """The process is gone: some of what was not synced may still be there."""
        self._dead = True
        unsynced = self._written + [body for batch in self._group + self._queue for body in batch.pieces[1::2]]
        self._disk.append(unsynced[: int(self._random.random() * (len(unsynced) + 1))])

    def _write(self) -> None:
        if self._dead:
            return
        self._group, self._queue = self._queue, []
        self._loop.call_later(self._options.write_seconds * (0.5 + self._random.random()), self._sync)

    def _sync(self) -> None:
        if self._dead:
            return
        group, self._group = self._group, []
        for batch in group:
            self._written += batch.pieces[1::2]
        waiting = [batch for batch in group if batch.sync]
        self._acknowledge([batch for batch in group if not batch.sync])
        if waiting:
            seconds = self._options.sync_seconds * self.slowness * (0.5 + self._random.random())
            if self._options.stall_chance and self._random.random() < self._options.stall_chance:
                seconds += self._options.stall_seconds * self._random.random()
            due = max(self._loop.time() + seconds, self.stalled_until)
            self._loop.call_at(due, self._synced, waiting, len(self._written))
        else:
            self._next()

    def _synced(self, waiting: list[JournalBatch], bodies: int) -> None:
        if self._dead:
            return
        self._disk.append(self._written[:bodies])
        del self._written[:bodies]
        self._acknowledge(waiting)
        self.on_sync()
        self._next()

    def _next(self) -> None:
        if self._queue:
            self._loop.call_soon(self._write)
        else:
            self._busy = False

    def _acknowledge(self, batches: list[JournalBatch]) -> None:
        for batch in batches:
            if batch.on_done is not None:
                batch.on_done(None)


class VirtualLanes:
    """Work that touches the disk: one piece after the other, each takes its time. A `ReadLanes` without threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, random: Random, options: DiskOptions) -> None:
        self._loop = loop
        self._random = random
        self._options = options
        self._free_at = 0.0
        self.dead = False

    def room(self, ledger_id: int, wanted: int) -> int:
        return wanted

    def run(
        self,
        ledger_id: int,
        work: Callable[[], object],
        done: Callable[[object, BaseException | None], None],
        reads: int = 1,
    ) -> None:
        seconds = self._options.read_seconds * self._random.random()
        self._free_at = max(self._free_at, self._loop.time()) + seconds
        self._loop.call_at(self._free_at, self._finish, work, done)

    def _finish(self, work: Callable[[], object], done: Callable[[object, BaseException | None], None]) -> None:
        if self.dead:
            return
        try:
            result = work()
        except Exception as error:  # for whoever asked
            done(None, error)
        else:
            done(result, None)
