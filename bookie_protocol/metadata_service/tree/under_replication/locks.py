"""Locks of ledgers, and the search for a marked ledger that can be locked.

Invariants
- The search walks the tree from a random place in each directory and turns back where everything is locked or gone,
  so that no mark starves and workers do not follow each other.
- Directories are listed once and kept; at most `MAX_DIRECTORIES` are. One that changed serves a little longer: each
  mark that goes changes a directory, which may hold tens of thousands. What is found through it is looked at again
  before it is locked; a search that has used one such ends with nothing only after another that has not.
- A search that found nothing names an event for the first change of what it saw.
- A worker that failed to repair a ledger gives its lock up and notes the failure in the mark (`Marks.note_failure`). A
  search passes over a ledger for as long as `Rest` says of its mark, counted from when this process first saw the mark
  so: no clocks are compared, and no other process is kept from the ledger. Java's workers do not read such notes.
- What a mark says is remembered while the ledger rests, so that each search does not read all marks that rest.
- A lock whose caller never got it, because the call was cancelled or its answer was lost, is removed in the background,
  and so is one that could not be given back: its session would keep all others from the ledger. This is the one place
  where giving back is repeated.
- A lock of our own session that this process does not hold is stale: it is removed, and the ledger locked again.
- A lock is given back once: one that the same session took since is another one.
- A lock during whose making the session changed is not held: it may have gone with the old one.

Threads: event loop only.

Sources: docs/internals/metadata-layout.md, sections 10.3 and 10.4.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final

from bookie_protocol.errors import MetadataDamaged, MetadataExists, MetadataNotFound
from bookie_protocol.metadata_service.interface import SessionState
from bookie_protocol.metadata_service.tree.nodes import Node, NodeStat, check_session
from bookie_protocol.metadata_service.tree.under_replication import formats
from bookie_protocol.metadata_service.tree.under_replication.base import UnderReplicationBase
from bookie_protocol.metadata_service.under_replication import LedgerLock, LockHolder, Rest
from bookie_protocol.together import read_ahead
from bookie_protocol.versioned import Identity

MAX_DIRECTORIES: Final = 100_000
STALE_SECONDS: Final = 5.0
MOST_MISSES: Final = 16
"""Number of gone or locked names after which a changed directory listing is read again."""
_READ_AHEAD: Final = 64
MAX_RESTING: Final = 50_000
"""Ledgers that are remembered as resting. Further ones are tried again, which is better than never."""
RELEASE_SECONDS: Final = 2.0
"""Seconds that `release` waits for the service, before it continues in the background."""


class Locks:
    """Takes and gives back locks, and finds work. `host` is written into locks: whom to ask, for people."""

    def __init__(self, base: UnderReplicationBase, random: Random | None = None) -> None:
        self._base = base
        self._tree = base.tree
        self._random = random or Random()
        self._directories: dict[str, _Directory] = {}
        self._changed = asyncio.Event()
        self._held: dict[int, LedgerLock] = {}
        self._being_made: set[int] = set()
        self._being_removed: set[int] = set()  # locks that are no longer held, as long as they may still exist
        self._resting = Resting()
        self._stale_uses = 0
        """Number of decisions that were made by a listing that had changed since."""
        self._owner = formats.encode_lock(socket.gethostname())

    # --- one ledger -------------------------------------------------------------------------------------------

    async def lock(self, ledger_id: int, timeout: float | None) -> LedgerLock:
        self._refuse_own(ledger_id)
        await self._base.prepare(timeout)
        stat = await self._tree.exists(self._base.mark(ledger_id), timeout=timeout)
        return await self._lock(ledger_id, stat, timeout)

    def holds(self, lock: LedgerLock) -> bool:
        """Return True if it was not given back yet; its session may have ended."""
        return self._held.get(lock.ledger_id) is lock

    def is_held(self, lock: LedgerLock) -> bool:
        """Return True if it was not given back yet, and its session has not ended as far as this process knows."""
        ended = self._tree.session.state in (SessionState.EXPIRED, SessionState.CLOSED)
        return self.holds(lock) and lock.session_id == self._tree.session_id and not ended

    @property
    def not_released(self) -> int:
        """Return the number of locks that are no longer held and that the metadata service has not removed yet."""
        return len(self._being_removed)

    async def release(self, lock: LedgerLock, timeout: float | None) -> None:
        if not self.holds(lock):
            return
        del self._held[lock.ledger_id]
        removing = self._abandon(lock.ledger_id, lock.session_id, times=1)
        await asyncio.wait({removing}, timeout=RELEASE_SECONDS if timeout is None else timeout)

    @property
    def many_rest(self) -> bool:
        return self._resting.are_many

    def rest(self, ledger_id: int, seconds: float) -> None:
        self._resting.put(ledger_id, seconds, None)

    async def locked_by(self, ledger_id: int) -> str | None:
        path = self._base.lock(ledger_id)
        try:
            return formats.decode_lock((await self._tree.get(path)).data, path)
        except MetadataNotFound:
            await self._base.cluster.require()
            return None

    async def all(self) -> Mapping[int, LockHolder]:
        async def read(ledger_id: int) -> tuple[int, LockHolder | None]:
            path = self._base.lock(ledger_id)
            try:
                node = await self._tree.get(path)
            except MetadataNotFound:
                return ledger_id, None
            host = formats.decode_lock(node.data, path)
            return ledger_id, LockHolder(host, node.stat.owner, node.stat.creation)

        await self._tree.sync(self._base.path)
        try:
            listed = (await self._tree.children(self._base.locks)).names
        except MetadataNotFound:
            await self._base.cluster.require()
            return {}
        ids = sorted(found for found in map(formats.lock_ledger_id, listed) if found is not None)
        return {i: holder async for i, holder in read_ahead(_each(ids), read, _READ_AHEAD) if holder is not None}

    async def _lock(self, ledger_id: int, mark: NodeStat | None, timeout: float | None = None) -> LedgerLock:
        path = self._base.lock(ledger_id)
        self._refuse_own(ledger_id)
        self._being_made.add(ledger_id)
        session_id = self._tree.session_id
        try:
            await self._create_or_replace(path, timeout)
            check_session(path, session_id, self._tree.session_id)
        except MetadataExists:
            raise MetadataExists(f"ledger {ledger_id} is locked by another worker") from None
        except BaseException:
            self._abandon(ledger_id, self._tree.session_id, times=2)
            raise
        finally:
            self._being_made.discard(ledger_id)
        this = None if mark is None else mark.identity(session_id)
        lock = self._held[ledger_id] = LedgerLock(ledger_id, this, session_id)
        return lock

    def _refuse_own(self, ledger_id: int) -> None:
        held = self._held.get(ledger_id)
        is_unsettled = ledger_id in self._being_made or ledger_id in self._being_removed
        if is_unsettled or (held is not None and held.session_id == self._tree.session_id):
            raise MetadataExists(f"ledger {ledger_id} is locked by this very process")

    async def _create_or_replace(self, path: str, timeout: float | None) -> None:
        try:
            await self._create(path, timeout)
        except MetadataExists:
            if not await self._tree.delete_own(path, self._tree.session_id, timeout=timeout):
                raise
            await self._create(path, timeout)

    def _abandon(self, ledger_id: int, session_id: int, *, times: int) -> asyncio.Task[None]:
        """Remove a lock, however long that takes. Until it is known to be gone this process does not take it again."""
        self._being_removed.add(ledger_id)
        path = self._base.lock(ledger_id)
        removing = self._tree.settle(lambda: self._tree.delete_own(path, session_id), times=times)
        removing.add_done_callback(lambda _: self._being_removed.discard(ledger_id))
        return removing

    async def _create(self, path: str, timeout: float | None) -> None:
        try:
            await self._tree.create(path, self._owner, ephemeral=True, timeout=timeout)
        except MetadataNotFound:  # formatted under our hands
            await self._base.prepare(timeout, again=True)
            await self._tree.create(path, self._owner, ephemeral=True, timeout=timeout)

    # --- any ledger -------------------------------------------------------------------------------------------

    async def find(self, rest: Rest) -> tuple[LedgerLock | None, asyncio.Event]:
        """Lock a marked ledger; None: there is none that is not locked, or rests.

        The event is set as soon as anything that this search saw changes; `next_end` tells when a rest is over.
        """
        await self._base.prepare()
        while True:
            changed, in_doubt = self._changed, self._stale_uses
            lock = await self._walk("", 0, rest)
            stale = [path for path, known in self._directories.items() if known.is_stale]
            if lock is not None or not (stale or self._stale_uses > in_doubt):
                return lock, changed
            for path in stale:
                del self._directories[path]

    def next_end(self) -> float | None:
        """Seconds until the first ledger that rests may be taken; None: none rests."""
        return self._resting.next_end()

    def forget_directories(self) -> None:
        """The next search asks the service for all that it sees."""
        self._directories.clear()

    async def _walk(self, directory: str, level: int, rest: Rest) -> LedgerLock | None:
        if level == formats.LEVELS:
            ledger_id = formats.directory_ledger_id(directory)
            return None if ledger_id is None else await self._try_lock(ledger_id, rest)
        listed = await self._list(self._base.ledgers + directory)
        count = len(listed.groups)
        start = self._random.randrange(count) if count else 0
        for place in range(start, start + count):
            lock = await self._walk(f"{directory}/{listed.groups[place % count]}", level + 1, rest)
            if lock is not None:
                return lock
            listed.misses += 1
        return None

    async def _try_lock(self, ledger_id: int, rest: Rest) -> LedgerLock | None:
        locks = await self._list(self._base.locks)
        if formats.leaf_name(ledger_id) in locks.names or self._resting.is_over(ledger_id) is False:
            return None
        node = await self._mark_of(ledger_id)
        if node is None or self._rests(ledger_id, node, rest):
            return None
        try:
            return await self._lock(ledger_id, node.stat)
        except MetadataExists:
            locks.misses += 1
            return None

    async def _mark_of(self, ledger_id: int) -> Node | None:
        path = self._base.mark(ledger_id)
        try:
            return await self._tree.get(path)
        except MetadataNotFound:  # on its way in or out: the watch wakes us if it comes
            if await self._tree.exists(path, watch=self.look_again) is not None:
                self.look_again()
            return None

    def _rests(self, ledger_id: int, node: Node, rest: Rest) -> bool:
        """Return True if the ledger rests from now on. A rest that has passed counts once."""
        this = node.stat.identity(self._tree.session_id)
        if self._resting.has_rested(ledger_id, this):
            return False
        try:
            seconds = rest(formats.decode_mark(ledger_id, node.data, self._base.mark(ledger_id)))
        except MetadataDamaged:
            return False  # the worker that takes it reports that
        return seconds > 0 and self._resting.put(ledger_id, seconds, this)

    async def _list(self, path: str) -> _Directory:
        now = asyncio.get_running_loop().time()
        known = self._directories.get(path)
        if known is not None and known.may_serve(now):
            self._stale_uses += known.is_stale
            return known
        found = _Directory(now)

        def changed() -> None:
            found.is_stale = True
            self.look_again()

        try:
            children = await self._tree.children(path, watch=changed)
        except MetadataNotFound:
            if path not in (self._base.ledgers, self._base.locks):
                self._directories.pop(path, None)
                return found  # gone since its parent was listed, whose watch tells
            await self._base.prepare(again=True)  # formatted under our hands
            children = await self._tree.children(path, watch=changed)
        found.names = frozenset(children.names)
        if path != self._base.locks:
            found.groups = sorted(filter(formats.is_group, children.names))
        if path not in self._directories and len(self._directories) >= MAX_DIRECTORIES:
            self._directories.pop(next(iter(self._directories)))
        self._directories[path] = found
        return found

    def look_again(self) -> None:
        """Wake everybody who waits on the present event, and begin a new one."""
        self._changed.set()
        self._changed = asyncio.Event()


class Resting:
    """Ledgers that are passed over, and until when; those whose time is over, until there are too many."""

    def __init__(self, most: int = MAX_RESTING) -> None:
        self._most = most
        self._ends: dict[int, tuple[float, Identity | None]] = {}

    @property
    def are_many(self) -> bool:
        """Return True if no further ledger can rest."""
        return len(self._ends) >= self._most

    def put(self, ledger_id: int, seconds: float, mark: Identity | None) -> bool:
        """Let a ledger rest. Return False if there is no room. `mark`: the state of the mark for which it rests;
        None: unknown."""
        now = asyncio.get_running_loop().time()
        if self.are_many and ledger_id not in self._ends:
            first = min(self._ends, key=lambda each: self._ends[each][0])
            if self._ends[first][0] > now:
                return False
            del self._ends[first]
        self._ends[ledger_id] = now + seconds, mark
        return True

    def is_over(self, ledger_id: int) -> bool | None:
        """Return True if its rest is over; None: it does not rest."""
        end = self._ends.get(ledger_id)
        return None if end is None else end[0] <= asyncio.get_running_loop().time()

    def has_rested(self, ledger_id: int, mark: Identity) -> bool:
        """Return True if it rested for this very mark, and its time is over."""
        end = self._ends.get(ledger_id)
        return end is not None and end[1] == mark and end[0] <= asyncio.get_running_loop().time()

    def next_end(self) -> float | None:
        """Seconds until the next time is over; None: none runs."""
        now = asyncio.get_running_loop().time()
        return min((end - now for end, _ in self._ends.values() if end > now), default=None)


@dataclass(slots=True)
class _Directory:
    """The listing of a directory, and whether it has changed since. `groups`: those of marks, in order."""

    listed_at: float
    names: frozenset[str] = frozenset()
    groups: list[str] = field(default_factory=list)
    is_stale: bool = False
    misses: int = 0

    def may_serve(self, now: float) -> bool:
        return not self.is_stale or (self.misses < MOST_MISSES and now - self.listed_at < STALE_SECONDS)


async def _each(items: Iterable[int]) -> AsyncGenerator[int, None]:
    for item in items:
        yield item
