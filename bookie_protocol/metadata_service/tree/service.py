"""The metadata service over a tree of nodes: all its stores together.

Threads: event loop only.

Source: docs/internals/metadata-layout.md, section 2 ("Side effect of merely connecting").
"""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Self

from bookie_protocol.errors import MetadataNotFound
from bookie_protocol.metadata_service.interface import LedgerLayout, Session
from bookie_protocol.metadata_service.managed_ledgers import ROOT
from bookie_protocol.metadata_service.options import MetadataServiceOptions
from bookie_protocol.metadata_service.tree import paths
from bookie_protocol.metadata_service.tree.bookies import BookieRegistry
from bookie_protocol.metadata_service.tree.documents import CookieStore, RecordStore, TreeManagedLedgers
from bookie_protocol.metadata_service.tree.ledgers import LedgerStore
from bookie_protocol.metadata_service.tree.life_cycle import ClusterMetadata
from bookie_protocol.metadata_service.tree.nodes import NodeTree
from bookie_protocol.metadata_service.tree.retrying import RetryingTree
from bookie_protocol.metadata_service.tree.under_replication.base import UnderReplicationBase
from bookie_protocol.metadata_service.tree.under_replication.election import AuditorElection
from bookie_protocol.metadata_service.tree.under_replication.manager import UnderReplication


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
        self.cookies = CookieStore(self.tree, root, self.cluster)
        self.ledgers = LedgerStore(self.tree, root, self.cluster, options.format_version)
        under_replication = UnderReplicationBase(self.tree, root, self.cluster)
        self.under_replication = UnderReplication(under_replication, random)
        self.auditor_election = AuditorElection(under_replication)

    def records(self, kind: str) -> RecordStore:
        """Podkeeper's own documents of a kind. `BadRequest` for a text that is no kind."""
        return RecordStore(self.tree, self.root, self.cluster, kind)

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
