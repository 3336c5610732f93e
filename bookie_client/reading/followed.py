"""A ledger as one reader's handle knows it: metadata that follow the store, and a last add confirmed that only rises.

The LAC is followed while a caller waits for it (`LacFollower`): by long polls, or plain polling with version 2.

A bookie learns of LAC n with the entries behind n. So the bookie polled first is the one at position n + 2 of the
striping (for the next entry n + 1, the one behind its first holder): it gets both the entry wanted and, with the
next one, the word that it is confirmed. In a striped ledger as many more are polled as it takes to have one in
every write set, so no entry's word is missed.

Invariants
- The metadata are never replaced by older ones, and the LAC never goes back.
- Once the ledger is closed the LAC is its last entry, the same for every handle, and nothing changes any more but the
  bookies of its segments (re-replication). No LAC heard before can be above that end, because what was heard was
  confirmed by the writer; were it so, the end would count, and it would be logged.
- `next_change` is asked for before a condition is looked at, so no change is missed between look and wait.
- At most one request to each bookie is under way; one that is not answered yet is left alone when the LAC moves
  on, because it is answered soon after.
- A bookie that fails is left alone for a while that doubles up to `MAX_BACK_OFF`, and all others are asked
  instead. One that has no news, and says so sooner than it was asked to, is asked again after a pause that
  doubles up to `MAX_PAUSE`. So nothing here ever spins.
- A bookie that keeps silent, or goes on having no news (its writer may have left it out), costs `FIRST_PATIENCE`
  seconds: then one more is asked, and so on.
- No bookie is asked while no caller waits. When the last tail ends, no request is under way any more.

Event loop only.

Sources: docs/internals/client-protocol.md, sections 12 and 13; docs/internals/wire-protocol.md, section 8.4.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final

from bookie_client.context import ClientContext
from bookie_client.reading.background import fail_on_defect
from bookie_client.reading.choice import ReplicaChoice
from bookie_client.reading.entry import LedgerEntry
from bookie_client.reading.lac import is_negative, last_confirmed_of, least_lac
from bookie_protocol.digest import DigestManager
from bookie_protocol.entry import LAST_ENTRY, read_header
from bookie_protocol.errors import (
    BadRequest,
    BadVersion,
    DigestMismatch,
    LedgerClosed,
    MetadataError,
    MetadataNotFound,
    NoSuchLedger,
    PodkeeperError,
    Unauthorized,
    fresh,
)
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.logs import get_logger
from bookie_protocol.metadata_service.interface import LedgerLife, Versioned

_log = get_logger(__name__)
FIRST_PATIENCE: Final = 1.5
"""Seconds without a new LAC until one more bookie is asked (`firstSpeculativeReadLACTimeout`)."""
MAX_PATIENCE: Final = 5.0
"""Upper limit of that wait, which doubles (`maxSpeculativeReadLACTimeout`)."""
FIRST_BACK_OFF: Final = 0.1
MAX_BACK_OFF: Final = 2.0
"""Seconds for which a bookie that failed is left alone."""
FIRST_PAUSE: Final = 0.02
MAX_PAUSE: Final = 0.5
"""Seconds; what a reader of an idle ledger may be late where bookies cannot be waited for."""


class FollowedLedger:
    """`follow` it to learn of new segments, of closing and of deletion; `close` ends that."""

    def __init__(self, context: ClientContext, stored: Versioned[LedgerMetadata]) -> None:
        self.ledger_id = stored.value.ledger_id
        self._context = context
        self._stored = stored
        self._lac = least_lac(stored.value)
        self._change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task: asyncio.Task[None] | None = None
        self.is_deleted = False
        self.failure: PodkeeperError | None = None
        """The error after which nothing more can be learnt through this handle; None while it works."""

    # --- what is known --------------------------------------------------------------------------------------

    @property
    def metadata(self) -> LedgerMetadata:
        return self._stored.value

    @property
    def lac(self) -> int:
        return self._lac

    @property
    def is_closed(self) -> bool:
        return self._stored.value.is_closed

    @property
    def next_change(self) -> asyncio.Future[None]:
        """Done at the next change of anything here. Wait for it with `asyncio.wait`, which leaves it alone when
        cancelled."""
        return self._change

    async def reach(self, entry_id: int) -> None:
        """Wait until an entry is confirmed, or never will be because the ledger was closed in front of it.

        Raises `NoSuchLedger` when the ledger was deleted first, or what ended this handle.
        """
        while True:
            change = self._change
            if self._lac >= entry_id or self.is_closed:
                return
            if self.failure is not None:
                raise fresh(self.failure)
            if self.is_deleted:
                raise NoSuchLedger(f"ledger {self.ledger_id} was deleted before it was closed")
            await asyncio.wait([change])

    # --- news -----------------------------------------------------------------------------------------------

    def heard(self, lac: int) -> None:
        """Take a last add confirmed that a bookie or the caller reported."""
        if lac > self._lac and not self.is_closed:
            self._lac = lac
            self._changed()

    def take(self, stored: Versioned[LedgerMetadata]) -> bool:
        """Metadata from the store; False when they are nothing new. Those of another ledger that has the id by now say
        that this one was deleted."""
        if LedgerLife.of(stored) != LedgerLife.of(self._stored):
            self._deleted()
            return False
        if stored.version <= self._stored.version:
            return False
        self._stored = stored
        lac = least_lac(stored.value)
        if not stored.value.is_closed:
            self._lac = max(self._lac, lac)
        else:
            if lac < self._lac:
                _log.error("ledger closed below its LAC", ledger=self.ledger_id, last_entry=lac, lac=self._lac)
            self._lac = lac
        self._changed()
        return True

    async def refresh(self) -> bool:
        """Read the metadata now; whether they are news. A metadata service that cannot tell has no news."""
        try:
            return self.take(await self._context.ledgers.read(self.ledger_id))
        except MetadataNotFound:
            self._deleted()
            return False
        except MetadataError:
            return False

    def fail(self, error: PodkeeperError) -> None:
        """End following: every waiting caller gets this error."""
        if self.failure is None:
            self.failure = fresh(error)
            self._changed()

    def _deleted(self) -> None:
        if not self.is_deleted:
            self.is_deleted = True
            self._changed()

    def _changed(self) -> None:
        done, self._change = self._change, asyncio.get_running_loop().create_future()
        if not done.done():
            done.set_result(None)

    # --- following ------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Watch the metadata until `close`; of a ledger that is closed nothing is expected any more, unless the
        client keeps metadata updated."""
        if self._task is None and self._is_moving:
            self._task = asyncio.get_running_loop().create_task(self._follow(), name=f"metadata of {self.ledger_id}")
            fail_on_defect(self._task, self.ledger_id, "following its metadata", self.fail)

    async def close(self) -> None:
        """Stop watching; callers that still wait get `LedgerClosed`. May be called again."""
        self.fail(LedgerClosed(f"ledger {self.ledger_id}: this reader was closed"))
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    @property
    def _is_moving(self) -> bool:
        keep = self._context.options.keep_metadata_updated
        return not self.is_deleted and (keep or not self.is_closed)

    async def _follow(self) -> None:
        while self._is_moving:
            with suppress(MetadataError):
                await self._watch()
            if self._is_moving:
                # The watch ended by a fault that it does not handle: start it again after a pause.
                await asyncio.sleep(self._context.options.degraded_retry_interval)

    async def _watch(self) -> None:
        async with self._context.ledgers.watch(self.ledger_id) as snapshots:
            async for stored in snapshots:
                if stored is None:
                    self._deleted()
                    return
                self.take(stored)
                if not self._is_moving:
                    return


@dataclass(slots=True)
class _Pacing:
    """The way one bookie is asked, and when it is asked again. Times are those of the event loop's clock."""

    long_polls: bool
    """True if it is asked to wait for news; else it is polled."""
    pause: float = 0.0
    """Seconds before the next question."""
    back_off: float = 0.0
    """Seconds for which it is left alone since it failed last."""
    not_before: float = 0.0
    """Time from which it may be asked again after a failure."""

    def had_news(self) -> None:
        self.pause = self.back_off = 0.0

    def had_no_news(self) -> None:
        self.back_off = 0.0
        self.pause = min(max(2 * self.pause, FIRST_PAUSE), MAX_PAUSE)

    def failed(self, now: float) -> None:
        self.back_off = min(max(2 * self.back_off, FIRST_BACK_OFF), MAX_BACK_OFF)
        self.not_before = now + self.back_off


class LacFollower:
    """Belongs to one reader's handle; any number of tails may wait."""

    def __init__(
        self, context: ClientContext, ledger: FollowedLedger, digest: DigestManager, observer: ReplicaChoice
    ) -> None:
        """Follow a ledger. `observer` is notified of each entry that a tail takes and of each damaged one."""
        self._context = context
        self._observer = observer
        self._ledger = ledger
        self._digest = digest
        self._loop = asyncio.get_running_loop()
        self._long_polls = context.options.protocol_version == 3
        self._pacings: dict[str, _Pacing] = {}
        self._polls: dict[str, asyncio.Task[None]] = {}
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        self._waiting = 0
        self._tails = 0
        self._came_along: tuple[str, LedgerEntry] | None = None

    @asynccontextmanager
    async def attached(self) -> AsyncIterator[None]:
        """While a tail iterates; what is under way ends with the last one."""
        self._tails += 1
        try:
            yield
        finally:
            self._tails -= 1
            if not self._tails:
                await self.close()

    async def reach(self, entry_id: int) -> LedgerEntry | None:
        """Wait as `FollowedLedger.reach`, and ask for news meanwhile; the entry, if it came along."""
        if self._task is None:
            self._task = self._loop.create_task(self._run(), name=f"LAC of ledger {self._ledger.ledger_id}")
            fail_on_defect(self._task, self._ledger.ledger_id, "following its LAC", self._ledger.fail)
        self._waiting += 1
        self._wanted.set()
        try:
            await self._ledger.reach(entry_id)
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._wanted.clear()
        if self._came_along is None or self._came_along[1].entry_id != entry_id:
            return None
        bookie, entry = self._came_along
        self._observer.served(bookie, entry_id)
        return entry

    async def close(self) -> None:
        """End what is under way, and wait until it has ended."""
        tasks: list[asyncio.Task[None]] = list(self._polls.values())
        if self._task is not None:
            tasks.append(self._task)
        self._task, self._polls = None, {}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # --- asking ---------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        ledger = self._ledger
        lac, extra, patience = ledger.lac, 0, FIRST_PATIENCE
        deadline = self._loop.time() + patience
        while not ledger.is_closed and ledger.failure is None:
            await self._wanted.wait()
            change, now = ledger.next_change, self._loop.time()
            if ledger.lac != lac:
                lac, extra, patience = ledger.lac, 0, FIRST_PATIENCE
                deadline = now + patience
            elif now >= deadline:
                extra, patience = extra + 1, min(2 * patience, MAX_PATIENCE)
                deadline = now + patience
            pause = min(deadline - now, self._ask(extra))
            await asyncio.wait(
                {change, *self._polls.values()}, timeout=max(pause, 0.0), return_when=asyncio.FIRST_COMPLETED
            )
            for bookie in [bookie for bookie, poll in self._polls.items() if poll.done()]:
                self._polls.pop(bookie).result()

    def _ask(self, extra: int) -> float:
        """Have the wanted bookies asked; seconds until one that is left alone may be asked again."""
        ensemble = self._ledger.metadata.last_ensemble
        for bookie in set(self._polls).difference(ensemble):
            self._polls.pop(bookie).cancel()
        order, wanted = self._order()
        now = self._loop.time()
        resting = [b for b in order if now < self._pacing_of(b).not_before]
        if any(bookie in resting for bookie in order[:wanted]):
            # A bookie of the cover is missing: only all others together can replace it.
            wanted = len(order)
        for bookie in [b for b in order if b not in resting][: wanted + extra]:
            if bookie not in self._polls:
                self._polls[bookie] = self._loop.create_task(self._poll(bookie), name=f"LAC from {bookie}")
        return min((self._pacing_of(b).not_before - now for b in resting), default=MAX_PATIENCE)

    def _order(self) -> tuple[list[str], int]:
        """Return the ensemble in the order in which it is asked, and how many of it cover every write set."""
        metadata = self._ledger.metadata
        size, step = metadata.ensemble_size, metadata.write_quorum_size
        first = self._ledger.lac + 2
        cover = [(first + offset) % size for offset in range(0, size, step)]
        others = [(first + offset) % size for offset in range(size) if offset % step]
        return [metadata.last_ensemble[position] for position in cover + others], len(cover)

    def _pacing_of(self, bookie: str) -> _Pacing:
        return self._pacings.setdefault(bookie, _Pacing(long_polls=self._long_polls))

    # --- one bookie -----------------------------------------------------------------------------------------

    async def _poll(self, bookie: str) -> None:
        """Ask one bookie once."""
        pacing, ledger = self._pacing_of(bookie), self._ledger
        await asyncio.sleep(pacing.pause)
        lac, started = ledger.lac, self._loop.time()
        try:
            has_news = pacing.long_polls and await self._long_poll(bookie, lac)
            if not has_news:
                # Also behind a long poll without news: some bookies notice only what is written after the
                # question, so what they hold is looked at.
                ledger.heard(await last_confirmed_of(self._context, bookie, ledger.ledger_id, self._digest))
        except Unauthorized as error:
            ledger.fail(error)
        except (BadVersion, BadRequest):
            if not pacing.long_polls:
                pacing.failed(self._loop.time())
            # Else it knows no long polls; the next time it is asked as a client of version 2 asks.
            pacing.long_polls = False
        except PodkeeperError as error:
            if is_negative(error):
                pacing.had_no_news()
            else:
                pacing.failed(self._loop.time())
        else:
            waited = pacing.long_polls and self._loop.time() - started >= self._context.options.long_poll_timeout / 2
            if waited or ledger.lac > lac:
                pacing.had_news()
            else:
                pacing.had_no_news()

    async def _long_poll(self, bookie: str, lac: int) -> bool:
        """Wait at one bookie until the LAC passes `lac`; whether it did."""
        ledger = self._ledger
        answer = await self._context.operations.long_poll(
            bookie, ledger.ledger_id, LAST_ENTRY, lac, self._context.options.long_poll_timeout, piggyback_entry=True
        )
        if answer.max_lac <= lac:
            return False
        if answer.entry is not None:
            self._take_entry(bookie, answer.entry, lac + 1)
        ledger.heard(answer.max_lac)
        return True

    def _take_entry(self, bookie: str, entry: bytes, entry_id: int) -> None:
        """Keep the entry that came along. Raises `DigestMismatch`: then the bookie's word counts for nothing."""
        try:
            payload = self._digest.verify(entry, self._ledger.ledger_id, entry_id)
        except DigestMismatch as error:
            self._observer.damaged(bookie, entry_id, error)
            raise
        header = read_header(entry)
        self._came_along = bookie, LedgerEntry(self._ledger.ledger_id, entry_id, header.length, payload, header.lac)
