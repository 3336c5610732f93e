"""A follower of the LAC over model bookies on a virtual clock: no sockets, and nothing waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace

from bookie_client.connection.request import EntryAnswer, LacAnswer, LongPollAnswer
from bookie_client.options import ClientOptions
from bookie_client.reading.followed import FollowedLedger, LacFollower
from bookie_protocol.entry import LAST_ENTRY
from bookie_protocol.errors import BadVersion, BookieUnavailable
from tests.support.memory_metadata import MemoryMetadata
from tests.support.model_bookie import ModelBookie
from tests.unit.bookie_client.reading.rig import now
from tests.unit.bookie_client.recovery.crashed import LEDGER, CrashedLedger

LATENCY = 0.001
"""Seconds from every question to its answer, on top of what a long poll waits."""

LONG = {"long_poll_timeout": 1000.0}
"""No long poll's time is up during a test."""


class FollowerRig:
    """Ledger 7 on bookies b1, b2, b3 ...; `ledger.put` stores its entries as the writer does. It is also the client's
    `operations`: answers are those of model bookies, which a bookie that is `silent` keeps to itself.

    `asked`: (seconds, bookie, "poll" or "plain") of each question.
    """

    def __init__(self, *quorums: int, spares: int = 0, **options) -> None:
        size, *_ = quorums = quorums or (3, 3, 2)
        self.names = [f"b{place}" for place in range(1, size + 1)]
        self.bookies = {name: ModelBookie(name) for name in [*self.names, *(f"s{i}" for i in range(spares))]}
        self.metadata = MemoryMetadata()
        self.ledger = CrashedLedger(self, quorums, {0: tuple(self.names)})
        self.options = ClientOptions(**options)
        self.asked: list[tuple[float, str, str]] = []
        self.under_way: set[str] = set()
        self.silent: set[str] = set()
        self.without_long_polls: set[str] = set()
        self.deaf: set[str] = set()
        """Their long polls notice nothing."""
        self.served_by: list[tuple[str, int]] = []
        self.damaged_at: list[tuple[str, int]] = []
        self.followed: FollowedLedger

    def bookie(self, name: str) -> ModelBookie:
        return self.bookies[name]

    def follower(self, lac: int = -1) -> LacFollower:
        """Of a handle that knows this LAC."""
        context = SimpleNamespace(options=self.options, operations=self, ledgers=self.metadata.ledgers)
        self.followed = FollowedLedger(context, self.metadata.ledgers.stored[LEDGER])
        self.followed.heard(lac)
        return LacFollower(context, self.followed, self.ledger.digest, self)

    def put_up_to(self, entry_id: int) -> None:
        self.ledger.put_all(*range(entry_id + 1))

    def times_of(self, name: str) -> list[float]:
        """When a bookie was asked."""
        return [at for at, asked, _ in self.asked if asked == name]

    # --- operations -----------------------------------------------------------------------------------------

    async def long_poll(self, name, ledger_id, entry_id, previous_lac, timeout, *, piggyback_entry):
        assert (ledger_id, entry_id, piggyback_entry) == (LEDGER, LAST_ENTRY, True)
        async with self._question(name, "poll", timeout) as bookie:
            if name in self.without_long_polls:
                raise BadVersion("no long polls")
            if name in self.deaf or bookie.must_wait(ledger_id, previous_lac):
                await self._news(bookie, timeout)
            if name in self.deaf:
                return LongPollAnswer(previous_lac, None)
            entry, lac = bookie.long_poll(ledger_id, previous_lac)
            return LongPollAnswer(lac, entry)

    async def read_lac(self, name, ledger_id):
        async with self._question(name, "plain") as bookie:
            return LacAnswer(*bookie.read_lac(ledger_id))

    async def read_entry(self, name, ledger_id, entry_id):
        assert entry_id == LAST_ENTRY
        async with self._question(name, "plain") as bookie:
            return EntryAnswer(bookie.read(ledger_id, entry_id)[0], None)

    async def _news(self, bookie: ModelBookie, timeout: float) -> None:
        woken = asyncio.Event()
        waiters = bookie.lac_waiters.setdefault(LEDGER, set())
        if bookie.bookie_id not in self.deaf:
            waiters.add(woken.set)
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(woken.wait(), timeout)
        finally:
            waiters.discard(woken.set)

    @asynccontextmanager
    async def _question(self, name: str, kind: str, timeout: float = 0.0) -> AsyncIterator[ModelBookie]:
        assert name not in self.under_way, f"{name} is asked twice at once"
        self.asked.append((now(), name, kind))
        self.under_way.add(name)
        try:
            if name in self.silent:
                await asyncio.sleep(timeout + self.options.read_timeout)
                raise BookieUnavailable(f"{name} does not answer")
            await asyncio.sleep(LATENCY)
            yield self.bookies[name]
        finally:
            self.under_way.discard(name)

    # --- what came of it -------------------------------------------------------------------------------------

    def served(self, bookie, entry_id):
        self.served_by.append((bookie, entry_id))

    def damaged(self, bookie, entry_id, error):
        self.damaged_at.append((bookie, entry_id))


@asynccontextmanager
async def somebody_waits(follower, entry_id):
    """For an entry, in a task."""
    async with follower.attached():
        waiting = asyncio.create_task(follower.reach(entry_id))
        try:
            yield waiting
        finally:
            waiting.cancel()
            await asyncio.wait([waiting])
