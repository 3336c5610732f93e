"""Locks of ledgers, and the search for a marked ledger that can be locked.

Invariants
- The search walks the tree from a random place in each directory and turns back where everything is locked or gone,
  so that no mark starves and workers do not follow each other.
- Directories are listed once and kept; at most `MAX_DIRECTORIES` are. One that changed serves a little longer: each
  mark that goes changes a directory, which may hold tens of thousands. What is found through it is looked at again
  before it is locked; a search that has used one such ends with nothing only after another that has not.
- A search that found nothing names an event for the first change of what it saw.
- Whoever failed to repair a ledger gives its lock up, and leaves a note instead that ends with its session as a lock
  does: searches pass over the ledger, and nobody else is kept from it. Java's workers know nothing of such notes.
- A note is removed whichever session of ours made it: one may have ended under the request for it.
- A lock of which nobody was told, because the call was cancelled or its answer was lost, is removed in the background,
  and so is one that could not be given back: its session would keep it from everybody.
- A lock of our own session that nobody here holds is nobody's: it is removed, and the ledger locked anew.
- A lock is given back once: one that the same session took since is another one.
- A lock during whose making the session changed is nobody's: it may have gone with the old one.

Threads: event loop only.

Sources: reference metadata layout, sections 10.3 and 10.4.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Final

from bookie_protocol.errors import MetadataError, MetadataExists, MetadataNotFound
from bookie_protocol.metadata_service.tree.nodes import NodeStat, check_session
from bookie_protocol.metadata_service.tree.under_replication import formats
from bookie_protocol.metadata_service.tree.under_replication.base import UnderReplicationBase
from bookie_protocol.metadata_service.under_replication import LedgerLock, LockHolder
from bookie_protocol.together import read_ahead

MAX_DIRECTORIES: Final = 100_000
STALE_SECONDS: Final = 5.0
MOST_MISSES: Final = 16
"""For so long, and until so much of it turned out to be gone or locked, a directory serves that has changed since."""
_READ_AHEAD: Final = 64


class Locks:
    """Takes and gives back locks, and finds work. `host` is written into locks: whom to ask, for people."""

    def __init__(self, base: UnderReplicationBase, random: Random | None = None) -> None:
        self._base = base
        self._tree = base.tree
        self._random = random or Random()
        self._directories: dict[str, _Directory] = {}
        self._changed = asyncio.Event()
        self._held: dict[int, LedgerLock] = {}
        self._unsettled: set[int] = set()  # ledgers whose locks are being made, or deleted in the background
        self._left_alone: set[int] = set()
        self._stale_uses = 0
        """How often something was passed over, or not, by a listing that had changed since."""
        self._owner = formats.encode_lock(socket.gethostname())

    # --- one ledger -------------------------------------------------------------------------------------------

    async def lock(self, ledger_id: int, timeout: float | None) -> LedgerLock:
        self._refuse_own(ledger_id)
        await self._base.prepare(timeout)
        stat = await self._tree.exists(self._base.mark(ledger_id), timeout=timeout)
        return await self._lock(ledger_id, stat, timeout)

    def holds(self, lock: LedgerLock) -> bool:
        """Whether it was not given back yet; its session may have ended."""
        return self._held.get(lock.ledger_id) is lock

    async def release(self, lock: LedgerLock, timeout: float | None) -> None:
        if not self.holds(lock):
            return
        del self._held[lock.ledger_id]
        self._unsettled.add(lock.ledger_id)  # nobody here takes it while it is being deleted
        try:
            await self._tree.delete_own(self._base.lock(lock.ledger_id), lock.session_id, timeout=timeout)
        except BaseException:
            self._abandon(lock.ledger_id, lock.session_id, times=1)
            raise
        self._unsettled.discard(lock.ledger_id)

    @asynccontextmanager
    async def leaving_alone(self, ledger_id: int) -> AsyncGenerator[None, None]:
        self._left_alone.add(ledger_id)
        times = 2  # it may come to be behind its first deletion
        try:
            with suppress(MetadataError):  # then others try the ledger in vain
                await self._create(self._base.note(ledger_id), None)
                times = 1
            yield
        finally:
            self._left_alone.discard(ledger_id)
            self._tree.settle(lambda: self._remove_note(ledger_id), times=times)
            self.look_again()

    async def _remove_note(self, ledger_id: int) -> None:
        if ledger_id not in self._left_alone:  # again
            await self._tree.delete_own(self._base.note(ledger_id), self._tree.session_id)

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
            return ledger_id, LockHolder(host, node.stat.owner, node.stat.ctime_ms)

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
        self._unsettled.add(ledger_id)
        session_id = self._tree.session_id
        try:
            await self._create_or_replace(path, timeout)
            check_session(path, session_id, self._tree.session_id)
        except MetadataExists:
            self._unsettled.discard(ledger_id)
            raise MetadataExists(f"ledger {ledger_id} is locked by another worker") from None
        except BaseException:
            self._abandon(ledger_id, self._tree.session_id, times=2)
            raise
        self._unsettled.discard(ledger_id)
        version, created_ms = (None, None) if mark is None else (mark.version, mark.ctime_ms)
        lock = self._held[ledger_id] = LedgerLock(ledger_id, version, session_id, created_ms)
        return lock

    def _refuse_own(self, ledger_id: int) -> None:
        held = self._held.get(ledger_id)
        if ledger_id in self._unsettled or (held is not None and held.session_id == self._tree.session_id):
            raise MetadataExists(f"ledger {ledger_id} is locked by this very process")

    async def _create_or_replace(self, path: str, timeout: float | None) -> None:
        try:
            await self._create(path, timeout)
        except MetadataExists:
            if not await self._tree.delete_own(path, self._tree.session_id, timeout=timeout):
                raise
            await self._create(path, timeout)

    def _abandon(self, ledger_id: int, session_id: int, *, times: int) -> None:
        """Nobody can tell whether this lock is there. Until that is settled nobody of this process takes it."""
        self._unsettled.add(ledger_id)
        path = self._base.lock(ledger_id)
        undoing = self._tree.settle(lambda: self._tree.delete_own(path, session_id), times=times)
        undoing.add_done_callback(lambda _: self._unsettled.discard(ledger_id))

    async def _create(self, path: str, timeout: float | None) -> None:
        try:
            await self._tree.create(path, self._owner, ephemeral=True, timeout=timeout)
        except MetadataNotFound:  # formatted under our hands
            await self._base.prepare(timeout, again=True)
            await self._tree.create(path, self._owner, ephemeral=True, timeout=timeout)

    # --- any ledger -------------------------------------------------------------------------------------------

    async def find(self) -> tuple[LedgerLock | None, asyncio.Event]:
        """Lock a marked ledger; None: there is none that is not locked, or left alone.

        The event is set as soon as anything that this search saw changes.
        """
        await self._base.prepare()
        while True:
            changed, in_doubt = self._changed, self._stale_uses
            lock = await self._walk("", 0)
            stale = [path for path, known in self._directories.items() if known.is_stale]
            if lock is not None or not (stale or self._stale_uses > in_doubt):
                return lock, changed
            for path in stale:
                del self._directories[path]

    def forget_directories(self) -> None:
        """The next search asks the service for all that it sees."""
        self._directories.clear()

    async def _walk(self, directory: str, level: int) -> LedgerLock | None:
        if level == formats.LEVELS:
            ledger_id = formats.directory_ledger_id(directory)
            return None if ledger_id is None else await self._try_lock(ledger_id)
        listed = await self._list(self._base.ledgers + directory)
        count = len(listed.groups)
        start = self._random.randrange(count) if count else 0
        for place in range(start, start + count):
            lock = await self._walk(f"{directory}/{listed.groups[place % count]}", level + 1)
            if lock is not None:
                return lock
            listed.misses += 1
        return None

    async def _try_lock(self, ledger_id: int) -> LedgerLock | None:
        locks, notes = await self._list(self._base.locks), await self._list(self._base.left_alone)
        name = formats.leaf_name(ledger_id)
        if ledger_id in self._left_alone or name in locks.names or name in notes.names:
            return None
        path = self._base.mark(ledger_id)
        stat = await self._tree.exists(path)
        if stat is None:  # on its way in or out: the watch wakes us if it comes
            stat = await self._tree.exists(path, watch=self.look_again)
        if stat is None:
            return None
        if await self._tree.exists(self._base.note(ledger_id)) is not None or ledger_id in self._left_alone:
            notes.misses += 1  # since it was listed
            return None
        try:
            return await self._lock(ledger_id, stat)
        except MetadataExists:
            locks.misses += 1
            return None

    async def _list(self, path: str) -> _Directory:
        now = asyncio.get_running_loop().time()
        known = self._directories.get(path)
        if known is not None and known.may_serve(now):
            self._stale_uses += known.is_stale
            return known
        found, apart = _Directory(now), (self._base.locks, self._base.left_alone)

        def changed() -> None:
            found.is_stale = True
            self.look_again()

        try:
            children = await self._tree.children(path, watch=changed)
        except MetadataNotFound:
            if path not in (self._base.ledgers, *apart):
                self._directories.pop(path, None)
                return found  # gone since its parent was listed, whose watch tells
            await self._base.prepare(again=True)  # formatted under our hands
            children = await self._tree.children(path, watch=changed)
        found.names = frozenset(children.names)
        if path not in apart:
            found.groups = sorted(filter(formats.is_group, children.names))
        if path not in self._directories and len(self._directories) >= MAX_DIRECTORIES:
            self._directories.pop(next(iter(self._directories)))
        self._directories[path] = found
        return found

    def look_again(self) -> None:
        """Wake everybody who waits on the present event, and begin a new one."""
        self._changed.set()
        self._changed = asyncio.Event()


@dataclass(slots=True)
class _Directory:
    """What was listed of a directory, and whether that has changed since. `groups`: those of marks, in order."""

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
