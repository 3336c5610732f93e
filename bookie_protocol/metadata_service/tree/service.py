"""A metadata service over a tree of nodes.

Threads: event loop only.

Sources: reference metadata layout, section 2 ("Side effect of merely connecting").
"""

from __future__ import annotations

from contextlib import suppress

from bookie_protocol.errors import MetadataNotFound
from bookie_protocol.metadata_service.interface import LedgerLayout, Session
from bookie_protocol.metadata_service.tree import paths
from bookie_protocol.metadata_service.tree.bookies import TreeBookies
from bookie_protocol.metadata_service.tree.cluster import TreeCluster
from bookie_protocol.metadata_service.tree.cookies import TreeCookies
from bookie_protocol.metadata_service.tree.ledgers import TreeLedgers
from bookie_protocol.metadata_service.tree.nodes import NodeTree
from bookie_protocol.metadata_service.tree.retrying import RetryingTree


class TreeMetadataService:
    """Implements `MetadataService` below `root`; owns the tree and closes it."""

    def __init__(self, tree: NodeTree, root: str, layout: LedgerLayout | None) -> None:
        self.root = root
        self.tree = RetryingTree(tree)
        self.cluster = TreeCluster(self.tree, root, layout)
        self.bookies = TreeBookies(self.tree, root, self.cluster)
        self.cookies = TreeCookies(self.tree, root, self.cluster)
        self.ledgers = TreeLedgers(self.tree, root, self.cluster)

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
