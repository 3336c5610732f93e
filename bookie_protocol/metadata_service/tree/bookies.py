"""Bookie registrations: ephemeral nodes `<root>/available/<id>` and `<root>/available/readonly/<id>`.

Invariants
- A registration is made in the session in which it was asked for, or not at all: what was looked at before it may say
  nothing of a later session.
- A registration of another session is never overwritten or removed: it is waited for. The wait is one and a half
  time-outs, since ZooKeeper ends a session up to a tick after its time-out.
- A listing never mixes up "no such parent" with "no bookies": if the parent is missing, the cluster's root decides.
- A set's version grows over the lives of a cluster, and over those of the metadata service: one that was restored from
  a backup counts from an earlier number again, which a follower notices, as it asks for one set after the other.

Threads: event loop only.

Sources: docs/internals/metadata-layout.md, sections 4.1, 4.3 and 4.4.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Final

from bookie_protocol.errors import MetadataExists, MetadataNotFound
from bookie_protocol.metadata_service.interface import BookieGroup, BookieSet
from bookie_protocol.metadata_service.service_info import (
    BookieServiceInfo,
    decode_service_info,
    encode_service_info,
)
from bookie_protocol.metadata_service.subscription import Subscription
from bookie_protocol.metadata_service.tree import paths
from bookie_protocol.metadata_service.tree.cluster import TreeCluster
from bookie_protocol.metadata_service.tree.nodes import Children, Watch, parent_of
from bookie_protocol.metadata_service.tree.retrying import RetryingTree
from bookie_protocol.metadata_service.tree.watching import follow

_WAIT_FACTOR: Final = 1.5
_NO_PARENT: Final = -1
_TREE_VERSION_BITS: Final = 128


class BookieRegistry:
    """The registered bookies and their addresses. A registration lives as long as the session that made it."""

    def __init__(self, tree: RetryingTree, root: str, cluster: TreeCluster) -> None:
        self._tree = tree
        self._cluster = cluster
        available = f"{root}/{paths.AVAILABLE}"
        self._parents = {
            BookieGroup.WRITABLE: available,
            BookieGroup.READ_ONLY: f"{available}/{paths.READ_ONLY}",
            BookieGroup.ALL: f"{root}/{paths.COOKIES}",
        }
        self._racks = f"{parent_of(root).rstrip('/')}/{paths.PULSAR_BOOKIES}"
        self._last: dict[BookieGroup, BookieSet] = {}
        """Sets that were last given to a follower: one that starts again after an error was given it before."""
        self._turned_back: Counter[BookieGroup] = Counter()
        """Number of times that a follower was given less than before."""

    # --- our own registration -----------------------------------------------------------------------------

    async def register(
        self, bookie_id: str, group: BookieGroup, info: BookieServiceInfo, *, timeout: float | None = None
    ) -> None:
        """Register in WRITABLE or READ_ONLY.

        A registration of another session is waited for, one and a half times `timeout`; still there: `MetadataExists`.
        Our own is left as it is. The other group is not touched: the caller orders the two steps of a change.
        `SessionEnded`: the session of this call has.
        """
        session_id = self._tree.session_id
        path = self._path(bookie_id, group)
        data = encode_service_info(info)
        patience = _WAIT_FACTOR * (self._tree.session.expires_after if timeout is None else timeout)
        deadline = asyncio.get_running_loop().time() + patience
        while True:
            gone = asyncio.Event()
            stat = await self._tree.exists(path, watch=gone.set, timeout=timeout)
            if stat is None:
                if await self._create(path, data, group, session_id, timeout):
                    return
            elif stat.owner == self._tree.session_id:
                return
            else:
                await _wait_until(gone, deadline)
            if asyncio.get_running_loop().time() >= deadline:
                raise MetadataExists(
                    f"another session still holds the {group.value} registration of bookie {bookie_id} after "
                    f"{patience:g} s: stop the other process that uses this bookie id"
                )

    async def unregister(self, bookie_id: str, group: BookieGroup, *, timeout: float | None = None) -> None:
        """Remove our registration from WRITABLE or READ_ONLY; none is fine, a foreign one is left alone."""
        await self._tree.delete_own(self._path(bookie_id, group), self._tree.session_id, timeout=timeout)

    async def is_registered(self, bookie_id: str, group: BookieGroup, *, timeout: float | None = None) -> bool:
        """Return True if any session holds this registration."""
        return await self._tree.exists(self._path(bookie_id, group), timeout=timeout) is not None

    async def _create(self, path: str, data: bytes, group: BookieGroup, session_id: int, timeout: float | None) -> bool:
        try:
            await self._tree.create(path, data, ephemeral=True, session_id=session_id, timeout=timeout)
        except MetadataExists:
            return False
        except MetadataNotFound:
            await self._cluster.require(timeout=timeout)
            await self._tree.ensure(self._parents[BookieGroup.WRITABLE], timeout=timeout)
            if group is BookieGroup.READ_ONLY:
                await self._tree.ensure(self._parents[group], timeout=timeout)
            return False
        return True

    # --- everybody's --------------------------------------------------------------------------------------

    async def list(self, group: BookieGroup, *, timeout: float | None = None) -> BookieSet:
        """Return the members of a group. `MetadataNotFound` if the cluster was never initialised."""
        return self._dated(group, await self._list(group, None, timeout))

    def watch(self, group: BookieGroup) -> Subscription[BookieSet]:
        """Return the members now, then each newer set. Faults are ridden out; nothing older is ever delivered."""

        async def feed(publish: Callable[[BookieSet], None]) -> None:
            last: BookieSet | None = None

            def deliver(bookies: BookieSet) -> bool:
                nonlocal last
                if bookies != last:
                    before = last or self._last.get(group)
                    self._turned_back[group] += (
                        before is not None and before != bookies and bookies.version <= before.version
                    )
                    last = self._last[group] = bookies
                    publish(self._dated(group, bookies))
                return True

            await follow(lambda watch: self._list(group, watch, None), deliver)

        return Subscription(feed)

    async def service_info(self, bookie_id: str, *, timeout: float | None = None) -> BookieServiceInfo:
        # the writable node a second time: between the two looks the bookie may have turned writable
        """Return the published properties of a bookie: of its writable registration, else of its read-only one.

        `MetadataNotFound`: it is not registered. `MetadataDamaged`: registered, but unreadable.
        """
        for group in (BookieGroup.WRITABLE, BookieGroup.READ_ONLY, BookieGroup.WRITABLE):
            try:
                node = await self._tree.get(self._path(bookie_id, group), timeout=timeout)
            except MetadataNotFound:
                continue
            return decode_service_info(bookie_id, node.data)
        raise MetadataNotFound(f"bookie {bookie_id} is not registered")

    async def rack_assignments(self, *, timeout: float | None = None) -> bytes:
        """Return the rack configuration of Apache Pulsar, in the node `bookies` beside the root; empty if there is
        none."""
        try:
            return (await self._tree.get(self._racks, timeout=timeout)).data
        except MetadataNotFound:
            return b""

    def _dated(self, group: BookieGroup, listed: BookieSet) -> BookieSet:
        return BookieSet(listed.bookies, listed.version + (self._turned_back[group] << _TREE_VERSION_BITS))

    async def _list(self, group: BookieGroup, watch: Watch | None, timeout: float | None) -> BookieSet:
        parent = self._parents[group]
        while True:
            try:
                children = await self._tree.children(parent, watch=watch, timeout=timeout)
                return _bookie_set(group, children)
            except MetadataNotFound:
                await self._cluster.require(timeout=timeout)
            if await self._tree.exists(parent, watch=watch, timeout=timeout) is None:
                return BookieSet(frozenset(), _NO_PARENT)

    def _path(self, bookie_id: str, group: BookieGroup) -> str:
        if group is BookieGroup.ALL:
            raise ValueError("a registration is WRITABLE or READ_ONLY")
        return f"{self._parents[group]}/{bookie_id}"


def _bookie_set(group: BookieGroup, children: Children) -> BookieSet:
    names = frozenset(children.names)
    if group is BookieGroup.WRITABLE:
        names -= {paths.READ_ONLY}
    return BookieSet(names, children.version)


async def _wait_until(event: asyncio.Event, deadline: float) -> None:
    try:
        async with asyncio.timeout_at(deadline):
            await event.wait()
    except TimeoutError:
        return
