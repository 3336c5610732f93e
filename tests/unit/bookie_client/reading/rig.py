"""A reader over scripted bookies on a virtual clock: no sockets, and nothing waits."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from functools import wraps
from itertools import count
from random import Random
from types import SimpleNamespace

from bookie_client.connection.health import BookieHealth
from bookie_client.connection.operations import BookieOperations
from bookie_client.connection.request import EntryAnswer
from bookie_client.context import BatchSupport
from bookie_client.options import ClientOptions
from bookie_client.placement.topology import UNKNOWN_TOPOLOGY
from bookie_client.reading.reader import EntryReader, whole
from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.errors import BadVersion, NoSuchEntry, PodkeeperError
from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState
from bookie_protocol.wire.v2 import PackedEntries
from tests.support.packed import packed
from tests.support.virtual_loop import on_a_virtual_clock

LEDGER = 7
DIGEST = digest_manager(DigestType.CRC32C, b"")


def run_virtually(main):
    """Run a coroutine function on virtual time; nothing may be left behind."""

    async def checked():
        result = await main()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return result

    return on_a_virtual_clock(checked())


def virtually(test):
    """A test that runs on virtual time and leaves nothing behind."""

    @wraps(test)
    def run(*arguments, **named):
        run_virtually(lambda: test(*arguments, **named))

    return run


async def read_range(reader, first, last):
    """All entries of the range, as a handle reads them."""
    entries = []
    await reader.read_into(entries, first, last, whole, bound=last)
    return entries


def now():
    return asyncio.get_running_loop().time()


@dataclass
class Bookie:
    """`delay` None: never answers. `error`: every read fails with it."""

    entries: dict = field(default_factory=dict)
    delay: float | None = 0.001
    error: type | None = None
    batch_error: type | None = None
    knows_batches: bool = True
    knows_steps: bool = True
    cuts_batches: bool = False
    """The last entry of each is not whole."""
    reads: list = field(default_factory=list)
    read_at: list = field(default_factory=list)
    """When each of `reads` was asked for."""
    batches: list = field(default_factory=list)
    outstanding: int = 0
    slow_entries: dict = field(default_factory=dict)

    def damage(self, entry_id):
        entry = self.entries[entry_id]
        self.entries[entry_id] = entry[:-1] + bytes([entry[-1] ^ 1])

    def answer(self, entry_id):
        if self.error is not None:
            raise self.error("scripted")
        if entry_id not in self.entries:
            raise NoSuchEntry(f"entry {entry_id}")
        return self.entries[entry_id]


class Channel:
    def __init__(self, bookie):
        self.bookie = bookie

    def send_read(self, frame, key, request):
        bookie, entry_id = self.bookie, frame
        bookie.reads.append(entry_id)
        bookie.read_at.append(now())
        delay = bookie.slow_entries.get(entry_id, bookie.delay)
        if delay is None:
            return
        bookie.outstanding += 1
        asyncio.get_running_loop().call_later(delay, self.end, entry_id, request)

    def end(self, entry_id, request):
        self.bookie.outstanding -= 1
        try:
            entry = self.bookie.answer(entry_id)
        except Exception as error:
            request.failed(error)
        else:
            request.answered(entry, 99)


class Batch:
    """A batch read under way."""

    def __init__(self, rig, name, question, done):
        self.rig = rig
        self.name = name
        self.question = question
        self.done = done
        self.is_over = False
        delay = rig.bookies[name].delay
        if delay is not None:
            asyncio.get_running_loop().call_later(delay, self.end)

    def abandon(self):
        if not self.is_over:
            self.is_over = True
            self.rig.given_up += 1
            self.rig.batches_under_way -= 1

    def end(self):
        if self.is_over:
            return
        self.is_over = True
        self.rig.batches_under_way -= 1
        bookie = self.rig.bookies[self.name]
        try:
            answer = self.answer(bookie, *self.question)
            self.rig.bytes_brought += len(answer.body)
        except PodkeeperError as error:
            answer = error
        self.done(self.name, answer)

    @staticmethod
    def answer(bookie, first, max_count, max_bytes, step):
        if not bookie.knows_batches or (step > 1 and not bookie.knows_steps):
            raise BadVersion("no batches, or none with a step")
        if bookie.batch_error is not None:
            raise bookie.batch_error("scripted")
        entries, size = [bookie.answer(first)], 36 + len(bookie.answer(first)) + 4
        while len(entries) < max_count and (entry := bookie.entries.get(first + len(entries) * step)) is not None:
            size += len(entry) + 4
            if size > max_bytes:
                break
            entries.append(entry)
        answer = packed(entries)
        return PackedEntries(answer.body[:-1], answer.start) if bookie.cuts_batches else answer


class Rig:
    """Ledger 7 on bookies A, B, C ...; every entry on its write set."""

    def __init__(self, entries=100, *, ensemble=3, write_quorum=3, size=100, closed=True, sizes=None, **options):
        self.names = [chr(ord("A") + i) for i in range(ensemble)]
        self.bookies = {name: Bookie() for name in self.names}
        self.payloads = [bytes([i % 256]) * (sizes[i] if sizes else size) for i in range(entries)]
        length = sum(map(len, self.payloads))
        state = {"state": LedgerState.CLOSED, "last_entry_id": entries - 1, "length": length} if closed else {}
        self.metadata = LedgerMetadata(LEDGER, ensemble, write_quorum, write_quorum, {0: tuple(self.names)}, **state)
        self.place_entries()
        self.options = ClientOptions(**options)
        self.heard = []
        self.batches_under_way = self.most_batches = self.given_up = self.bytes_brought = 0

    def place_entries(self):
        length = 0
        for entry_id, payload in enumerate(self.payloads):
            length += len(payload)
            entry = DIGEST.encode(LEDGER, entry_id, entry_id - 1, length, payload)
            for name in self.metadata.bookies_for(entry_id):
                self.bookies.setdefault(name, Bookie()).entries[entry_id] = entry

    def reader(self):
        loop = asyncio.get_running_loop()
        self.health = BookieHealth(self.options, loop.time)
        self.context = SimpleNamespace(
            options=self.options,
            pool=SimpleNamespace(
                channel=lambda bookie, ledger_id: Channel(self.bookies[bookie]),
                dialect=SimpleNamespace(read=lambda txn, ledger_id, entry_id: (b"", entry_id)),
            ),
            operations=self,
            traces=None,
            health=self.health,
            bookies=SimpleNamespace(known_writable=frozenset(self.bookies), known_read_only=frozenset()),
            batch_support=BatchSupport(),
            damaged_replicas=Counter(),
            transactions=count(1),
            random=Random(1),
            topology=UNKNOWN_TOPOLOGY,
        )
        return EntryReader(self.context, lambda: self.metadata, DIGEST, on_lac=self.heard.append)

    # --- operations -----------------------------------------------------------------------------------------

    async def read_entry(self, name, ledger_id, entry_id):
        assert ledger_id == LEDGER
        bookie = self.bookies[name]
        bookie.reads.append(entry_id)
        bookie.read_at.append(now())
        await self._wait(bookie)
        return EntryAnswer(bookie.answer(entry_id), None)

    def send_batch_read(self, name, ledger_id, first, max_count, max_bytes, done, *, step=1):
        assert ledger_id == LEDGER
        self.bookies[name].batches.append((first, max_count))
        batch = Batch(self, name, (first, max_count, max_bytes, step), done)
        self.batches_under_way += 1
        self.most_batches = max(self.most_batches, self.batches_under_way)
        return batch

    batch_read = BookieOperations.batch_read

    async def _wait(self, bookie):
        if bookie.delay is None:
            await asyncio.Event().wait()
        else:
            await asyncio.sleep(bookie.delay)

    # --- what was asked -------------------------------------------------------------------------------------

    def asked(self):
        """Single reads of each bookie."""
        return {name: len(bookie.reads) for name, bookie in self.bookies.items()}

    def times_of(self, entry_id):
        """When each bookie was asked for the entry alone, in the order of these times."""
        times = [
            (at, name)
            for name, bookie in self.bookies.items()
            for read, at in zip(bookie.reads, bookie.read_at, strict=True)
            if read == entry_id
        ]
        return [(name, at) for at, name in sorted(times)]

    def batched(self):
        """Batch reads of each bookie."""
        return {name: len(bookie.batches) for name, bookie in self.bookies.items()}
