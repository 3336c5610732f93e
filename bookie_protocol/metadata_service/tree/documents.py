"""The stores of a metadata service that are little more than their paths.

These are cookies, the nodes `<root>/cookies/<bookie id>`, records, the nodes `<root>/podkeeper/<kind>/<name>`, and
Pulsar's managed ledgers, below a path of their own. In all of them `timeout` is in seconds for each request; None means
the default of the service.

Threads: event loop only.

Source: docs/internals/metadata-layout.md, sections 5.1 and 5.3.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final

from bookie_protocol.errors import BadRequest, MetadataExists, MetadataNotFound
from bookie_protocol.metadata_service.managed_ledgers import check_name as check_managed
from bookie_protocol.metadata_service.managed_ledgers import check_root
from bookie_protocol.metadata_service.subscription import Subscription
from bookie_protocol.metadata_service.tree import paths
from bookie_protocol.metadata_service.tree.cluster import TreeCluster
from bookie_protocol.metadata_service.tree.retrying import RetryingTree
from bookie_protocol.metadata_service.tree.watching import changes
from bookie_protocol.versioned import Identity, Versioned

_KIND: Final = re.compile(r"[a-z][a-z0-9\-]{0,63}")
_MAX_NAME: Final = 512


class TreeManagedLedgers:
    """The nodes of managed ledgers. Names are as Pulsar stores them, each component URL-encoded:
    "tenant/namespace/persistent/topic", and below a topic its subscriptions."""

    def __init__(self, tree: RetryingTree, root: str) -> None:
        self._tree = tree
        self._root = check_root(root)

    async def read(self, name: str, *, timeout: float | None = None) -> Versioned[bytes]:
        """Return the bytes of a node; `timeout` in seconds for each request, None for the default."""
        path = self._path(name)
        await self._tree.sync(path, timeout=timeout)
        return await self._tree.read(path, timeout=timeout)

    async def children(self, name: str, *, timeout: float | None = None) -> tuple[str, ...]:
        """Return the names one level below, sorted; of "" those of the tenants. Empty if there is no such node."""
        path = self._path(name)
        await self._tree.sync(path, timeout=timeout)
        try:
            return tuple(sorted((await self._tree.children(path, timeout=timeout)).names))
        except MetadataNotFound:
            return ()

    def _path(self, name: str) -> str:
        return f"{self._root}/{check_managed(name)}" if name else self._root


class _Documents:
    """Versioned nodes below one parent. `parents`: made, from the uppermost on, with the first node.

    `update` and `delete_this` refuse a node that was changed (`MetadataVersionConflict`), is another one of that name
    (`MetadataReplaced`) or is not there (`MetadataNotFound`).
    """

    def __init__(self, tree: RetryingTree, cluster: TreeCluster, *parents: str) -> None:
        self._tree = tree
        self._cluster = cluster
        self._parents = parents
        self._parent = parents[-1]

    async def create(self, name: str, data: bytes, *, timeout: float | None = None) -> Identity:
        """Store a first version. `MetadataExists` if there is a node of this name."""
        path = self._path(name)
        session_id = self._tree.session_id
        try:
            made = await self._tree.create(path, data, timeout=timeout)
        except MetadataNotFound:
            await self._cluster.require(timeout=timeout)
            await self._make_parents(timeout)
            made = await self._tree.create(path, data, timeout=timeout)
        return Identity(0, made.creation, session_id)

    async def _make_parents(self, timeout: float | None) -> None:
        for parent in self._parents:
            await self._tree.ensure(parent, timeout=timeout)

    async def update(self, name: str, data: bytes, this: Identity, /, *, timeout: float | None = None) -> Identity:
        """Replace this very version."""
        return await self._tree.set(self._path(name), data, this, timeout=timeout)

    async def delete(self, name: str, *, timeout: float | None = None) -> None:
        """Delete whatever bears the name. `MetadataNotFound`."""
        await self._tree.delete(self._path(name), timeout=timeout)

    async def delete_this(self, name: str, this: Identity, /, *, timeout: float | None = None) -> None:
        """Delete this very version, none of a later node of the name, in the session in which it was read or not at
        all (`SessionEnded`)."""
        await self._tree.delete_this(self._path(name), this, session_id=this.session_id, timeout=timeout)

    def _path(self, name: str) -> str:
        return f"{self._parent}/{name}"


class CookieStore(_Documents):
    """One cookie for each bookie id; the bytes are those of the `VERSION` files."""

    def __init__(self, tree: RetryingTree, root: str, cluster: TreeCluster) -> None:
        super().__init__(tree, cluster, f"{root}/{paths.COOKIES}")

    async def read(self, bookie_id: str, *, timeout: float | None = None) -> Versioned[bytes]:
        """Return a cookie. `MetadataNotFound` if there is none."""
        return await self._tree.read(self._path(bookie_id), timeout=timeout)


class RecordStore(_Documents):
    """The records of one kind. The node above all kinds says of which cluster they are (`records_instance_id`).

    `read` and `names` see everything that was written, by any client, before the call.
    """

    def __init__(self, tree: RetryingTree, root: str, cluster: TreeCluster, kind: str) -> None:
        top = f"{root}/{paths.PODKEEPER}"
        super().__init__(tree, cluster, top, f"{top}/{check_kind(kind)}")

    async def _make_parents(self, timeout: float | None) -> None:
        instance_id = await self._cluster.instance_id(timeout=timeout) or ""
        with suppress(MetadataExists):
            await self._tree.create(self._parents[0], instance_id.encode(), timeout=timeout)
        await super()._make_parents(timeout)

    async def read(self, name: str, *, timeout: float | None = None) -> Versioned[bytes]:
        """Return a record. `MetadataNotFound` if there is none."""
        path = self._path(name)
        await self._tree.sync(path, timeout=timeout)
        return await self._tree.read(path, timeout=timeout)

    async def overwrite(self, name: str, data: bytes, *, timeout: float | None = None) -> Identity:
        """Replace whatever record bears the name. `MetadataNotFound`."""
        return await self._tree.overwrite(self._path(name), data, timeout=timeout)

    async def names(self, *, timeout: float | None = None) -> frozenset[str]:
        """Return the names of all records of this kind."""
        await self._tree.sync(self._parent, timeout=timeout)
        try:
            return frozenset((await self._tree.children(self._parent, timeout=timeout)).names)
        except MetadataNotFound:
            await self._cluster.require(timeout=timeout)
            return frozenset()

    def watch(self, name: str) -> Subscription[Versioned[bytes] | None]:
        """Yield the record as it is now (None: there is none), then each newer version. Faults are ridden out."""
        path = self._path(name)
        return changes(
            lambda watch: self._cluster.watched(path, watch),
            lambda node: None if node is None else Versioned(node.data, node.stat.identity()),
        )

    def _path(self, name: str) -> str:
        return super()._path(check_name(name))


def check_kind(kind: str) -> str:
    """Return the kind, if it may be one; `BadRequest` otherwise."""
    if not _KIND.fullmatch(kind):
        raise BadRequest(
            f"{kind[:100]!r} is not a kind of records: lower-case letters, digits and hyphens, a letter first"
        )
    return kind


def check_name(name: str) -> str:
    """Return the name, if a node may have it; `BadRequest` otherwise."""
    if not 0 < len(name) <= _MAX_NAME or "/" in name or name in (".", "..") or not name.isprintable():
        raise BadRequest(
            f"{name[:100]!r} is not a valid name of a record: 1 to {_MAX_NAME} printable characters without '/'"
        )
    return name
