"""Ledger metadata as nodes, one for each ledger; and watches of them, which the readers of a ledger share.

However many readers there are, one watch and one read are needed for each change.

Invariants
- A create whose answer was lost is distinguished from another client's by the creation token (format 3 only).
- An update always names the version that it replaces.
- After a delete, empty parent directories go too (hierarchical layouts, and `NodeTree.removes_directories`); creating
  makes missing ones again.
- A watcher gets what is stored when it comes, then every newer version (several changes may show as one), and the end
  once the ledger does not exist.
- What is kept of a ledger without watchers is valid only while its watch has not fired; then a returning watcher causes
  no request. At most `MAX_IDLE` such ledgers are kept.
- A watch cannot be removed from the metadata service, and that of a closed ledger may never fire. So a change is read
  without one first: watchers that waited for the end leave with it, and no watch stays.

Threads: event loop only.

Source: docs/internals/metadata-layout.md, sections 6 and 9.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from bookie_protocol.aside import Decoding
from bookie_protocol.errors import (
    BadRequest,
    LedgerIdsExhausted,
    MetadataDamaged,
    MetadataError,
    MetadataExists,
    MetadataNotFound,
    MetadataReplaced,
    MetadataUnavailable,
    MetadataVersionConflict,
)
from bookie_protocol.lasting import heard
from bookie_protocol.ledger_metadata.codec import decode_ledger_metadata, decoding_cost, encode_ledger_metadata
from bookie_protocol.ledger_metadata.model import CURRENT_FORMAT_VERSION, MAX_LEDGER_ID, LedgerMetadata
from bookie_protocol.metadata_service.interface import LedgerLayout, LedgerRange
from bookie_protocol.metadata_service.subscription import Subscription
from bookie_protocol.metadata_service.tree import paths
from bookie_protocol.metadata_service.tree.cluster import TreeCluster
from bookie_protocol.metadata_service.tree.listing import LedgerListing
from bookie_protocol.metadata_service.tree.nodes import NO_SESSION, Node, Watch, parent_of
from bookie_protocol.metadata_service.tree.retrying import RetryingTree
from bookie_protocol.metadata_service.tree.watching import RETRY_SECONDS
from bookie_protocol.versioned import Identity, Versioned, may_be_one_life

MAX_IDLE: Final = 10_000
LEAVING_SECONDS: Final = 1.0
"""Seconds that watchers which saw a ledger closed may take to leave."""
_NOTHING: Final = -1

Found = Versioned[LedgerMetadata] | None
Read = Callable[[int, Watch | None], Awaitable[Found]]
"""Read a ledger, maybe with a watch; None: it does not exist."""
HIGH_ORDER: Final = "HOB-"
_KEPT_DIRECTORIES: Final = 3
LARGEST_HIGH_ORDER: Final = 2**31 - 1
_MOST_DIGITS: Final = 20
"""Digits of a name that are read: more of them are too large a number anyway."""
_MAX_DELETES: Final = 64
LONG_LAYOUTS: Final = (LedgerLayout.HIERARCHICAL, LedgerLayout.LONG_HIERARCHICAL)


class _Watched:
    """One ledger: its newest value, the state of the watch, the subscribers."""

    def __init__(self) -> None:
        self.newest: Found = None
        self.stale = asyncio.Event()
        self.stale.set()
        self.came = asyncio.Event()
        self.subscribers: dict[Callable[[Found], None], int] = {}
        """Subscribers with the version that each has seen: all of one life of the ledger."""
        self.task: asyncio.Task[None] | None = None

    def tell(self) -> None:
        """Publish the newest value to those who have not seen it."""
        version = _NOTHING if self.newest is None else self.newest.version
        for publish, seen in list(self.subscribers.items()):
            if self.newest is None or version > seen:
                self.subscribers[publish] = version
                publish(self.newest)


class LedgerWatches:
    """All watched ledgers of one service."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._watched: dict[int, _Watched] = {}
        self._idle: dict[int, _Watched] = {}

    def watch(self, ledger_id: int) -> Subscription[Found]:
        """See `LedgerStore.watch`."""

        async def feed(publish: Callable[[Found], None]) -> None:
            watched = self._join(ledger_id)
            watched.subscribers[publish] = _NOTHING
            watched.came.set()
            if not watched.stale.is_set():
                watched.tell()
            if watched.task is None:
                watched.task = asyncio.get_running_loop().create_task(self._follow(ledger_id, watched))
            try:
                await asyncio.wait([watched.task])
                watched.task.result()
            finally:
                del watched.subscribers[publish]
                await self._leave(ledger_id, watched)

        return Subscription(feed)

    def _join(self, ledger_id: int) -> _Watched:
        watched = self._watched.get(ledger_id)
        if watched is None:
            watched = self._idle.pop(ledger_id, None)
            if watched is None or watched.stale.is_set():
                watched = _Watched()
            self._watched[ledger_id] = watched
        return watched

    async def _leave(self, ledger_id: int, watched: _Watched) -> None:
        task = watched.task
        if watched.subscribers or task is None:
            return
        watched.task = None
        if self._watched.get(ledger_id) is watched:
            del self._watched[ledger_id]
        if not watched.stale.is_set() and not task.done():
            if len(self._idle) >= MAX_IDLE:
                self._idle.pop(next(iter(self._idle)))
            self._idle[ledger_id] = watched
        task.cancel()
        await asyncio.wait([task])
        heard(task)  # its error was passed to its subscribers

    async def _follow(self, ledger_id: int, watched: _Watched) -> None:
        """Follow the ledger until it does not exist, or its node cannot be decoded."""
        try:
            while True:
                await watched.stale.wait()
                fired = asyncio.Event()
                try:
                    if watched.newest is not None and not watched.newest.value.is_closed:
                        await self._see_what_changed(ledger_id, watched)
                    found = await self._read(ledger_id, fired.set)
                except MetadataUnavailable:
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                if _is_another(found, watched.newest):
                    found = None  # this ledger does not exist any more
                watched.stale, watched.newest = fired, found
                watched.tell()
                if found is None:
                    return
        finally:
            if self._watched.get(ledger_id) is watched and watched.task is asyncio.current_task():
                del self._watched[ledger_id]  # a later watcher starts again

    async def _see_what_changed(self, ledger_id: int, watched: _Watched) -> None:
        """Read what changed of a ledger that was open. Returns if a watch is wanted; the last watcher that leaves
        cancels this."""
        watched.came.clear()
        found = await self._read(ledger_id, None)
        if found is None or not found.value.is_closed or _is_another(found, watched.newest):
            return  # reported once a watch is set, too
        watched.newest = found
        watched.tell()
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVING_SECONDS):
                await watched.came.wait()


def _is_another(found: Found, before: Found) -> bool:
    """Return True if the ledger was deleted and made again under its id."""
    if found is None or before is None:
        return False
    return not may_be_one_life(found.identity.creation, before.identity.creation)


def high_orders(names: Iterable[str]) -> list[int]:
    """Return the high-order bits that these children of the 63-bit generator stand for. Any client may make such."""
    digits = [name.removeprefix(HIGH_ORDER) for name in names if name.startswith(HIGH_ORDER)]
    return [int(each[:_MOST_DIGITS]) for each in digits if each.isdecimal()]


class LedgerIdGenerator:
    """Ledger ids out of the numbers of sequential nodes, each given out once in the life of the cluster.

    31 bits: the number of an ephemeral node `ID-...` (in the root for the flat layout, else in `idgen`). 63
    bits (hierarchical and long hierarchical): once the former overflowed, a directory `idgen-long/HOB-<high order
    bits>` holds such nodes, and the id is `high << 32 | sequence number`.

    Invariants
    - A lost answer may waste an id, never give one out twice.
    - The existence of `idgen-long` is looked up once in each session; a client that saw it absent continues with 31
      bits until these overflow.
    - An id was looked up and numbered in one session. If that ended meanwhile, the number is wasted.

    Generates ids; `close` waits for the deletion of used nodes.
    """

    def __init__(self, tree: RetryingTree, root: str, cluster: TreeCluster) -> None:
        self._tree = tree
        self._root = root
        self._cluster = cluster
        self._long_ids: bool | None = None
        self._looked_in = NO_SESSION
        """The session in which that was looked up."""
        self._deletes: set[asyncio.Task[None]] = set()

    async def generate(self, *, timeout: float | None = None) -> int:
        """A new id. `LedgerIdsExhausted`: this layout has none left. `MetadataDamaged`: a node is no generator's."""
        layout = await self._cluster.settled_layout(timeout=timeout)
        while True:
            session_id = self._tree.session_id
            found = await self._generate(layout, session_id, timeout)
            if self._tree.session_id == session_id:
                return found
            # The next session may be with another service, to which the metadata moved: then the look was at one, and
            # the number may be of a generator of the other that clients must not use any more.

    async def _generate(self, layout: LedgerLayout, session_id: int, timeout: float | None) -> int:
        """Return an id. It counts only if the session is still this one."""
        long_root = f"{self._root}/{paths.LONG_ID_GENERATION}"
        if self._looked_in == session_id and self._long_ids is not None:
            long_ids = self._long_ids
        else:
            long_ids = layout in LONG_LAYOUTS and await self._tree.exists(long_root, timeout=timeout) is not None
            self._long_ids, self._looked_in = long_ids, session_id
        if not long_ids:
            parent = self._root if layout is LedgerLayout.FLAT else f"{self._root}/{paths.ID_GENERATION}"
            number = await self._next(parent, timeout)
            if number is not None:
                return number
            if layout not in LONG_LAYOUTS:
                raise LedgerIdsExhausted(
                    f"the {layout.name.lower()} layout of {self._root} has no ledger id left below 2^31-1"
                )
            await self._tree.ensure(long_root, open_to_all=True, timeout=timeout)
            self._long_ids, self._looked_in = True, session_id
        return await self._generate_long(long_root, timeout)

    async def close(self) -> None:
        """Let the deletions under way end."""
        if self._deletes:
            await asyncio.wait(self._deletes)

    async def _generate_long(self, long_root: str, timeout: float | None) -> int:
        minimum = 1
        while minimum <= LARGEST_HIGH_ORDER:
            high = max(minimum, await self._newest_directory(long_root, timeout))
            directory = f"{long_root}/{HIGH_ORDER}{high:010d}"
            await self._tree.ensure(directory, open_to_all=True, timeout=timeout)
            low = await self._next(directory, timeout)
            if low is not None:
                return high << 32 | low
            minimum = high + 1
        raise LedgerIdsExhausted(f"{long_root} has no ledger id left below 2^63")

    async def _newest_directory(self, long_root: str, timeout: float | None) -> int:
        found = sorted(high_orders((await self._tree.children(long_root, timeout=timeout)).names))
        newest = found[-1] if found else 0
        if newest > LARGEST_HIGH_ORDER:
            raise MetadataDamaged(
                f"{long_root}/{HIGH_ORDER}{newest:010d} would give ledger ids above 2^63-1, which cannot exist:"
                " remove it"
            )
        for old in found[:-_KEPT_DIRECTORIES]:
            with suppress(MetadataError):
                await self._tree.delete(f"{long_root}/{HIGH_ORDER}{old:010d}", timeout=timeout)
        return newest

    async def _next(self, parent: str, timeout: float | None) -> int | None:
        """A number that is new below `parent`; None if they have overflowed."""
        prefix = f"{parent}/{paths.ID_PREFIX}"
        try:
            number, node = await self._tree.take_number(prefix, timeout=timeout)
        except MetadataNotFound:
            await self._cluster.require(timeout=timeout)
            await self._tree.ensure(parent, timeout=timeout)
            number, node = await self._tree.take_number(prefix, timeout=timeout)
        if node is not None:
            await self._delete_later(node)
        return number if 0 <= number < paths.SHORT_ID_LIMIT else None

    async def _delete_later(self, path: str) -> None:
        if len(self._deletes) >= _MAX_DELETES:
            await asyncio.wait(self._deletes, return_when=asyncio.FIRST_COMPLETED)
        task = asyncio.get_running_loop().create_task(self._delete(path))
        self._deletes.add(task)
        task.add_done_callback(self._deletes.discard)

    async def _delete(self, path: str) -> None:
        with suppress(MetadataError):  # what stays goes with the session
            await self._tree.delete(path)


class TreeLedgers:
    """Implements `LedgerStore`. `format_version`: the newest format that new ledgers are written in, 1 to 3."""

    def __init__(
        self, tree: RetryingTree, root: str, cluster: TreeCluster, format_version: int = CURRENT_FORMAT_VERSION
    ) -> None:
        self._format_version = format_version
        self._tree = tree
        self._root = root
        self._cluster = cluster
        self._ids = LedgerIdGenerator(tree, root, cluster)
        self._listing = LedgerListing(tree, root, cluster)
        self._watches = LedgerWatches(self._read_or_none)
        self._random = random.SystemRandom()
        self._decoding = Decoding()

    async def generate_id(self, *, timeout: float | None = None) -> int:
        return await self._ids.generate(timeout=timeout)

    async def create(self, metadata: LedgerMetadata, *, timeout: float | None = None) -> Versioned[LedgerMetadata]:
        if metadata.format_version > self._format_version:
            metadata = replace(metadata, format_version=self._format_version)
        # What is returned is what is stored: formats before 3 have no place for a token.
        token = self._random.randrange(MAX_LEDGER_ID) if metadata.format_version >= 3 else 0
        metadata = replace(metadata, creation_token=token)
        if not self._tree.keeps_times and metadata.ctime is None and metadata.format_version >= 2:
            metadata = replace(metadata, ctime=time.time_ns() // 1_000_000, store_ctime=True)
        path = await self._path(metadata.ledger_id, timeout)
        data = encode_ledger_metadata(metadata)
        while True:
            session_id = self._tree.session_id
            try:
                made = await self._tree.create(path, data, recognise=False, timeout=timeout)
            except MetadataNotFound:
                await self._create_parents(path, timeout)
            except MetadataExists as error:
                creation = await self._creation_of_ours(path, metadata, timeout)
                if creation is None:
                    raise MetadataExists(f"ledger {metadata.ledger_id} exists already") from error
                return Versioned(metadata, Identity(0, creation, session_id))
            else:
                return Versioned(metadata, Identity(0, made.creation, session_id))

    async def read(
        self, ledger_id: int, *, fresh: bool = False, timeout: float | None = None
    ) -> Versioned[LedgerMetadata]:
        if fresh:
            await self._tree.sync(await self._path(ledger_id, timeout), timeout=timeout)
        return await self._read(ledger_id, None, timeout)

    async def read_each(
        self, ledger_ids: Sequence[int], *, timeout: float | None = None
    ) -> list[Versioned[LedgerMetadata] | MetadataError | BadRequest]:
        places: list[str] = []
        refused: dict[int, BadRequest] = {}
        for ledger_id in ledger_ids:
            try:
                places.append(await self._path(ledger_id, timeout))
            except BadRequest as error:
                refused[ledger_id] = error
        session_id = self._tree.session_id
        nodes = await self._tree.get_each(places, timeout=timeout)
        if any(isinstance(node, MetadataNotFound) for node in nodes):
            await self._cluster.require(timeout=timeout)
        asked = [ledger_id for ledger_id in ledger_ids if ledger_id not in refused]
        found = {
            each: await self._decode_or_error(each, node, session_id) for each, node in zip(asked, nodes, strict=True)
        }
        return [refused.get(ledger_id) or found[ledger_id] for ledger_id in ledger_ids]

    async def write(
        self,
        metadata: LedgerMetadata,
        replaced: Identity,
        *,
        session_id: int | None = None,
        timeout: float | None = None,
    ) -> Versioned[LedgerMetadata]:
        ledger_id = metadata.ledger_id
        path = await self._path(ledger_id, timeout)
        data = encode_ledger_metadata(metadata)
        try:
            written = await self._tree.set(path, data, replaced, session_id=session_id, timeout=timeout)
        except MetadataNotFound:
            raise await self._missing(ledger_id, timeout) from None
        except MetadataVersionConflict as error:
            raise _conflict(ledger_id, error) from error
        return Versioned(metadata, written)

    async def delete(self, ledger_id: int, *, timeout: float | None = None) -> None:
        await self._delete(ledger_id, None, timeout)

    async def delete_this(self, stored: Versioned[LedgerMetadata], *, timeout: float | None = None) -> None:
        await self._delete(stored.value.ledger_id, stored.identity, timeout)

    async def _delete(self, ledger_id: int, this: Identity | None, timeout: float | None) -> None:
        path = await self._path(ledger_id, timeout)
        try:
            if this is None:
                await self._tree.delete(path, timeout=timeout)
            else:
                await self._tree.delete_this(path, this, timeout=timeout)
        except MetadataNotFound:
            await self._cluster.require(timeout=timeout)
            return
        except MetadataVersionConflict as error:
            raise _conflict(ledger_id, error) from error
        await self._prune_above(path, timeout)

    async def _prune_above(self, path: str, timeout: float | None) -> None:
        if not self._tree.removes_directories:
            return
        if await self._cluster.settled_layout(timeout=timeout) in LONG_LAYOUTS:
            with suppress(MetadataError):  # the ledger is gone, whatever becomes of its directories
                await self._prune(parent_of(path), timeout)

    def watch(self, ledger_id: int) -> Subscription[Versioned[LedgerMetadata] | None]:
        return self._watches.watch(ledger_id)

    def ranges(self, *, first: int | None = None, timeout: float | None = None) -> AsyncIterator[LedgerRange]:
        return self._listing.ranges(first=first, timeout=timeout)

    async def close(self) -> None:
        """Let background deletions end."""
        await self._ids.close()

    async def _path(self, ledger_id: int, timeout: float | None) -> str:
        layout = await self._cluster.settled_layout(timeout=timeout)
        try:
            return self._root + paths.ledger_path(layout, ledger_id)
        except ValueError as error:
            raise BadRequest(str(error)) from None

    async def _read(self, ledger_id: int, watch: Watch | None, timeout: float | None) -> Versioned[LedgerMetadata]:
        path = await self._path(ledger_id, timeout)
        session_id = self._tree.session_id
        try:
            node = await self._tree.get(path, watch=watch, timeout=timeout)
        except MetadataNotFound:
            raise await self._missing(ledger_id, timeout) from None
        return await self._decode(ledger_id, node, session_id)

    async def _decode(self, ledger_id: int, node: Node, session_id: int) -> Versioned[LedgerMetadata]:
        data, ctime_ms = node.data, node.stat.ctime_ms
        metadata = await self._decoding.run(
            lambda: decode_ledger_metadata(ledger_id, data, ctime_ms), decoding_cost(data)
        )
        return Versioned(metadata, node.stat.identity(session_id))

    async def _decode_or_error(
        self, ledger_id: int, node: Node | MetadataError, session_id: int
    ) -> Versioned[LedgerMetadata] | MetadataError:
        if isinstance(node, MetadataNotFound):
            return _no_such(ledger_id)
        if isinstance(node, MetadataError):
            return node
        try:
            return await self._decode(ledger_id, node, session_id)
        except MetadataDamaged as error:
            return error

    async def _read_or_none(self, ledger_id: int, watch: Watch | None) -> Versioned[LedgerMetadata] | None:
        try:
            return await self._read(ledger_id, watch, None)
        except MetadataNotFound:
            return None

    async def _missing(self, ledger_id: int, timeout: float | None) -> MetadataNotFound:
        """The error for a ledger whose node is not there. Raises as `TreeCluster.require`."""
        await self._cluster.require(timeout=timeout)
        return _no_such(ledger_id)

    async def _creation_of_ours(self, path: str, metadata: LedgerMetadata, timeout: float | None) -> int | None:
        """Return the creation of our node; None: another client made this ledger, or that is unknown."""
        if metadata.format_version < 3:
            return None
        try:
            node = await self._tree.get(path, timeout=timeout)
            found = (await self._decode(metadata.ledger_id, node, NO_SESSION)).value
        except (MetadataNotFound, MetadataDamaged):
            return None
        is_ours = found.format_version >= 3 and found.creation_token == metadata.creation_token
        return node.stat.creation if is_ours else None

    async def _create_parents(self, path: str, timeout: float | None) -> None:
        await self._cluster.require(timeout=timeout)
        names = path.removeprefix(self._root).split("/")[1:-1]
        for depth in range(1, len(names) + 1):
            try:
                await self._tree.ensure("/".join((self._root, *names[:depth])), timeout=timeout)
            except MetadataNotFound:
                return  # pruned under our hands: the caller tries again

    async def _prune(self, path: str, timeout: float | None) -> None:
        session_id = self._tree.session_id  # another service may leave its directories
        while path != self._root:
            stat = await self._tree.exists(path, timeout=timeout)
            if stat is None or stat.children > 0:
                return
            await self._tree.delete(path, session_id=session_id, timeout=timeout)
            path = parent_of(path)


def _conflict(ledger_id: int, error: MetadataVersionConflict) -> MetadataVersionConflict:
    if isinstance(error, MetadataReplaced):
        return MetadataReplaced(f"ledger {ledger_id} was deleted: a different ledger now has this id")
    return MetadataVersionConflict(f"the metadata of ledger {ledger_id} were changed by another client")


def _no_such(ledger_id: int) -> MetadataNotFound:
    return MetadataNotFound(f"ledger {ledger_id} does not exist")
