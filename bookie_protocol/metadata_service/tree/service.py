"""A metadata service over a tree of nodes.

Threads: event loop only.

Sources: reference metadata layout, section 2 ("Side effect of merely connecting").
"""

from __future__ import annotations

from contextlib import suppress
from random import Random

from bookie_protocol.errors import MetadataNotFound
from bookie_protocol.metadata_service.interface import LedgerLayout, Session
from bookie_protocol.metadata_service.managed_ledgers import ROOT
from bookie_protocol.metadata_service.options import MetadataServiceOptions
from bookie_protocol.metadata_service.tree import paths
from bookie_protocol.metadata_service.tree.bookies import TreeBookies
from bookie_protocol.metadata_service.tree.cookies import TreeCookies
from bookie_protocol.metadata_service.tree.ledgers import TreeLedgers
from bookie_protocol.metadata_service.tree.life_cycle import TreeClusterLifeCycle
from bookie_protocol.metadata_service.tree.managed_ledgers import TreeManagedLedgers
from bookie_protocol.metadata_service.tree.nodes import NodeTree
from bookie_protocol.metadata_service.tree.records import TreeRecords
from bookie_protocol.metadata_service.tree.retrying import RetryingTree
from bookie_protocol.metadata_service.tree.under_replication.base import UnderReplicationBase
from bookie_protocol.metadata_service.tree.under_replication.election import TreeAuditorElection
from bookie_protocol.metadata_service.tree.under_replication.manager import TreeUnderReplication


class TreeMetadataService:
    """Implements `MetadataService` below `root`; owns the tree and closes it. `random`: a simulation passes its own."""

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
        self.cluster = TreeClusterLifeCycle(self.tree, root, layout)
        self.bookies = TreeBookies(self.tree, root, self.cluster)
        self.cookies = TreeCookies(self.tree, root, self.cluster)
        self.ledgers = TreeLedgers(self.tree, root, self.cluster, options.format_version)
        under_replication = UnderReplicationBase(self.tree, root, self.cluster)
        self.under_replication = TreeUnderReplication(under_replication, random)
        self.auditor_election = TreeAuditorElection(under_replication)

    def records(self, kind: str) -> TreeRecords:
        return TreeRecords(self.tree, self.root, self.cluster, kind)

    def managed_ledgers(self, root: str = ROOT) -> TreeManagedLedgers:
        return TreeManagedLedgers(self.tree, root)

    @property
    def session(self) -> Session:
        return self.tree.session

    async def prepare(self) -> None:
        """What every driver does after connecting: settle the layout, and see to the read-only parent.

        A cluster that does not exist yet is fine. Raises `InvalidConfiguration` if the URI's layout is not
        the stored one, `MetadataUnavailable`, `MetadataDamaged`.
        """
        with suppress(MetadataNotFound):
            await self.cluster.settled_layout()
            await self.tree.ensure(f"{self.root}/{paths.AVAILABLE}/{paths.READ_ONLY}")

    async def close(self) -> None:
        await self.ledgers.close()
        await self.tree.close()
