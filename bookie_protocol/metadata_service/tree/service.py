"""A metadata service over a tree of nodes, with the stores that are little more than their paths.

These are cookies, the nodes `<root>/cookies/<bookie id>`, records, the nodes `<root>/podkeeper/<kind>/<name>`, and
Pulsar's managed ledgers, below a path of their own.

Threads: event loop only.

Source: docs/internals/metadata-layout.md, sections 2 ("Side effect of merely connecting"), 5.1 and 5.3.
"""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Self

from bookie_protocol.errors import MetadataExists, MetadataNotFound
from bookie_protocol.metadata_service.interface import (
    Identity,
    LedgerLayout,
    Session,
    Versioned,
)
from bookie_protocol.metadata_service.managed_ledgers import ROOT, check_name, check_root
from bookie_protocol.metadata_service.options import MetadataServiceOptions
from bookie_protocol.metadata_service.records import check_kind
from bookie_protocol.metadata_service.records import check_name as check_record
from bookie_protocol.metadata_service.subscription import Subscription
from bookie_protocol.metadata_service.tree import paths
from bookie_protocol.metadata_service.tree.bookies import BookieRegistry
from bookie_protocol.metadata_service.tree.cluster import TreeCluster
from bookie_protocol.metadata_service.tree.ledgers import TreeLedgers
from bookie_protocol.metadata_service.tree.life_cycle import ClusterMetadata
from bookie_protocol.metadata_service.tree.nodes import NodeTree
from bookie_protocol.metadata_service.tree.retrying import RetryingTree
from bookie_protocol.metadata_service.tree.under_replication.base import UnderReplicationBase
from bookie_protocol.metadata_service.tree.under_replication.election import AuditorElection
from bookie_protocol.metadata_service.tree.under_replication.manager import UnderReplication
from bookie_protocol.metadata_service.tree.watching import changes


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
        return f"{self._root}/{check_name(name)}" if name else self._root


class _Documents:
    """Versioned nodes below one parent. `parents`: made, from the uppermost on, with the first node."""

    def __init__(self, tree: RetryingTree, cluster: TreeCluster, *parents: str) -> None:
        self._tree = tree
        self._cluster = cluster
        self._parents = parents
        self._parent = parents[-1]

    async def create(self, name: str, data: bytes, *, timeout: float | None = None) -> Identity:
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
        return await self._tree.set(self._path(name), data, this, timeout=timeout)

    async def delete(self, name: str, *, timeout: float | None = None) -> None:
        await self._tree.delete(self._path(name), timeout=timeout)

    async def delete_this(self, name: str, this: Identity, /, *, timeout: float | None = None) -> None:
        await self._tree.delete_this(self._path(name), this, session_id=this.session_id, timeout=timeout)

    def _path(self, name: str) -> str:
        return f"{self._parent}/{name}"


class TreeCookies(_Documents):
    """Implements `CookieStore`."""

    def __init__(self, tree: RetryingTree, root: str, cluster: TreeCluster) -> None:
        super().__init__(tree, cluster, f"{root}/{paths.COOKIES}")

    async def read(self, bookie_id: str, *, timeout: float | None = None) -> Versioned[bytes]:
        return await self._tree.read(self._path(bookie_id), timeout=timeout)


class TreeRecords(_Documents):
    """Implements `RecordStore`. The node above all kinds says of which cluster they are (`records_instance_id`)."""

    def __init__(self, tree: RetryingTree, root: str, cluster: TreeCluster, kind: str) -> None:
        top = f"{root}/{paths.PODKEEPER}"
        super().__init__(tree, cluster, top, f"{top}/{check_kind(kind)}")

    async def _make_parents(self, timeout: float | None) -> None:
        instance_id = await self._cluster.instance_id(timeout=timeout) or ""
        with suppress(MetadataExists):
            await self._tree.create(self._parents[0], instance_id.encode(), timeout=timeout)
        await super()._make_parents(timeout)

    async def read(self, name: str, *, timeout: float | None = None) -> Versioned[bytes]:
        """Return the bytes of a node; `timeout` in seconds for each request, None for the default."""
        path = self._path(name)
        await self._tree.sync(path, timeout=timeout)
        return await self._tree.read(path, timeout=timeout)

    async def overwrite(self, name: str, data: bytes, *, timeout: float | None = None) -> Identity:
        return await self._tree.overwrite(self._path(name), data, timeout=timeout)

    async def names(self, *, timeout: float | None = None) -> frozenset[str]:
        await self._tree.sync(self._parent, timeout=timeout)
        try:
            return frozenset((await self._tree.children(self._parent, timeout=timeout)).names)
        except MetadataNotFound:
            await self._cluster.require(timeout=timeout)
            return frozenset()

    def watch(self, name: str) -> Subscription[Versioned[bytes] | None]:
        path = self._path(name)
        return changes(
            lambda watch: self._cluster.watched(path, watch),
            lambda node: None if node is None else Versioned(node.data, node.stat.identity()),
        )

    def _path(self, name: str) -> str:
        return super()._path(check_record(name))


class MetadataService:
    """An open metadata service below `root`; owns the tree and closes it. `random`: a simulation passes its own.

    `bookie_protocol.metadata_service.uri.open_metadata_service` opens one.
    """

    def __init__(
        self,
        tree: NodeTree,
        root: str,
        layout: LedgerLayout | None,
        options: MetadataServiceOptions | None = None,
        random: Random | None = None,
    ) -> None:
        options = options or MetadataServiceOptions()
        self.root = root
        self.tree = RetryingTree(tree, options.requests_per_second, options.max_node_bytes)
        self.cluster = ClusterMetadata(self.tree, root, layout)
        self.bookies = BookieRegistry(self.tree, root, self.cluster)
        self.cookies = TreeCookies(self.tree, root, self.cluster)
        self.ledgers = TreeLedgers(self.tree, root, self.cluster, options.format_version)
        under_replication = UnderReplicationBase(self.tree, root, self.cluster)
        self.under_replication = UnderReplication(under_replication, random)
        self.auditor_election = AuditorElection(under_replication)

    def records(self, kind: str) -> TreeRecords:
        """Podkeeper's own documents of a kind. `BadRequest` for a text that is no kind."""
        return TreeRecords(self.tree, self.root, self.cluster, kind)

    def managed_ledgers(self, root: str = ROOT) -> TreeManagedLedgers:
        """Apache Pulsar's managed ledgers, where Pulsar uses this metadata service too. `BadRequest` for a root that
        is no path."""
        return TreeManagedLedgers(self.tree, root)

    @property
    def session(self) -> Session:
        return self.tree.session

    async def open(self) -> Self:
        """Prepare and return the service, as every driver does after connecting. If that fails, close it."""
        try:
            await self.prepare()
        except BaseException:
            await self.close()
            raise
        return self

    async def prepare(self) -> None:
        """Settle the layout and make the read-only parent.

        The cluster need not exist yet. Raises `InvalidConfiguration` if the URI's layout is not the stored one,
        `MetadataUnavailable`, `MetadataDamaged`.
        """
        with suppress(MetadataNotFound):
            await self.cluster.settled_layout()
            read_only = f"{self.root}/{paths.AVAILABLE}/{paths.READ_ONLY}"
            # A migration may hold up writes, and an existing node needs none.
            if await self.tree.exists(read_only) is None:
                await self.tree.ensure(read_only)

    async def close(self) -> None:
        """End the session; registrations go with it. Calling it again is fine."""
        await self.ledgers.close()
        await self.tree.close()
