"""The reader's handle: of a closed ledger, or of one that is still written.

Invariants
- A closed ledger is immutable: no bookie is asked for its end, and reading never changes anything.
- A reader of an open ledger never fences: the writer notices nothing. It reads up to the last add confirmed that
  it knows, which never goes back.
- Entries that could not be read are looked for once more where the metadata say now: a writer may have begun a
  new segment, or a copy may have moved, since this handle learnt of it last.

Event loop only.

Sources: docs/internals/client-protocol.md, sections 11, 12 and 13; docs/internals/client-protocol.md, section 12.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Final, TypeVar

from bookie_client.context import ClientContext
from bookie_client.reading.entry import LedgerEntry, payloads_of
from bookie_client.reading.entry_read import may_pass
from bookie_client.reading.followed import FollowedLedger, LacFollower
from bookie_client.reading.lac import read_last_confirmed, try_read_last_confirmed
from bookie_client.reading.reader import EntryReader, batches_with_refresh, one_by_one, read_with_refresh, whole
from bookie_protocol.digest import DigestManager
from bookie_protocol.errors import BadRequest, NoSuchLedger, PodkeeperError, fresh
from bookie_protocol.lasting import Ending
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.interface import Versioned

ReadBatches = Callable[[int, int], AsyncGenerator[Sequence[LedgerEntry], None]]
"""Reads confirmed entries, from the first id to the last."""

FIRST_PAUSE: Final = 0.05
MAX_PAUSE: Final = 1.0
"""Seconds between two attempts."""
T = TypeVar("T")


async def tail(
    ledger: FollowedLedger, follower: LacFollower, read: ReadBatches, start: int, patience: float
) -> AsyncIterator[LedgerEntry]:
    """Tailing: the entries of a ledger as they become confirmed, until it is closed and read to its end.

    Invariants
    - Entries come in order, without gaps, each once, and never above the LAC.
    - The iteration ends behind the last entry of the closed ledger; it never takes silence for the end.
    - A moment in which no bookie can be reached does not end it: a confirmed entry is asked for again, after pauses
      that double up to `MAX_PAUSE`, for as long as the client's options say. That holds also while some of its copies
      are damaged and the others cannot be reached. An error that waiting does not mend (damage everywhere, a wrong
      password, no such entry) is raised at once.
    - Nothing is under way after it ended, was cancelled, or was closed (`aclose`).

    Raises what reading an entry raises, `NoSuchLedger` when the ledger was deleted while it was open, and
    `LedgerClosed` when its handle was closed. `patience`: seconds for which an entry that no bookie serves at present
    is tried.
    """
    entry_id = start
    retry = _Retry(ledger, patience)
    async with follower.attached():
        while True:
            came_along = await follower.reach(entry_id) if ledger.lac < entry_id else None
            if ledger.lac < entry_id:
                return
            if came_along is not None:
                entry_id += 1
                yield came_along
                continue
            try:
                async with aclosing(read(entry_id, ledger.lac)) as batches:
                    async for batch in batches:
                        for entry in batch:
                            entry_id = entry.entry_id + 1
                            yield entry
            except PodkeeperError as error:
                if not may_pass(error):
                    raise
                await retry.pause(entry_id, error)


class _Retry:
    """Pauses between attempts to read one entry, and their end."""

    def __init__(self, ledger: FollowedLedger, patience: float) -> None:
        self._ledger = ledger
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._entry_id = -1
        self._pause = self._until = 0.0

    async def pause(self, entry_id: int, error: PodkeeperError) -> None:
        """Wait until this entry may be tried again. Raises `error` when it was tried for long enough, or what
        ended the handle meanwhile."""
        now = self._loop.time()
        if entry_id != self._entry_id:
            self._entry_id, self._pause, self._until = entry_id, 0.0, now + self._patience
        if now >= self._until or self._ledger.is_deleted:
            raise fresh(error)
        self._pause = min(max(2 * self._pause, FIRST_PAUSE), MAX_PAUSE)
        again = min(now + self._pause, self._until)
        while self._ledger.failure is None and (left := again - self._loop.time()) > 0:
            await asyncio.wait({self._ledger.next_change}, timeout=left)
        if self._ledger.failure is not None:
            raise fresh(self._ledger.failure)


class LedgerReader:
    """Reads one ledger. Made by `Client.open`; also an async context manager."""

    def __init__(self, context: ClientContext, stored: Versioned[LedgerMetadata], digest: DigestManager) -> None:
        self.ledger_id = stored.value.ledger_id
        self._ending = Ending(f"close reader of {stored.value.ledger_id}")
        self._context = context
        self._digest = digest
        self._ledger = FollowedLedger(context, stored)
        self._reader = EntryReader(context, lambda: self._ledger.metadata, digest, on_lac=self._ledger.heard)
        self._follower = LacFollower(context, self._ledger, digest, self._reader.observer)

    # --- what can be asked ----------------------------------------------------------------------------------

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata as this reader knows it; of an open ledger it follows the metadata service."""
        return self._ledger.metadata

    @property
    def is_closed(self) -> bool:
        """Return True if the ledger is closed, so that its end is final."""
        return self._ledger.is_closed

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that may be read, as far as this reader knows; -1 if none. Of a closed ledger its last
        entry."""
        return self._ledger.lac

    @property
    def length(self) -> int:
        """Return the payload bytes of all entries of a closed ledger; 0 while it is open, when only its writer knows
        them."""
        return self._ledger.metadata.length

    @property
    def served_by(self) -> Mapping[str, int]:
        """Return the number of entries that each bookie served through this handle."""
        return dict(self._reader.served_by)

    @property
    def damaged_at(self) -> Mapping[str, int]:
        """Return the number of replicas with a wrong digest that each bookie returned."""
        return dict(self._reader.damaged_at)

    # --- the last add confirmed -----------------------------------------------------------------------------

    async def read_last_add_confirmed(self) -> int:
        """Ask the bookies how far the ledger is confirmed; returns what is known then.

        Waits for as many bookies as it takes to have one of every possible ack quorum. The newest entry is confirmed to
        readers by the one behind it, by its writer's explicit LAC, or by closing. For a closed ledger no bookie is
        asked.

            reader = await client.open(ledger_id, password=b"secret")
            await reader.read_last_add_confirmed()
            entries = await reader.read(0, reader.last_add_confirmed)

        Raises `BookieUnavailable` or another `CouldNotTell` when too few bookies answered, `Unauthorized`."""
        if not self.is_closed:
            try:
                lac = await read_last_confirmed(self._context, self.metadata, self._digest)
            except PodkeeperError:
                # Perhaps those bookies were replaced, or the ledger is closed by now.
                if not await self._ledger.refresh():
                    self._check_exists()
                    raise
                return await self.read_last_add_confirmed()
            self._ledger.heard(lac)
        return self.last_add_confirmed

    async def try_read_last_add_confirmed(self) -> int:
        """Read the last add confirmed, and return at the first answer that is newer than the known one.

        It is cheap to poll with, but "no news" means less than from `read_last_add_confirmed`. Raises
        `BookieUnavailable` or another `CouldNotTell` if no bookie answered, and `Unauthorized` if a bookie says so
        before another had news: an answer with news hides it, and the next call raises."""
        if not self.is_closed:
            known = self.last_add_confirmed
            self._ledger.heard(await try_read_last_confirmed(self._context, self.metadata, self._digest, known))
        return self.last_add_confirmed

    # --- reading --------------------------------------------------------------------------------------------

    async def read(self, first: int, last: int) -> list[LedgerEntry]:
        """Entries `first` to `last`, both included; one bad entry fails the whole range. Raises as `entries`."""
        return await self._read(first, last, whole, bound=self.last_add_confirmed)

    async def read_payloads(self, first: int, last: int) -> list[bytes | memoryview]:
        """Return the payloads of the entries: usually views of the answers, without an object for each entry. Each
        view keeps its whole answer; `bytes(payload)` does not. Raises as `entries`.

            for payload in await reader.read_payloads(0, reader.last_add_confirmed):
                file.write(payload)
        """
        return await self._read(first, last, payloads_of, bound=self.last_add_confirmed)

    def entries(self, first: int = 0, last: int | None = None) -> AsyncIterator[LedgerEntry]:
        """Iterate over entries in order, by default up to the last one confirmed, with reads pipelined in a
        bounded window.

        Raises `BadRequest` for a range outside the ledger. Iterating raises when no replica can serve an
        entry: `NoSuchEntry` (or `NoSuchLedger`, when they have nothing of the ledger at all) only when all of them
        say so, else what went wrong.
        """
        return one_by_one(self.batches(first, last))

    def batches(self, first: int = 0, last: int | None = None) -> AsyncGenerator[Sequence[LedgerEntry], None]:
        """The same entries, some at a time, which costs less per entry. A batch that is kept keeps the answer that it
        came in; `list(batch)` does not. `payloads_of(batch)` makes no objects of entries. Raises as `entries`."""
        end = self.last_add_confirmed if last is None else last
        return self._batches(first, end, bound=self.last_add_confirmed)

    def read_ahead(self, nbytes: int) -> None:
        """Ranges that are read from now on have at most so many bytes under way or waiting to be consumed, if the
        client's options (`read_window_bytes`) do not say fewer."""
        self._reader.read_ahead(nbytes)

    async def read_unconfirmed(self, first: int, last: int) -> list[LedgerEntry]:
        """Return the entries `first` to `last` of an open ledger, whether they are confirmed or not.

        An entry above the last add confirmed may never become part of the ledger: its add was not acknowledged to the
        writer, and a recovery may end the ledger before it. For a closed ledger this is the same as `read`. Raises
        `NoSuchEntry` if all replicas of an entry deny it, else as `entries`.

            newest = await reader.read_unconfirmed(reader.last_add_confirmed + 1, reader.last_add_confirmed + 1)
        """
        found = await self._read(first, last, whole, bound=self.last_add_confirmed if self.is_closed else last)
        if self.is_closed and last > self.last_add_confirmed:  # that came to be known meanwhile
            return await self._read(first, last, whole, bound=self.last_add_confirmed)
        return found

    def tail(self, start: int = 0) -> AsyncIterator[LedgerEntry]:
        """Iterate over entries from `start` on as they become confirmed; ends when the ledger is closed and read
        to its end.

            async with client.open(ledger_id, password=b"secret") as reader:
                async for entry in reader.tail():
                    print(entry.entry_id, entry.payload)

        The newest entry comes when the next one is written, when its writer tells bookies
        (`explicit_lac_interval`), or when the ledger is closed. Bookies that fail are passed over; new segments
        are followed. While all bookies of an entry are unreachable the iteration waits for them, up to
        `tail_patience`. Of a ledger that is closed already all entries come at once.

        Raises `BadRequest` (`start` is negative). Iterating raises what reading an entry raises, `NoSuchLedger`
        when the ledger was deleted while it was open, and `LedgerClosed` when this handle was closed. To go on
        behind such an error, tail again from the next entry.
        """
        if start < 0:
            raise BadRequest(f"ledger {self.ledger_id}: {start} is not an entry id")
        patience = self._context.options.tail_patience
        return tail(self._ledger, self._follower, self._confirmed_batches, start, patience)

    # --- the handle -----------------------------------------------------------------------------------------

    def heard(self, last_add_confirmed: int) -> None:
        """Take from the caller that entries up to this one are confirmed; a closed ledger keeps its end."""
        self._ledger.heard(last_add_confirmed)

    async def follow(self) -> None:
        """Learn the last add confirmed, and go on learning what happens to the ledger. Called once, by
        `Client.open`, for a ledger that is not closed; raises as `read_last_add_confirmed`."""
        self._context.open_handles.add(self.close)
        self._ledger.follow()
        try:
            await self.read_last_add_confirmed()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Stop following the ledger; tails end with `LedgerClosed`. Calling it again is fine, and cancelling a call
        does not stop it. Connections belong to the client."""
        await self._ending.reach(self._close)

    async def _close(self) -> None:
        self._context.open_handles.discard(self.close)
        await self._ledger.close()
        await self._follower.close()

    async def __aenter__(self) -> LedgerReader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- inside ---------------------------------------------------------------------------------------------

    def _check_exists(self) -> None:
        if self._ledger.is_deleted:
            raise NoSuchLedger(f"ledger {self.ledger_id} does not exist any more")

    def _confirmed_batches(self, first: int, last: int) -> AsyncGenerator[Sequence[LedgerEntry], None]:
        return self._batches(first, last, bound=last)

    def _batches(self, first: int, last: int, *, bound: int) -> AsyncGenerator[Sequence[LedgerEntry], None]:
        return batches_with_refresh(self._reader, first, last, bound=bound, refresh=self._ledger.refresh)

    def _read(
        self, first: int, last: int, part: Callable[[Sequence[LedgerEntry]], Iterable[T]], *, bound: int
    ) -> Coroutine[Any, Any, list[T]]:
        return read_with_refresh(self._reader, first, last, part, bound=bound, refresh=self._ledger.refresh)
